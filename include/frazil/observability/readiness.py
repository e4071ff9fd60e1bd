"""Readiness of a stream for production: a scorecard of checks with evidence and fixes.

Checks are pure functions of `readiness_facts`; nothing is written.
"""

from collections.abc import Iterator, Mapping
from typing import Literal

from pydantic import computed_field

from frazil.events import WATCH_SECONDS, Event
from frazil.messages import Report, count_noun
from frazil.observability.freshness import DOWN, FreshnessReport
from frazil.observability.readiness_facts import DRILL_DAYS, ReadinessFacts, gather_readiness
from frazil.streams.models import Stream
from frazil.streams.timestamps import describe_seconds
from frazil.workspace import Workspace

DEFAULT_OUTAGE_HOURS = 72
"""The longest outage that retention has to cover: a long weekend."""

HOUR = 3600
MANY_WAITING_BATCHES = 10
"""The fewest batches without a merge that fail the check of merges."""
MANY_SMALL_FILES = 100
_UNKNOWN = DOWN | {"source_error", "halted", "misconfigured", "not_started"}
Mark = Literal["ok", "warn", "fail"]


class ReadinessCheck(Report):
    """One check of the scorecard; `fix` is the next step where the mark is not ok."""

    name: str
    mark: Mark
    evidence: str
    fix: str | None = None


class Scorecard(Report):
    """All checks of one stream."""

    stream: str
    outage_hours: int
    lines: tuple[ReadinessCheck, ...]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def ready(self) -> bool:
        """Return whether no check failed."""
        return all(line.mark != "fail" for line in self.lines)

    @property
    def text(self) -> str:
        """Describe the result, with the fix of every check that is not ok."""
        good = sum(line.mark == "ok" for line in self.lines)
        word = "is ready" if self.ready else "is not ready"
        head = f"{self.stream} {word}: {good} of {count_noun(len(self.lines), 'check')} ok"
        rest = [
            f"{line.mark}: {line.name}: {line.evidence}\n  Next: {line.fix}"
            for line in self.lines
            if line.mark != "ok"
        ]
        return "\n".join([head, *rest])


def check_readiness(work: Workspace, outage_hours: int = DEFAULT_OUTAGE_HOURS) -> Scorecard:
    """Check a stream against Kafka, its table and its file.

    Raises:
        FrazilError: the catalog or the broker did not answer.
    """
    lines = tuple(judge_readiness(gather_readiness(work), outage_hours))
    return Scorecard(stream=work.stream.stream, outage_hours=outage_hours, lines=lines)


