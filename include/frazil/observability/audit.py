"""AUDIT: check from Kafka and the table that every record is there exactly once.

The audit does not rely on counts of the ingest: it reads the published ranges of Kafka again and
compares the delivered offsets with the coordinates of the rows at main's head and of the open dead
letters (ARCHITECTURE.md, invariants I1 to I4).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from pyiceberg.table import Table

from frazil.errors import UnknownTopicError
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.data_files import read_dead_letters, read_row_coordinates
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import list_resolved, select_open
from frazil.ingest.planning import check_sources
from frazil.kafka.cluster import TopicFacts
from frazil.kafka.consumer import OffsetConsumer, OffsetLog
from frazil.ledger import keys
from frazil.ledger.coordinates import NO_OFFSETS, Offsets, Partition, count_coordinates
from frazil.ledger.deletions import KINDS as DELETIONS
from frazil.ledger.foreign_snapshots import count_foreign_snapshots
from frazil.ledger.history import (
    Spans,
    Step,
    count_adopted_rows,
    find_deleted,
    is_history_truncated,
    list_adopted,
    list_attempts,
    list_spans,
    list_topics,
    trace_steps,
)
from frazil.ledger.keys import unpack
from frazil.ledger.offsets import OffsetRange, count_offsets, describe_offset
from frazil.ledger.recovery_point import (
    History,
    RecoveryPoint,
    for_reading,
    require_recovery_point,
)
from frazil.messages import count_noun
from frazil.observability.audit_chain import check_backfills, check_chain
from frazil.observability.audit_messages import (
    AuditCounts,
    AuditReport,
    Finding,
    find_records,
)
from frazil.observability.audit_rules import (
    BatchClaim,
    Delivered,
    PartitionView,
    StoredOffsets,
    Tally,
    check_deletions,
    find_returned,
    judge_batches,
    judge_partition,
    restore_dead_letters,
    restore_rows,
)
from frazil.schemas.inferred_columns import with_event_key
from frazil.state_tables.state_audit import StateAudit, audit_state
from frazil.streams.models import Stream
from frazil.workspace import Workspace


@dataclass(frozen=True)
class Evidence:
    """Everything read for one audit; the table is read before Kafka, which thus has as much."""

    table: Table
    history: History
    steps: tuple[Step, ...]
    spans: Mapping[Partition, Spans]
    rows: Mapping[Partition, Offsets]
    dead_letters: Mapping[Partition, Mapping[str, Offsets]]
    delivered: Mapping[Partition, Delivered]


def audit_stream(work: Workspace) -> AuditReport:
    """Audit a stream; ranges that Kafka no longer has are checked by the ledger's counts only.

    Raises:
        TableError: the stream is halted; there is no state to compare with.
        MissingTableError: the stream has not begun.
        TopicRecreatedError, ClusterChangedError: Kafka's offsets are of another topic or cluster.
        UnavailableError: Kafka, the catalog or the warehouse did not answer.
    """
    stream = with_event_key(work).stream
    return audit_table(work.store, stream, OffsetConsumer(work.kafka, work.kafka_config))


def audit_table(store: TableStore, stream: Stream, log: OffsetLog) -> AuditReport:
    """Audit a stream's table against a log; see `audit_stream`."""
    evidence = _read_evidence(store, stream, log)
    tally = Tally()
    findings = [*check_chain(evidence.steps), *check_backfills(evidence.steps)]
    findings += check_deletions(evidence.steps)
    findings += _find_unknown_rows(evidence)
    findings += _find_unlocated(evidence)
    dead_letters = 0
    for view in _list_views(evidence):
        findings += view.returned
        dead_letters += _count_dead_letters(view, evidence)
        findings += judge_partition(view, tally)
    claims = [_read_claim(index, step) for index, step in enumerate(evidence.steps) if step.ranges]
    findings += judge_batches([claim for claim in claims if claim is not None], tally)
    state = StateAudit() if stream.table.state is None else audit_state(store, stream)
    findings += [Finding(invariant=i, text=text) for i, text in state.findings]
    counts = _count(evidence, tally, dead_letters)
    report = _build_report(stream, evidence, tuple(findings), counts)
    return report.model_copy(update={"facts_line": report.facts_line + _describe_unchecked(state)})


def _describe_unchecked(state: StateAudit) -> str:
    """Describe the merges whose counts a newer release wrote; empty if there are none."""
    unchecked = state.unchecked_merges
    if not unchecked:
        return ""
    return (
        f"; the counts of {count_noun(len(unchecked), 'merge snapshot')} that a newer release "
        f"wrote were not checked, the newest is {unchecked[0]}"
    )


