"""What a verdict on freshness is made of: facts of Kafka and the table, and the clocks."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from frazil.state import StreamState

Level = Literal["ok", "warn", "fail"]
Cause = Literal[
    "up_to_date",
    "idle",
    "running",
    "behind",
    "paused",
    "not_planned",
    "open_transaction",
    "not_started",
    "blocked",
    "review",
    "halted",
    "source_error",
    "kafka_down",
    "catalog_down",
    "registry_down",
    "misconfigured",
]
"""Why the table is where it is; `read_all_at` and limits decide between the first six."""
DOWN: frozenset[Cause] = frozenset({"kafka_down", "catalog_down", "registry_down"})
"""A part did not answer; the next look may find it back."""


@dataclass(frozen=True)
class Retention:
    """When Kafka deletes: after `ms` (None: never by age), or above a size per partition."""

    ms: int | None = None
    is_by_bytes: bool = False


@dataclass(frozen=True)
class PartitionFacts:
    """One partition: offsets, and timestamps (ms) of its first unread and its first kept record.

    `is_drained` says that what lags is no record: marks of transactions, or what was aborted.
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
    is_drained: bool = False
    retention: Retention = Retention()

    @property
    def lag(self) -> int:
        """Count the offsets that Kafka has and the table has not."""
        return max(0, self.end - self.next_offset)

    @property
    def is_waiting(self) -> bool:
        """Say whether a record may wait here."""
        return self.lag > 0 and not self.is_drained

    @property
    def held(self) -> int:
        """Count the offsets that nobody may read before a transaction ends."""
        return max(0, self.held_end - self.end)


@dataclass(frozen=True)
class Obstacle:
    """What keeps the stream from moving: the error that says so, its code and next step."""

    cause: Cause
    text: str
    next_step: str
    code: str = ""


@dataclass(frozen=True)
class FreshnessFacts:
    """Everything that a verdict on freshness needs.

    `state` is the one that the partitions were compared with. `read_all_at` is when the table last
    had all that Kafka had, or when the stream began; `staged_at` are the births of staging branches
    on the present epoch. `unnamed` are fields of the newest batch without a column. `is_paused`
    says that people paused its DAG, as far as anybody could ask.
    """

    stream: str
    table: str
    partitions: tuple[PartitionFacts, ...] = ()
    newest_ingest_at: datetime | None = None
    read_all_at: datetime | None = None
    staged_at: tuple[datetime, ...] = ()
    obstacle: Obstacle | None = None
    state: StreamState | None = None
    rows: int | None = None
    newest_redrive_at: datetime | None = None
    put_aside: tuple[str, ...] = ()
    unnamed: tuple[str, ...] = ()
    is_paused: bool = False


@dataclass(frozen=True)
class Clocks:
    """The clocks at one moment, in seconds; `lost_first` is the partition of the next loss."""

    stream: float | None
    table: float | None
    record: float | None
    held: float | None
    loss: float | None
    lost_first: str
