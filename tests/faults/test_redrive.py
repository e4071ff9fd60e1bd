"""Dead letters come back: once each, judged as their batch was, whatever happens on the way."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from conftest import Lab, good_values
from support.lake import load_with_history

from faults.auditor import fingerprint
from faults.batches import Batches, EventfulEngine, ResultMessage
from faults.judges import assert_exactly_once
from frazil.errors import ForeignRollbackError, QualityFailedError, StageStaleError
from frazil.failpoints import FAILPOINTS
from frazil.ingest.dead_letters import read_dead_letter_index
from frazil.ledger.authors import Author
from frazil.ledger.recovery_point import keys, walk_ancestors
from frazil.maintenance.compaction import compact_table
from frazil.messages import Message
from frazil.observability.dead_letter_report import report_dead_letters
from frazil.recovery.decisions import accept_gap
from frazil.recovery.halt_resolution import reingest
from frazil.recovery.messages import DeadLetterChoice, RedriveReport
from frazil.recovery.redrive import redrive_dead_letters
from frazil.workspace import Workspace

pytestmark = pytest.mark.stack
STRICT = {"id": "long!", "name": "string!", "amount": "double"}
MENDED = {**STRICT, "name": "string"}
LINES = [name for name in FAILPOINTS if name.startswith("redrive.")]


def nameless_values(count: int, start: int = 1000) -> list[bytes | None]:
    """Make records without a name: bad where the stream file requires one."""
    return [json.dumps({"id": i, "amount": 1.5}).encode() for i in range(start, start + count)]


def write_columns(lab: Lab, columns: dict[str, str], **changes: object) -> None:
    """Return what a record must have; the table's own columns are optional."""
    lab.write_stream(value={"convert": "json", "columns": columns}, **changes)


def quarantine(batches: Batches) -> None:
    """Read twelve records without a name and a broken one, between good ones, as letters."""
    lab = batches.lab
    write_columns(lab, MENDED, batch={"max_records": 1000})
    lab.create_topic()
    lab.produce(good_values(4))
    batches.publish()
    write_columns(lab, STRICT)
    lab.produce([*good_values(7), *nameless_values(12), b"no json", *good_values(9)])
    batches.publish()


def redrive(work: Workspace, **chosen: object) -> RedriveReport:
    """Bring letters back in this process."""
    choice = {"stream": work.stream.stream, "dry_run": False, **chosen}
    return redrive_dead_letters(work, DeadLetterChoice.model_validate(choice))


def count_rows(batches: Batches) -> int:
    """Count what anybody can see."""
    return sum(len(offsets) for offsets in batches.places().values())


def count_marked(batches: Batches) -> int:
    """Count the letters that say what resolved them."""
    work = batches.open()
    letters = work.store.load(work.stream.dead_letters_table)
    marks = read_dead_letter_index(letters, work.stream.stream, ()).rows["resolved_by"]
    return len(marks) - marks.null_count


@pytest.mark.core
def test_mended_letters_come_back_once_and_the_rest_stay_letters(batches: Batches) -> None:
    lab = batches.lab
    quarantine(batches)
    point = batches.next_offsets
    write_columns(lab, MENDED)

    answer = redrive(batches.open())
    again = redrive(batches.open())

    assert (answer.dead_letters, answer.rows, answer.failing) == (13, 12, {"malformed_json": 1})
    assert (again.dead_letters, again.rows, again.redrives, again.marked) == (1, 0, (), 0)
    assert (count_rows(batches), count_marked(batches)) == (32, 12)
    assert batches.next_offsets == point
    assert_exactly_once(lab)


@pytest.mark.parametrize(
    ("again", "rows", "redrives"),
    [(b"no json", 2, 1), (b'{"id": 1}', 3, 2)],
    ids=["what stays a letter there", "what comes back there, too"],
)
def test_letters_of_a_topic_that_was_created_again_come_back_beside_new_ones(
    batches: Batches, again: bytes, rows: int, redrives: int
) -> None:
    lab = batches.lab
    lab.create_topic(partitions=1)
    lab.produce(good_values(1), partitions=1)
    batches.publish()
    write_columns(lab, STRICT)
    lab.produce([*good_values(2), b'{"id": 7}', *good_values(3), b'{"id": 8}'], partitions=1)
    batches.publish()
    admin = lab.admin
    admin.delete_topics([lab.topic])[lab.topic].result(15)
    lab.create_topic(partitions=1)
    lab.produce([*good_values(3), again, *good_values(1)], partitions=1)
    accept_gap(batches.open(), Author("tests@example.org", "the topic was created again"))
    batches.publish()
    counted = report_dead_letters(batches.open()).open
    assert_exactly_once(lab)
    write_columns(lab, MENDED)

    answer = redrive(batches.open())

    assert (counted, answer.dead_letters) == (3, 3)
    assert (answer.rows, len(answer.redrives)) == (rows, redrives)
    assert report_dead_letters(batches.open()).open == 3 - rows
    assert (count_rows(batches), count_marked(batches)) == (10 + rows, rows)
    assert_exactly_once(lab)


