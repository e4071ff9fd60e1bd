"""How fresh is a stream? Two clocks, the cause of a delay, and the time until records are lost.

*Table clock*: the age of the newest ingest snapshot; maintenance does not turn it back (F12).
*Stream clock*: how long the oldest record has waited that Kafka has and the table has not. Without
such a record there is none: an idle stream is not stale, and it is not called fresh either.

Kafka does not keep when a record arrived, unless the topic stamps it (LogAppendTime). Two upper
bounds are known, and the smaller one counts, per partition:

* the age of the record's own timestamp; where producers set event times it may be years;
* the time since the table last had everything (`read_all_at`): what is unread now came after that.

So the clock never runs behind a record that waits, and a stall is seen at the latest `fail_seconds`
after the newest ingest. It runs ahead only if both bounds do: an old event time that arrives after
a long idle time. Such an alarm ends with the next ingest, and the watch's next run is green again.
A timestamp from the future says nothing; the other bound stands alone.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from frazil.ledger.state import StreamState
from frazil.messages import Report
from frazil.streams.models import Freshness
from frazil.streams.timestamps import describe_seconds

RUNNING_SECONDS = 1800
"""A younger staging branch is taken for a run at work; an older one for what a killed run left."""


CLOCK_SKEW_SECONDS = 60
"""Timestamps further ahead than this are not arrival times."""


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


_ALWAYS_FAIL: frozenset[Cause] = DOWN | {"halted", "source_error", "misconfigured"}


_ALWAYS_WARN: frozenset[Cause] = frozenset({"blocked", "review", "not_started"})


Level = Literal["ok", "warn", "fail"]


class FreshnessReport(Report):
    """The verdict of one watch; ages in seconds, None where there is nothing to measure.

    `record_age_seconds` is the bare age of the oldest unread record's timestamp;
    `retention_covers_seconds` is how long the stream may stand still from now without a loss, and
    `partitions_covered_seconds` the same by partition (`topic-0`), where it is known.
    """

    stream: str
    table: str
    level: Level
    cause: Cause
    stream_clock_seconds: int | None
    table_clock_seconds: int | None
    record_age_seconds: int | None
    lag_offsets: int | None
    time_to_loss_seconds: int | None
    retention_covers_seconds: int | None = None
    partitions_covered_seconds: dict[str, int] = {}
    unnamed_fields: tuple[str, ...] = ()
    text: str
    next_step: str | None


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


def judge_freshness(facts: FreshnessFacts, limits: Freshness, now: datetime) -> FreshnessReport:
    """Judge a stream by its own limits; every delay has a cause and a next step."""
    clocks, losses = read_clocks(facts, now), forecast_losses(facts, now)
    cause = decide_cause(facts, clocks, limits, now)
    level = decide_level(cause, clocks, limits)
    next_step = None if level == "ok" else find_next_step(facts, cause)
    if facts.put_aside and level == "ok":
        level, next_step = "warn", name_question(facts)  # somebody still has to decide
    return FreshnessReport(
        stream=facts.stream,
        table=facts.table,
        level=level,
        cause=cause,
        stream_clock_seconds=_whole(clocks.stream),
        table_clock_seconds=_whole(clocks.table),
        record_age_seconds=_whole(clocks.record),
        lag_offsets=sum(p.lag for p in facts.partitions) if facts.partitions else None,
        time_to_loss_seconds=_whole(clocks.loss),
        retention_covers_seconds=_whole(_soonest(losses.values())),
        partitions_covered_seconds={
            f"{topic}-{partition}": int(seconds)
            for (topic, partition), seconds in losses.items()
            if seconds is not None
        },
        unnamed_fields=facts.unnamed,
        text=explain(facts, clocks, cause, limits),
        next_step=next_step,
    )


@dataclass(frozen=True)
class Clocks:
    """The clocks at one moment, in seconds; `lost_first` is the partition of the next loss."""

    stream: float | None
    table: float | None
    record: float | None
    held: float | None
    loss: float | None
    lost_first: str


def read_clocks(facts: FreshnessFacts, now: datetime) -> Clocks:
    """Read both clocks, and the time until retention takes the first unread record."""
    bound = _seconds_since(facts.read_all_at, now)
    unread = [p for p in facts.partitions if p.is_waiting]
    ages = [_age_seconds(p.first_unread_ms, now) for p in unread]
    held = [_age_seconds(p.first_held_ms, now) for p in facts.partitions if p.held]
    losses = {f"{p.topic}-{p.partition}": _time_to_loss(p, bound, now) for p in unread}
    known = {name: seconds for name, seconds in losses.items() if seconds is not None}
    return Clocks(
        stream=_oldest(_smaller(age, bound) for age in ages),
        table=_seconds_since(facts.newest_ingest_at, now),
        record=_oldest(ages),
        held=_oldest(_smaller(age, bound) for age in held),
        loss=_soonest(losses.values()),
        lost_first=min(known, key=known.__getitem__, default=""),
    )


def _age_seconds(timestamp_ms: int | None, now: datetime) -> float | None:
    """Give the age of a record; None if its timestamp is unknown or from the future."""
    if timestamp_ms is None:
        return None
    age = now.timestamp() - timestamp_ms / 1000
    return max(0.0, age) if age >= -CLOCK_SKEW_SECONDS else None


def forecast_losses(facts: FreshnessFacts, now: datetime) -> dict[tuple[str, int], float | None]:
    """Forecast by partition how long it may stand still before Kafka deletes what is unread.

    Where nothing waits it is a record that arrives now. By bytes that is an estimate: a steady
    topic keeps about as long as the records that it keeps now are apart.
    """
    bound = _seconds_since(facts.read_all_at, now)
    return {
        (p.topic, p.partition): _time_to_loss(p, bound, now) if p.is_waiting else _time_kept(p, now)
        for p in facts.partitions
    }


def _time_kept(partition: PartitionFacts, now: datetime) -> float | None:
    retention = partition.retention
    by_age = retention.ms / 1000 if retention.ms is not None else None
    return _smaller(by_age, _age_seconds(partition.first_kept_ms, now))


def _time_to_loss(partition: PartitionFacts, bound: float | None, now: datetime) -> float | None:
    """Forecast when retention reaches the first unread record; None if it never does.

    By age Kafka counts from record timestamps. By bytes nobody knows the sizes: once Kafka deletes,
    a steady topic reaches the record after the time between its first kept record and this one.
    """
    found: list[float] = []
    retention = partition.retention
    age = _age_seconds(partition.first_unread_ms, now)
    if retention.ms is not None:
        age = bound if age is None else age
        found.append(retention.ms / 1000 - (age or 0.0))
    kept, unread = partition.first_kept_ms, partition.first_unread_ms
    if retention.is_by_bytes and partition.earliest > 0 and kept is not None and unread is not None:
        found.append((unread - kept) / 1000)
    return max(0.0, min(found)) if found else None


def decide_cause(facts: FreshnessFacts, clocks: Clocks, limits: Freshness, now: datetime) -> Cause:
    """Decide why the table is where it is."""
    if facts.obstacle is not None:
        return facts.obstacle.cause
    is_recent = clocks.table is not None and clocks.table <= limits.warn_seconds
    if not any(p.is_waiting for p in facts.partitions):
        if clocks.held is not None and clocks.held > limits.warn_seconds:
            return "open_transaction"
        return "up_to_date" if is_recent else "idle"
    if any((now - born).total_seconds() < RUNNING_SECONDS for born in facts.staged_at):
        return "running"
    if clocks.stream is not None and clocks.stream <= limits.warn_seconds:
        return "up_to_date"
    unpaused: Cause = "behind" if is_recent else "not_planned"
    return "paused" if facts.is_paused else unpaused


def decide_level(cause: Cause, clocks: Clocks, limits: Freshness) -> Level:
    """Decide by the stream's limits, and by what a person must see at once."""
    waiting = clocks.held if cause == "open_transaction" else clocks.stream
    if cause in _ALWAYS_FAIL or (waiting is not None and waiting > limits.fail_seconds):
        return "fail"
    is_late = waiting is not None and waiting > limits.warn_seconds
    is_short = clocks.loss is not None and clocks.loss < 2 * limits.fail_seconds
    return "warn" if is_late or is_short or cause in _ALWAYS_WARN else "ok"


