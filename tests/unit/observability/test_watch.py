"""The watch of a stream: clocks from the ledger, attempts, and what does not answer."""

import json
from dataclasses import replace

import pytest
from support.freshness import ago, ago_ms
from support.lake import Lake, make_stream

from frazil.iceberg.branches import name_branch, parse_branch
from frazil.ledger.offsets import OffsetRange, encode_ranges
from frazil.ledger.recovery_point import Archive, History, LedgerEntry, keys
from frazil.ledger.state import StreamState, encode_state
from frazil.observability.watch import (
    list_attempts,
    read_ledger_clocks,
    watch_stream,
)
from frazil.workspace import Workspace


def state_text(epoch: int) -> str:
    return encode_state(StreamState(epoch, f"batch-{epoch}", {"orders": (0,)}, {}, "cluster"))


def entry_of(number: int, age: float, kind: str, width: int = 0, **more: str) -> LedgerEntry:
    """Make an entry of the stream; compaction has neither kind nor stream."""
    summary = {
        keys.KIND: kind,
        keys.STREAM: "orders",
        keys.state_key("orders"): state_text(number),
        keys.RANGES: encode_ranges({"orders": {0: OffsetRange(0, width)}}),
        **more,
    }
    parent = number - 1 if number > 1 else None
    return LedgerEntry(number, parent, ago_ms(age), summary if kind else {"operation": "replace"})


def history_of(*entries: LedgerEntry, archived: tuple[LedgerEntry, ...] = ()) -> History:
    return History(
        "demo.orders",
        "uuid",
        entries[-1].snapshot_id,
        {entry.snapshot_id: entry for entry in entries},
        {},
        lambda: Archive({entry.snapshot_id: entry for entry in archived}),
    )


BEGIN = entry_of(1, 9000, keys.BOOTSTRAP)
PAYMENTS = LedgerEntry(3, 2, ago_ms(50), {keys.KIND: keys.INGEST, keys.STREAM: "payments"})
ATTEMPT = f"frazil_orders_3_{ago_ms(400):011x}deadbeef"


@pytest.mark.parametrize(
    ("history", "newest", "read_all"),
    [
        pytest.param(history_of(BEGIN), None, 9000, id="a stream that has just begun"),
        pytest.param(
            history_of(BEGIN, entry_of(2, 500, keys.INGEST, 70)), 500, 500, id="one small batch"
        ),
        pytest.param(
            history_of(BEGIN, entry_of(2, 500, keys.INGEST, 70), entry_of(3, 20, "")),
            500,
            500,
            id="compaction is no ingest",
        ),
        pytest.param(
            history_of(BEGIN, entry_of(2, 500, keys.INGEST, 70), entry_of(3, 50, keys.INGEST, 100)),
            50,
            500,
            id="a full batch may have left records",
        ),
        pytest.param(
            history_of(BEGIN, entry_of(2, 300, keys.INGEST, 70, **{keys.ATTEMPT: ATTEMPT})),
            300,
            400,
            id="everything was read when the batch was planned",
        ),
        pytest.param(
            history_of(entry_of(3, 20, keys.CARRY), archived=(BEGIN, entry_of(2, 90, "ingest", 7))),
            90,
            90,
            id="an expired batch still tells the time",
        ),
        pytest.param(
            history_of(BEGIN, entry_of(2, 500, keys.INGEST, 70), PAYMENTS),
            500,
            500,
            id="another stream's batch is not this one's",
        ),
    ],
)
def test_f12_clocks_are_read_from_ingest_snapshots_alone(
    history: History, newest: float | None, read_all: float
) -> None:
    clocks = read_ledger_clocks(history, "orders", max_records=100)

    assert clocks.newest_ingest_at == (ago(newest) if newest is not None else None)
    assert clocks.read_all_at == ago(read_all)


def connect(monkeypatch: pytest.MonkeyPatch, lake: Lake, **extra: str) -> Workspace:
    """Open the lake's stream through a connection, as any caller does; there is no Kafka."""
    connection = {"conn_type": "generic", "extra": {**lake.store.preset.properties, **extra}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka"}))
    return Workspace(lake.stream, lake.folder, "test")


def test_a_halted_ledger_fails_the_watch_and_keeps_the_table_clock(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(3, 2)
    first = lake.table.current_snapshot()
    lake.ingest(5, 5)
    assert first is not None
    lake.table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()

    report = watch_stream(connect(monkeypatch, lake))

    assert (report.cause, report.level) == ("halted", "fail")
    assert report.table_clock_seconds is not None
    assert "frazil recover orders" in (report.next_step or "")


def test_a_connection_without_brokers_fails_the_watch_by_name(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = watch_stream(connect(monkeypatch, lake))

    assert (report.cause, report.level) == ("misconfigured", "fail")
    assert "bootstrap.servers" in report.text


def test_a_catalog_that_does_not_answer_fails_the_watch_by_name(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"sqlite:///{lake.folder}/no/such/folder/catalog.db"

    report = watch_stream(connect(monkeypatch, lake, uri=nowhere))

    assert (report.cause, report.level) == ("catalog_down", "fail")


def test_a_stream_without_a_table_has_not_started(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = connect(monkeypatch, lake)
    other = make_stream(table={"name": "demo.nothing_yet"})

    report = watch_stream(replace(work, stream=other))

    assert (report.cause, report.level) == ("not_started", "warn")
    assert "frazil run" in (report.next_step or "")


def test_only_branches_of_the_next_batch_are_attempts_at_it() -> None:
    born = f"{ago_ms(30):011x}deadbeef"
    names = ["main", f"frazil_orders_4_{born}", f"frazil_orders_3_{born}"]
    names += [f"frazil_orders_4_9_{born}", f"frazil_orders_2_4_{born}", "frazil_orders_4_mine"]
    names.append(name_branch("orders", 4, beside=True))

    attempts = list_attempts(dict.fromkeys(names), "orders", 4)

    assert attempts == (ago(30),)
    assert parse_branch(names[-1], 0) is not None
