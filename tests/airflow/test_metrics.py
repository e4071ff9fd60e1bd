"""What a watch measured arrives at the server that Airflow's own metrics go to."""

import socket
from collections.abc import Iterator

import pytest
from airflow.sdk.observability import stats
from airflow.sdk.observability.metrics.stats_utils import get_stats_factory

from frazil.observability.freshness import FreshnessReport
from frazil_airflow.metrics import send_gauges

pytestmark = pytest.mark.airflow


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
    report = FreshnessReport(
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

    assert send_gauges(report) is report

    sent = {statsd.recv(1000).decode() for _ in range(6)}
    assert sent == {
        "airflow.frazil.orders.level:1|g",
        "airflow.frazil.orders.stream_clock_seconds:7|g",
        "airflow.frazil.orders.table_clock_seconds:90|g",
        "airflow.frazil.orders.lag_offsets:12|g",
        "airflow.frazil.orders.time_to_loss_seconds:3600|g",
        "airflow.frazil.orders.partition_covered_seconds.orders-0:3600|g",
    }
