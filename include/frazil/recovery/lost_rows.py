"""Find which rows of the ledger main lacks, where another tool replaced the table or its history.

Main's ancestry holds no state then, so the state to continue from is one of the archive. Rows of
whole ranges that are missing are read again from an earlier state; where rows remain above it, a
replay reads the missing ranges, because a batch would double the remaining rows.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from frazil.errors import HistoryCutError
from frazil.iceberg.data_files import read_dead_letters, read_row_coordinates
from frazil.iceberg.table_view import TableView
from frazil.ingest.dead_letters import list_resolved, select_open
from frazil.ledger import keys
from frazil.ledger.coordinates import NO_OFFSETS, Offsets, Partition
from frazil.ledger.history import (
    Span,
    Spans,
    Step,
    find_deleted,
    list_attempts,
    list_spans,
    trace_steps,
)
from frazil.ledger.keys import unpack
from frazil.ledger.offsets import OffsetRange, Ranges, describe_ranges, iterate_ranges
from frazil.ledger.recovery_point import History, LedgerEntry, read_state
from frazil.ledger.state import StreamState
from frazil.recovery.retention_check import ISOLATION, list_lost_ranges, require_source_topic
from frazil.recovery.rollback_rules import list_reread_ranges
from frazil.workspace import Workspace


@dataclass(frozen=True)
class Resumption:
    """The archived state to continue from, the snapshot that the ledger resumes at, and effects.

    `replay` are ranges with missing rows below the state, `lost` what Kafka no longer has of the
    ranges to read again, `earlier` ranges of earlier topic incarnations with missing rows.
    """

    state: StreamState
    resumed_id: int
    reread: Ranges
    replay: Ranges
    lost: Ranges
    earlier: Ranges


def find_resumption(work: Workspace, view: TableView) -> Resumption | None:
    """Compare main's rows with the archived ledger; None if the archive has no state of the stream.

    Raises:
        HistoryCutError: a later batch was published than the archive has.
        TargetError: the stream file no longer names a topic whose rows are missing.
        UnavailableError: the table or Kafka cannot be read.
    """
    stream, history = work.stream.stream, view.history
    newest = _find_newest(history, stream)
    if newest is None:
        return None
    hint = history.hint(stream)
    known = {**history.load_archive().entries, **history.entries}
    last_id = hint.newest_id if hint and hint.newest_id in known else newest.snapshot_id
    steps = trace_steps(replace(history, head=last_id), stream)
    state = read_state(history, newest, stream)
    present = _find_present(work, view, steps)
    missing = find_missing(steps, present.records, lambda spans: spans.current)
    chosen = _choose_state(steps, state, missing, present.rows) if missing else None
    resumed, resumed_id = chosen or (state, last_id)
    reread = list_reread_ranges(resumed.offsets, state.offsets)
    replay: Ranges = {} if chosen else missing
    lost = _find_lost(work, resumed, reread or replay)
    earlier = find_missing(steps, present.records, lambda spans: spans.earlier)
    return Resumption(resumed, resumed_id, reread, replay, lost, earlier)


def describe_resumption(stream: str, found: Resumption) -> str:
    """Describe what is missing, how it is read again, and what is lost; empty if nothing is."""
    parts = []
    if found.reread:
        parts.append(f"main lacks rows; read again: {describe_ranges(found.reread)}")
    if found.replay:
        ranges = describe_ranges(found.replay)
        parts.append(
            f"main lacks rows of {ranges}: `frazil replay {stream} --offsets '{ranges}'` reads "
            "them again"
        )
    if found.lost:
        parts.append(f"Kafka no longer has {describe_ranges(found.lost)}: these rows are lost")
    if found.earlier:
        ranges = describe_ranges(found.earlier)
        parts.append(f"rows of an earlier topic or cluster are lost: {ranges}")
    return "".join(f"{part}; " for part in parts)


def _find_newest(history: History, stream: str) -> LedgerEntry | None:
    """Return the newest snapshot with a state of the stream that the archive or the hint knows."""
    key, hint = keys.state_key(stream), history.hint(stream)
    known = dict(history.load_archive().entries)
    if hint is not None and hint.snapshot_id in history.entries:
        known[hint.snapshot_id] = history.entries[hint.snapshot_id]
    found = [entry for entry in known.values() if key in entry.summary]
    newest = max(found, key=lambda entry: entry.committed_at_ms, default=None)
    if newest is None or hint is None:
        return newest
    epoch = read_state(history, newest, stream).epoch
    if hint.epoch > epoch:
        raise HistoryCutError(
            f"stream {stream}: main of {history.table} has lost its history, and the archive ends "
            f"at epoch {epoch} although epoch {hint.epoch} was published: its rows may be in "
            "the table, and would be duplicated if they were read again",
            "restore the table's metadata from before the other writer's expiry, or give the "
            "stream a new name and table",
        )
    return newest


@dataclass(frozen=True)
class _Present:
    """Offsets by partition: those with a row, and those with a row, dead letter or deletion."""

    rows: Mapping[Partition, Offsets]
    records: Mapping[Partition, Offsets]


def _find_present(work: Workspace, view: TableView, steps: tuple[Step, ...]) -> _Present:
    table, history = view.table, view.history
    has_coordinates = keys.KAFKA_COLUMN in table.schema().column_names
    if not has_coordinates and table.scan(snapshot_id=history.head).count():
        raise HistoryCutError(
            f"stream {work.stream.stream}: another tool replaced {history.table} by rows without "
            f"the column {keys.KAFKA_COLUMN}: they cannot be compared with the ledger",
            f"`frazil recover {work.stream.stream} --to-snapshot` with the snapshot that `frazil "
            "status` names restores the table; otherwise give the stream a new name and table",
        )
    rows = read_row_coordinates(table, history.head) if has_coordinates else {}
    dead_letters = read_dead_letters(work.store.find(work.stream.dead_letters_table))
    attempts, resolved, records = list_attempts(steps), list_resolved(steps), {}
    for partition, spans in list_spans(steps).items():
        open_ones, _ = select_open(
            dead_letters.get(partition, {}), spans, attempts, resolved.get(partition, {})
        )
        deleted = find_deleted(steps, spans, partition)
        own = rows.get(partition, NO_OFFSETS)
        records[partition] = np.unique(np.concatenate([own, open_ones, deleted]))
    return _Present(rows, records)


def find_missing(
    steps: tuple[Step, ...],
    present: Mapping[Partition, Offsets],
    select: Callable[[Spans], Iterable[Span]],
) -> dict[str, dict[int, OffsetRange]]:
    """Return by partition the range from the first to the last batch with missing records."""
    by_step: defaultdict[int, list[tuple[Partition, Span]]] = defaultdict(list)
    for partition, spans in list_spans(steps).items():
        for span in select(spans):
            by_step[span.index].append((partition, span))
    found: defaultdict[Partition, list[Span]] = defaultdict(list)
    for index, published in by_step.items():
        expected = _count_expected(steps[index])
        for partition, span in published:
            low, high = np.searchsorted(present[partition], [span.start, span.end])
            if high - low < expected(partition):
                found[partition].append(span)
    missing: dict[str, dict[int, OffsetRange]] = {}
    for (topic, number), lacking in sorted(found.items()):
        start, end = min(s.start for s in lacking), max(s.end for s in lacking)
        missing.setdefault(topic, {})[number] = OffsetRange(start, end)
    return missing


def _count_expected(step: Step) -> Callable[[Partition], int]:
    """Return a function: partition → the least number of records that a batch's summary claims."""
    summary = step.entry.summary
    if keys.COUNTS not in summary:
        least = min(1, int(summary.get(keys.ROWS_READ, "0")))
        return lambda _: least
    counts = json.loads(unpack(summary[keys.COUNTS]))
    place = 0 if summary.get(keys.ROWS_SKIPPED, "0") == "0" else 1

    def count(partition: Partition) -> int:
        topic, number = partition
        return int(counts.get(topic, {}).get(str(number), (0, 0))[place])

    return count