def _seconds_since(moment: datetime | None, now: datetime) -> float | None:
    return max(0.0, (now - moment).total_seconds()) if moment is not None else None


def _smaller(first: float | None, second: float | None) -> float | None:
    return _soonest((first, second))


def _soonest(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _oldest(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _whole(seconds: float | None) -> int | None:
    return int(seconds) if seconds is not None else None


def explain(facts: FreshnessFacts, clocks: Clocks, cause: Cause, limits: Freshness) -> str:
    """Say in one line what is read, what waits, since when, and why."""
    parts = [f"{facts.stream}: {_describe_cause(facts, cause)}"]
    lag = sum(p.lag for p in facts.partitions if p.is_waiting)
    if lag and clocks.stream is not None:
        parts.append(
            f"{lag} offsets wait, the oldest for {describe_seconds(clocks.stream)} "
            f"(warn {describe_seconds(limits.warn_seconds)}, "
            f"fail {describe_seconds(limits.fail_seconds)})"
        )
    if clocks.record is not None and clocks.record > (clocks.stream or 0.0) + 1:
        age = describe_seconds(clocks.record)
        parts.append(f"its own timestamp is {age} old, older than its arrival can be")
    held = sum(p.held for p in facts.partitions)
    if held:
        parts.append(f"{held} offsets wait behind open transactions")
    if facts.put_aside:
        parts.append(f"records whose schema asks for {', '.join(facts.put_aside)} are put aside")
    if facts.unnamed:
        parts.append(f"no column names the fields {', '.join(facts.unnamed)}: they are left out")
    if clocks.table is not None:
        parts.append(f"newest ingest {describe_seconds(clocks.table)} ago")
    if clocks.loss is not None:
        parts.append(
            f"Kafka may delete {clocks.lost_first} first, in {describe_seconds(clocks.loss)}"
        )
    return "; ".join(parts)


def _describe_cause(facts: FreshnessFacts, cause: Cause) -> str:
    words = cause.replace("_", " ")
    if facts.obstacle is not None:
        return f"{words}: {facts.obstacle.text}"
    if cause == "up_to_date" and any(p.is_waiting for p in facts.partitions):
        return "within its limits"
    if cause == "running" and len(facts.staged_at) > 1:
        return f"running: attempt {len(facts.staged_at)} of this batch, the others did not finish"
    return words


_NEXT_STEPS: dict[Cause, Callable[[FreshnessFacts], str]] = {
    "running": lambda facts: f"see the task `stage` of DAG ingest__{facts.stream}",
    "behind": lambda facts: (
        f"raise batch.max_records or the schedule of {facts.stream}; "
        f"`frazil snapshots {facts.stream}` shows what each batch took"
    ),
    "not_planned": lambda facts: (
        f"see that DAG ingest__{facts.stream} is not paused, that its runs succeed and that the "
        f"scheduler runs; `frazil run {facts.stream}` reads at once"
    ),
    "paused": lambda facts: (
        f"unpause DAG ingest__{facts.stream}: it goes on where it stopped; "
        f"`frazil run {facts.stream}` reads at once"
    ),
    "open_transaction": lambda _: (
        "find the producer whose transaction is open (`kafka-transactions.sh find-hanging`)"
    ),
}


def find_next_step(facts: FreshnessFacts, cause: Cause) -> str:
    """Say what to do; an error's own next step comes first."""
    if facts.obstacle is not None:
        return facts.obstacle.next_step
    if cause in _NEXT_STEPS:
        return _NEXT_STEPS[cause](facts)
    return (
        f"raise the topic's retention, or run {facts.stream} more often: records would be deleted "
        "before an alarm about their delay"
    )


def name_question(facts: FreshnessFacts) -> str:
    """Say how to end what a person put aside."""
    return (
        f"`frazil review-schema {facts.stream}` shows what is in question; after --accept its "
        "letters can come back"
    )
