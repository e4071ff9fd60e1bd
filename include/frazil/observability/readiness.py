"""Is a stream ready for production? A scorecard: each line with evidence and, if red, the fix.

The judgement is pure; `readiness_facts` asks Kafka, the table and the stream file. Nothing is
written (features B16).
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import computed_field

from frazil.events import Event
from frazil.messages import Report
from frazil.observability.freshness import DOWN, FreshnessReport
from frazil.observability.readiness_facts import DRILL_DAYS, ReadinessFacts, gather_readiness
from frazil.streams.models import Stream
from frazil.streams.timestamps import describe_seconds
from frazil.workspace import Workspace

DEFAULT_OUTAGE_HOURS = 72
"""The worst outage that retention has to cover: a long weekend."""

HOUR = 3600
MANY_SMALL_FILES = 100
_UNKNOWN = DOWN | {"source_error", "halted", "misconfigured", "not_started"}
Mark = Literal["ok", "warn", "fail"]


class ReadinessCheck(Report):
    """One line of the scorecard; `fix` says what to do where it is not ok."""

    name: str
    mark: Mark
    evidence: str
    fix: str | None = None


class Scorecard(Report):
    """All lines of one stream."""

    stream: str
    outage_hours: int
    lines: tuple[ReadinessCheck, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ready(self) -> bool:
        """Say whether no line is red."""
        return all(line.mark != "fail" for line in self.lines)

    @property
    def text(self) -> str:
        """Say it for people, the red lines with their fix."""
        good = sum(line.mark == "ok" for line in self.lines)
        word = "is ready" if self.ready else "is not ready"
        head = f"{self.stream} {word}: {good} of {len(self.lines)} lines are good"
        rest = [
            f"{line.mark}: {line.name}: {line.evidence}\n  Next: {line.fix}"
            for line in self.lines
            if line.mark != "ok"
        ]
        return "\n".join([head, *rest])


def check_readiness(work: Workspace, outage_hours: int = DEFAULT_OUTAGE_HOURS) -> Scorecard:
    """Judge a stream by what Kafka, its table and its file say now.

    Raises:
        FrazilError: the catalog or the broker cannot be asked.
    """
    lines = tuple(judge_readiness(gather_readiness(work), outage_hours))
    return Scorecard(stream=work.stream.stream, outage_hours=outage_hours, lines=lines)


def judge_readiness(facts: ReadinessFacts, outage_hours: int) -> Iterator[ReadinessCheck]:
    """Yield the lines, in the order in which a person would mend them."""
    name = facts.stream.stream
    yield _judge_state(facts)
    yield from _judge_kafka(facts, outage_hours)
    yield _judge_rollback(facts)
    route = facts.stream.route
    if route is None or route.takes is not None:  # the rest of a route publishes no rows
        yield _judge_expectations(facts.stream)
    yield _judge_letters(facts)
    yield _judge_schema(facts)
    yield _line(
        "fields",
        f"{', '.join(facts.unnamed) or 'none'} of the newest batch has no column",
        f"add what is wanted to value.columns; `frazil replay {name} --since 2026-01-31T00:00:00Z` "
        "shows what older records would gain",
        is_good=not facts.unnamed,
    )
    yield from _judge_table(facts)
    yield _judge_drills(name, facts.drills)
    yield _line(
        "small files",
        f"{facts.table.small_files:,} of {facts.table.files:,} files are small",
        f"unpause DAG maintain__{name}, or `frazil maintain {name} --no-dry-run --only compact`",
        is_good=facts.table.small_files < max(MANY_SMALL_FILES, facts.table.files // 2),
    )
    yield _line(
        "authentication",
        "asked is " + "; ".join(access.text for access in facts.access),
        "set credentials in the connections that ask as anybody (security.protocol and sasl.* or a "
        "client certificate for Kafka; token or credential for a REST catalog; a login for a "
        "registry)",
        is_good=all(access.is_known for access in facts.access),
    )


def _judge_table(facts: ReadinessFacts) -> Iterator[ReadinessCheck]:
    """Judge whether the table is the file's own matter, and as the file says."""
    yield _line(
        "other writers",
        f"{facts.around.foreign_snapshots:,} snapshots by others changed rows; "
        f"table.other_writers is {facts.stream.table.other_writers}",
        f"`frazil snapshots {facts.stream.stream}` lists them; table.other_writers can refuse them",
        is_good=facts.around.foreign_snapshots == 0,
    )
    for difference in facts.around.layout:
        yield _line(
            "layout",
            difference,
            "no stage follows it: put back what the table has, or alter it "
            "yourself (`ALTER TABLE … REPLACE PARTITION FIELD`, `WRITE ORDERED BY`, `SET "
            "TBLPROPERTIES`)",
            is_good=False,
        )
    if not facts.around.layout:
        yield _line("layout", "the table is laid out as the file says", "", is_good=True)


def _judge_schema(facts: ReadinessFacts) -> ReadinessCheck:
    """Judge whether a person decides, and has; that the owner can be reached nobody asks."""
    policy, asks = facts.stream.schema_policy.other, list(facts.put_aside)
    if not asks and facts.freshness.cause == "review":
        asks = ["a change (the line freshness)"]
    owner = f"schema.other is {policy}; the file names {facts.stream.owner} for answers"
    if asks:
        return _line(
            "schema decisions",
            f"{', '.join(asks)} waits for an answer; {owner}",
            f"`frazil review-schema {facts.stream.stream}`, then --accept or --stop",
            is_good=False,
        )
    return _line(
        "schema decisions",
        f"none waits; {owner}",
        "set schema.other to review: a rename or another type happens without a person now",
        is_good=policy != "auto",
    )


