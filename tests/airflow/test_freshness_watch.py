"""One task looks at all streams; those that fail get a task of their own."""

import json
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from support.catalog_loads import count_loads
from support.lake import Lake

from frazil.streams.loading import load_stream

pytestmark = pytest.mark.airflow

WriteStream = Callable[..., Path]


def connect(monkeypatch: pytest.MonkeyPatch, **extra: str) -> None:
    """Point the streams to a catalog; there is no Kafka."""
    connection = {"conn_type": "generic", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(connection))
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka"}))


def list_told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """List what the watch said, line by line."""
    return [r.getMessage() for r in caplog.records if r.name == "frazil_airflow.freshness_watch"]


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Listen where nobody ever answers; at the end nobody waits there who would be seen later."""
    before = threading.enumerate()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(16)
        yield server.getsockname()[1]
    for thread in threading.enumerate():
        if thread not in before:
            thread.join(20)


def test_streams_behind_a_catalog_that_is_down_are_named_after_two_waits_and_so_is_a_broken_file(
    write_stream: WriteStream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    from frazil_airflow import freshness_watch  # noqa: PLC0415 - Airflow is imported late

    uri = f"sqlite:///{tmp_path}/no/such/catalog.db"
    connect(monkeypatch, type="sql", uri=uri, warehouse=str(tmp_path))
    monkeypatch.setattr(freshness_watch, "PARALLEL_CHECKS", 1)
    names = ["orders", "refunds", "returns", "sales"]
    for name in names:
        write_stream(name)
    write_stream("sales").write_text("stream: [")

    with caplog.at_level(logging.INFO):
        failing = freshness_watch.find_failing(names, "test")

    told = list_told(caplog)
    assert failing == names
    assert [line.partition(" ")[0] for line in told] == ["orders:", "refunds:", "sales:", "failing"]
    assert "catalog" in told[0]
    assert "sales.yaml" in told[2]


def test_streams_that_are_not_seen_in_time_are_named_and_hide_no_other(
    write_stream: WriteStream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    silent_port: int,
) -> None:
    from frazil_airflow import freshness_watch  # noqa: PLC0415 - see above

    connect(monkeypatch, type="rest", uri=f"http://127.0.0.1:{silent_port}")
    monkeypatch.setattr(freshness_watch, "TIMEOUT_SECONDS", 2.0)
    write_stream("orders")
    write_stream("sales").write_text("stream: [")

    failing = freshness_watch.find_failing(["orders", "sales"], "test")

    told = list_told(caplog)
    assert failing == ["orders", "sales"]
    assert any("sales.yaml" in line for line in told)
    assert "not checked within 2 s: orders" in told


def test_a_file_with_a_pattern_is_read_once_for_all_its_topics(
    write_stream: WriteStream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from frazil.streams import loading  # noqa: PLC0415 - Airflow is imported late
    from frazil.streams.topic_lists import KnownTopic, TopicList, write_topics  # noqa: PLC0415
    from frazil_airflow.freshness_watch import find_failing  # noqa: PLC0415

    uri = f"sqlite:///{tmp_path}/no/such/catalog.db"
    connect(monkeypatch, type="sql", uri=uri, warehouse=str(tmp_path))
    text = write_stream("shop").read_text()
    pattern = text.replace("topic: shop", "topic_pattern: 'a.*'")
    write_stream("shop").write_text(pattern.replace("shop.shop", "'shop.{topic}'"))
    topics = {f"a{number}": KnownTopic() for number in range(5)}
    write_topics(TopicList(stream="shop", refreshed_at=datetime.now(UTC), topics=topics))
    names = [stream.stream for stream in loading.load_readable_streams(tmp_path)[0]]
    read: list[Path] = []
    load_file = loading.load_file

    def count(path: Path, only: str | None = None) -> loading.StreamFile:
        read.append(path)
        return load_file(path, only)

    monkeypatch.setattr(loading, "load_file", count)

    assert find_failing(names, "test") == names
    assert len(names) == len(topics)
    assert [path.name for path in read] == ["shop.yaml"]


@pytest.mark.parametrize("is_paused", [True, False])
def test_a_late_stream_is_read_once_whether_it_is_paused_or_not(
    write_stream: WriteStream,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
    *,
    is_paused: bool,
) -> None:
    from frazil_airflow import freshness_watch  # noqa: PLC0415 - see above

    stream = load_stream(write_stream("orders").parent, "orders")
    lake = Lake(tmp_path, stream)
    lake.begin()
    lake.close()
    uri = f"sqlite:///{tmp_path}/catalog.db"
    connect(monkeypatch, type="sql", uri=uri, warehouse=str(tmp_path), catalog="lake")
    monkeypatch.setattr(freshness_watch, "is_paused", lambda _: is_paused)
    loads = count_loads(monkeypatch, SqlCatalog)

    with caplog.at_level(logging.INFO):
        assert freshness_watch.find_failing(["orders"], "test") == ["orders"]

    assert loads.take() == {stream.table.name: 1}
    assert "has no `bootstrap.servers`" in list_told(caplog)[0]


def test_a_watch_of_no_streams_finds_none() -> None:
    from frazil_airflow.freshness_watch import find_failing  # noqa: PLC0415 - see above

    assert find_failing([], "test") == []


def test_a_broker_that_is_down_leaves_the_list_of_topics_and_is_a_warning(
    write_stream: WriteStream, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from frazil.streams.topic_lists import (  # noqa: PLC0415 - Airflow is imported late
        topic_list_path,
    )
    from frazil_airflow.freshness_watch import refresh_topic_lists  # noqa: PLC0415

    connect(monkeypatch)
    text = write_stream("orders").read_text()
    pattern = text.replace("orders", "shop").replace("topic: shop", "topic_pattern: 'a.*'")
    write_stream("shop").write_text(pattern.replace("shop.shop", "'shop.{topic}'"))
    write_stream("broken").write_text("topic_pattern: [")

    with caplog.at_level(logging.INFO):
        refresh_topic_lists()

    told = list_told(caplog)
    assert [line.partition(" were")[0] for line in told] == ["topics of broken", "topics of shop"]
    assert not topic_list_path("shop").exists()
