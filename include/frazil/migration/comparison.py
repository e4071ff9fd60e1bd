"""COMPARE: two tables that one topic fills, record by record, in bounded memory.

Each side is read twice, file by file: first the coordinates alone, which say what both have read,
then the values at the offsets that both have. About 50 bytes a record are held, and the columns of
one file at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from pyiceberg.table import FileScanTask

from frazil.connections import find_catalog
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.data_files import read_dead_letters
from frazil.iceberg.ledger_archive import load_with_history
from frazil.ingest.dead_letters import list_resolved, select_open
from frazil.ledger import keys
from frazil.ledger.coordinates import NO_OFFSETS, Offsets, Partition
from frazil.ledger.history import Spans, list_attempts, list_spans, trace_steps
from frazil.ledger.offsets import parse_offset_ranges
from frazil.ledger.recovery_point import History, find_recovery_point, walk_ancestors
from frazil.ledger.state import StreamState
from frazil.migration.comparison_rules import (
    Claim,
    Claims,
    Places,
    Values,
    choose_claims,
    claim_range,
    compare_places,
    compare_values,
)
from frazil.migration.foreign_rows import LocatedBatch, LocatedTable, TableOffsets, find_columns
from frazil.migration.messages import (
    ColumnReport,
    CompareRequest,
    Comparison,
    PartitionReport,
    SideReport,
    Verdict,
)
from frazil.migration.value_hashes import (
    ColumnPair,
    Form,
    Hashes,
    add_up,
    hash_texts,
    hash_values,
    mix,
    number_steps,
    pair_columns,
)
from frazil.streams.models import Stream
from frazil.workspace import open_workspace

PARTITION_VALUES = "(partition values)"
"""Compared as one more column; no table has a column of this name by accident."""


@dataclass(frozen=True)
class Side:
    """One side, opened: its table at one snapshot, and the stream that fills it, if one does."""

    name: str
    placed: LocatedTable
    history: History
    stream: Stream | None
    letters: Mapping[Partition, Mapping[str, Offsets]]

    @property
    def partitioned_by(self) -> tuple[str, ...]:
        """Write the partition spec, as `bucket[4](id)`."""
        table = self.placed.table
        names = table.schema().find_column_name
        return tuple(f"{f.transform}({names(f.source_id)})" for f in table.spec().fields)


def compare_tables(request: CompareRequest, run_id: str) -> Comparison:
    """Compare two tables over the offsets that both have read, or those of them that are asked for.

    Raises:
        UnknownStreamError, MissingTableError: there is no such side.
        ConfigurationError, IncompatibleTableError: a side's coordinates or the offsets asked for
            cannot be read, or were not read by both.
        TableError: the ledger of a stream's table halts.
        UnavailableError: catalog or warehouse did not answer.
    """
    chosen = parse_offset_ranges(request.offsets)
    left, right = _open_sides(request, run_id)
    pairs = _pair_columns(left, right)
    ours, theirs = (side.placed.read_places() for side in (left, right))
    claims = choose_claims((_claim(left, ours), _claim(right, theirs)), chosen)
    every = {
        partition: compare_places(partition, *(side.get(partition, Claim()) for side in claims))
        for partition in sorted({*claims[0], *claims[1]})
    }
    forms = {pair.name: pair.form for pair in pairs if pair.form is not None}
    same_spec = left.partitioned_by == right.partitioned_by
    read = [_read_values(side, every, forms, with_spec=same_spec) for side in (left, right)]
    reports = tuple(compare_values(places, read[0][p], read[1][p]) for p, places in every.items())
    layout = [f"column {pair.name}: {pair.note}" for pair in pairs if pair.is_difference]
    if not same_spec:
        specs = (", ".join(side.partitioned_by) or "nothing" for side in (left, right))
        layout.append("partitioned by " + " on the left, by ".join(specs) + " on the right")
    sides = (_report_side(left, ours), _report_side(right, theirs))
    return _answer(request, sides, tuple(layout), pairs, reports)


def _open_sides(request: CompareRequest, run_id: str) -> tuple[Side, Side]:
    names = (request.left, request.right)
    streams = [None if "." in name else open_workspace(name, run_id).stream for name in names]
    only = [s.source.names[0] for s in streams if s is not None and len(s.source.names) == 1]
    topic = request.topic or next(iter(only), None)
    columns = (request.left_columns, request.right_columns)
    left, right = (
        _open_side(name, stream, named, topic, request.connection)
        for name, stream, named in zip(names, streams, columns, strict=True)
    )
    return left, right


def _open_side(
    name: str, stream: Stream | None, named: str | None, topic: str | None, connection: str
) -> Side:
    store = TableStore(find_catalog(stream.table.connection if stream else connection))
    table, history = load_with_history(store, stream.table.name if stream else name)
    columns = find_columns(table.schema(), named, history.table)
    names = stream.source.names if stream else ()
    placed = LocatedTable(table, columns, names[0] if len(names) == 1 else topic)
    letters = read_dead_letters(store.find(stream.dead_letters_table)) if stream else {}
    return Side(name, placed, history, stream, letters)


def _pair_columns(left: Side, right: Side) -> tuple[ColumnPair, ...]:
    """Pair the columns; coordinates count as values only where both sides keep them alike."""
    ours, theirs = (side.placed.columns for side in (left, right))
    layouts = () if ours == theirs and len(ours) == 1 else (*ours, *theirs)
    kept = (
        [f for f in side.placed.table.schema().fields if not any(y.owns(f.name) for y in layouts)]
        for side in (left, right)
    )
    return pair_columns(*kept)


def _claim(side: Side, places: TableOffsets) -> Claims:
    """Say what a side has read: by its ledger, where a stream has one, else by its rows."""
    stream = side.stream.stream if side.stream else ""
    point = find_recovery_point(side.history, stream) if stream else None
    steps = trace_steps(side.history, stream) if point else ()
    first = next((step.after for step in steps if step.after), None)
    starts, ends = _spread(first), _spread(point.state if point else None)
    spans, attempts = list_spans(steps), list_attempts(steps)
    is_filled = any(step.kind == keys.BACKFILL for step in steps)
    claims = {}
    for partition in {*places.offsets, *ends}:
        offsets = places.offsets.get(partition, NO_OFFSETS)
        held = side.letters.get(partition, {})
        taken = list_resolved(steps, partition)
        letters, _ = select_open(held, spans.get(partition, Spans()), attempts, taken)
        start = starts.get(partition, 0) if partition in ends else None
        filled = spans.get(partition, Spans()).current if is_filled else ()
        read = claim_range(offsets, start, ends.get(partition), filled)
        claims[partition] = Claim(offsets, read, letters)
    return claims


def _spread(state: StreamState | None) -> dict[Partition, int]:
    """Write a state's offsets by partition."""
    offsets = state.offsets if state else {}
    return {(t, p): offset for t, each in offsets.items() for p, offset in enumerate(each)}


