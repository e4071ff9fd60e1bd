"""What a verdict on freshness is made of: facts of Kafka and the table, and the clocks."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

Level = Literal["ok", "warn", "fail"]
Cause = Literal[
    "up_to_date",
    "idle",
    "running",
    "behind",
    "not_planned",
    "open_transaction",
    "not_started",
    "blocked",
    "halted",
    "source_error",
    "kafka_down",
    "catalog_down",
    "misconfigured",
]
"""Why the table is where it is; `read_all_at` and limits decide between the first five."""


@dataclass(frozen=True)
class PartitionFacts:
    """One partition: offsets, and timestamps (ms) of its first unread and its first kept record.

    `first_kept_ms` is asked for only where retention goes by bytes. `held_end` is the high
    watermark: beyond `end` lie records of open transactions, the first stamped `first_held_ms`.
    """

    topic: str
    partition: int
    earliest: int
    next_offset: int
    end: int
    held_end: int = 0
    first_unread_ms: int | None = None
    first_kept_ms: int | None = None
    first_held_ms: int | None = None

    @property
    def lag(self) -> int:
        """Count the offsets that Kafka has and the table has not."""
        return max(0, self.end - self.next_offset)

    @property
    def held(self) -> int:
        """Count the offsets that nobody may read before a transaction ends."""
        return max(0, self.held_end - self.end)


@dataclass(frozen=True)
class Retention:
    """When Kafka deletes: after `ms` (None: never by age), or above a size per partition."""

    ms: int | None = None
    is_by_bytes: bool = False


@dataclass(frozen=True)
class Obstacle:
    """What keeps the stream from moving, with the next step of the error that says so."""

    cause: Cause
    text: str
    next_step: str


@dataclass(frozen=True)
class FreshnessFacts:
    """Everything that a verdict on freshness needs.

    `read_all_at` is when the table last had all that Kafka had, or when the stream began;
    `staged_at` are the births of staging branches on the present epoch.
    """

    stream: str
    table: str
    partitions: tuple[PartitionFacts, ...] = ()
    newest_ingest_at: datetime | None = None
    read_all_at: datetime | None = None
    staged_at: tuple[datetime, ...] = ()
    retention: Retention = Retention()
    obstacle: Obstacle | None = None


@dataclass(frozen=True)
class Clocks:
    """The clocks at one moment, in seconds."""

    stream: float | None
    table: float | None
    record: float | None
    held: float | None
    loss: float | None
