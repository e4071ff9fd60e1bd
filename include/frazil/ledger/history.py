"""The ledger read as a chain: do epochs rise and ranges join as protocol.md says (I2, I3, I4)?

Pure functions of main's ancestry. What the chain says was published is what the rows are then
compared with.
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
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors
from frazil.ledger.state import StreamState, parse_state

_FIRST_KINDS = frozenset({keys.BOOTSTRAP, keys.ADOPT, keys.REWIND})


@dataclass(frozen=True)
class Step:
    """One snapshot of main that speaks of the stream, with the state before and after it.

    `taken` are the dead letters that a redrive brought back; where they are of an earlier log,
    `resolved_before` is the snapshot that ended it. `gone` are the rows and
    `deleted_dead_letters` the letters that left on purpose, for whichever stream of the table.
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
        """Name the snapshot in a finding."""
        return f"{self.kind} snapshot {self.entry.snapshot_id}"


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets of one partition that the step at `index` published."""

    start: int
    end: int
    index: int


@dataclass(frozen=True)
class Spans:
    """What was published of one partition, oldest first.

    `earlier` lie before a recorded gap that took the offsets back (the topic was created again or
    its log truncated) or before a move to another cluster: Kafka's records there are others now.
    `restarts` are the indexes of those steps. Rows below `floor` came before the ledger begins and
    are not judged.
    """

    current: tuple[Span, ...] = ()
    earlier: tuple[Span, ...] = ()
    floor: int = 0
    restarts: tuple[int, ...] = ()

    @property
    def every(self) -> tuple[Span, ...]:
        """Give all spans, oldest first."""
        return (*self.earlier, *self.current)

    @property
    def incarnations(self) -> tuple[tuple[Span, ...], ...]:
        """Give the spans of each log apart: within one of them an offset is one record."""
        bounds = (-1, *self.restarts)
        ends = (*self.restarts, None)
        return tuple(
            tuple(s for s in self.every if s.index > low and (high is None or s.index <= high))
            for low, high in zip(bounds, ends, strict=True)
        )


def trace_steps(history: History, stream: str) -> tuple[Step, ...]:
    """List what main's ancestry says of a stream, oldest first."""
    steps: list[Step] = []
    state: StreamState | None = None
    for entry in reversed(list(walk_ancestors(history))):
        text = entry.summary.get(keys.state_key(stream))
        is_own = entry.summary.get(keys.STREAM) == stream
        if text is None and not is_own and not (steps and is_deletion(entry.summary)):
            continue
        after = parse_state(text) if text else None
        has_ranges = is_own and keys.RANGES in entry.summary
        ranges = parse_ranges(entry.summary[keys.RANGES]) if has_ranges else {}
        kind = entry.summary.get(keys.KIND, "")
        has_taken = is_own and kind == keys.REDRIVE and keys.COORDINATES in entry.summary
        taken = parse_coordinates(entry.summary[keys.COORDINATES]) if has_taken else {}
        before = entry.summary.get(keys.LETTERS_BEFORE)
        gone = (parse_deleted(entry.summary), parse_deleted_dead_letters(entry.summary))
        resolved_before = int(before) if has_taken and before else None
        steps.append(Step(entry, kind, state, after, ranges, taken, *gone, resolved_before))
        state = after or state
    return tuple(steps)


def iterate_moves(before: StreamState, after: StreamState) -> Iterator[tuple[Partition, int, int]]:
    """Yield each partition's next offset before and after; unknown ones begin at 0."""
    for topic in sorted({*before.offsets, *after.offsets}):
        pairs = zip_longest(
            before.offsets.get(topic, ()), after.offsets.get(topic, ()), fillvalue=0
        )
        for number, (start, end) in enumerate(pairs):
            yield (topic, number), start, end


def list_attempts(steps: tuple[Step, ...]) -> dict[int, str]:
    """Name the attempt that each batch published, by the batch's index."""
    return {
        index: step.entry.summary[keys.ATTEMPT]
        for index, step in enumerate(steps)
        if step.kind in keys.ROW_KINDS and keys.ATTEMPT in step.entry.summary
    }