def _choose_state(
    steps: tuple[Step, ...],
    newest: StreamState,
    missing: Ranges,
    rows: Mapping[Partition, Offsets],
) -> tuple[StreamState, int] | None:
    """Return the newest state below all missing rows, and its snapshot; None if rows are above."""
    for state, snapshot_id in _list_states(steps):
        if (state.cluster_id, state.topic_ids) != (newest.cluster_id, newest.topic_ids):
            return None
        next_offsets = {
            (topic, number): offset
            for topic, offsets in state.offsets.items()
            for number, offset in enumerate(offsets)
        }
        first = [(t, n, span.start) for t, n, span in iterate_ranges(missing)]
        if any(next_offsets.get((topic, number), 0) > start for topic, number, start in first):
            continue
        topics = {topic for topic, _ in next_offsets} | set(missing)
        is_above = any(
            len(own) and own[-1] >= next_offsets.get(partition, 0)
            for partition, own in rows.items()
            if partition[0] in topics
        )
        return None if is_above else (state, snapshot_id)
    return None


def _list_states(steps: tuple[Step, ...]) -> Iterator[tuple[StreamState, int]]:
    """Yield the states of the ledger, newest first, and the one before its oldest batch."""
    for step in reversed(steps):
        if step.after is not None:
            yield step.after, step.entry.snapshot_id
    if steps and steps[0].after is not None and steps[0].ranges and steps[0].entry.parent_id:
        before = {topic: list(offsets) for topic, offsets in steps[0].after.offsets.items()}
        for topic, number, published in iterate_ranges(steps[0].ranges):
            before[topic][number] = published.start
        offsets = {topic: tuple(values) for topic, values in before.items()}
        yield replace(steps[0].after, offsets=offsets), steps[0].entry.parent_id


def _find_lost(work: Workspace, state: StreamState, ranges: Ranges) -> Ranges:
    """Return what Kafka no longer has of the ranges."""
    lost: dict[str, Mapping[int, OffsetRange]] = {}
    for topic, wanted in ranges.items():
        require_source_topic(work, topic)
        found = list_lost_ranges(state, work.kafka.fetch_topic(topic, ISOLATION), wanted)
        if found:
            lost[topic] = found
    return lost