def judge_readiness(facts: ReadinessFacts, outage_hours: int) -> Iterator[ReadinessCheck]:
    """Yield the checks, most urgent first."""
    name = facts.stream.stream
    yield _judge_state(facts)
    yield from _judge_kafka(facts, outage_hours)
    yield _judge_rollback(facts)
    route = facts.stream.route
    if route is None or route.takes is not None:  # a route's base stream publishes no rows
        yield _judge_expectations(facts.stream)
    yield _judge_dead_letters(facts)
    yield _judge_schema(facts)
    yield _line(
        "fields",
        f"without a column in the newest batch: {', '.join(facts.unmapped_fields)}"
        if facts.unmapped_fields
        else "every field of the newest batch has a column",
        "add the fields you want to value.columns, those in backticks as "
        f"`name: {{type: …, from: FIELD}}`; `frazil replay {name} --since "
        "2026-01-31T00:00:00Z` previews their values in older records",
        is_good=not facts.unmapped_fields,
    )
    yield from _judge_table(facts)
    yield from _judge_state_table(facts)
    yield _judge_drills(name, facts.drills)
    yield _line(
        "small files",
        f"{facts.table.small_files:,} of {count_noun(facts.table.files, 'file')} small",
        f"unpause DAG maintain__{name}, or `frazil maintain {name} --no-dry-run --only compact`",
        is_good=facts.table.small_files < max(MANY_SMALL_FILES, facts.table.files // 2),
    )
    yield _line(
        "authentication",
        "; ".join(each.text for each in facts.authentication),
        "set credentials in the connections without authentication (security.protocol with sasl.* "
        "or a client certificate for Kafka; token or credential for a REST catalog; a login for a "
        "registry)",
        is_good=all(each.identifies_client for each in facts.authentication),
    )


def _judge_table(facts: ReadinessFacts) -> Iterator[ReadinessCheck]:
    """Check for other writers, and that the table's layout is that of the stream file."""
    yield _line(
        "other writers",
        f"{count_noun(facts.checks.foreign_snapshots, 'snapshot')} of other writers changed rows; "
        f"table.other_writers is {facts.stream.table.other_writers}",
        f"`frazil snapshots {facts.stream.stream}` lists them; set table.other_writers to refuse "
        "them",
        is_good=facts.checks.foreign_snapshots == 0,
    )
    for difference in facts.checks.layout:
        yield _line(
            "layout",
            difference,
            "Frazil does not change it: correct the stream file, or alter the table yourself "
            "(`ALTER TABLE … REPLACE PARTITION FIELD`, `WRITE ORDERED BY`, `SET TBLPROPERTIES`)",
            is_good=False,
        )
    if not facts.checks.layout:
        yield _line("layout", "as in the stream file", "", is_good=True)


def _judge_state_table(facts: ReadinessFacts) -> Iterator[ReadinessCheck]:
    status = facts.state_table
    if status is not None:
        yield _line(
            "state table",
            status.text,
            status.next_step
            or f"`frazil merge {facts.stream.stream}` shows why the state table is behind",
            is_good=status.problem is None and status.waiting_batches < MANY_WAITING_BATCHES,
        )


def _judge_schema(facts: ReadinessFacts) -> ReadinessCheck:
    """Check that schema changes are reviewed, and that no review is pending."""
    policy, pending = facts.stream.schema_policy.other, list(facts.pending_changes)
    if not pending and facts.freshness.cause == "review":
        pending = ["a change (see the check freshness)"]
    owner = f"schema.other is {policy}; owner: {facts.stream.owner}"
    if pending:
        return _line(
            "schema decisions",
            f"pending: {', '.join(pending)}; {owner}",
            f"`frazil review-schema {facts.stream.stream}`, then --accept or --stop",
            is_good=False,
        )
    return _line(
        "schema decisions",
        f"none pending; {owner}",
        "set schema.other to review: renames and type changes are now applied without a review",
        is_good=policy != "auto",
    )


def _judge_expectations(stream: Stream) -> ReadinessCheck:
    return _line(
        "expectations",
        f"suite {stream.quality.suite or 'none'}, a failed expectation "
        f"{'warns' if stream.quality.on_failure == 'warn' else 'blocks'}",
        "set quality.suite: rows are now published unchecked",
        is_good=stream.quality.suite is not None,
    )


def _judge_state(facts: ReadinessFacts) -> ReadinessCheck:
    """Check that the stream runs, by the level of the watch."""
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
            "unknown: topic and table could not be compared",
            facts.freshness.next_step or "`frazil status` shows why",
            is_good=False,
            otherwise="fail",
        )
        return
    kept = "without limit" if covers is None else f"for {describe_seconds(covers)} from now"
    yield _line(
        "retention",
        f"Kafka keeps records of {topics} {kept}; longest outage to survive: {outage_hours} h",
        f"raise retention.ms (and retention.bytes) of {topics}, or plan for a shorter outage",
        is_good=covers is None or covers >= outage_hours * HOUR,
        otherwise="fail",
    )
    yield _line(
        "replay",
        f"{topics}: {'compacted' if facts.is_compacted else 'not compacted'} (cleanup.policy)",
        "a compacted topic cannot be replayed: keep tags of the table instead, or use a topic that "
        "deletes by age",
        is_good=not facts.is_compacted,
    )
    yield _judge_alerts(facts)


