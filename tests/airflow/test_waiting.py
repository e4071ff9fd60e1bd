"""The trigger of a continuous stream: what stands in the way ends the wait, but not at once."""

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from airflow.triggers.base import TriggerEvent


def test_trouble_ends_the_wait_after_a_pause_so_that_the_plan_tells_it(
    write_stream: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.triggers.base import TaskSuccessEvent  # noqa: PLC0415 - after the environment

    from frazil_airflow import waiting  # noqa: PLC0415 - after the environment

    write_stream("orders")
    monkeypatch.setattr(waiting, "TROUBLE_SECONDS", 0.5)
    trigger = waiting.NewRecordsTrigger("nobody")
    started = time.monotonic()

    async def wait() -> "list[TriggerEvent]":
        return [event async for event in trigger.run()]

    (event,) = asyncio.run(wait())

    assert isinstance(event, TaskSuccessEvent)
    assert time.monotonic() - started >= 0.5
    assert trigger.serialize() == (
        "frazil_airflow.waiting.NewRecordsTrigger",
        {"stream": "nobody"},
    )


def test_the_same_batch_twice_is_trouble_and_another_is_none() -> None:
    from frazil_airflow.waiting import _woke_for_the_same  # noqa: PLC0415 - see above

    told = [_woke_for_the_same("orders", batch) for batch in ("a", "a", "b", None, "b", "c")]

    assert told == [False, True, False, False, True, False]


def test_a_stream_that_cannot_begin_is_trouble_too(
    write_stream: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from frazil_airflow.waiting import BEGINNING, watch_records  # noqa: PLC0415 - see above

    write_stream("orders")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    content = {"extra": {"catalog": "lake", "warehouse": f"file://{tmp_path}", **properties}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(content))

    watches = [watch_records("orders") for _ in range(2)]

    assert [watch.batch_id for watch in watches] == [BEGINNING, BEGINNING]
    assert watches[0].has_records()
