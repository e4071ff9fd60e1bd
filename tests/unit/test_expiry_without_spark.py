"""Maintenance asks no Spark where nothing is to be done, and touches no table that halts."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lake import Lake

from frazil import commits
from frazil.errors import ForeignRollbackError
from frazil.expiry import DAY_MS
from frazil.maintenance import compact_table, expire_snapshots, remove_orphans, summarize_table
from frazil.publishing import LostTurnError, commit_turn
from frazil.workspace import Workspace

NO_SPARK = json.dumps({"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": 1})
STEPS = [compact_table, expire_snapshots, remove_orphans]


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
    table, head = lake.table, lake.history.head
    parent = table.metadata.snapshot_by_id(head).parent_snapshot_id
    commit_turn(lake.store, table, {"main": head}, [commits.set_branch("main", parent)])


@pytest.mark.parametrize("step", STEPS)
def test_a_table_that_is_not_there_is_reported_and_left_alone(
    work: Workspace, lake: Lake, step: Callable[..., object]
) -> None:
    lake.catalog.drop_table("demo.orders")

    report = step(work)

    assert "not there yet" in report.text
    assert "not there yet" in summarize_table(work).text


def test_a_table_with_few_files_is_compacted_without_spark(work: Workspace, lake: Lake) -> None:
    lake.ingest(1, 1)
    head = lake.history.head

    report = compact_table(work)

    assert report.text == "demo.orders: nothing to compact in 1 files"
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


def test_forsaken_branches_are_dropped_and_young_ones_stay(
    work: Workspace, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    forsaken = lake.stage(lake.plan(1, 1)).attempt
    lake.ingest(2, 2)
    days_pass(monkeypatch, 2)
    young = lake.stage(lake.plan(3, 3)).attempt

    report = expire_snapshots(work, dry_run=True)
    assert forsaken in lake.table.metadata.refs
    assert report.tables[0].dropped_branches == (forsaken,)

    monkeypatch.setattr("frazil.snapshot_expiry.run_table_job", lambda *_: pytest.fail("Spark"))
    with pytest.raises(pytest.fail.Exception):
        expire_snapshots(work)
    assert set(lake.table.metadata.refs) == {"main", young}


@pytest.mark.parametrize("step", STEPS)
def test_a_table_that_others_rolled_back_is_left_to_a_person(
    work: Workspace, lake: Lake, step: Callable[..., object]
) -> None:
    for end in range(1, 9):
        lake.ingest(end, end)
    roll_back(lake)
    before = lake.table.metadata_location

    with pytest.raises(ForeignRollbackError):
        step(work)

    assert lake.table.metadata_location == before


def test_a_carry_that_loses_a_race_is_decided_again(
    work: Workspace, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(1, 1)
    lake.append_foreign(1)
    days_pass(monkeypatch, 10)
    assert lake.point is not None
    state = lake.point.state
    assert LostTurnError

    lake.catalog.script(overtaken_by(lambda: lake.append_foreign(2)))
