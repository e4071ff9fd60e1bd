"""AUDIT OF VALUES: decode Kafka's records again and compare them with the rows of the table.

The comparison is the one of a replay's preview. It is made window by window, so that a large topic
needs no more memory than a batch; nothing is written.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pyiceberg.table import Table
from pyiceberg.types import NestedField, StructType

from frazil.kafka.cluster import TopicFacts
from frazil.ledger.coordinates import SHOWN_COORDINATES, Offsets, Partition, plain_runs
from frazil.ledger.history import (
    Spans,
    Step,
    find_owners,
    list_adopted,
    list_moved,
    list_spans,
    trace_steps,
)
from frazil.ledger.offsets import (
    OffsetRange,
    Ranges,
    Runs,
    describe_offset,
    describe_ranges,
    iterate_ranges,
)
from frazil.ledger.recovery_point import LedgerEntry, RecoveryPoint
from frazil.ledger.stored_properties import read_schema_changes
from frazil.messages import count_noun
from frazil.recovery.backfill_rules import cut_windows
from frazil.recovery.messages import ValueAudit
from frazil.recovery.range_overwrite import open_ledger, plan_ranges
from frazil.recovery.replay import compare_ranges
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
    work, view, point = open_ledger(work)
    spans = list_spans(steps := trace_steps(view.history, work.stream.stream))
    first = {**list_adopted(steps), **list_moved(steps)}
    kept: dict[Partition, list[OffsetRange]] = {}
    for topic in work.stream.source.names:
        facts = work.kafka.fetch_topic(topic, work.stream.source.isolation)
        kept |= _choose_ranges(facts, point, spans, first)
    without = find_steps_without(steps, read_schema_facts(view.table))
    counts: Counter[str] = Counter()
    differing: list[tuple[str, int, int]] = []
    columns: dict[str, None] = {}
    for ranges in cut_windows(kept, window):
        batch = plan_ranges(work, view, point, ranges, work.run_id)
        older = find_older(ranges, spans, without)
        found = compare_ranges(work, view, batch, SHOWN_COORDINATES, older)
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


@dataclass(frozen=True)
class SchemaFacts:
    """The fields of each schema of a table, and which schema its snapshots were written with.

    `columns` are the paths of the present columns and of fields inside of structs, by their ids.
    `changes` lists time (ms) and new schema id of each recorded change, in order; they determine
    the schemas of expired snapshots.
    """

    columns: Mapping[int, str]
    fields: Mapping[int, frozenset[int]]
    by_snapshot: Mapping[int, int]
    changes: tuple[tuple[int, int], ...]

    def find_schema(self, entry: LedgerEntry) -> int:
        """Return the id of the schema that a snapshot was written with."""
        known = self.by_snapshot.get(entry.snapshot_id)
        made = [number for at_ms, number in self.changes if at_ms <= entry.committed_at_ms]
        return known if known is not None else made[-1] if made else min(self.fields)


def read_schema_facts(table: Table) -> SchemaFacts:
    """Read the schemas of a table, and when they changed."""
    recorded = read_schema_changes(table.properties, ".".join(table.name()))
    return SchemaFacts(
        dict(_list_paths(table.schema().fields)),
        {schema.schema_id: frozenset(schema.field_ids) for schema in table.metadata.schemas},
        {
            each.snapshot_id: each.schema_id
            for each in table.snapshots()
            if each.schema_id is not None
        },
        tuple(
            (int(each.at.timestamp() * 1000), each.schema_id)
            for _, each in recorded
            if each.answer in {None, "accept"}
        ),
    )


def _list_paths(fields: Iterable[NestedField], prefix: str = "") -> Iterator[tuple[int, str]]:
    """Yield the id and path of each column, and of each field inside of structs."""
    for field in fields:
        yield field.field_id, f"{prefix}{field.name}"
        if isinstance(field.field_type, StructType):
            yield from _list_paths(field.field_type.fields, f"{prefix}{field.name}.")


def find_steps_without(steps: Sequence[Step], facts: SchemaFacts) -> dict[str, frozenset[int]]:
    """Map each column that was added later to the steps that published rows without it."""
    without: defaultdict[str, set[int]] = defaultdict(set)
    for index, step in enumerate(steps):
        held = facts.fields.get(facts.find_schema(step.entry), facts.columns.keys())
        for field_id in facts.columns.keys() - held:
            without[facts.columns[field_id]].add(index)
    return {column: frozenset(indexes) for column, indexes in without.items()}


def find_older(
    ranges: Ranges, spans: Mapping[Partition, Spans], without: Mapping[str, frozenset[int]]
) -> dict[str, Runs]:
    """Return the offsets of the ranges whose rows were written before a column existed, by column.

    A row that a redrive restored later may be among them, with a value or with null.
    """
    found: dict[str, dict[Partition, Offsets]] = {column: {} for column in without}
    for topic, number, span in iterate_ranges(ranges) if without else ():
        offsets = np.arange(span.start, span.end)
        owners = find_owners(offsets, spans[topic, number].current)
        for column, indexes in without.items():
            found[column][topic, number] = offsets[np.isin(owners, sorted(indexes))]
    runs = {column: plain_runs(each) for column, each in found.items()}
    return {column: each for column, each in runs.items() if each}


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