def _read_evidence(store: TableStore, stream: Stream, log: OffsetLog) -> Evidence:
    view = TableView(store, stream.table.name)
    table, history = view.table, view.history
    point = require_recovery_point(for_reading(history), stream.stream)
    steps = trace_steps(history, stream.stream)
    spans = list_spans(steps)
    rows = read_row_coordinates(table)
    dead_letters = read_dead_letters(store.find(stream.dead_letters_table))
    delivered: dict[Partition, Delivered] = {}
    for topic in sorted(point.state.offsets):
        try:
            delivered |= _read_log(stream, point, topic, spans, log)
        except UnknownTopicError:
            if topic in stream.source.names:
                raise
            # Removed from the stream file, then from Kafka: only the ledger's counts are left.
            numbers = range(len(point.state.offsets[topic]))
            ends = point.state.offsets[topic]
            delivered |= {(topic, p): Delivered(ends[p], NO_OFFSETS) for p in numbers}
    return Evidence(table, history, steps, spans, rows, dead_letters, delivered)


def _read_log(
    stream: Stream,
    point: RecoveryPoint,
    topic: str,
    spans: Mapping[Partition, Spans],
    log: OffsetLog,
) -> dict[Partition, Delivered]:
    """Read a topic's published ranges; records that expire during the read are not compared."""
    isolation = stream.source.isolation
    facts = log.fetch_topic(topic, isolation)
    _require_same_topic(stream.stream, point, facts)
    is_compacted = "compact" in log.fetch_topic_settings(topic).get("cleanup.policy", "delete")
    ranges: dict[int, OffsetRange] = {}
    for partition, kept in enumerate(facts.partitions):
        current = spans.get((topic, partition), Spans()).current
        start = max(kept.earliest, min((span.start for span in current), default=0))
        end = max((span.end for span in current), default=0)
        if start < end:
            ranges[partition] = OffsetRange(start, end)
    offsets = log.fetch_delivered(topic, ranges, isolation) if ranges else {}
    after = log.fetch_topic(topic, isolation)
    return {
        (topic, partition): Delivered(
            kept.earliest, offsets.get(partition, NO_OFFSETS), is_compacted
        )
        for partition, kept in enumerate(after.partitions)
    }


def _require_same_topic(stream: str, point: RecoveryPoint, facts: TopicFacts) -> None:
    """Require the ledger's topic and cluster ids; lag and expired offsets are allowed."""
    only_ids = replace(point.state, offsets={})
    check_sources(stream, only_ids, [replace(facts, partitions=())])


def _list_views(evidence: Evidence) -> Iterable[PartitionView]:
    """Yield everything known of each partition of the stream's topics."""
    topics = {topic for topic, _ in (*evidence.spans, *evidence.delivered)}
    attempts, resolved_by = list_attempts(evidence.steps), list_resolved(evidence.steps)
    present = (p for p in (*evidence.rows, *evidence.dead_letters) if p[0] in topics)
    for partition in sorted({*evidence.spans, *present}):
        spans = evidence.spans.get(partition, Spans())
        stored = StoredOffsets(
            evidence.rows.get(partition, NO_OFFSETS), evidence.dead_letters.get(partition, {})
        )
        dead_letters, resolved = select_open(
            restore_dead_letters(evidence.steps, partition, stored.dead_letters),
            spans,
            attempts,
            resolved_by.get(partition, {}),
        )
        deleted = find_deleted(evidence.steps, spans, partition)
        yield PartitionView(
            partition,
            spans,
            rows=restore_rows(stored.rows, dead_letters, deleted),
            dead_letters=dead_letters,
            delivered=evidence.delivered.get(partition),
            resolved=resolved,
            returned=tuple(find_returned(evidence.steps, spans, partition, stored)),
            has_deleted=bool(len(deleted)),
        )


def _count_dead_letters(view: PartitionView, evidence: Evidence) -> int:
    """Count the open dead letters that are in their table (not erased)."""
    held = evidence.dead_letters.get(view.partition, {})
    return int(np.isin(view.dead_letters, np.concatenate([NO_OFFSETS, *held.values()])).sum())


def _find_unknown_rows(evidence: Evidence) -> list[Finding]:
    """Find rows of topics that no stream of the table has read."""
    known = list_topics(evidence.history)
    return [
        find_records(
            "I1",
            f"{count_noun(len(offsets), 'record')} of a topic that no stream has read",
            *partition,
            offsets,
        )
        for partition, offsets in sorted(evidence.rows.items())
        if partition[0] not in known
    ]


def _find_unlocated(evidence: Evidence) -> list[Finding]:
    """Find rows without coordinates, or below the adoption, beyond those of an adopted table."""
    located = sum(len(offsets) for offsets in evidence.rows.values())
    early = sum(
        int(np.searchsorted(evidence.rows.get(partition, NO_OFFSETS), offset))
        for partition, offset in list_adopted(evidence.steps).items()
    )
    found = evidence.table.scan().count() - located + early
    adopted = count_adopted_rows(evidence.steps)
    if found <= adopted:
        return []
    where = " or are below the adoption" if adopted else ""
    text = (
        f"rows that have no coordinates{where}: {found:,}; rows of the adopted table: {adopted:,}"
    )
    return [Finding(invariant="I1", text=text)]