def _read_values(
    side: Side, every: Mapping[Partition, Places], forms: Mapping[str, Form], *, with_spec: bool
) -> dict[Partition, Values]:
    """Hash the values of the matched rows, column by column, in one pass over the files."""
    columns = [*forms, PARTITION_VALUES] if with_spec else [*forms]
    values = {
        partition: Values(np.zeros(len(places.matched), np.uint64), dict.fromkeys(columns, 0))
        for partition, places in every.items()
    }
    if not any(len(places.matched) for places in every.values()):
        return values
    for batch in side.placed.iterate(tuple(forms)):
        hashes = {name: hash_values(batch.rows[name], form) for name, form in forms.items()}
        if with_spec:
            hashes[PARTITION_VALUES] = _hash_partition(side, batch.task, batch.rows.num_rows)
        _add_batch(values, every, batch, hashes)
    return values


def _add_batch(
    values: Mapping[Partition, Values],
    every: Mapping[Partition, Places],
    batch: LocatedBatch,
    hashes: Mapping[str, Hashes],
) -> None:
    for partition, (indexes, offsets) in batch.places.items():
        if partition not in every:  # nobody asked for it
            continue
        matched, into = every[partition].matched, values[partition]
        places = np.searchsorted(matched, offsets)
        is_matched = places < len(matched)
        is_matched[is_matched] = matched[places[is_matched]] == offsets[is_matched]
        places, chosen = places[is_matched], indexes[is_matched]
        # With its offset in it, a value that moved to another row changes the sum as well.
        salt = mix(offsets[is_matched].astype(np.uint64))
        for step, (name, column) in zip(number_steps(len(hashes)), hashes.items(), strict=True):
            own = column[chosen]
            into.rows[places] += mix(own + step)
            into.sums[name] = (into.sums[name] + add_up(mix(own ^ salt))) % 2**64


