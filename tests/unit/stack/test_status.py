"""`frazil status` without a broker: what stands in the way, and the clocks as people read them."""

import json
from dataclasses import replace

import pytest
from support.lake import Lake, make_stream

from frazil.observability.status import read_status
from frazil.workspace import Workspace
from frazil_cli.status import _show_statuses


@pytest.fixture
def work(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Open the lake's stream by its connections; Kafka's names no broker."""
    catalog = {"conn_type": "generic", "extra": lake.store.preset.properties}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(catalog))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka"}))
    return Workspace(lake.stream, lake.folder, "test")


def test_a_halted_ledger_is_the_state_beside_the_table_clock(lake: Lake, work: Workspace) -> None:
    before = lake.history.head
    lake.ingest(3, 2)
    lake.table.manage_snapshots().rollback_to_snapshot(before or 0).commit()

    status = read_status(work)

    assert (status.state, status.epoch, status.lag) == ("ForeignRollback", None, None)
    assert "another tool rolled the table back" in (status.problem or "")
    assert "--reingest" in (status.next_step or "")
    assert (status.freshness.level, status.freshness.cause) == ("fail", "halted")


def test_a_topic_that_cannot_be_asked_hides_neither_epoch_nor_rows(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(3, 2)

    status = read_status(work)

    assert (status.state, status.epoch, status.rows) == ("ConnectionMissing", 1, 5)
    assert "bootstrap.servers" in (status.problem or "")
    assert status.freshness.table_clock_seconds is not None


def test_a_stream_that_has_not_begun_has_no_problem_but_a_next_step(work: Workspace) -> None:
    other = make_stream(table={"name": "demo.nothing_yet"})

    status = read_status(replace(work, stream=other))

    assert (status.state, status.problem) == ("not started", None)
    assert status.next_step == "frazil run orders"
    assert (status.freshness.level, status.freshness.cause) == ("warn", "not_started")


def test_people_read_level_cause_both_clocks_and_the_time_to_loss(
    work: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    status = read_status(work)
    times = {"stream_clock_seconds": 185, "table_clock_seconds": 59, "time_to_loss_seconds": 7800}
    fresh = status.freshness.model_copy(update={"cause": "not_planned", "level": "warn", **times})

    _show_statuses([status.model_copy(update={"freshness": fresh})])

    row = ["orders", "warn", "not planned", "3 min 5 s", "59 s", "2 h 10 min"]
    lines = capsys.readouterr().out.splitlines()
    assert row in [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert lines[-1].startswith("Next: ")
