"""A stream's history on branch main: its steps, and the offsets that each step published.

Pure functions over main's ancestry. Audits, replays, redrives and cluster moves compare these
spans of offsets with rows and with Kafka; within one topic incarnation an offset is one record.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import zip_longest

import numpy as np

from frazil.ledger import keys
from frazil.ledger.coordinates import (
    NO_OFFSETS,
    Coordinates,
    DeadLetterCoordinates,
    Offsets,
    Partition,
    parse_coordinates,
)
from frazil.ledger.deletions import KINDS, is_deletion, parse_deleted, parse_deleted_dead_letters
from frazil.ledger.offsets import Ranges, iterate_ranges, parse_ranges
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors, walk_ledger
from frazil.ledger.state import StreamState, parse_state

_FIRST_KINDS = frozenset({keys.BOOTSTRAP, keys.ADOPT, keys.REWIND})
UNCLAIMED = -1
"""The index that stands for no step."""


@dataclass(frozen=True)
class Step:
    """One snapshot of main that concerns the stream, with the state before and after it.

    `resolved` are the dead letters that a redrive restored; if they are from an earlier topic
    incarnation, `resolved_before` is the id of the snapshot that ended it. `deleted` and
    `deleted_dead_letters` are the records that a deletion removed, for any stream of the table.
    """

    entry: LedgerEntry
    kind: str
    before: StreamState | None
    after: StreamState | None
    ranges: Ranges
    resolved: Coordinates = field(default_factory=dict)
    deleted: Coordinates = field(default_factory=dict)
    deleted_dead_letters: DeadLetterCoordinates = field(default_factory=dict)
    resolved_before: int | None = None

    def __str__(self) -> str:
        """Return kind and snapshot id, for an audit's finding."""
        return f"{self.kind} snapshot {self.entry.snapshot_id}"


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open range of offsets of one partition that the step at `index` published."""

    start: int
    end: int
    index: int


@dataclass(frozen=True)
class Spans:
    """The published offsets of one partition, oldest first.

    A partition's log restarts when a recorded gap sets its offsets back (the topic was recreated or
    truncated) and when the stream moves to another cluster: the same offsets are other records
    then. `restarts` are the indexes of those steps; the spans before the last one are `earlier`.
    Rows below `floor` were there before the ledger begins and are not audited.
    """

    current: tuple[Span, ...] = ()
    earlier: tuple[Span, ...] = ()
    floor: int = 0
    restarts: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[Span, ...]:
        """Return all spans, oldest first."""
        return (*self.earlier, *self.current)

    @property
    def incarnations(self) -> tuple[tuple[Span, ...], ...]:
        """Return the spans by topic incarnation: within one, an offset is one record."""
        bounds = (-1, *self.restarts)
        ends = (*self.restarts, None)
        return tuple(
            tuple(s for s in self.all if s.index > low and (high is None or s.index <= high))
            for low, high in zip(bounds, ends, strict=True)
        )


def trace_steps(history: History, stream: str) -> tuple[Step, ...]:
    """List the steps of a stream on main, oldest first."""
    steps: list[Step] = []
    state: StreamState | None = None
    for entry in reversed(list(walk_ledger(history, stream))):
        text = entry.summary.get(keys.state_key(stream))
        is_own = entry.summary.get(keys.STREAM) == stream
        if text is None and not is_own and not (steps and is_deletion(entry.summary)):
            continue
        after = parse_state(text) if text else None
        has_ranges = is_own and keys.RANGES in entry.summary
        ranges = parse_ranges(entry.summary[keys.RANGES]) if has_ranges else {}
        kind = entry.summary.get(keys.KIND, "")
        has_resolved = is_own and kind == keys.REDRIVE and keys.COORDINATES in entry.summary
        resolved = parse_coordinates(entry.summary[keys.COORDINATES]) if has_resolved else {}
        before = entry.summary.get(keys.LETTERS_BEFORE)
        deleted = (parse_deleted(entry.summary), parse_deleted_dead_letters(entry.summary))
        resolved_before = int(before) if has_resolved and before else None
        steps.append(Step(entry, kind, state, after, ranges, resolved, *deleted, resolved_before))
        state = after or state
    return tuple(steps)


def iterate_moves(before: StreamState, after: StreamState) -> Iterator[tuple[Partition, int, int]]:
    """Yield each partition with its next offset before and after; 0 where a state has none."""
    for topic in sorted({*before.offsets, *after.offsets}):
        pairs = zip_longest(
            before.offsets.get(topic, ()), after.offsets.get(topic, ()), fillvalue=0
        )
        for number, (start, end) in enumerate(pairs):
            yield (topic, number), start, end


def list_attempts(steps: tuple[Step, ...]) -> dict[int, str]:
    """Map the index of each step that published rows to its attempt id."""
    return {
        index: step.entry.summary[keys.ATTEMPT]
        for index, step in enumerate(steps)
        if step.kind in keys.ROW_KINDS and keys.ATTEMPT in step.entry.summary
    }


def list_spans(steps: tuple[Step, ...]) -> dict[Partition, Spans]:
    """Return the published spans of each partition."""
    current: defaultdict[Partition, list[Span]] = defaultdict(list)
    earlier: defaultdict[Partition, list[Span]] = defaultdict(list)
    restarts: defaultdict[Partition, tuple[int, ...]] = defaultdict(tuple)
    floors: defaultdict[Partition, int] = defaultdict(int)
    for index, step in enumerate(steps):
        for partition in list_restarts(step):
            earlier[partition] += current.pop(partition, [])
            if floor := floors.pop(partition, 0):
                earlier[partition].append(Span(0, floor, index))
            restarts[partition] += (index,)
        floors |= _list_floors(step)
        if step.kind in keys.ROW_KINDS:
            for topic, number, moved in iterate_ranges(step.ranges):
                current[topic, number].append(Span(moved.start, moved.end, index))
    return {
        each: Spans(tuple(current[each]), tuple(earlier[each]), floors[each], restarts[each])
        for each in sorted({*current, *earlier, *floors})
    }


def list_restarts(step: Step) -> list[Partition]:
    """List the partitions whose log restarts at this step: after a recorded gap, or a move."""
    if step.before is None or step.after is None:
        return []
    return _find_restarts(step.kind, step.before, step.after)


def _find_restarts(kind: str, before: StreamState, after: StreamState) -> list[Partition]:
    if kind not in {keys.GAP, keys.MOVE}:
        return []
    return [
        partition
        for partition, start, end in iterate_moves(before, after)
        if end < start
        or before.topic_ids.get(partition[0]) != after.topic_ids.get(partition[0])
        or (kind == keys.MOVE and end > start)
    ]


def list_reused(
    kind: str, before: StreamState | None, after: StreamState | None
) -> list[Partition]:
    """List the partitions that were read, and whose offsets name other records from here on."""
    if before is None or after is None:
        return []
    starts = {partition: start for partition, start, _ in iterate_moves(before, after)}
    return [each for each in _find_restarts(kind, before, after) if starts[each]]


def list_moved(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """Map partitions to the offset at which the newest cluster move continued.

    The offset is 0 if the topic was recreated since that move.
    """
    found: dict[Partition, int] = {}
    for step in steps:
        restarts = list_restarts(step)
        if step.before is not None and step.after is not None:
            moves = iterate_moves(step.before, step.after)
            is_move = step.kind == keys.MOVE
            found |= {each: end if is_move else 0 for each, _, end in moves if each in restarts}
    return found


def _list_floors(step: Step) -> dict[Partition, int]:
    """Find the offsets below which rows are older than the ledger.

    Such rows were adopted with the table, or the snapshots that published them are lost.
    """
    is_lost = step.before is None and step.kind != keys.BOOTSTRAP
    if step.after is None or not (is_lost or step.kind == keys.ADOPT):
        return {}
    floors: dict[Partition, int] = {}
    for topic, values in step.after.offsets.items():
        for number, value in enumerate(values):
            published = step.ranges.get(topic, {}).get(number)
            floors[topic, number] = published.start if published else value
    return floors


def is_history_truncated(steps: tuple[Step, ...]) -> bool:
    """Return whether the snapshots that began the stream are missing."""
    return bool(steps) and steps[0].kind not in _FIRST_KINDS


def count_adopted_rows(steps: tuple[Step, ...]) -> int:
    """Count the rows that were in the table when it was adopted."""
    return sum(
        json.loads(step.entry.summary.get(keys.ADOPTED, "{}")).get("rows", 0)
        for step in steps
        if step.kind == keys.ADOPT
    )


def list_adopted(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """Map partitions to the offset at which the table was adopted, if their log is still read."""
    found: dict[Partition, int] = {}
    for step in steps:
        for partition in list_restarts(step):
            found.pop(partition, None)
        if step.kind == keys.ADOPT and step.after:
            for topic, offsets in step.after.offsets.items():
                found |= {(topic, number): offset for number, offset in enumerate(offsets)}
    return found


def find_trimmed(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """Map partitions to the offset below which only the newest change of each key was left."""
    found: dict[Partition, int] = {}
    for step in steps:
        text = step.entry.summary.get(keys.TRIMMED)
        for topic, number, span in iterate_ranges(parse_ranges(text)) if text else ():
            found[topic, number] = max(span.end, found.get((topic, number), 0))
    return found


def list_topics(history: History) -> frozenset[str]:
    """List the topics of all streams with a state in main's ancestry."""
    return frozenset(
        topic
        for entry in walk_ancestors(history)
        for key, text in entry.summary.items()
        if key.startswith(keys.STATE_PREFIX)
        for topic in parse_state(text).offsets
    )


