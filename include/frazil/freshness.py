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

from collections.abc import Iterable
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from frazil.freshness_facts import (
    DOWN,
    Cause,
    Clocks,
    FreshnessFacts,
    Level,
    Obstacle,
    PartitionFacts,
    Retention,
)
from frazil.freshness_text import explain, find_next_step, name_question
from frazil.streams import Freshness

__all__ = [
    "FreshnessFacts",
    "FreshnessReport",
    "Obstacle",
    "PartitionFacts",
    "Retention",
    "judge_freshness",
]

RUNNING_SECONDS = 1800
"""A younger staging branch is taken for a run at work; an older one for what a killed run left."""

CLOCK_SKEW_SECONDS = 60
"""Timestamps further ahead than this are not arrival times."""

_ALWAYS_FAIL: frozenset[Cause] = DOWN | {"halted", "source_error", "misconfigured"}
_ALWAYS_WARN: frozenset[Cause] = frozenset({"blocked", "review", "not_started"})


class FreshnessReport(BaseModel):
    """The verdict of one watch; ages in seconds, None where there is nothing to measure.

    `record_age_seconds` is the bare age of the oldest unread record's timestamp;
    `retention_covers_seconds` is how long the stream may stand still from now without a loss, and
    `partitions_covered_seconds` the same by partition (`topic-0`), where it is known.
    """

    model_config = ConfigDict(frozen=True)

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
