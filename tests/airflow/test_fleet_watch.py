"""One task looks at all streams; those that fail get a task of their own."""

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.airflow

WriteStream = Callable[..., Path]


def test_streams_behind_a_catalog_that_is_down_are_named_after_one_wait_and_so_is_a_broken_file(
    write_stream: WriteStream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    from frazil_airflow import fleet_watch  # noqa: PLC0415 - Airflow is imported late

    nowhere = {"type": "sql", "uri": f"sqlite:///{tmp_path}/no/such/catalog.db"}
    connection = {"conn_type": "generic", "extra": {**nowhere, "warehouse": str(tmp_path)}}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka"}))
    monkeypatch.setattr(fleet_watch, "AT_ONCE", 1)
    write_stream("orders")
    write_stream("refunds")
    write_stream("sales").write_text("stream: [")

    with caplog.at_level(logging.INFO):
        failing = fleet_watch.find_failing(["orders", "refunds", "sales"], "test")

    told = [r.getMessage() for r in caplog.records if r.name == fleet_watch.__name__]
    assert failing == ["orders", "refunds", "sales"]
    assert [line.partition(" ")[0] for line in told] == ["orders:", "sales:", "3"]
    assert "catalog" in told[0]
    assert "sales.yaml" in told[1]


def test_a_watch_of_no_streams_finds_none() -> None:
    from frazil_airflow.fleet_watch import find_failing  # noqa: PLC0415 - see above

    assert find_failing([], "test") == []
