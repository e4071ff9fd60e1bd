"""Freshness of a stream: its clocks, the cause of a delay, and the time until records are lost.

*Table clock*: the age of the newest ingest snapshot; maintenance does not reset it.
*Merge clock*: how long the oldest change that no merge has brought to the state table has waited.
*Stream clock*: how long the oldest record in Kafka that is not in the table has waited. Without
such a record there is none: an idle stream is neither stale nor fresh.

Kafka does not store when a record arrived, unless the topic uses LogAppendTime. Two upper bounds
are known, and the smaller one counts, per partition:

* the age of the record's timestamp, which may be years where producers set event times;
* the time since the table last had everything (`read_all_at`): unread records arrived later.

So the clock is never below the true delay, and a stall is reported at the latest `fail_seconds`
after the newest ingest. It is too high only if both bounds are: an old event time that arrives
after a long idle time. That alert ends with the next ingest. Timestamps in the future are ignored.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from frazil.environment import create_pool_command
from frazil.ledger.offsets import describe_partition
from frazil.ledger.state import StreamState
from frazil.messages import Report, count_noun
from frazil.streams.models import Freshness
from frazil.streams.timestamps import describe_seconds

RUNNING_SECONDS = 1800
"""A younger staging branch belongs to a running attempt, an older one to a killed one."""
CLOCK_SKEW_SECONDS = 60
"""Timestamps further ahead than this are not arrival times."""
Cause = Literal[
    "up_to_date",
    "idle",
    "running",
    "behind",
    "paused",
    "no_slot",
    "not_planned",
    "open_transaction",
    "not_merged",
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
"""The reason why the table is behind or not.

Clocks, limits and what Airflow says decide between the first seven.
"""
DOWN: frozenset[Cause] = frozenset({"kafka_down", "catalog_down", "registry_down"})
"""Causes that may be gone at the next watch: a system did not answer."""
_ALWAYS_FAIL: frozenset[Cause] = DOWN | {"halted", "source_error", "misconfigured"}
_ALWAYS_WARN: frozenset[Cause] = frozenset({"blocked", "review", "not_started"})
Level = Literal["ok", "warn", "fail"]
LEVELS: tuple[Level, ...] = ("ok", "warn", "fail")


class FreshnessReport(Report):
    """Verdict of one watch; ages in seconds, None where there is nothing to measure.

    `record_age_seconds` is the age of the oldest unread record's timestamp;
    `retention_covers_seconds` is how long the stream may stop from now without losing records, and
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
    merge_clock_seconds: int | None = None
    partitions_covered_seconds: dict[str, int] = {}
    unnamed_fields: tuple[str, ...] = ()
    text: str
    next_step: str | None


@dataclass(frozen=True)
class Retention:
    """Kafka's retention: by age after `ms` (None: never), and whether also by size."""

    ms: int | None = None
    is_by_bytes: bool = False


@dataclass(frozen=True)
class PartitionFacts:
    """One partition: offsets, and timestamps (ms) of its first unread and first kept records.

    `is_drained`: the lag consists of transaction markers and aborted records only. `first_kept_ms`
    is fetched only where retention goes by size. `held_end` is the high watermark: between `end`
    and it are records of open transactions, the first with timestamp `first_held_ms`.
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
        """Return the number of offsets that Kafka has and the table has not read."""
        return max(0, self.end - self.next_offset)

    @property
    def is_waiting(self) -> bool:
        """Return whether an unread record may exist."""
        return self.lag > 0 and not self.is_drained

    @property
    def held(self) -> int:
        """Return the number of offsets above the last stable offset, in open transactions."""
        return max(0, self.held_end - self.end)


@dataclass(frozen=True)
class Obstacle:
    """The problem that stops the stream: cause, and the error's text, code and next step."""

    cause: Cause
    text: str
    next_step: str
    code: str = ""


@dataclass(frozen=True)
class MergeFacts:
    """How far the state table is behind its changes, and what halts its merges.

    `is_on_request`: merges run by hand alone, so changes wait as long as a person likes.
    """

    table: str
    behind_since: datetime | None = None
    problem: str | None = None
    next_step: str | None = None
    is_on_request: bool = False


@dataclass(frozen=True)
class FreshnessFacts:
    """Facts for a verdict on freshness.

    `state` is the one that the partitions were compared with. `read_all_at` is when the table last
    had all records of Kafka, or when the stream began; `staged_at` is when the staging branches of
    the present epoch were created. `pending_changes` are schema changes of quarantined records,
    `unmapped_fields` fields of the newest batch without a column. `merge` is of the state table,
    if the stream has one. `is_paused`: the DAG is paused,
    and `pool`: its tasks wait for a slot of this pool, as far as known.
    """

    stream: str
    table: str
    partitions: tuple[PartitionFacts, ...] = ()
    newest_ingest_at: datetime | None = None
    read_all_at: datetime | None = None
    staged_at: tuple[datetime, ...] = ()
    obstacle: Obstacle | None = None
    state: StreamState | None = None
    snapshot_id: int | None = None
    rows: int | None = None
    newest_redrive_at: datetime | None = None
    pending_changes: tuple[str, ...] = ()
    unmapped_fields: tuple[str, ...] = ()
    merge: MergeFacts | None = None
    is_paused: bool = False
    pool: str = ""


