"""`frazil status` without a broker: what stands in the way, and the clocks as people read them."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.lake import Lake, make_stream

from frazil.events import WatchNote, note_watch
from frazil.observability.freshness import (
    Cause,
    FreshnessFacts,
    PartitionFacts,
    describe_state,
    explain,
    read_clocks,
)
from frazil.observability.status import read_status
from frazil.streams.models import Freshness
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


def test_people_read_level_both_clocks_and_the_time_to_loss(
    work: Workspace, capsys: pytest.CaptureFixture[str]
) -> None:
    status = read_status(work)
    times = {"stream_clock_seconds": 185, "table_clock_seconds": 59, "time_to_loss_seconds": 7800}
    fresh = status.freshness.model_copy(update={"cause": "not_planned", "level": "warn", **times})

    _show_statuses([status.model_copy(update={"freshness": fresh})])

    row = ["orders", "warn", "3 min 5 s", "59 s", "2 h 10 min"]
    lines = capsys.readouterr().out.splitlines()
    assert row in [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]
    assert lines[-1].startswith("Next: ")


WAITING = PartitionFacts("orders", 0, earliest=0, next_offset=4, end=10, first_unread_ms=0)


@pytest.mark.parametrize(
    ("cause", "partitions", "state"),
    [
        ("up_to_date", (), "up to date"),
        ("up_to_date", (WAITING,), "within its limits"),
        ("behind", (WAITING,), "behind"),
        ("paused", (WAITING,), "paused"),
        ("not_planned", (WAITING,), "not planned"),
    ],
)
def test_a_state_has_the_same_words_in_the_table_and_in_the_sentence(
    cause: Cause, partitions: tuple[PartitionFacts, ...], state: str
) -> None:
    facts = FreshnessFacts("orders", "demo.orders", partitions=partitions)
    clocks = read_clocks(facts, datetime.now(UTC))

    assert describe_state(facts, cause) == state
    assert explain(facts, clocks, cause, Freshness()).startswith(f"orders: {state}")


def test_the_status_knows_a_paused_dag_from_the_watch_and_the_newest_snapshot(
    lake: Lake, work: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path))
    facts = replace(
        FreshnessFacts("orders", "demo.orders", partitions=(WAITING,)),
        snapshot_id=lake.history.head,
    )
    monkeypatch.setattr("frazil.observability.status.gather_freshness_facts", lambda *_: facts)

    before = read_status(work).state
    note_watch({"orders"})
    noted = read_status(work)
    old = WatchNote(at=datetime(2026, 1, 1, tzinfo=UTC), paused=frozenset({"orders"}))
    (tmp_path / "watch.json").write_text(old.model_dump_json())

    assert (before, noted.state, read_status(work).state) == ("not planned", "paused", before)
    assert noted.snapshot_id == lake.history.head