def _hash_partition(side: Side, task: FileScanTask, rows: int) -> Hashes:
    """Hash the partition values that the manifest gives a file, once for all of its rows."""
    table = side.placed.table
    spec = table.specs()[task.file.spec_id]
    partition = [task.file.partition[index] for index in range(len(spec.fields))]
    text = ";".join(
        f"{field.transform}({table.schema().find_column_name(field.source_id)})={value!r}"
        for field, value in zip(spec.fields, partition, strict=True)
    )
    return hash_texts([text]).repeat(rows)


def _report_side(side: Side, places: TableOffsets) -> SideReport:
    adding = (
        entry.committed_at_ms
        for entry in walk_ancestors(side.history, beyond_metadata=False)
        if entry.summary.get("operation") != "replace"
        and entry.summary.get("added-records", "0") != "0"
    )
    newest = next(adding, None)
    return SideReport(
        name=side.name,
        table=side.history.table,
        writer=" and ".join(columns.writer for columns in side.placed.columns),
        snapshot_id=side.history.head,
        rows=sum(len(offsets) for offsets in places.offsets.values()) + places.unplaced,
        unplaced=places.unplaced,
        partitioned_by=side.partitioned_by,
        newest_event_at=places.newest_event_at,
        newest_commit_at=datetime.fromtimestamp(newest / 1000, tz=UTC) if newest else None,
    )


def _answer(
    request: CompareRequest,
    sides: tuple[SideReport, SideReport],
    layout: tuple[str, ...],
    pairs: tuple[ColumnPair, ...],
    reports: tuple[PartitionReport, ...],
) -> Comparison:
    judged = [report for report in reports if report.judged]
    unplaced = sum(side.unplaced for side in sides)
    rows_differ = unplaced > 0 or not all(report.is_same for report in judged)
    verdict: Verdict = "equal"
    if rows_differ or (layout and not request.rows_only):
        verdict = "different"
    elif not judged:
        verdict = "nothing in common"
    return Comparison(
        left=sides[0],
        right=sides[1],
        verdict=verdict,
        rows_only=request.rows_only,
        offsets=request.offsets,
        layout=layout,
        columns=tuple(
            ColumnReport(
                name=pair.name,
                left=pair.left,
                right=pair.right,
                compared=pair.form is not None,
                note=pair.note,
                is_difference=pair.is_difference,
            )
            for pair in pairs
        ),
        partitions=reports,
        text=_describe(judged, unplaced, layout, request.offsets),
    )


def _describe(
    judged: list[PartitionReport], unplaced: int, layout: tuple[str, ...], asked: tuple[str, ...]
) -> str:
    """Say in one sentence what was judged and what differs."""
    total = {
        "missing on the right": sum(report.missing for report in judged),
        "only on the right": sum(report.extra for report in judged),
        "doubled on the left": sum(report.doubled_left for report in judged),
        "doubled on the right": sum(report.doubled_right for report in judged),
        "with other values": sum(report.changed for report in judged),
        "without a coordinate": unplaced,
        "differences of columns and partitioning": len(layout),
    }
    matched = sum(report.matched for report in judged)
    told = [f"{count} {words}" for words, count in total.items() if count]
    found = ", ".join(told) or "no difference"
    of_what = f" of the offsets {', '.join(asked)}" if asked else ""
    return f"{matched} records{of_what} once on both sides in {len(judged)} partitions; {found}"
