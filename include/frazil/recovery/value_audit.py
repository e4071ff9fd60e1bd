"""AUDIT OF VALUES: decode Kafka's records again and compare them with the rows of the table.

The comparison is the one of a replay's preview. It is made window by window, so that a large topic
needs no more memory than a batch; nothing is written.
"""

from collections import Counter

from frazil.kafka.cluster import TopicFacts
from frazil.ledger.coordinates import SHOWN_COORDINATES, Partition
from frazil.ledger.history import Spans, list_adopted, list_moved, list_spans, trace_steps
from frazil.ledger.offsets import (
    OffsetRange,
    describe_offset,
    describe_ranges,
)
from frazil.ledger.recovery_point import RecoveryPoint
from frazil.messages import count_noun
from frazil.recovery.backfill_rules import cut_windows
from frazil.recovery.messages import ValueAudit
from frazil.recovery.range_overwrite import open_ledger, plan_ranges
from frazil.recovery.replay import compare_ranges
from frazil.schemas.inferred_columns import with_columns
from frazil.workspace import Workspace

WINDOW = 1_000_000
"""Offsets that one Spark job compares."""
_COUNTS = ("same", "changed", "now_bad")


def audit_values(work: Workspace, window: int = WINDOW) -> ValueAudit:
    """Compare every row whose record Kafka still has with what the record decodes to today.

    Raises:
        MissingTableError: the stream has not begun.
        TableError: the stream is halted, or its file does not fit the table.
        SourceError, UnavailableError: Kafka, the registry or Spark cannot be used.
    """
    work = with_columns(work)
    view, point = open_ledger(work)
    spans = list_spans(steps := trace_steps(view.history, work.stream.stream))
    first = {**list_adopted(steps), **list_moved(steps)}
    kept: dict[Partition, list[OffsetRange]] = {}
    for topic in work.stream.source.names:
        facts = work.kafka.fetch_topic(topic, work.stream.source.isolation)
        kept |= _choose_ranges(facts, point, spans, first)
    counts: Counter[str] = Counter()
    differing: list[tuple[str, int, int]] = []
    columns: dict[str, None] = {}
    for ranges in cut_windows(kept, window):
        batch = plan_ranges(work, view, point, ranges, work.run_id)
        found = compare_ranges(work, view.history, batch, SHOWN_COORDINATES)
        counts.update({name: getattr(found, name) for name in _COUNTS})
        differing += found.differing
        columns |= dict.fromkeys(found.columns)
    shown = tuple(sorted(differing)[:SHOWN_COORDINATES])
    return ValueAudit(
        rows=counts.total(),
        same=counts["same"],
        changed=counts["changed"],
        undecodable=counts["now_bad"],
        columns=tuple(sorted(columns)),
        coordinates=shown,
        text=_describe(counts, kept, tuple(sorted(columns)), shown),
    )


def _choose_ranges(
    facts: TopicFacts,
    point: RecoveryPoint,
    spans: dict[Partition, Spans],
    first: dict[Partition, int],
) -> dict[Partition, list[OffsetRange]]:
    """Return the published offsets of a topic that Kafka still has, none of an earlier topic."""
    if point.state.topic_ids.get(facts.topic, facts.topic_id) != facts.topic_id:
        return {}
    kept: dict[Partition, list[OffsetRange]] = {}
    for number, offsets in enumerate(facts.partitions):
        partition = facts.topic, number
        published = spans.get(partition, Spans()).current
        if not published:
            continue
        start = max(offsets.earliest, first.get(partition, 0), min(s.start for s in published))
        end = min(offsets.end, max(s.end for s in published))
        if start < end:
            kept[partition] = [OffsetRange(start, end)]
    return kept


def _describe(
    counts: Counter[str],
    kept: dict[Partition, list[OffsetRange]],
    columns: tuple[str, ...],
    shown: tuple[tuple[str, int, int], ...],
) -> str:
    """Describe the comparison; the text contains no value."""
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for (topic, number), spans in kept.items():
        ranges.setdefault(topic, {})[number] = spans[0]
    text = (
        f"values of {count_noun(counts.total(), 'row')} compared with Kafka's records of "
        f"{describe_ranges(ranges) or 'no offsets'}: {counts['same']:,} equal, "
        f"{counts['changed']:,} changed, {counts['now_bad']:,} no longer decodable"
    )
    if columns:
        text += f"; columns that differ: {', '.join(columns)}"
    if shown:
        text += f"; first: {', '.join(describe_offset(*each) for each in shown)}"
    return text
