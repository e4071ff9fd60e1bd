"""An erasure takes exactly what has the key, says so, and leaves every audit whole."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, ServerError
from pyiceberg.table import FileScanTask
from requests.exceptions import ReadTimeout
from support.lake import Lake, Molds, append, make_stream
from support.log_lake import LogInMemory, Pipeline, Records, coordinate
from support.scripted_catalog import (
    Answer,
    ScriptedCatalog,
    honest,
    landed_then,
    overtaken_by,
    refused,
)

from frazil.errors import ConfigurationError
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import ensure_dead_letters_table, read_dead_letter_index
from frazil.ledger.authors import Author
from frazil.ledger.history import trace_steps
from frazil.ledger.recovery_point import keys
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import Erased, ErasureRequest
from frazil.observability.status import locate_offset
from frazil.observability.timeline import derive_events
from frazil.workspace import Workspace


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    """Begin a stream whose key is a column, in a partitioned table."""
    table = {"name": "demo.orders", "partition_by": ["name"]}
    stream = make_stream(table=table, key={"convert": "string", "column": "customer"})
    with molds.begin(stream) as lake:
        yield lake


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait no ten seconds for a broker that is not there."""
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.1)


@pytest.fixture
def pipeline(lake: Lake, molds: Molds) -> Pipeline:
    """Fill it from a log: ten records and a bad one."""
    return Pipeline(lake, molds.cast(lake, fill))


def fill(lake: Lake) -> LogInMemory:
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    pipeline = Pipeline(lake, LogInMemory())
    pipeline.log.produce(0, *range(10))
    pipeline.ingest(letters=[(0, 4)])
    pipeline.log.produce(1, *range(5))
    pipeline.ingest()
    return pipeline.log


def run(work: Workspace, *texts: str, run_id: str = "run-1") -> Erased:
    """Erase for a person."""
    given = Workspace(work.stream, work.directory, run_id)
    request = ErasureRequest(
        stream="orders", keys=texts, by="jane@example.org", reason="request 12", dry_run=False
    )
    return erase(given, plan_erasure(given, request), request)


def test_rows_with_the_key_go_and_the_ledger_lists_them(
    pipeline: Pipeline, work: Workspace
) -> None:
    point = pipeline.lake.point

    done = run(work, "id=3", "id=9")

    summary = pipeline.lake.history.entries[done.snapshot_ids[0]].summary
    assert (done.outcome, done.rows, done.dead_letters) == ("ERASED", 3, 0)
    assert summary[keys.KIND] == "erase"
    assert summary[keys.COORDINATES] == '{"orders":{"0":[3,9],"1":[3]}}'
    assert (summary[keys.BY], summary[keys.REASON]) == ("jane@example.org", "request 12")
    assert pipeline.lake.point == point
    answer = pipeline.audit()
    assert (answer.findings, answer.counts.rows) == ((), 11)
    assert "3 rows erased or expired; 1 erasure" in answer.facts_line


def test_an_erasure_of_nothing_commits_nothing(pipeline: Pipeline, work: Workspace) -> None:
    before = pipeline.lake.history.head

    done = run(work, "id=77")

    assert (done.outcome, done.snapshot_ids) == ("NOTHING", ())
    assert pipeline.lake.history.head == before


@pytest.mark.usefixtures("pipeline")
def test_the_same_run_again_changes_nothing(work: Workspace) -> None:
    first = run(work, "id=3")

    again = run(work, "id=3")

    assert again.snapshot_ids == first.snapshot_ids
    assert run(work, "id=3", run_id="run-2").outcome == "NOTHING"


@pytest.mark.parametrize(
    "answer",
    [
        landed_then(CommitFailedException("409")),
        landed_then(ServerError("502")),
        landed_then(ReadTimeout()),
        refused(CommitFailedException("409")),
        refused(ServerError("502")),
    ],
)
def test_whatever_the_catalog_answers_an_erasure_lands_once(
    pipeline: Pipeline, work: Workspace, answer: Answer
) -> None:
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    request = ErasureRequest(stream="orders", keys=("id=3",), by="j", reason="r", dry_run=False)
    planned = plan_erasure(work, request)
    catalog.script = [answer]

    done = erase(work, planned, request)

    kinds = [e.summary.get(keys.KIND) for e in pipeline.lake.history.entries.values()]
    assert (done.rows, kinds.count(keys.ERASE)) == (2, 1)
    assert pipeline.audit().findings == ()