def test_many_letters_come_back_in_several_snapshots(
    batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine(batches)
    write_columns(batches.lab, MENDED)
    monkeypatch.setattr("frazil.recovery.redrive_rules.MAX_DEAD_LETTERS", 5)

    answer = redrive(batches.open())

    assert [redriven.rows_written for redriven in answer.redrives] == [5, 5, 2]
    assert (count_rows(batches), count_marked(batches)) == (32, 12)
    assert_exactly_once(batches.lab)


def test_a_dry_run_says_what_would_come_back_and_writes_nothing(batches: Batches) -> None:
    lab = batches.lab
    quarantine(batches)
    write_columns(lab, MENDED)
    before = fingerprint(batches.table), batches.table.metadata_location

    run = lab.frazil("replay-dead-letters", lab.stream)

    assert run.code == 0, run.err
    assert "12 of 13 dead letters would be restored" in run.out
    assert "still failing: 1 malformed_json" in run.out
    answer = redrive(batches.open(), reasons=["required_missing"], dry_run=True)
    assert (answer.dead_letters, answer.rows, answer.failing) == (12, 12, {})
    for strange in (("--offsets", "nowhere:0:0-9"), ("--schema-id", "7")):
        refused = lab.frazil("replay-dead-letters", lab.stream, *strange, "--no-dry-run")
        assert refused.code == 1
        assert "never read nowhere:0" in refused.err or "dead letters: none" in refused.err
    assert (fingerprint(batches.table), batches.table.metadata_location) == before


def test_the_questions_know_what_came_back(batches: Batches) -> None:
    lab = batches.lab
    quarantine(batches)
    write_columns(lab, MENDED)
    chosen = f"{lab.topic}:0:0-9"

    answer = redrive(batches.open(), offsets=[chosen], reasons=["required_missing"])

    assert answer.rows == 3
    listed = lab.frazil("snapshots", lab.stream, "--json").json
    assert isinstance(listed, list)
    assert [each["kind"] for each in listed[:2]] == ["redrive", "ingest"]
    letters = lab.frazil("dead-letters", lab.stream, "--json").json
    assert isinstance(letters, dict)
    assert letters["resolved"] == answer.rows
    assert letters["open"] == 13 - answer.rows
    status = lab.frazil("status", lab.stream, "--json").json
    assert isinstance(status, list)
    assert status[0]["newest_redrive_at"] > status[0]["newest_ingest_at"]
    offset = next(iter(batches_redriven(batches)))
    place = ("--partition", "0", "--offset", str(offset), "--json")
    found = lab.frazil("where", lab.stream, *place).json
    assert isinstance(found, dict)
    assert (found["kind"], found["snapshot_id"]) == ("redrive", answer.redrives[0].snapshot_id)


def batches_redriven(batches: Batches) -> list[int]:
    """List the offsets of partition 0 that the newest redrive lists."""
    from frazil.ledger.coordinates import parse_coordinates  # noqa: PLC0415 - one test

    _, history = load_with_history(batches.open().store, batches.lab.table)
    summary = next(e.summary for e in walk_ancestors(history) if keys.COORDINATES in e.summary)
    return parse_coordinates(summary[keys.COORDINATES])[batches.lab.topic, 0].tolist()


@pytest.mark.storm(3)
@pytest.mark.parametrize("line", LINES)
def test_a_kill_leaves_no_record_twice_and_the_next_run_ends_the_work(
    batches: Batches, line: str
) -> None:
    lab = batches.lab
    quarantine(batches)
    write_columns(lab, MENDED)
    command = ("replay-dead-letters", lab.stream, "--no-dry-run")

    killed = lab.frazil(*command, FRAZIL_FAILPOINT=line)
    assert killed.code == -9 or "SIGKILL" in killed.err, killed.out + killed.err
    assert_exactly_once(lab)
    again = lab.frazil(*command)

    assert again.code == 0, again.err
    assert (count_rows(batches), count_marked(batches)) == (32, 12)
    assert_exactly_once(lab)


@dataclass
class CountingEngine(EventfulEngine):
    """An engine that knows which jobs it ran."""

    jobs: list[str] = field(default_factory=list)

    def run_job(self, job: str, request: Message, result: type[ResultMessage]) -> ResultMessage:
        self.jobs.append(job)
        return super().run_job(job, request, result)


def eventful(
    batches: Batches, event: Callable[[], object], times: int = 1
) -> tuple[Workspace, list[str]]:
    """Let something happen each time that the letters were staged, this many times.

    Return the workspace and the names of the jobs that it runs.
    """
    work = batches.open()
    left = [event] * times

    def happen() -> None:
        if left:
            left.pop()()

    engine = CountingEngine(work.engine.remote, after=happen)
    work.__dict__["engine"] = engine
    return work, engine.jobs


def land_batch(batches: Batches) -> Callable[[], object]:
    """Return an event that publishes one more record."""

    def land() -> None:
        batches.lab.produce(good_values(1))
        batches.publish()

    return land


@pytest.mark.storm(1)
@pytest.mark.parametrize(("rival", "stages"), [("batch", 1), ("compaction", 1), ("redrive", 2)])
def test_what_lands_between_stage_and_commit_stays_and_only_changed_letters_are_staged_again(
    batches: Batches, rival: str, stages: int
) -> None:
    lab = batches.lab
    quarantine(batches)
    for _ in range(3):
        lab.produce(good_values(2))
        batches.publish()
    write_columns(lab, MENDED)
    first_four = [f"{lab.topic}:0:0-8"]
    events: dict[str, Callable[[], object]] = {
        "batch": land_batch(batches),
        "compaction": lambda: compact_table(batches.open()),
        "redrive": lambda: redrive(batches.open(), offsets=first_four),
    }
    work, jobs = eventful(batches, events[rival])

    redrive(work)

    assert jobs.count("redrive_letters") == stages
    assert count_rows(batches) == 38 + (rival == "batch")
    assert count_marked(batches) == 12
    assert list(batches.table.metadata.refs) == ["main"]
    assert_exactly_once(lab)


def test_a_redrive_whose_letters_are_taken_each_time_says_so_and_leaves_no_branch(
    batches: Batches,
) -> None:
    lab = batches.lab
    quarantine(batches)
    write_columns(lab, MENDED)
    left = [f"{lab.topic}:{p}:{start}-{start + 1}" for p in (0, 1) for start in range(20)]

    def take_one() -> None:
        while not redrive(batches.open(), offsets=[left.pop()], reasons=["required_missing"]).rows:
            pass

    with pytest.raises(StageStaleError, match="another writer was faster"):
        redrive(eventful(batches, take_one, times=3)[0])

    assert list(batches.table.metadata.refs) == ["main"]
    assert redrive(batches.open()).rows == 9
    assert_exactly_once(lab)


def test_a_rollback_by_others_halts_and_takes_rows_and_list_back_together(
    batches: Batches,
) -> None:
    quarantine(batches)
    write_columns(batches.lab, MENDED)
    head = batches.table.metadata.current_snapshot_id
    redrive(batches.open())

    batches.table.manage_snapshots().rollback_to_snapshot(head or 0).commit()
    with pytest.raises(ForeignRollbackError, match="restored dead letters are open again"):
        redrive(batches.open())
    reingest(batches.open(), Author("tests@example.org", "the rollback was intended"))
    assert count_rows(batches) == 20
    assert_exactly_once(batches.lab)
    again = redrive(batches.open())

    assert (again.rows, count_rows(batches), count_marked(batches)) == (12, 32, 12)
    assert_exactly_once(batches.lab)


def test_a_redrive_that_fails_its_suite_is_seen_by_nobody_and_blocks_no_batch(
    batches: Batches,
) -> None:
    lab = batches.lab
    quarantine(batches)
    suite = {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "name"}}
    (lab.folder / "expectations").mkdir()
    (lab.folder / "expectations" / "named.json").write_text(
        json.dumps({"name": "named", "expectations": [suite]})
    )
    write_columns(lab, MENDED, quality={"suite": "named"})
    before = fingerprint(batches.table)

    with pytest.raises(QualityFailedError, match="the dead letters stay open"):
        redrive(batches.open())

    assert fingerprint(batches.table) == before
    lab.produce(good_values(2))
    batches.publish()
    assert_exactly_once(lab)
