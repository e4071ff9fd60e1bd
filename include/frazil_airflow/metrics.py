"""Freshness as gauges, sent wherever Airflow sends its own (`[metrics]`: StatsD, OpenTelemetry)."""

from typing import TYPE_CHECKING

from airflow.sdk.observability.stats import gauge

if TYPE_CHECKING:
    from frazil.observability.freshness import FreshnessReport

GAUGES = (
    "stream_clock_seconds",
    "table_clock_seconds",
    "record_age_seconds",
    "lag_offsets",
    "time_to_loss_seconds",
    "retention_covers_seconds",
)
LEVELS = ("ok", "warn", "fail")


def send_gauges(report: "FreshnessReport") -> "FreshnessReport":
    """Send what was measured of a stream as `frazil.<stream>.<gauge>`; nothing where none was.

    The level is always sent: 0 for ok, 1 for warn, 2 for fail.
    """
    gauge(f"frazil.{report.stream}.level", LEVELS.index(report.level))
    for name in GAUGES:
        value = getattr(report, name)
        if value is not None:
            gauge(f"frazil.{report.stream}.{name}", value)
    for partition, seconds in report.partitions_covered_seconds.items():
        gauge(f"frazil.{report.stream}.partition_covered_seconds.{partition}", seconds)
    return report
