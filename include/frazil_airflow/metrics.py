"""Freshness as gauges, sent with Airflow's own metrics (`[metrics]`: StatsD, OpenTelemetry)."""

from hashlib import sha256
from typing import TYPE_CHECKING

from airflow.sdk.observability.stats import gauge

if TYPE_CHECKING:
    from frazil.observability.freshness import FreshnessReport

GAUGES = (
    "stream_clock_seconds",
    "table_clock_seconds",
    "merge_clock_seconds",
    "record_age_seconds",
    "lag_offsets",
    "time_to_loss_seconds",
    "retention_covers_seconds",
)
LEVELS = ("ok", "warn", "fail")
LONGEST_NAME = 230
"""Airflow drops gauges with longer names: of 250, or 255 with its prefix for OpenTelemetry."""


def name_gauge(*parts: str) -> str:
    """Return `frazil.<stream>.<gauge>`; the end of a name that is too long becomes its hash."""
    name = ".".join(("frazil", *parts))
    if len(name) <= LONGEST_NAME:
        return name
    return f"{name[: LONGEST_NAME - 9]}-{sha256(name.encode()).hexdigest()[:8]}"


def send_gauges(report: "FreshnessReport") -> "FreshnessReport":
    """Send the measured values as `frazil.<stream>.<gauge>`, and return the report.

    A value that was not measured is not sent. The level always is: 0 ok, 1 warn, 2 fail.
    """
    gauge(name_gauge(report.stream, "level"), LEVELS.index(report.level))
    for name in GAUGES:
        value = getattr(report, name)
        if value is not None:
            gauge(name_gauge(report.stream, name), value)
    for partition, seconds in report.partitions_covered_seconds.items():
        gauge(name_gauge(report.stream, "partition_covered_seconds", partition), seconds)
    return report