def list_spans(steps: tuple[Step, ...]) -> dict[Partition, Spans]:
    """List what was published of each partition, apart by the logs that it was read from."""
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
    """List the partitions that go on in another log: after a recorded gap, or a move."""
    if step.kind not in {keys.GAP, keys.MOVE} or step.before is None or step.after is None:
        return []
    before, after = step.before.topic_ids, step.after.topic_ids
    return [
        partition
        for partition, start, end in iterate_moves(step.before, step.after)
        if end < start
        or before.get(partition[0]) != after.get(partition[0])
        or (step.kind == keys.MOVE and end > start)
    ]


def list_moved(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """List where the newest move put partitions, unless their topic was created again since."""
    found: dict[Partition, int] = {}
    for step in steps:
        restarts = list_restarts(step)
        if step.before is not None and step.after is not None:
            moves = iterate_moves(step.before, step.after)
            is_move = step.kind == keys.MOVE
            found |= {place: end if is_move else 0 for place, _, end in moves if place in restarts}
    return found


def _list_floors(step: Step) -> dict[Partition, int]:
    """Find the offsets below which rows came before the ledger: adopted, or their history lost."""
    is_lost = step.before is None and step.kind != keys.BOOTSTRAP
    if step.after is None or not (is_lost or step.kind == keys.ADOPT):
        return {}
    floors: dict[Partition, int] = {}
    for topic, values in step.after.offsets.items():
        for number, value in enumerate(values):
            published = step.ranges.get(topic, {}).get(number)
            floors[topic, number] = published.start if published else value
    return floors


def is_history_cut(steps: tuple[Step, ...]) -> bool:
    """Say whether the first state known is not one that begins a stream."""
    return bool(steps) and steps[0].kind not in _FIRST_KINDS


def count_adopted_rows(steps: tuple[Step, ...]) -> int:
    """Count the rows that came with a table when it was taken over."""
    return sum(
        json.loads(step.entry.summary.get(keys.ADOPTED, "{}")).get("rows", 0)
        for step in steps
        if step.kind == keys.ADOPT
    )


def list_adopted(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """List the offsets at which a table was taken over, of logs that are still read."""
    found: dict[Partition, int] = {}
    for step in steps:
        for partition in list_restarts(step):
            found.pop(partition, None)
        if step.kind == keys.ADOPT and step.after:
            for topic, offsets in step.after.offsets.items():
                found |= {(topic, number): offset for number, offset in enumerate(offsets)}
    return found


def list_topics(history: History) -> frozenset[str]:
    """List the topics of every stream that main's ancestry carries."""
    return frozenset(
        topic
        for entry in walk_ancestors(history)
        for key, text in entry.summary.items()
        if key.startswith(keys.STATE_PREFIX)
        for topic in parse_state(text).offsets
    )


UNCLAIMED = -1


def find_owners(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Give for each offset the index of the last span that covers it, -1 for none."""
    owners = np.full(len(offsets), UNCLAIMED, dtype=np.int64)
    for span in spans:
        low, high = np.searchsorted(offsets, [span.start, span.end])
        owners[low:high] = span.index
    return owners


def count_covers(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Give for each offset how many spans cover it."""
    covers = np.zeros(len(offsets), dtype=np.int64)
    for span in spans:
        low, high = np.searchsorted(offsets, [span.start, span.end])
        covers[low:high] += 1
    return covers


def find_deleted(
    steps: tuple[Step, ...], spans: Spans, partition: Partition, kinds: frozenset[str] = KINDS
) -> Offsets:
    """Give the offsets of a partition whose records left on purpose and did not come back.

    What was erased only another record at the same offset brings back: a batch, after the topic
    was created again. What was merely too old a replay brings back too.
    """
    parts = [NO_OFFSETS]
    for index, step in enumerate(steps):
        if step.kind not in kinds:
            continue
        letters = [held.get(partition, NO_OFFSETS) for held in step.deleted_dead_letters.values()]
        offsets = np.unique(np.concatenate([step.deleted.get(partition, NO_OFFSETS), *letters]))
        later = [
            span
            for span in spans.every
            if span.index > index
            and (step.kind == keys.EXPIRE_ROWS or steps[span.index].kind == keys.INGEST)
        ]
        parts.append(offsets[find_owners(offsets, later) == UNCLAIMED])
    return np.unique(np.concatenate(parts))