def judge_freshness(facts: FreshnessFacts, limits: Freshness, now: datetime) -> FreshnessReport:
    """Judge a stream by its own limits; every delay has a cause and a next step."""
    clocks, losses = read_clocks(facts, now), forecast_losses(facts, now)
    cause = decide_cause(facts, clocks, limits, now)
    level = decide_level(cause, clocks, limits)
    merge_level = decide_merge_level(facts.merge, clocks, limits)
    if LEVELS.index(merge_level) > LEVELS.index(level):
        cause, level = "not_merged", merge_level
    next_step = None if level == "ok" else find_next_step(facts, cause)
    if facts.pending_changes and level == "ok":
        level, next_step = "warn", describe_pending_review(facts)
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
        merge_clock_seconds=_whole(clocks.merge),
        partitions_covered_seconds={
            f"{topic}-{partition}": int(seconds)
            for (topic, partition), seconds in losses.items()
            if seconds is not None
        },
        unnamed_fields=facts.unmapped_fields,
        text=explain(facts, clocks, cause, limits),
        next_step=next_step,
    )


@dataclass(frozen=True)
class Clocks:
    """The clocks at one moment, in seconds.

    `lost_first` is the partition whose unread records Kafka deletes first.
    """

    stream: float | None
    table: float | None
    record: float | None
    held: float | None
    loss: float | None
    lost_first: str
    merge: float | None = None


def read_clocks(facts: FreshnessFacts, now: datetime) -> Clocks:
    """Compute both clocks, and the time until retention deletes the first unread record."""
    bound = _seconds_since(facts.read_all_at, now)
    unread = [p for p in facts.partitions if p.is_waiting]
    ages = [_age_seconds(p.first_unread_ms, now) for p in unread]
    held = [_age_seconds(p.first_held_ms, now) for p in facts.partitions if p.held]
    losses = {
        describe_partition(p.topic, p.partition): _time_to_loss(p, bound, now) for p in unread
    }
    known = {name: seconds for name, seconds in losses.items() if seconds is not None}
    return Clocks(
        stream=_oldest(_smaller(age, bound) for age in ages),
        table=_seconds_since(facts.newest_ingest_at, now),
        record=_oldest(ages),
        held=_oldest(_smaller(age, bound) for age in held),
        loss=_soonest(losses.values()),
        lost_first=min(known, key=known.__getitem__, default=""),
        merge=_seconds_since(facts.merge.behind_since, now) if facts.merge else None,
    )


def _age_seconds(timestamp_ms: int | None, now: datetime) -> float | None:
    """Return the age of a record; None if its timestamp is unknown or in the future."""
    if timestamp_ms is None:
        return None
    age = now.timestamp() - timestamp_ms / 1000
    return max(0.0, age) if age >= -CLOCK_SKEW_SECONDS else None


def forecast_losses(facts: FreshnessFacts, now: datetime) -> dict[tuple[str, int], float | None]:
    """Forecast by partition how long the stream may stop before Kafka deletes unread records.

    A partition without unread records is forecast for a record that arrives now. Retention by size
    is estimated: a steady topic keeps records for about the time span that it has now.
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
    """Forecast when retention deletes the first unread record; None if it never does.

    Retention by age counts from record timestamps. Retention by size is estimated: once Kafka
    deletes, a steady topic reaches the record after the time from its first kept record to it.
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
    """Decide why the table is behind or not."""
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
    return "paused" if facts.is_paused else "no_slot" if facts.pool else unpaused


def decide_level(cause: Cause, clocks: Clocks, limits: Freshness) -> Level:
    """Decide the level by the stream's limits and by causes that need a person."""
    waiting = clocks.held if cause == "open_transaction" else clocks.stream
    if cause in _ALWAYS_FAIL or (waiting is not None and waiting > limits.fail_seconds):
        return "fail"
    is_late = waiting is not None and waiting > limits.warn_seconds
    is_short = clocks.loss is not None and clocks.loss < 2 * limits.fail_seconds
    return "warn" if is_late or is_short or cause in _ALWAYS_WARN else "ok"


