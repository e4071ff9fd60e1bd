"""Facts about a stream at one moment, for tests of freshness."""

from datetime import UTC, datetime, timedelta

from frazil.observability.freshness import (
    FreshnessFacts,
    FreshnessReport,
    PartitionFacts,
    judge_freshness,
)
from frazil.streams.models import Freshness

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
LIMITS = Freshness(warn_seconds=180, fail_seconds=600)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def ago_ms(seconds: float) -> int:
    return int(ago(seconds).timestamp() * 1000)


def caught_up(partition: int = 0) -> PartitionFacts:
    return PartitionFacts("orders", partition, 0, 50, 50, 50)


def behind(record_age: float | None, partition: int = 0) -> PartitionFacts:
    """Ten offsets wait, the first stamped so many seconds ago."""
    stamped = ago_ms(record_age) if record_age is not None else None
    return PartitionFacts("orders", partition, 0, 40, 50, 50, first_unread_ms=stamped)


def facts_of(
    *partitions: PartitionFacts, ingest: float | None = 60, read_all: float | None = None
) -> FreshnessFacts:
    """Make facts; the newest ingest took everything unless `read_all` says otherwise."""
    newest = ago(ingest) if ingest is not None else None
    complete = read_all if read_all is not None else ingest
    read_all_at = ago(complete) if complete is not None else None
    return FreshnessFacts("orders", "demo.orders", partitions, newest, read_all_at)


def judge(facts: FreshnessFacts) -> FreshnessReport:
    return judge_freshness(facts, LIMITS, NOW)