def _judge_expectations(stream: Stream) -> ReadinessCheck:
    return _line(
        "expectations",
        f"suite {stream.quality.suite or 'none'}, a failed check "
        f"{'warns' if stream.quality.on_failure == 'warn' else 'blocks'}",
        "name a suite under quality.suite: rows of any content are published now",
        is_good=stream.quality.suite is not None,
    )


def _judge_state(facts: ReadinessFacts) -> ReadinessCheck:
    """Judge whether it runs at all; a stream that is merely behind is told by the watch."""
    fresh = facts.freshness
    evidence = f"{fresh.level}: {fresh.text}"
    fix = fresh.next_step or "`frazil status` shows more"
    return ReadinessCheck(
        name="freshness",
        mark=fresh.level,
        evidence=evidence,
        fix=None if fresh.level == "ok" else fix,
    )


def _judge_kafka(facts: ReadinessFacts, outage_hours: int) -> Iterator[ReadinessCheck]:
    topics = ", ".join(facts.stream.source.names)
    covers = facts.freshness.retention_covers_seconds
    if not _is_compared(facts.freshness):
        yield _line(
            "retention",
            "not known: topic and table could not be compared",
            facts.freshness.next_step or "`frazil status` says why",
            is_good=False,
            otherwise="fail",
        )
        return
    kept = "for ever" if covers is None else f"for {describe_seconds(covers)} from now"
    yield _line(
        "retention",
        f"Kafka keeps what arrives in {topics} {kept}; the worst outage is {outage_hours} h",
        f"raise retention.ms (and retention.bytes) of {topics}, or plan for a shorter outage",
        is_good=covers is None or covers >= outage_hours * HOUR,
        otherwise="fail",
    )
    yield _line(
        "replay",
        f"cleanup.policy of {topics} {'has' if facts.is_compacted else 'has no'} compaction",
        "a compacted topic gives back fewer records than were read: keep a copy of the table "
        "instead (a tag), or a topic that deletes by age",
        is_good=not facts.is_compacted,
    )
    fail, warn = facts.stream.freshness.fail_seconds, facts.stream.freshness.warn_seconds
    yield _line(
        "alerts",
        f"the watch warns after {describe_seconds(warn)} and fails after {describe_seconds(fail)}",
        "lower freshness.fail_seconds: records may be lost before the second alarm",
        is_good=covers is None or fail * 2 <= covers,
        otherwise="fail",
    )


def _is_compared(fresh: FreshnessReport) -> bool:
    """Say whether the retention was asked; an obstacle on the way leaves it unknown."""
    return fresh.lag_offsets is not None and fresh.cause not in _UNKNOWN


def _judge_rollback(facts: ReadinessFacts) -> ReadinessCheck:
    covers = facts.freshness.retention_covers_seconds
    is_kept = _is_compared(facts.freshness) and (
        covers is None or covers >= facts.rollback_hours * HOUR
    )
    reads = facts.around.kept_hours
    is_there = reads is None or reads >= facts.rollback_hours
    stay = "all snapshots are there" if reads is None else f"snapshots of {reads} h are there"
    kept = "still has" if is_kept else "may no longer have"
    return _line(
        "rollback",
        f"{facts.rollback_hours} h are to be rolled back; {stay}, readers are promised "
        f"{facts.expire_hours} h; Kafka {kept} all of it",
        "set maintenance.rollback_hours to what people need, and the topic's retention above it"
        if is_there
        else "Frazil's own expiry keeps the window: see that nothing else expires snapshots here; "
        "one that was raised fills up as time goes by",
        is_good=facts.rollback_hours > 0 and is_kept and is_there,
    )


def _judge_letters(facts: ReadinessFacts) -> ReadinessCheck:
    name = facts.stream.stream
    is_open = facts.letters.open if facts.letters else 0
    limits = facts.stream.errors
    return _line(
        "dead letters",
        f"{is_open:,} wait; a batch stops above {limits.max_bad_ratio:.0%} bad records",
        f"`frazil dead-letters {name}`, mend the cause, then `frazil replay-dead-letters {name}`",
        is_good=is_open == 0,
    )


def _judge_drills(stream: str, drills: Mapping[str, Event]) -> ReadinessCheck:
    """Judge whether people know that what the pages say works here.

    A drill that failed stays a failure until that same drill passes.
    """
    failed = {n: e for n, e in drills.items() if e.facts.get("verdict") != "passed"}
    shown = failed or drills
    name, last = max(shown.items(), key=lambda each: each[1].at, default=("replay", None))
    return _line(
        "last drill",
        f"{last.at:%Y-%m-%d}: {last.text}" if last else f"none in the last {DRILL_DAYS} days",
        f"`frazil drill {name} --like {stream}`: it breaks and mends a scratch stream",
        is_good=bool(drills) and not failed,
        otherwise="fail" if failed else "warn",
    )


def _line(
    name: str, evidence: str, fix: str, *, is_good: bool, otherwise: Mark = "warn"
) -> ReadinessCheck:
    mark: Mark = "ok" if is_good else otherwise
    return ReadinessCheck(name=name, mark=mark, evidence=evidence, fix=None if is_good else fix)