def decide_merge_level(merge: MergeFacts | None, clocks: Clocks, limits: Freshness) -> Level:
    """Decide the level of the state table: by the stream's limits, and by what halts its merges."""
    if merge is None:
        return "ok"
    waiting = 0.0 if merge.is_on_request else clocks.merge or 0.0
    if waiting > limits.fail_seconds:
        return "fail"
    return "warn" if merge.problem or waiting > limits.warn_seconds else "ok"


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
    """Describe in one line the cause, what waits, and since when."""
    parts = [f"{facts.stream}: {_describe_cause(facts, cause)}"]
    lag = sum(p.lag for p in facts.partitions if p.is_waiting)
    if lag and clocks.stream is not None:
        parts.append(
            f"{count_noun(lag, 'unread offset')}, the oldest waiting for "
            f"{describe_seconds(clocks.stream)} (warn {describe_seconds(limits.warn_seconds)}, "
            f"fail {describe_seconds(limits.fail_seconds)})"
        )
    if clocks.record is not None and clocks.record > (clocks.stream or 0.0) + 1:
        age = describe_seconds(clocks.record)
        parts.append(f"record timestamp {age} old (event time, not arrival)")
    if facts.merge is not None and decide_merge_level(facts.merge, clocks, limits) != "ok":
        parts.append(_describe_merge(facts.merge, clocks, limits))
    held = sum(p.held for p in facts.partitions)
    if held:
        parts.append(f"{count_noun(held, 'offset')} in open transactions")
    if facts.pending_changes:
        changes = ", ".join(facts.pending_changes)
        parts.append(f"records quarantined until a schema review of {changes}")
    if facts.unmapped_fields:
        fields = ", ".join(facts.unmapped_fields)
        noun = "field" if len(facts.unmapped_fields) == 1 else "fields"
        parts.append(f"ignored {noun}: {fields} (no matching column)")
    if clocks.table is not None:
        parts.append(f"newest ingest {describe_seconds(clocks.table)} ago")
    if clocks.loss is not None:
        parts.append(
            f"Kafka may delete unread records in {describe_seconds(clocks.loss)} "
            f"({clocks.lost_first})"
        )
    return "; ".join(parts)


def _describe_merge(merge: MergeFacts, clocks: Clocks, limits: Freshness) -> str:
    parts = [f"state table {merge.table}: {merge.problem or 'changes are not merged'}"]
    if clocks.merge is not None:
        parts.append(
            f"the oldest change not merged for {describe_seconds(clocks.merge)} "
            f"(warn {describe_seconds(limits.warn_seconds)}, "
            f"fail {describe_seconds(limits.fail_seconds)})"
        )
    return ", ".join(parts)


def describe_state(facts: FreshnessFacts, cause: Cause) -> str:
    """Return the state of a stream in words, the same on every screen and in every log."""
    if cause == "up_to_date" and any(p.is_waiting for p in facts.partitions):
        return "within its limits"
    return cause.replace("_", " ")


def _describe_cause(facts: FreshnessFacts, cause: Cause) -> str:
    name = describe_state(facts, cause)
    if facts.obstacle is not None:
        return f"{name}: {facts.obstacle.text}"
    if cause == "running" and len(facts.staged_at) > 1:
        return f"running: attempt {len(facts.staged_at)} of this batch, earlier ones did not finish"
    if cause == "no_slot":
        return f"{name}: tasks wait for pool {facts.pool}; without it in Airflow they never start"
    return name


_NEXT_STEPS: dict[Cause, Callable[[FreshnessFacts], str]] = {
    "running": lambda facts: f"check the task `stage` of DAG ingest__{facts.stream}",
    "behind": lambda facts: (
        f"raise batch.max_records of {facts.stream} or run it more often; "
        f"`frazil snapshots {facts.stream}` shows the size of each batch"
    ),
    "not_planned": lambda facts: (
        f"check that DAG ingest__{facts.stream} is not paused, its runs succeed and the scheduler "
        f"is running; `frazil run {facts.stream}` reads at once"
    ),
    "paused": lambda facts: (
        f"unpause DAG ingest__{facts.stream}: it continues where it stopped; "
        f"`frazil run {facts.stream}` reads at once"
    ),
    "no_slot": lambda facts: (
        f"if `airflow pools list` does not show {facts.pool}: {create_pool_command(facts.pool)}; "
        f"otherwise another task of table {facts.table} has its slot"
    ),
    "not_merged": lambda facts: (
        (facts.merge.next_step if facts.merge else None)
        or f"`frazil merge {facts.stream}` merges at once or shows why it cannot; see also the log "
        f"of task `merge` in DAG ingest__{facts.stream}"
    ),
    "open_transaction": lambda _: (
        "find the producer with the open transaction (`kafka-transactions.sh find-hanging`)"
    ),
}


def find_next_step(facts: FreshnessFacts, cause: Cause) -> str:
    """Return the next step, that of the obstacle if there is one."""
    if facts.obstacle is not None:
        return facts.obstacle.next_step
    if cause in _NEXT_STEPS:
        return _NEXT_STEPS[cause](facts)
    return (
        f"raise the topic's retention, or run {facts.stream} more often: Kafka would delete "
        "records before an alert about their delay"
    )


def describe_pending_review(facts: FreshnessFacts) -> str:
    """Return the next step for quarantined records."""
    return (
        f"`frazil review-schema {facts.stream}` shows the pending change; after --accept its dead "
        "letters can be replayed"
    )