def locate_spans(offsets: Offsets, spans: Iterable[Span]) -> Iterator[tuple[Span, slice]]:
    """Yield the spans that cover some of the offsets, each with the positions of these."""
    listed = tuple(spans)
    bounds = np.array([(span.start, span.end) for span in listed], dtype=np.int64).reshape(-1, 2)
    lows, highs = np.searchsorted(offsets, bounds.T)
    for number in np.flatnonzero(lows < highs).tolist():
        yield listed[number], slice(lows[number], highs[number])


def find_owners(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Return for each offset the step of the last span that covers it, or `UNCLAIMED`."""
    owners = np.full(len(offsets), UNCLAIMED, dtype=np.int64)
    for span, covered in locate_spans(offsets, spans):
        owners[covered] = span.index
    return owners


def count_covers(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Return for each offset how many spans cover it."""
    covers = np.zeros(len(offsets), dtype=np.int64)
    for _, covered in locate_spans(offsets, spans):
        covers[covered] += 1
    return covers


def find_deleted(
    steps: tuple[Step, ...], spans: Spans, partition: Partition, kinds: frozenset[str] = KINDS
) -> Offsets:
    """Return the offsets of a partition whose records were deleted and not restored since.

    A replay restores rows that had expired, but never erased ones: at the offset of an erased
    record only a batch may publish again, which is another record of a recreated topic.
    """
    deletions = [
        (step.kind, index, _list_deleted(step, partition))
        for index, step in enumerate(steps)
        if step.kind in kinds
    ]
    listed = np.unique(np.concatenate([NO_OFFSETS, *(each for *_, each in deletions)]))
    batches = (span for span in spans.all if steps[span.index].kind == keys.INGEST)
    newest_batches = find_owners(listed, batches)
    newest_spans = find_owners(listed, spans.all)
    is_deleted = np.zeros(len(listed), dtype=np.bool_)
    for kind, index, offsets in deletions:
        restored_by = newest_spans if kind == keys.EXPIRE_ROWS else newest_batches
        positions = np.searchsorted(listed, offsets)
        is_deleted[positions] |= restored_by[positions] <= index
    return listed[is_deleted]


def _list_deleted(step: Step, partition: Partition) -> Offsets:
    dead = [each.get(partition, NO_OFFSETS) for each in step.deleted_dead_letters.values()]
    return np.unique(np.concatenate([step.deleted.get(partition, NO_OFFSETS), *dead]))
