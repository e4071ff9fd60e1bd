"""Erased on request: gone, listed, and never back by itself, on a real broker and a real Spark."""

import contextlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlparse

import pytest
from conftest import good_values
from pyiceberg.table import Table
from support.broker_lake import BrokerLake
from support.planted_values import lists_removed_files
from support.stack_lake import let_days_pass

from faults.auditor import audit_table
from faults.batches import Batches, EventfulEngine
from frazil.errors import CommitContentionError, StageStaleError
from frazil.ledger.recovery_point import keys
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.erasure_keys import RAW_KEY
from frazil.maintenance.messages import Erased, ErasureRequest
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.observability.audit import audit_stream
from frazil.recovery.messages import DeadLetterChoice, RecoverRequest, ReplayPlan, ReplayRequest
from frazil.recovery.redrive import redrive_dead_letters
from frazil.recovery.replay import plan_replay, replay
from frazil.recovery.rollback import plan_recovery, recover
from frazil.workspace import Workspace

pytestmark = pytest.mark.stack
WHO = ("--by", "jane@example.org", "--reason", "request 12")
STRICT = {"id": "long!", "name": "string!", "amount": "double"}
MENDED = {**STRICT, "name": "string"}


def audit_both(work: Workspace) -> None:
    """Let both audits judge the table."""
    preset, bootstrap = work.store.preset, work.kafka_config["bootstrap.servers"]
    name = work.stream.table.name
    report = audit_table(preset.properties, preset.name, name, bootstrap, work.stream.stream)
    assert report.findings == ()
    assert audit_stream(work).findings == ()


def run_erase(work: Workspace, *texts: str, run_id: str = "run-e") -> Erased:
    """Erase for a person, as a run of its own."""
    work = Workspace(work.stream, work.directory, run_id)
    request = ErasureRequest(
        stream=work.stream.stream, keys=texts, by="jane", reason="request 12", dry_run=False
    )
    return erase(work, plan_erasure(work, request), request)


def quarantine(batches: Batches) -> None:
    """Read records of the keys 0 to 9 as rows, then again as letters, without a name, and rows."""
    lab = batches.lab
    columns = {"convert": "json", "columns": MENDED}
    lab.write_stream(value=columns, batch={"max_records": 1000})
    lab.create_topic()
    lab.produce(good_values(10))
    batches.publish()
    lab.write_stream(value={"convert": "json", "columns": STRICT})
    nameless = [json.dumps({"id": i, "amount": 1.5}).encode() for i in range(100, 106)]
    lab.produce([*nameless, *good_values(14, start=10)])
    batches.publish()


def count_rows(table: Table) -> int:
    """Count what anybody can see."""
    return int(table.scan().to_arrow().num_rows)


@pytest.mark.storm(1)
@pytest.mark.parametrize(
    "failpoint",
    [
        *("delete.before-commit", "delete.after-commit"),
        *("erase.before-letters", "erase.after-letters", "erase.before-manifests"),
    ],
)
def test_a_kill_anywhere_is_finished_by_the_next_erasure(batches: Batches, failpoint: str) -> None:
    lab = batches.lab
    quarantine(batches)
    command = ("erase", lab.stream, "--key", f"{RAW_KEY}=3", *WHO, "--no-dry-run", "--json")

    killed = lab.frazil(*command, FRAZIL_FAILPOINT=failpoint)
    assert killed.code == -9, killed.err
    again = lab.frazil(*command)

    assert again.code == 0, again.out + again.err
    work = batches.open()
    letters = work.store.load(work.stream.dead_letters_table)
    assert (count_rows(batches.table), count_rows(letters)) == (23, 5)
    assert not lists_removed_files(batches.table)
    assert not lists_removed_files(letters)
    audit_both(work)
    lab.produce(good_values(4))
    batches.publish()
    audit_both(work)


def test_both_audits_name_the_letters_that_a_killed_run_left(batches: Batches) -> None:
    lab = batches.lab
    quarantine(batches)
    command = ("erase", lab.stream, "--key", f"{RAW_KEY}=3", *WHO, "--no-dry-run")
    lab.frazil(*command, FRAZIL_FAILPOINT="erase.before-letters")

    answer = audit_stream(batches.open())

    texts = [finding.text for finding in (*answer.findings, *batches.faults())]
    assert len(texts) == 2
    assert all("still there" in text for text in texts)
    done = run_erase(batches.open(), f"{RAW_KEY}=nobody")
    assert (done.rows, done.dead_letters) == (0, 1)
    audit_both(batches.open())


def test_batches_and_a_compaction_at_the_same_time_lose_and_revive_nothing(
    broker_lake: BrokerLake,
) -> None:
    lake = broker_lake
    for _ in range(6):
        lake.load(10)

    with ThreadPoolExecutor(max_workers=2) as others:
        compacting = others.submit(compact_table, later(lake, "run-c"))
        loading = others.submit(lambda: [lake.load(10) for _ in range(5)])
        done = [run_erase(lake.work, f"id={i}", run_id=f"run-{i}") for i in (3, 12, 25)]
        with contextlib.suppress(CommitContentionError):  # it lost each turn, and changed nothing
            compacting.result()
        loading.result()

    erased = {(p, o) for p in (0, 1) for o in (3, 12, 25)}
    assert sum(each.rows for each in done) == 6
    found = {(p, o) for p, offsets in lake.places().items() for o in offsets}
    assert found == {(p, o) for p in (0, 1) for o in range(55)} - erased
    audit_both(lake.work)


