"""What a watch measured arrives at the server that Airflow's own metrics go to."""

import socket
from collections.abc import Iterator

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from frazil.observability.freshness import FreshnessReport
from frazil_airflow.metrics import name_gauge, send_gauges

pytestmark = pytest.mark.airflow

REPORT = FreshnessReport(
    stream="orders",
    table="shop.orders",
    level="warn",
    cause="behind",
    stream_clock_seconds=7,
    table_clock_seconds=90,
    record_age_seconds=None,
    lag_offsets=12,
    time_to_loss_seconds=3600,
    partitions_covered_seconds={"orders-0": 3600},
    text="",
    next_step=None,
)


@pytest.fixture
def statsd(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listen where Airflow is told to send its metrics."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        server.settimeout(5)
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_ON", "True")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_HOST", "127.0.0.1")
        monkeypatch.setenv("AIRFLOW__METRICS__STATSD_PORT", str(server.getsockname()[1]))
        stats.initialize(factory=get_stats_factory(), export_legacy_names=False)
        yield server
    monkeypatch.undo()
    stats.initialize(factory=get_stats_factory(), export_legacy_names=False)


def test_clocks_and_time_to_loss_are_gauges_of_the_stream(statsd: socket.socket) -> None:
    assert send_gauges(REPORT) is REPORT

    sent = {statsd.recv(1000).decode() for _ in range(6)}
    assert sent == {
        "airflow.frazil.orders.level:1|g",
        "airflow.frazil.orders.stream_clock_seconds:7|g",
        "airflow.frazil.orders.table_clock_seconds:90|g",
        "airflow.frazil.orders.lag_offsets:12|g",
        "airflow.frazil.orders.time_to_loss_seconds:3600|g",
        "airflow.frazil.orders.partition_covered_seconds.orders-0:3600|g",
    }


def test_a_gauge_of_a_long_topic_arrives_by_a_shorter_name_of_its_own(
    statsd: socket.socket,
) -> None:
    topics = [f"{'t' * 248}{end}-0" for end in "ab"]

    send_gauges(REPORT.model_copy(update={"partitions_covered_seconds": dict.fromkeys(topics, 5)}))

    sent = {statsd.recv(1000).decode() for _ in range(7)}
    names = {each.removesuffix(":5|g") for each in sent if each.endswith(":5|g")}
    own = {name_gauge("orders", "partition_covered_seconds", topic) for topic in topics}
    assert names == {f"airflow.{name}" for name in own}
    assert len(names) == 2
    assert all(each.startswith("frazil.orders.partition_covered_seconds.ttt") for each in own)


def test_a_gauge_of_usual_length_keeps_its_name() -> None:
    assert name_gauge("orders", "level") == "frazil.orders.level"