def test_a_batch_that_overtakes_an_erasure_keeps_its_rows(
    pipeline: Pipeline, work: Workspace
) -> None:
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    request = ErasureRequest(stream="orders", keys=("id=3",), by="j", reason="r", dry_run=False)
    planned = plan_erasure(work, request)
    pipeline.log.produce(1, 5, 6, 7)
    catalog.script = [overtaken_by(pipeline.ingest)]

    done = erase(work, planned, request)

    assert done.rows == 2
    answer = pipeline.audit()
    assert (answer.findings, answer.counts.rows) == ((), 15)


def append_letter(lake: Lake, attempt: str, offset: int, key: bytes | None) -> None:
    """Append a letter as an attempt that was never published leaves it."""
    letters = lake.store.load(lake.stream.dead_letters_table)
    kafka = {"topic": "orders", "partition": 0, "offset": offset, "key": key}
    row = {"attempt": attempt, "value": b"secret", "_kafka": kafka}
    letters.append(pa.Table.from_pylist([row], letters.schema().as_arrow()))


def count_letters(lake: Lake) -> int:
    """Count the letters that are there."""
    return lake.store.load(lake.stream.dead_letters_table).scan().to_arrow().num_rows


def count_open(lake: Lake) -> int:
    """Count the letters that a redrive would take."""
    letters = lake.store.load(lake.stream.dead_letters_table)
    return int(
        read_dead_letter_index(
            letters, "orders", trace_steps(lake.history, "orders")
        ).resolution.is_open.sum()
    )


def test_letters_of_the_raw_key_and_of_erased_rows_go_too(
    pipeline: Pipeline, work: Workspace
) -> None:
    lake = pipeline.lake
    append_letter(lake, "abandoned", 3, b"other")
    append_letter(lake, "abandoned", 4, b"alice")

    by_row = run(work, "id=3")
    by_key = run(work, "customer=alice", run_id="run-2")

    assert (by_row.rows, by_row.dead_letters) == (2, 1)
    assert (by_key.rows, by_key.dead_letters) == (0, 1)
    assert count_letters(lake) == 1
    assert pipeline.audit().findings == ()


@pytest.mark.parametrize("text", ["customer=", "_kafka.key="])
def test_an_empty_raw_key_is_a_key_and_not_that_of_all_records(
    pipeline: Pipeline, work: Workspace, text: str
) -> None:
    lake = pipeline.lake
    for offset, key in enumerate((b"", None, b"alice")):
        append_letter(lake, "abandoned", offset, key)
    row = {"id": 77, "customer": "", "_kafka": {**coordinate("orders", 1, 3), "key": b""}}
    lake.table.delete("_kafka.partition == 1 AND _kafka.offset == 3")
    append(lake.catalog, lake.table, [row])

    planned = plan_erasure(work, ErasureRequest(stream="orders", keys=(text,)))
    done = run(work, text)

    assert (planned.rows, planned.dead_letters) == (1, 1)
    assert (done.rows, done.dead_letters, count_letters(lake)) == (1, 1, 3)
    assert lake.table.scan().count() == 13


def test_a_letter_that_counts_may_go_and_its_batch_still_adds_up(
    pipeline: Pipeline, work: Workspace
) -> None:
    lake = pipeline.lake
    pipeline.log.produce(0, 10)
    pipeline.ingest(letters=[(0, 10)])
    letters = lake.store.load(lake.stream.dead_letters_table)
    letters.overwrite(keyed(letters.scan().to_arrow(), b"alice"))

    done = run(work, "_kafka.key=alice")

    assert (done.rows, done.dead_letters, count_letters(lake)) == (0, 2, 0)
    answer = pipeline.audit()
    assert (answer.findings, answer.counts.dead_letters) == ((), 0)


