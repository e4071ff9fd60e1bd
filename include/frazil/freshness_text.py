"""A verdict on freshness in words: what waits, since when, why, and what to do."""

from collections.abc import Callable

from frazil.freshness_facts import Cause, Clocks, FreshnessFacts
from frazil.streams import Freshness


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


def describe_seconds(seconds: float) -> str:
    """Write a span of time as people say it: `42 s`, `3 min 5 s`, `2 h 10 min`, `4 d 3 h`."""
    whole = int(seconds)
    for size, unit, smaller_size, smaller in (
        (86_400, "d", 3600, "h"),
        (3600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // smaller_size
            return f"{whole // size} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"
