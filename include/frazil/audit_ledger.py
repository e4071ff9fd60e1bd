"""The ledger read as a chain: do epochs rise and ranges join as protocol.md says (I2, I3, I4)?

Pure functions of main's ancestry. What the chain says was published is what the rows are then
compared with.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest

from frazil import keys
from frazil.audit_answer import Finding
from frazil.coordinates import Coordinates, Letters, Partition, parse_coordinates
from frazil.deletions import is_deletion, parse_gone, parse_gone_letters
from frazil.ledger import History, LedgerEntry, walk_ancestors
from frazil.offsets import OffsetRange, Ranges, iterate_ranges, parse_ranges
from frazil.state import StreamState, parse_state

_EPOCH_RISES: Mapping[str, tuple[int, int | None]] = {
    keys.INGEST: (1, 1),
    keys.ADOPT: (1, 1),
    keys.GAP: (1, None),
    keys.REWIND: (1, None),
    keys.MOVE: (1, 1),
    keys.CARRY: (0, 0),
}
"""Kind → least and most that the epoch rises (I2); a gap that answers a rollback rises by more."""

_FIRST_KINDS = frozenset({keys.BOOTSTRAP, keys.ADOPT, keys.REWIND})


@dataclass(frozen=True)
class Step:
    """One snapshot of main that speaks of the stream, with the state before and after it.

    `taken` are the dead letters that a redrive brought back; where they are of an earlier log,
    `taken_before` is the snapshot that ended it. `gone` are the rows and
    `gone_letters` the letters that left on purpose, for whichever stream of the table.
    """

    entry: LedgerEntry
    kind: str
    before: StreamState | None
    after: StreamState | None
    ranges: Ranges
    taken: Coordinates = field(default_factory=dict)
    gone: Coordinates = field(default_factory=dict)
    gone_letters: Letters = field(default_factory=dict)
    taken_before: int | None = None

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
    def generations(self) -> tuple[tuple[Span, ...], ...]:
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
        gone = (parse_gone(entry.summary), parse_gone_letters(entry.summary))
        taken_before = int(before) if has_taken and before else None
        steps.append(Step(entry, kind, state, after, ranges, taken, *gone, taken_before))
        state = after or state
    return tuple(steps)


def check_chain(steps: tuple[Step, ...]) -> tuple[Finding, ...]:
    """Check epochs (I2), ranges (I3) and that rows never move without offsets (I4)."""
    return tuple(finding for step in steps for finding in _check_step(step))


def _check_step(step: Step) -> Iterator[Finding]:
    if step.after is None:
        if step.kind == keys.INGEST:
            text = f"{step} publishes rows without the offsets that they advance"
            yield Finding(invariant="I4", text=text)
        return
    if step.kind not in _EPOCH_RISES and step.kind != keys.BOOTSTRAP:
        text = f"{step} carries a state, which its kind must not"
        yield Finding(invariant="I4", text=text)
    if step.before is not None:
        yield from _check_epoch(step, step.before, step.after)
        yield from _check_offsets(step, step.before, step.after)


def _check_epoch(step: Step, before: StreamState, after: StreamState) -> Iterator[Finding]:
    if step.kind == keys.BOOTSTRAP:
        text = f"{step} begins the stream a second time, after epoch {before.epoch}"
        yield Finding(invariant="I2", text=text)
        return
    least, most = _EPOCH_RISES.get(step.kind, (0, 0))
    rise = after.epoch - before.epoch
    if rise < least or (most is not None and rise > most):
        text = f"{step} takes the epoch from {before.epoch} to {after.epoch}"
        yield Finding(invariant="I2", text=text)
    batch_id = step.entry.summary.get(keys.BATCH_ID)
    if step.kind == keys.INGEST and batch_id != after.batch:
        text = f"{step} publishes batch {batch_id}, its state names batch {after.batch}"
        yield Finding(invariant="I2", text=text)


def _check_offsets(step: Step, before: StreamState, after: StreamState) -> Iterator[Finding]:
    """Follow each partition from the state before to the one after."""
    if (before.cluster_id != after.cluster_id) != (step.kind == keys.MOVE):
        text = f"{step} goes from cluster {before.cluster_id} to {after.cluster_id}"
        yield Finding(invariant="I3", text=text)
    if step.kind == keys.MOVE:
        yield from _check_move(step, before, after)
        return
    for partition, start, end in iterate_moves(before, after):
        topic, number = partition
        recorded = step.ranges.get(topic, {}).get(number)
        problem = _explain_move(step.kind, start, end, recorded)
        if problem is not None:
            yield Finding(invariant="I3", text=f"{step}: {topic}-{number}: {problem}")
    known = {partition for partition, _, _ in iterate_moves(before, after)}
    for topic, number, recorded in iterate_ranges(step.ranges):
        if (topic, number) not in known:
            problem = f"[{recorded.start}, {recorded.end}) is in no state"
            yield Finding(invariant="I3", text=f"{step}: {topic}-{number}: {problem}")


def _check_move(step: Step, before: StreamState, after: StreamState) -> Iterator[Finding]:
    """See that a move to another cluster says what it did to each partition."""
    told = json.loads(step.entry.summary.get(keys.MOVED, "{}")).get("partitions", {})
    for (topic, number), start, end in iterate_moves(before, after):
        recorded = told.get(topic, {}).get(str(number), [start, start])[:2]
        if recorded != [start, end]:
            problem = f"goes from {start} to {end}, and the move says {recorded}"
            yield Finding(invariant="I3", text=f"{step}: {topic}-{number}: {problem}")


def iterate_moves(before: StreamState, after: StreamState) -> Iterator[tuple[Partition, int, int]]:
    """Yield each partition's next offset before and after; unknown ones begin at 0."""
    for topic in sorted({*before.offsets, *after.offsets}):
        pairs = zip_longest(
            before.offsets.get(topic, ()), after.offsets.get(topic, ()), fillvalue=0
        )
        for number, (start, end) in enumerate(pairs):
            yield (topic, number), start, end


def _explain_move(kind: str, start: int, end: int, recorded: OffsetRange | None) -> str | None:
    """Say what is wrong with a partition's move; None if nothing is."""
    if kind == keys.INGEST:
        return _explain_ingest(start, end, recorded or OffsetRange(start, start))
    if kind == keys.GAP:
        covered = recorded is not None and (recorded.start, recorded.end) == (start, end)
        return None if end <= start or covered else f"[{start}, {end}) is lost and not recorded"
    if kind == keys.BOOTSTRAP:
        return f"starts over at {end}, {start} was read" if end < start else None
    is_still = kind == keys.ADOPT or end == start
    return None if is_still else f"moves from {start} to {end} without rows"


def _explain_ingest(start: int, end: int, published: OffsetRange) -> str | None:
    if published.start > start:
        return f"gap: [{start}, {published.start}) is in no range"
    if published.start < start:
        return f"overlap: [{published.start}, {start}) was published before"
    if published.end != end:
        return f"the rows end at {published.end}, the state says {end}"
    return None


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