def later(lake: BrokerLake, run_id: str) -> Workspace:
    """Open the stream in another run."""
    return Workspace(lake.stream, lake.folder, run_id)


def plan(lake: BrokerLake, *ranges: str, work: Workspace | None = None) -> ReplayPlan:
    """Plan a replay that is meant; ranges are written without their topic."""
    offsets = tuple(f"{lake.topic}:{each}" for each in ranges)
    request = ReplayRequest(stream=lake.stream.stream, offsets=offsets, dry_run=False)
    return plan_replay(work or lake.work, request)


@pytest.mark.core
def test_a_replay_leaves_out_what_was_erased(broker_lake: BrokerLake) -> None:
    lake = broker_lake
    lake.load(20)
    run_erase(lake.work, "id=3", "id=4")

    planned = plan(lake, "0:2-8", "1:0-4")
    done = replay(lake.work, planned)

    assert "3 erased records left out" in planned.text
    assert (done.rows_written, done.rows_deleted) == (7, 7)
    assert lake.places() == {p: [o for o in range(10) if o not in {3, 4}] for p in (0, 1)}
    audit_both(lake.work)


def test_an_erasure_between_stage_and_publish_voids_the_replay(broker_lake: BrokerLake) -> None:
    lake = broker_lake
    lake.load(20)
    work = later(lake, "run-2")
    planned = plan(lake, "0:2-8", work=work)
    work.__dict__["engine"] = EventfulEngine(
        work.engine.remote, after=lambda: run_erase(lake.work, "id=3")
    )

    with pytest.raises(StageStaleError, match="were erased since the plan"):
        replay(work, planned)
    assert lake.places()[0] == [o for o in range(10) if o != 3]
    done = replay(later(lake, "run-2"), planned)
    assert (done.outcome, done.rows_written) == ("REPLAYED", 5)
    audit_both(lake.work)


def test_an_erased_letter_comes_back_by_no_replay_and_no_redrive(batches: Batches) -> None:
    lab = batches.lab
    quarantine(batches)
    run_erase(batches.open(), f"{RAW_KEY}=3")
    lab.write_stream(value={"convert": "json", "columns": MENDED})
    work = batches.open()

    answer = redrive_dead_letters(work, DeadLetterChoice(stream=lab.stream, dry_run=False))
    ranges = (f"{lab.topic}:0:0-15", f"{lab.topic}:1:0-15")
    request = ReplayRequest(stream=lab.stream, offsets=ranges, dry_run=False)
    done = replay(work, plan_replay(work, request))

    assert (answer.dead_letters, answer.rows) == (5, 5)
    assert (done.rows_written, done.rows_quarantined) == (28, 0)
    audit_both(work)


def test_python_workers_leave_out_what_was_erased(
    broker_lake: BrokerLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRAZIL_DIRECT_MIN_RECORDS", "1")
    lake = broker_lake
    lake.load(20)
    run_erase(lake.work, "id=3")

    done = replay(lake.work, plan(lake, "0:0-10", "1:0-10"))

    assert done.rows_written == 18
    audit_both(lake.work)


def test_a_rollback_to_before_an_erasure_says_so_and_the_letters_stay_gone(
    batches: Batches,
) -> None:
    quarantine(batches)
    before = batches.table.current_snapshot()
    assert before is not None
    done = run_erase(batches.open(), f"{RAW_KEY}=3", "id=12")
    work = batches.open()
    request = RecoverRequest(
        stream=work.stream.stream,
        to_snapshot=before.snapshot_id,
        by="jane",
        reason="bad release",
        dry_run=False,
    )

    planned = plan_recovery(work, request)
    recover(work, planned)

    assert (done.rows, done.dead_letters) == (2, 1)
    assert (planned.erased_rows, planned.needs_approval) == (2, True)
    assert "2 erased rows will be back" in planned.text
    assert count_rows(batches.table) == 24
    audit_both(work)
    run_erase(batches.open(), f"{RAW_KEY}=3", "id=12", run_id="run-f")
    audit_both(work)


@pytest.mark.core
def test_after_expiry_no_file_holds_what_was_erased(broker_lake: BrokerLake) -> None:
    lake = broker_lake
    lake.load(20)
    held = [task.file.file_path for task in lake.table.scan().plan_files()]
    run_erase(lake.work, "id=3")
    lake.load(10)
    let_days_pass(lake, 10)
    lake.load(10)

    report = expire_snapshots(lake.work)

    assert report.tables[0].expired_ids
    assert [path for path in held if Path(urlparse(path).path).exists()] == []
    kinds = [e.summary.get(keys.KIND) for e in lake.history.load_archive().entries.values()]
    assert keys.ERASE in kinds
    audit_both(lake.work)