@pytest.mark.parametrize("answer", [landed_then(ReadTimeout()), refused(ReadTimeout())])
def test_letters_whose_commit_got_no_answer_are_counted_once(
    pipeline: Pipeline, work: Workspace, answer: Answer
) -> None:
    append_letter(pipeline.lake, "abandoned", 4, b"alice")
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    request = ErasureRequest(
        stream="orders", keys=("customer=alice",), by="j", reason="r", dry_run=False
    )
    planned = plan_erasure(work, request)
    rows_then_archive = [honest, honest]
    catalog.script = [*rows_then_archive, answer]

    done = erase(work, planned, request)

    assert catalog.script == []
    assert (done.dead_letters, count_letters(pipeline.lake)) == (1, 1)
    assert pipeline.audit().findings == ()


def test_a_letter_that_is_listed_is_open_no_more_though_it_has_not_left_yet(
    pipeline: Pipeline, work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = pipeline.lake
    letters = lake.store.load(lake.stream.dead_letters_table)
    letters.overwrite(keyed(letters.scan().to_arrow(), b"alice"))
    before = count_open(lake)

    def remove_nothing(_work: Workspace, view: TableView, _author: Author) -> tuple[int, TableView]:
        return 0, view

    monkeypatch.setattr("frazil.maintenance.erasure.remove_erased_dead_letters", remove_nothing)

    run(work, "_kafka.key=alice")

    assert (before, count_open(lake), count_letters(lake)) == (1, 0, 1)


@dataclass(frozen=True)
class Interrupted(Pipeline):
    """A batch whose letters are erased before the batch itself is published."""

    work: Workspace

    def append_letters(self, records: Records, attempt: str) -> None:
        for _, offset in records:
            append_letter(self.lake, attempt, offset, b"alice")
        assert run(self.work, "_kafka.key=alice").dead_letters == 1


def test_letters_that_go_before_their_batch_is_published_are_not_missed(
    pipeline: Pipeline, work: Workspace
) -> None:
    interrupted = Interrupted(pipeline.lake, pipeline.log, work)
    pipeline.log.produce(0, 10, 11)

    interrupted.ingest(letters=[(0, 11)])

    answer = pipeline.audit()
    assert (answer.findings, answer.counts.dead_letters) == ((), 1)


def keyed(rows: pa.Table, key: bytes) -> pa.Table:
    """Return every letter the same raw key."""
    return pa.Table.from_pylist(
        [
            {**row, "stream": "orders", "_kafka": {**row["_kafka"], "key": key}}
            for row in rows.to_pylist()
        ],
        rows.schema,
    )


def test_no_value_of_a_key_is_kept_anywhere(pipeline: Pipeline, work: Workspace) -> None:
    append_letter(pipeline.lake, "abandoned", 6, b"alice-4711")

    planned = plan_erasure(work, ErasureRequest(stream="orders", keys=("customer=alice-4711",)))
    done = run(work, "customer=alice-4711")

    lake = pipeline.lake
    events = list(derive_events(lake.history, "orders"))
    written = [e.summary for e in lake.history.entries.values()]
    letters = lake.store.load(lake.stream.dead_letters_table)
    written += [dict(s.summary.additional_properties) for s in letters.snapshots() if s.summary]
    archived = lake.store.load(keys.LEDGER_TABLE).scan().to_arrow().to_pylist()
    assert "alice" not in repr([written, archived, planned, done, events, lake.table.properties])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ((), "needs a key"),
        (("4711",), "key 1 of 1 is not COLUMN=VALUE"),
        (("id=",), "the value for id is empty"),
        (("=4711",), "key 1 of 1 is not COLUMN=VALUE"),
        (("id=4711x",), "a value for id is not a valid long"),
        (("id=99999999999999999999",), "a value for id is not a valid long"),
        (("id=4711.9",), "a value for id is not a valid long"),
        (("id=4_711",), "a value for id is not a valid long"),
        (("id=4e3",), "a value for id is not a valid long"),
        (("id=٣",), "a value for id is not a valid long"),
        (("customer_no=4711",), "what stands before the = of a key"),
        (("_kafka=4711",), "_kafka is not a column"),
        (("_kafka.headers.element.key=4711",), "_kafka.headers.element.key is not a column"),
    ],
)
def test_an_unclear_key_is_refused_without_repeating_it(
    pipeline: Pipeline, work: Workspace, texts: tuple[str, ...], message: str
) -> None:
    before = pipeline.lake.history.head

    with pytest.raises(ConfigurationError, match=message) as refusal:
        plan_erasure(work, ErasureRequest(stream="orders", keys=texts))
    assert "4711" not in str(refusal.value.facts).replace("customer_id=4711", "")
    assert pipeline.lake.history.head == before


