"""Where a rollback leads, as pure functions of main's ancestry (protocol.md, Recover)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from frazil.errors import NothingToDecideError, TargetError
from frazil.ledger import keys
from frazil.ledger.deletions import count_erased
from frazil.ledger.foreign_snapshots import list_foreign_snapshots
from frazil.ledger.offsets import (
    NextOffsets,
    OffsetLocation,
    OffsetRange,
    Ranges,
    describe_ranges,
    parse_offset_location,
    plain_ranges,
)
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    RecoveryPoint,
    find_recovery_point,
    find_recovery_points,
    list_streams,
    walk_ancestors,
)
from frazil.ledger.state import StreamState, parse_state
from frazil.recovery.backfill_rules import list_filled
from frazil.recovery.messages import RecoverRequest, RecoveryPlan
from frazil.streams.timestamps import read_instant


@dataclass(frozen=True)
class Rollback:
    """A way back: the ancestor to go to, and what that does to every stream of the table.

    `states` are those at the target, with today's epochs still; `again` is what each stream reads
    once more; `going` are the snapshots above the target, newest first.
    """

    target: LedgerEntry
    states: Mapping[str, StreamState]
    points: Mapping[str, RecoveryPoint]
    again: Mapping[str, Ranges]
    going: tuple[LedgerEntry, ...]

    def raised(self, history: History, batch: str) -> dict[str, StreamState]:
        """Give the states to write: above every epoch that was ever published (protocol.md)."""
        raised = {}
        for stream, state in self.states.items():
            hint = history.hint(stream)
            known = [state.epoch, hint.epoch if hint else 0]
            if stream in self.points:
                known.append(self.points[stream].state.epoch)
            raised[stream] = replace(state, epoch=max(known) + 1, batch=batch)
        return raised


def choose_target(history: History, stream: str, request: RecoverRequest) -> LedgerEntry:
    """Find the ancestor of main that the request names.

    Never between a staged merge and its seal: there rows stand without their offsets.

    Raises:
        TableError: the stream halts; that is answered first.
        TargetError: no ancestor that is still in the metadata fits.
        NothingToDecideError: main is there already.
    """
    find_recovery_point(history, stream)
    lineage = tuple(walk_ancestors(history, beyond_metadata=False))
    if request.to_snapshot is not None:
        wanted = request.to_snapshot
        found = next((e for e in lineage if e.snapshot_id == wanted), None)
        name = f"snapshot {wanted}"
    elif request.to_time is not None:
        instant_ms = read_instant(request.to_time, "--to-time")
        found = next((e for e in lineage if e.committed_at_ms <= instant_ms), None)
        name = f"a snapshot of {request.to_time} or before"
    else:
        place = parse_offset_location(request.to_offset or "")
        found = _find_before(history, stream, place)
        name = f"a snapshot that lacks offset {request.to_offset}"
    above = {entry.parent_id: entry for entry in lineage}
    while found is not None and _is_unsealed(found, above.get(found.snapshot_id)):
        found = next((e for e in lineage if e.snapshot_id == found.parent_id), None)
    if found is None or found.snapshot_id not in {entry.snapshot_id for entry in lineage}:
        oldest = lineage[-1] if lineage else None
        raise TargetError(
            f"stream {stream}: main of {history.table} does not come from {name}, or that snapshot "
            f"has expired; the oldest one kept is {oldest.snapshot_id if oldest else 'none'}",
            f"`frazil snapshots {stream}` lists main's ancestry; expired ones cannot come back",
        )
    if found.snapshot_id == history.head:
        raise NothingToDecideError(
            f"stream {stream}: main of {history.table} is at snapshot {found.snapshot_id} already",
            f"`frazil snapshots {stream}` lists what lies before it",
        )
    return found


def _is_unsealed(entry: LedgerEntry, child: LedgerEntry | None) -> bool:
    """Say whether a snapshot is a staged merge, whose seal is its child."""
    source = child.summary.get(keys.SOURCE_SNAPSHOT_ID) if child else None
    return source == str(entry.snapshot_id)


def _find_before(history: History, stream: str, place: OffsetLocation) -> LedgerEntry | None:
    """Find the newest ancestor whose state has not read the place.

    Raises:
        TargetError: the ledger does not know the partition.
        NothingToDecideError: nobody has read the place yet.
    """
    traced = list(reversed(list(trace_states(history))))
    now = _next_offset(traced[0][1].get(stream), place) if traced else None
    if now is None:
        raise TargetError(
            f"stream {stream}: the ledger of {history.table} knows no partition "
            f"{place.topic}-{place.partition}",
            f"`frazil status {stream}` lists the partitions and their offsets",
        )
    if now <= place.offset:
        raise NothingToDecideError(
            f"stream {stream}: {place.topic}-{place.partition}@{place.offset} is not read yet; the "
            f"next offset is {now}",
            f"`frazil plan {stream}` shows what is read next",
        )
    for entry, states in traced:
        known = _next_offset(states.get(stream), place)
        if stream in states and (known or 0) <= place.offset:
            return entry
    return None


def _next_offset(state: StreamState | None, place: OffsetLocation) -> int | None:
    known = state.offsets.get(place.topic, ()) if state else ()
    return known[place.partition] if place.partition < len(known) else None


def trace_states(history: History) -> Iterator[tuple[LedgerEntry, Mapping[str, StreamState]]]:
    """Yield main's ancestors, oldest first, each with every stream's state at that moment."""
    states: dict[str, StreamState] = {}
    for entry in reversed(list(walk_ancestors(history))):
        found = {
            key.removeprefix(keys.STATE_PREFIX): parse_state(text)
            for key, text in entry.summary.items()
            if key.startswith(keys.STATE_PREFIX)
        }
        states = {**states, **found}
        yield entry, states


def decide_rollback(history: History, stream: str, target_id: int) -> Rollback:
    """Decide what going back to an ancestor means for every stream of the table.

    A stream that began after the target gets the offsets that it began with.

    Raises:
        TableError: a stream of the table halts.
        TargetError: the target lies before the stream began, or is no ancestor.
    """
    points = find_recovery_points(history, stream)
    traced = list(trace_states(history))
    first: dict[str, StreamState] = {}
    for _, known in traced:
        first = {**known, **first}
    at_target = next((s for entry, s in traced if entry.snapshot_id == target_id), {})
    if stream not in at_target:
        raise TargetError(
            f"stream {stream}: snapshot {target_id} of {history.table} lies before the stream "
            "began, or is not on main's ancestry",
            f"`frazil snapshots {stream}` lists main's ancestry with the stream's epochs",
        )
    streams = [name for name in sorted({*points, *list_streams(history)}) if name in first]
    states = {name: at_target.get(name, first[name]) for name in streams}
    newest_first = [entry for entry, _ in reversed(traced)]
    position = [entry.snapshot_id for entry in newest_first].index(target_id)
    again = {
        name: list_reread_ranges(states[name].offsets, points[name].state.offsets)
        for name in streams
        if name in points
    }
    return Rollback(
        target=newest_first[position],
        states=states,
        points=points,
        again={name: ranges for name, ranges in again.items() if ranges},
        going=tuple(newest_first[:position]),
    )


def list_reread_ranges(before: NextOffsets, now: NextOffsets) -> Ranges:
    """List what lies between two states of a stream, per partition."""
    again: dict[str, dict[int, OffsetRange]] = {}
    for topic, ends in now.items():
        starts = before.get(topic, ())
        for partition, end in enumerate(ends):
            start = starts[partition] if partition < len(starts) else 0
            if start < end:
                again.setdefault(topic, {})[partition] = OffsetRange(start, end)
    return again


def count_rows(entry: LedgerEntry) -> int | None:
    """Read how many rows the table had with a snapshot; None where its summary does not say."""
    text = entry.summary.get("total-records")
    return int(text) if text is not None else None


def describe_rollback(
    plan: RecoveryPlan,
    rewind: Rollback,
    lost: Mapping[str, Ranges],
    windows: Mapping[str, list[Ranges]],
) -> RecoveryPlan:
    """Write down what a rewind takes and what is read again, for programs and for people."""
    target, rows, now = rewind.target, count_rows(rewind.target), count_rows(rewind.going[0])
    going = None if now is None or rows is None else now - rows
    at = datetime.fromtimestamp(target.committed_at_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    lines = [
        f"main goes back to snapshot {target.snapshot_id}: readers see the table of {at}",
        f"rows: {now} now, {rows} then",
        *_list_effects(rewind, lost, windows),
    ]
    return plan.model_copy(
        update={
            "target_id": target.snapshot_id,
            "target_at": at,
            "rows_going": going,
            "snapshots_going": tuple(str(entry.snapshot_id) for entry in rewind.going),
            "foreign_snapshots": len(list_foreign_snapshots(rewind.going)),
            "erased_rows": count_erased(rewind.going),
            "again": {stream: plain_ranges(ranges) for stream, ranges in rewind.again.items()},
            "lost": {stream: plain_ranges(ranges) for stream, ranges in lost.items()},
            "windows_lost": sum(map(len, windows.values())),
            "text": "\n".join(lines),
        }
    )


def _list_effects(
    rewind: Rollback, lost: Mapping[str, Ranges], windows: Mapping[str, list[Ranges]]
) -> Iterator[str]:
    """Say what goes, what is read again, and what nobody brings back."""
    kinds = Counter(_name_kind(entry) for entry in rewind.going)
    yield "snapshots that go: " + ", ".join(f"{n} {kind}" for kind, n in sorted(kinds.items()))
    for stream, again in rewind.again.items():
        yield f"{stream} reads again: {describe_ranges(again)}"
    for stream, gone in lost.items():
        yield f"{stream} cannot surely read again: {describe_ranges(gone)}"
    if foreign := list_foreign_snapshots(rewind.going):
        yield f"changes by others that nothing brings back: {len(foreign)} snapshots"
    for stream, filled in list_filled(rewind.going).items():
        yield (
            f"{len(filled)} windows of backfills go too, {len(windows.get(stream, ()))} of them "
            f"for good; `frazil backfill {stream}` fills the others again"
        )
    if erased := count_erased(rewind.going):
        yield f"erased rows that come back: {erased}; run their erasures again afterwards"


def _name_kind(entry: LedgerEntry) -> str:
    operation = entry.summary.get("operation", "")
    by_others = "compaction" if operation == "replace" else f"foreign {operation}"
    return entry.summary.get(keys.KIND) or by_others
