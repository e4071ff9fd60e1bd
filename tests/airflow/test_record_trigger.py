"""The trigger of a continuous stream: what stands in the way ends the wait, but not at once."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from support.catalog_loads import count_loads
from support.lake import Lake

from frazil.errors import ConfigurationError
from frazil.streams.loading import load_stream

if TYPE_CHECKING:
    from airflow.triggers.base import TriggerEvent


def test_trouble_ends_the_wait_after_a_pause_so_that_the_plan_tells_it(
    write_stream: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.triggers.base import TaskSuccessEvent  # noqa: PLC0415 - after the environment

    from frazil_airflow import record_trigger  # noqa: PLC0415 - after the environment

    write_stream("orders")
    monkeypatch.setattr(record_trigger, "ERROR_PAUSE_SECONDS", 0.5)
    trigger = record_trigger.NewRecordsTrigger("nobody")
    started = time.monotonic()

    async def wait() -> "list[TriggerEvent]":
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(wait())

    assert isinstance(event, TaskSuccessEvent)
    assert time.monotonic() - started >= 0.5
    assert trigger.serialize() == (
        "frazil_airflow.record_trigger.NewRecordsTrigger",
        {"stream": "nobody"},
    )


def test_the_longer_a_stream_stays_where_it_was_the_longer_is_the_pause() -> None:
    from frazil_airflow.record_trigger import choose_pause, count_failed_runs  # noqa: PLC0415 - see above

    places = ("a", "a", "b", None, "b", "b", "b", "b", "c")
    pauses = [choose_pause(count_failed_runs("orders", place)) for place in places]

    assert pauses == [0, 5, 0, 0, 5, 15, 45, 60, 0]
    assert choose_pause(10_000) == 60


def test_a_stream_that_cannot_begin_is_trouble_too(
    write_stream: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from frazil_airflow.record_trigger import BEGINNING, watch_records  # noqa: PLC0415 - see above

    write_stream("orders")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    content = {"extra": {"catalog": "lake", "warehouse": f"file://{tmp_path}", **properties}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(content))

    watches = [watch_records("orders") for _ in range(2)]

    assert [watch.position for watch in watches] == [BEGINNING, BEGINNING]
    assert watches[0].has_records()


def test_a_wait_loads_the_table_once(
    write_stream: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from frazil_airflow.record_trigger import watch_records  # noqa: PLC0415 - see above

    stream = load_stream(write_stream("orders").parent, "orders")
    lake = Lake(tmp_path, stream)
    lake.begin()
    lake.close()
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    content = {"extra": {"catalog": "lake", "warehouse": f"file://{tmp_path}", **properties}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(content))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka"}))
    loads = count_loads(monkeypatch, SqlCatalog)

    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        watch_records("orders")

    assert loads.take() == {stream.table.name: 1}


def wait_for_event(monkeypatch: pytest.MonkeyPatch, watch: Callable[[str], object]) -> float:
    """Let a trigger wait for what `watch` says; give the seconds until it ends its task."""
    from airflow.triggers.base import TaskSuccessEvent  # noqa: PLC0415 - after the environment

    from frazil_airflow import record_trigger  # noqa: PLC0415 - likewise

    monkeypatch.setattr(record_trigger, "watch_records", watch)
    started = time.monotonic()

    async def wait() -> "list[TriggerEvent]":
        return [event async for event in record_trigger.NewRecordsTrigger("orders").run()]

    (event,) = asyncio.run(wait())
    assert isinstance(event, TaskSuccessEvent)
    return time.monotonic() - started


def test_a_wake_up_that_is_lost_comes_with_the_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    from frazil_airflow import record_trigger  # noqa: PLC0415 - after the environment

    monkeypatch.setattr(record_trigger, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(record_trigger, "HEARTBEAT_SECONDS", 0.3)

    seconds = wait_for_event(monkeypatch, lambda _: record_trigger.RecordWatch(lambda: False))

    assert seconds >= 0.3


def test_a_rollback_is_seen_though_no_record_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    from frazil_airflow import record_trigger  # noqa: PLC0415 - after the environment

    monkeypatch.setattr(record_trigger, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(record_trigger, "REPLAN_SECONDS", 0.1)
    before, after = (
        record_trigger.RecordWatch(lambda: False),
        record_trigger.RecordWatch(lambda: True, "1 rewound"),
    )
    looks = iter((before, after))

    wait_for_event(monkeypatch, lambda _: next(looks))

    assert next(looks, None) is None


def test_what_nobody_foresaw_ends_the_wait_after_the_same_pause(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from frazil_airflow import record_trigger  # noqa: PLC0415 - after the environment

    monkeypatch.setattr(record_trigger, "ERROR_PAUSE_SECONDS", 0.3)

    def fail(_: str) -> object:
        raise ZeroDivisionError

    seconds = wait_for_event(monkeypatch, fail)

    assert seconds >= 0.3
    assert "stream orders: cannot check Kafka" in caplog.text
