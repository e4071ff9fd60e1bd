"""Maintenance asks no Spark where nothing is to be done, and touches no table that halts."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from pyiceberg.exceptions import CommitFailedException, ServerError
from support.lake import Lake, make_stream
from support.scripted_catalog import Answer, honest, landed_then, refused

from frazil.errors import ForeignRollbackError, SparkUnavailableError
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch, name_branch
from frazil.iceberg.commit_retry import commit_once
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.recovery_point import keys, walk_ancestors
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.messages import CompactReport, ExpireReport, OrphanReport
from frazil.maintenance.orphans import remove_orphans
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.maintenance.tables import summarize_table
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace

NO_SPARK = json.dumps({"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": 1})
Step = Callable[[Workspace], CompactReport | ExpireReport | OrphanReport]
STEPS: list[Step] = [compact_table, expire_snapshots, remove_orphans]


@pytest.fixture
def work(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Workspace:
    """Open the lake's stream as a task would, with a Spark server that nobody can reach."""
    extra = dict(lake.store.preset.properties) | {"catalog": "lake"}
    catalog = json.dumps({"conn_type": "iceberg", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", catalog)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", NO_SPARK)
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    return Workspace(lake.stream, tmp_path, "test")


def days_pass(monkeypatch: pytest.MonkeyPatch, days: int) -> None:
    """Move the clock of this process."""
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + days * DAY_MS / 1000)


def roll_back(lake: Lake) -> None:
    """Set main back as somebody else would."""
    head, parent, *_ = (entry.snapshot_id for entry in walk_ancestors(lake.history))
    updates = [commits.set_branch("main", parent)]
    commit_once(lake.store, lake.table, {"main": head}, list(updates))


@pytest.mark.parametrize("step", STEPS)
def test_a_table_that_is_not_there_is_reported_and_left_alone(
    work: Workspace, lake: Lake, step: Step
) -> None:
    lake.catalog.drop_table("demo.orders")

    report = step(work)

    assert "not created yet" in report.text
    assert "not created yet" in summarize_table(work).text


def test_a_table_with_few_files_is_compacted_without_spark(work: Workspace, lake: Lake) -> None:
    lake.ingest(1, 1)
    head = lake.history.head

    report = compact_table(work)

    assert report.text == "demo.orders: nothing to compact in 1 file"
    assert lake.history.head == head


def test_a_dry_run_says_what_it_would_do_and_writes_nothing(
    work: Workspace, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for end in range(1, 7):
        lake.ingest(end, end)
    lake.append_foreign(1)
    days_pass(monkeypatch, 10)
    before = lake.table.metadata_location

    compacted, expired = compact_table(work, dry_run=True), expire_snapshots(work, dry_run=True)

    assert compacted.tables[0].rewritten == ("files",)
    assert expired.tables[0].carried_streams == ("orders",)
    assert len(expired.tables[0].expired_ids) == 7
    assert lake.table.metadata_location == before


def test_f10_forsaken_branches_are_dropped_and_young_ones_stay(
    work: Workspace, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    forsaken = lake.stage(lake.plan(1, 1)).attempt
    lake.ingest(2, 2)
    days_pass(monkeypatch, 2)
    young = lake.stage(lake.plan(3, 3)).attempt

    planned = expire_snapshots(work, dry_run=True)
    with pytest.raises(SparkUnavailableError):
        expire_snapshots(work)

    assert planned.tables[0].dropped_branches == (forsaken,)
    assert set(lake.table.metadata.refs) == {"main", young}


def test_a_forsaken_branch_of_dead_letters_goes_with_that_of_the_batch(
    work: Workspace, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensure_dead_letters_table(lake.store, "demo.orders")
    forsaken = create_letters_branch(lake)
    lake.ingest(1, 1)
    days_pass(monkeypatch, 2)

    report = expire_snapshots(work)

    letters = report.tables[1]
    assert (letters.table, letters.dropped_branches) == ("demo.orders__dead_letters", (forsaken,))
    assert set(lake.store.load("demo.orders__dead_letters").metadata.refs) == {"main"}


def create_letters_branch(lake: Lake) -> str:
    branch = name_branch("orders", 0)
    create_branch(lake.store, "demo.orders__dead_letters", branch)
    return branch


@pytest.mark.parametrize("step", STEPS)
def test_a_table_that_others_rolled_back_is_left_to_a_person(
    work: Workspace, lake: Lake, step: Step
) -> None:
    for end in range(1, 9):
        lake.ingest(end, end)
    roll_back(lake)
    before = lake.table.metadata_location

    with pytest.raises(ForeignRollbackError):
        step(work)

    assert lake.table.metadata_location == before


@pytest.mark.parametrize(
    "answer",
    [honest, landed_then(ServerError("502")), refused(CommitFailedException("raced"))],
    ids=["at once", "after a lost answer", "after a lost race"],
)
def test_an_idle_streams_state_is_carried_once_before_spark_is_asked(
    work: Workspace, lake: Lake, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    lake.ingest(1, 1)
    lake.append_foreign(1)
    before = lake.point
    days_pass(monkeypatch, 10)
    work.store.catalog.script = [answer]  # type: ignore[attr-defined]

    for _ in range(2):
        with pytest.raises(SparkUnavailableError):
            expire_snapshots(work)

    assert lake.point is not None
    assert before is not None
    assert (lake.point.state, lake.point.snapshot_id) == (before.state, lake.history.head)
    kinds = [entry.summary.get(keys.KIND) for entry in walk_ancestors(lake.history)]
    assert kinds == [keys.CARRY, None, keys.INGEST, keys.BOOTSTRAP]
    assert len(lake.history.load_archive().entries) == 4


def test_a_batch_planned_before_a_carry_is_published_after_it(
    work: Workspace, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(1, 1)
    lake.append_foreign(1)
    days_pass(monkeypatch, 10)
    plan = lake.plan(2, 2)
    staged = lake.stage(plan)

    with pytest.raises(SparkUnavailableError):
        expire_snapshots(work)
    lake.publish(plan, staged)

    assert lake.coordinates() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert lake.point is not None
    assert lake.point.state == plan.state_after


def test_the_longest_window_of_all_streams_on_a_table_counts(
    work: Workspace, lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for end in (1, 2, 3):
        lake.ingest(end, end)
    days_pass(monkeypatch, 10)
    settings = {"rollback_hours": 24 * 20}
    careful = make_stream("others", maintenance=settings).model_dump(
        mode="json", by_alias=True, exclude_unset=True
    )
    (tmp_path / "others.yaml").write_text(yaml.safe_dump(careful))

    report = expire_snapshots(work)

    assert report.tables[0].expired_ids == ()


def test_a_staged_merge_keeps_compaction_waiting(work: Workspace, lake: Lake) -> None:
    for end in range(1, 7):
        lake.ingest(end, end)
    branch = name_branch("orders", 6)
    create_branch(lake.store, "demo.orders", branch)
    lake.table.delete("id = 1", branch=branch)

    report = compact_table(work)

    assert report.tables[0].waiting_for == branch