def _read_claim(index: int, step: Step) -> BatchClaim | None:
    """Read the counts that a batch claims; None for a snapshot that published no rows."""
    summary = step.entry.summary
    if keys.ROWS_READ not in summary:
        return None
    counts = None
    if keys.COUNTS in summary:
        counts = {
            (topic, int(number)): (int(read), int(good))
            for topic, by_partition in json.loads(unpack(summary[keys.COUNTS])).items()
            for number, (read, good) in by_partition.items()
        }
    return BatchClaim(
        index=index,
        name=f"batch {summary.get(keys.BATCH_ID, '?')} ({step})",
        rows_read=int(summary[keys.ROWS_READ]),
        rows_written=int(summary.get(keys.ROWS_WRITTEN, "0")),
        rows_quarantined=int(summary.get(keys.ROWS_QUARANTINED, "0")),
        rows_skipped=int(summary.get(keys.ROWS_SKIPPED, "0")),
        counts=counts,
    )


def _count(evidence: Evidence, tally: Tally, dead_letters: int) -> AuditCounts:
    topics = {topic for topic, _ in evidence.spans}
    return AuditCounts(
        snapshots=len(evidence.steps),
        batches=sum(step.kind == keys.INGEST for step in evidence.steps),
        foreign_snapshots=count_foreign_snapshots(evidence.history),
        records_delivered=sum(counter.total() for counter in tally.delivered.values()),
        rows=sum(len(rows) for (topic, _), rows in evidence.rows.items() if topic in topics),
        dead_letters=dead_letters,
        rows_skipped=sum(
            int(step.entry.summary.get(keys.ROWS_SKIPPED, "0")) for step in evidence.steps
        ),
        offsets_aged=tally.offsets_aged,
    )


def _build_report(
    stream: Stream, evidence: Evidence, findings: tuple[Finding, ...], counts: AuditCounts
) -> AuditReport:
    checked_from = {
        f"{topic}-{number}": max(
            log.earliest,
            min((s.start for s in evidence.spans[topic, number].current), default=0),
        )
        for (topic, number), log in sorted(evidence.delivered.items())
        if (topic, number) in evidence.spans
    }
    verdict: Literal["holds", "broken"] = "broken" if findings else "holds"
    return AuditReport(
        stream=stream.stream,
        table=stream.table.name,
        snapshot_id=evidence.history.head,
        verdict=verdict,
        findings=findings,
        counts=counts,
        checked_from=checked_from,
        facts_line=describe_audit(evidence.steps, evidence.history.head, counts, checked_from),
    )


def describe_audit(
    steps: tuple[Step, ...], head: int | None, counts: AuditCounts, checked_from: Mapping[str, int]
) -> str:
    """Describe what was compared, and what could not be."""
    text = (
        f"{count_noun(counts.records_delivered, 'record')} delivered by Kafka in "
        f"{count_noun(counts.batches, 'batch', 'batches')}; {count_noun(counts.rows, 'row')}, "
        f"{count_noun(counts.dead_letters, 'open dead letter')}, {counts.rows_skipped:,} skipped; "
        f"main at snapshot {head}"
    )
    if counts.offsets_aged:
        starts = ", ".join(
            _describe_start(name, offset) for name, offset in checked_from.items() if offset
        )
        text += (
            f"; {count_noun(counts.offsets_aged, 'published offset')} no longer in Kafka: below "
            f"{starts} only the ledger's counts were checked"
        )
    text += _describe_decisions(steps)
    if counts.foreign_snapshots:
        snapshots = count_noun(counts.foreign_snapshots, "snapshot")
        text += f"; {snapshots} of other writers changed rows"
    if is_history_truncated(steps):
        text += f"; the ledger begins at {steps[0]}, earlier history is lost"
    return text


def _describe_decisions(steps: tuple[Step, ...]) -> str:
    """Describe decisions in the history: gaps with lost offsets, rollbacks, replays, deletions."""
    kinds = Counter(step.kind for step in steps)
    adopted = count_adopted_rows(steps)
    lost = sum(count_offsets(step.ranges) for step in steps if step.kind == keys.GAP)
    deleted = sum(count_coordinates(step.deleted) for step in steps if step.kind in DELETIONS)
    names = {
        keys.GAP: "recorded gap",
        keys.REWIND: "rollback",
        keys.MOVE: "cluster move",
        keys.REPLAY: "replay",
        keys.BACKFILL: "backfilled window",
        keys.ERASE: "erasure",
        keys.EXPIRE_ROWS: "row expiry",
        keys.TRIM: "trimming",
    }
    plurals = {keys.EXPIRE_ROWS: "row expiries"}
    counts = {kind: count_noun(kinds[kind], names[kind], plurals.get(kind, "")) for kind in names}
    if kinds[keys.GAP]:
        counts[keys.GAP] += f" ({count_noun(lost, 'lost offset')})"
    text = "".join(f"; {count}" for kind, count in counts.items() if kinds[kind])
    text += f"; {count_noun(adopted, 'adopted row')} not checked" if adopted else ""
    return (f"; {count_noun(deleted, 'row')} erased or expired" if deleted else "") + text


def _describe_start(name: str, offset: int) -> str:
    """Describe the first offset of a partition that is named as Kafka does: `flights-0`."""
    topic, _, partition = name.rpartition("-")
    return describe_offset(topic, int(partition), offset)