def _judge_alerts(facts: ReadinessFacts) -> ReadinessCheck:
    """Check that the watch runs, and that it fails long before records are lost."""
    covers = facts.freshness.retention_covers_seconds
    fail, warn = facts.stream.freshness.fail_seconds, facts.stream.freshness.warn_seconds
    age = facts.watch_age_seconds
    is_watched, is_early = (
        age is not None and age <= WATCH_SECONDS,
        covers is None or fail * 2 <= covers,
    )
    return _line(
        "alerts",
        f"the watch warns after {describe_seconds(warn)} and fails after {describe_seconds(fail)}; "
        f"{_describe_watch(age)}",
        "unpause the DAG watch and check that its runs succeed: without it there are no alerts"
        if is_early
        else "lower freshness.fail_seconds: records may be lost before the second alert",
        is_good=is_early and is_watched,
        otherwise="warn" if is_early else "fail",
    )


def _describe_watch(age_seconds: float | None) -> str:
    if age_seconds is None:
        return "it never ran on this machine"
    return f"it last ran {describe_seconds(age_seconds)} ago on this machine"


def _is_compared(fresh: FreshnessReport) -> bool:
    """Return whether the retention is known; an obstacle may have prevented reading it."""
    return fresh.lag_offsets is not None and fresh.cause not in _UNKNOWN


def _judge_rollback(facts: ReadinessFacts) -> ReadinessCheck:
    covers = facts.freshness.retention_covers_seconds
    is_kept = _is_compared(facts.freshness) and (
        covers is None or covers >= facts.rollback_hours * HOUR
    )
    hours = facts.checks.kept_hours
    is_there = hours is None or hours >= facts.rollback_hours
    present = "" if hours is None else f" (present: {hours} h)"
    kept = "has all records of that window" if is_kept else "may not have all of them"
    return _line(
        "rollback",
        f"possible for {facts.rollback_hours} h; snapshots kept {facts.expire_hours} h{present}; "
        f"Kafka {kept}",
        "set maintenance.rollback_hours to what you need, and the topic's retention above it"
        if is_there
        else "check that no other job expires snapshots of this table; after rollback_hours was "
        "raised, the window fills up over time",
        is_good=facts.rollback_hours > 0 and is_kept and is_there,
    )


def _judge_dead_letters(facts: ReadinessFacts) -> ReadinessCheck:
    name = facts.stream.stream
    is_open = facts.dead_letters.open if facts.dead_letters else 0
    limits = facts.stream.errors
    return _line(
        "dead letters",
        f"{is_open:,} open; a batch is blocked above {limits.max_bad_ratio:.0%} bad records",
        f"`frazil dead-letters {name}`, fix the cause, then `frazil replay-dead-letters {name}`",
        is_good=is_open == 0,
    )


def _judge_drills(stream: str, drills: Mapping[str, Event]) -> ReadinessCheck:
    """Check that a drill passed lately; a failed drill counts until the same drill passes."""
    failed = {n: e for n, e in drills.items() if e.facts.get("verdict") != "passed"}
    shown = failed or drills
    name, last = max(shown.items(), key=lambda each: each[1].at, default=("replay", None))
    return _line(
        "last drill",
        f"{last.at:%Y-%m-%d}: {last.text}" if last else f"none in the last {DRILL_DAYS} days",
        f"`frazil drill {name} --like {stream}`: it breaks and repairs a scratch stream",
        is_good=bool(drills) and not failed,
        otherwise="fail" if failed else "warn",
    )


def _line(
    name: str, evidence: str, fix: str, *, is_good: bool, otherwise: Mark = "warn"
) -> ReadinessCheck:
    mark: Mark = "ok" if is_good else otherwise
    return ReadinessCheck(name=name, mark=mark, evidence=evidence, fix=None if is_good else fix)