def test_an_erasure_needs_a_name_and_a_reason(pipeline: Pipeline, work: Workspace) -> None:
    with pytest.raises(ConfigurationError, match="a name and a reason"):
        plan_erasure(work, ErasureRequest(stream="orders", keys=("id=3",), dry_run=False))
    assert pipeline.audit().findings == ()


def test_a_reason_that_repeats_a_key_is_refused(pipeline: Pipeline, work: Workspace) -> None:
    before = pipeline.lake.history.head

    with pytest.raises(ConfigurationError, match="contains a key") as refusal:
        plan_erasure(
            work,
            ErasureRequest(
                stream="orders",
                keys=("customer=alice",),
                by="jane",
                reason="alice asked",
                dry_run=False,
            ),
        )
    assert "alice" not in str(refusal.value)
    assert pipeline.lake.history.head == before


def test_a_dry_run_counts_and_writes_nothing(pipeline: Pipeline, work: Workspace) -> None:
    before = pipeline.lake.table.metadata_location

    planned = plan_erasure(work, ErasureRequest(stream="orders", keys=("id=3",)))

    assert (planned.rows, planned.dead_letters, planned.ends_run) == (2, 0, True)
    assert "in 72 h at the earliest" in planned.text
    assert pipeline.lake.table.metadata_location == before
    with pytest.raises(ConfigurationError, match="dry run"):
        erase(work, planned, ErasureRequest(stream="orders", keys=("id=3",)))


def test_every_ref_of_other_tools_is_named_with_what_ends_it(
    pipeline: Pipeline, work: Workspace
) -> None:
    lake, head = pipeline.lake, pipeline.lake.history.head
    assert head is not None
    lake.table.manage_snapshots().create_branch(head, "team_audit").commit()
    lake.table.manage_snapshots().create_tag(head, "eoy-2025").commit()
    lake.table.manage_snapshots().create_tag(head, "frazil_before", max_ref_age_ms=1000).commit()
    lake.stage(lake.plan(11, 5))

    text = run(work, "id=3").text

    drop = (
        "demo.orders: {} is not erased, and keeps its snapshots for good, without a maximum age: "
    )
    assert drop.format("branch team_audit") in text
    assert "ALTER TABLE demo.orders DROP BRANCH team_audit\n" in text
    assert drop.format("tag eoy-2025") in text
    assert "ALTER TABLE demo.orders DROP TAG `eoy-2025`\n" in text
    assert "tag frazil_before is not erased, and keeps its snapshots until its maximum" in text
    assert "h at the earliest; these refs keep theirs longer:" in text
    assert text.count("is not erased") == 3
    assert "1 staging branch not published yet" in text


def test_an_erasure_keeps_files_of_an_older_partition_spec_in_their_partitions(
    pipeline: Pipeline, work: Workspace
) -> None:
    with pipeline.lake.table.update_spec() as update:
        update.remove_field("name")
    before = {(task.file.spec_id, task.file.partition) for task in plan_files(pipeline)}

    done = run(work, "id=3")

    assert done.rows == 2
    assert {(task.file.spec_id, task.file.partition) for task in plan_files(pipeline)} <= before
    assert pipeline.lake.table.scan("id = 3").to_arrow().num_rows == 0
    assert pipeline.audit().findings == ()


def plan_files(pipeline: Pipeline) -> list[FileScanTask]:
    return list(pipeline.lake.table.scan().plan_files())


@pytest.mark.usefixtures("pipeline")
def test_an_erased_offset_is_found_as_erased(work: Workspace) -> None:
    done = run(work, "id=3")

    place = locate_offset(work, "orders", 0, 3)

    assert not place.found
    assert place.reason.startswith(f"erased by snapshot {done.snapshot_ids[0]}")
    assert locate_offset(work, "orders", 0, 2).found
