"""Choose the target of a rollback and work out its effects from main's ancestry (protocol.md)."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from typing import get_args

from frazil.errors import ConfigurationError, NothingToDecideError, TargetError
from frazil.ledger import keys
from frazil.ledger.deletions import count_erased
from frazil.ledger.foreign_snapshots import describe_kind, list_foreign_snapshots, name_kind
from frazil.ledger.offsets import (
    NextOffsets,
    OffsetLocation,
    OffsetRange,
    Ranges,
    describe_offset,
    describe_partition,
    describe_ranges,
    parse_offset_location,
    plain_ranges,
)
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    RecoveryPoint,
    find_hinted_state,
    find_newest_state,
    find_recovery_point,
    find_recovery_points,
    list_streams,
    walk_ancestors,
)
from frazil.ledger.state import StreamState, parse_state
from frazil.messages import count_noun, name_field
from frazil.recovery.backfill_rules import list_backfilled
from frazil.recovery.messages import HaltResolution, RecoverRequest, RecoveryPlan
from frazil.streams.timestamps import DAY_MS, from_epoch_ms, read_instant


def validate_one_target(request: RecoverRequest) -> None:
    """Require exactly one target or resolution.

    Raises:
        ConfigurationError: none or several are given.
    """
    targets = ("to_snapshot", "to_time", "to_offset")
    names = [name_field(target) for target in targets]
    given = [name_field(each) for each in targets if getattr(request, each) not in (None, "")]
    for answer in get_args(HaltResolution):
        name = name_field("answer", answer)
        names += [] if name in names else [name]
        given += [name] if request.answer == answer else []
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise ConfigurationError(
            f"recover of stream {request.stream} needs exactly one of {', '.join(names)}; given: "
            f"{found}",
            f"`frazil snapshots {request.stream}` lists possible targets; `frazil status "
            f"{request.stream}` shows what a halted stream needs",
        )
    if request.accept_gap and request.answer is not None:
        raise ConfigurationError(
            f"{name_field('accept_gap')} is for a rollback to a snapshot, not for {given[0]}",
            f"`frazil accept-gap {request.stream}` records a gap without a rollback",
        )


@dataclass(frozen=True)
class Rollback:
    """A rollback: the target snapshot, and what it does to every stream of the table.

    `states` are the streams' states at the target with their old epochs, `reread` the ranges that
    each stream reads again, `removed` the snapshots of main that the target is not built on, newest
    first. `is_restore`: the target is not on main, because another tool rolled it back.
    """

    head: LedgerEntry | None
    target: LedgerEntry
    states: Mapping[str, StreamState]
    points: Mapping[str, RecoveryPoint]
    reread: Mapping[str, Ranges]
    removed: tuple[LedgerEntry, ...]
    is_restore: bool = False

    def states_to_write(self, history: History, batch: str) -> dict[str, StreamState]:
        """Return the states to write, with epochs above all published ones (protocol.md)."""
        raised = {}
        for stream, state in self.states.items():
            hint = history.hint(stream)
            known = [state.epoch, hint.epoch if hint else 0]
            if stream in self.points:
                known.append(self.points[stream].state.epoch)
            raised[stream] = replace(state, epoch=max(known) + 1, batch=batch)
        return raised


def choose_target(history: History, stream: str, request: RecoverRequest) -> LedgerEntry:
    """Find the ancestor of main that the request names, or the snapshot that a halt's error names.

    A staged merge without its fast-forward snapshot is no target: it has rows without offsets.

    Raises:
        TableError: the stream is halted and must be resolved first.
        TargetError: no ancestor in the metadata fits.
        NothingToDecideError: main is at the target already.
    """
    if (restored := _find_rolled_back(history, stream, request.to_snapshot)) is not None:
        return restored
    find_recovery_point(history, stream)
    lineage = tuple(walk_ancestors(history, beyond_metadata=False))
    if request.to_snapshot is not None:
        wanted = request.to_snapshot
        found = next((e for e in lineage if e.snapshot_id == wanted), None)
        name = f"snapshot {wanted}"
    elif request.to_time is not None:
        instant_ms = read_instant(request.to_time, "to_time")
        found = next((e for e in lineage if e.committed_at_ms <= instant_ms), None)
        name = f"a snapshot of {request.to_time} or before"
    else:
        location = parse_offset_location(request.to_offset or "")
        found = _find_before(history, stream, location)
        name = f"a snapshot before offset {request.to_offset}"
    found = _skip_staged_merges(found, lineage)
    if found is None or found.snapshot_id not in {entry.snapshot_id for entry in lineage}:
        oldest = lineage[-1] if lineage else None
        raise TargetError(
            f"stream {stream}: {name} is not on main's ancestry of {history.table}, or has "
            f"expired; the oldest snapshot kept is {oldest.snapshot_id if oldest else 'none'}",
            f"`frazil snapshots {stream}` lists main's ancestry; expired snapshots are gone",
        )
    if found.snapshot_id == history.head:
        raise NothingToDecideError(
            f"stream {stream}: main of {history.table} is at snapshot {found.snapshot_id} already",
            f"`frazil snapshots {stream}` lists the snapshots before it",
        )
    return found


def _find_rolled_back(history: History, stream: str, snapshot_id: int | None) -> LedgerEntry | None:
    """Return the named snapshot if the hint has it as the newest and it is not on main."""
    hint = history.hint(stream)
    if hint is None or hint.newest_id != snapshot_id or is_on_main(history, snapshot_id):
        return None
    return history.entries.get(snapshot_id)


def is_on_main(history: History, snapshot_id: int) -> bool:
    """Return whether a snapshot is an ancestor of main's head, or the head."""
    return any(entry.snapshot_id == snapshot_id for entry in walk_ancestors(history))


def _skip_staged_merges(
    found: LedgerEntry | None, lineage: tuple[LedgerEntry, ...]
) -> LedgerEntry | None:
    """Return the snapshot, or its newest ancestor that is no staged merge."""
    children = {entry.parent_id: entry for entry in lineage}
    while found is not None and _is_staged_merge(found, children.get(found.snapshot_id)):
        found = next((e for e in lineage if e.snapshot_id == found.parent_id), None)
    return found


def _is_staged_merge(entry: LedgerEntry, child: LedgerEntry | None) -> bool:
    """Return whether a snapshot is a staged merge, whose child is its fast-forward snapshot."""
    source = child.summary.get(keys.SOURCE_SNAPSHOT_ID) if child else None
    return source == str(entry.snapshot_id)


def _find_before(history: History, stream: str, location: OffsetLocation) -> LedgerEntry | None:
    """Find the newest ancestor whose state has not read the offset yet.

    Raises:
        TargetError: the ledger does not have the partition.
        NothingToDecideError: the offset was never read.
    """
    traced = list(reversed(list(trace_stream_states(history))))
    now = _next_offset(traced[0][1].get(stream), location) if traced else None
    if now is None:
        raise TargetError(
            f"stream {stream}: the ledger of {history.table} has no partition "
            f"{describe_partition(location.topic, location.partition)}",
            f"`frazil status {stream}` lists the partitions and their offsets",
        )
    if now <= location.offset:
        raise NothingToDecideError(
            f"stream {stream}: {describe_offset(*astuple(location))} is not read yet; the next "
            f"offset is {now}",
            f"`frazil plan {stream}` shows what is read next",
        )
    for entry, states in traced:
        known = _next_offset(states.get(stream), location)
        if stream in states and (known or 0) <= location.offset:
            return entry
    return None


def _next_offset(state: StreamState | None, location: OffsetLocation) -> int | None:
    known = state.offsets.get(location.topic, ()) if state else ()
    return known[location.partition] if location.partition < len(known) else None


def trace_stream_states(
    history: History,
) -> Iterator[tuple[LedgerEntry, Mapping[str, StreamState]]]:
    """Yield main's ancestors, oldest first, each with every stream's state at that snapshot."""
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
    """Work out what a rollback to an ancestor, or to a rolled-back snapshot, does to every stream.

    A stream that began after the target gets its first offsets.

    Raises:
        TableError: a stream of the table is halted, and the target is on main.
        TargetError: the target is older than the stream, or not on main's ancestry.
    """
    is_restore = _find_rolled_back(history, stream, target_id) is not None
    ahead = replace(history, head=target_id) if is_restore else history
    points = (
        _find_newest_points(history, ahead) if is_restore else find_recovery_points(history, stream)
    )
    traced = list(trace_stream_states(ahead))
    others = trace_stream_states(history) if is_restore else ()
    at_target = next((s for entry, s in traced if entry.snapshot_id == target_id), {})
    if stream not in at_target:
        raise TargetError(
            f"stream {stream}: snapshot {target_id} of {history.table} is older than the stream, "
            "or not on main's ancestry",
            f"`frazil snapshots {stream}` lists main's ancestry with the stream's epochs",
        )
    first = _find_first_states(known for _, known in (*traced, *others))
    streams = sorted({*points, *list_streams(history)} & first.keys())
    states = {name: at_target.get(name, first[name]) for name in streams}
    reread = {
        name: list_reread_ranges(states[name].offsets, points[name].state.offsets)
        for name in sorted(points.keys() & first.keys())
    }
    kept = {e.snapshot_id for e in walk_ancestors(replace(history, head=target_id))}
    return Rollback(
        head=history.entries.get(history.head or 0),
        target=next(entry for entry, _ in traced if entry.snapshot_id == target_id),
        states=states,
        points=points,
        reread={name: ranges for name, ranges in reread.items() if ranges},
        removed=tuple(e for e in walk_ancestors(history) if e.snapshot_id not in kept),
        is_restore=is_restore,
    )


def _find_first_states(traced: Iterable[Mapping[str, StreamState]]) -> dict[str, StreamState]:
    """Return the first state of each stream; `traced` are all streams' states, oldest first."""
    first: dict[str, StreamState] = {}
    for known in traced:
        first = {**known, **first}
    return first


def _find_newest_points(history: History, ahead: History) -> dict[str, RecoveryPoint]:
    """Return each stream's newest state, on main or rolled back; halted streams included."""
    found: dict[str, RecoveryPoint] = {}
    for name in {*list_streams(history), *list_streams(ahead)}:
        points = [find_newest_state(history, name), find_newest_state(ahead, name)]
        hint, hinted = history.hint(name), find_hinted_state(history, name)
        if hint is not None and hinted is not None:
            points.append(RecoveryPoint(hinted, hint.snapshot_id))
        known = [point for point in points if point is not None]
        if known:
            found[name] = max(known, key=lambda point: point.state.epoch)
    return found


def list_reread_ranges(before: NextOffsets, now: NextOffsets) -> Ranges:
    """Return the ranges between two states of a stream."""
    reread: dict[str, dict[int, OffsetRange]] = {}
    for topic, ends in now.items():
        starts = before.get(topic, ())
        for partition, end in enumerate(ends):
            start = starts[partition] if partition < len(starts) else 0
            if start < end:
                reread.setdefault(topic, {})[partition] = OffsetRange(start, end)
    return reread


def count_rows(entry: LedgerEntry) -> int | None:
    """Return the table's rows at a snapshot; None if its summary does not have the number."""
    text = entry.summary.get("total-records")
    return int(text) if text is not None else None


def describe_rollback(
    plan: RecoveryPlan,
    rollback: Rollback,
    lost: Mapping[str, Ranges],
    windows: Mapping[str, list[Ranges]],
) -> RecoveryPlan:
    """Add to a plan what the rollback removes and what is read again, as fields and as text."""
    target, rows = rollback.target, count_rows(rollback.target)
    now = count_rows(rollback.head) if rollback.head else None
    removed = None if now is None or rows is None else now - rows
    at = from_epoch_ms(target.committed_at_ms).isoformat(timespec="seconds")
    way = "forward to the rolled-back" if rollback.is_restore else "back to"
    lines = [
        f"main moves {way} snapshot {target.snapshot_id}: readers will see the table as of {at}",
        f"rows: {_format(now)} now, {_format(rows)} after the rollback",
        *_list_effects(rollback, lost, windows),
    ]
    return plan.model_copy(
        update={
            "target_id": target.snapshot_id,
            "target_at": at,
            "rows_removed": removed,
            "snapshots_removed": tuple(str(entry.snapshot_id) for entry in rollback.removed),
            "foreign_snapshots": len(list_foreign_snapshots(rollback.removed)),
            "erased_rows": count_erased(rollback.removed),
            "again": {stream: plain_ranges(ranges) for stream, ranges in rollback.reread.items()},
            "lost": {stream: plain_ranges(ranges) for stream, ranges in lost.items()},
            "windows_lost": sum(map(len, windows.values())),
            "text": "\n".join(lines),
        }
    )


def add_earlier_rollbacks(plan: RecoveryPlan, history: History, now_ms: int) -> RecoveryPlan:
    """Add to a plan the rows of this table's rollbacks of the last day without an approval.

    Many small rollbacks need the same approval as a large one. An approval also covers the
    rollbacks before it, whose rows its question states. A rollback may remove earlier ones from
    main, so if the table has any, the archive is searched too.
    """
    known = {entry.snapshot_id: entry for entry in walk_ancestors(history)} | dict(history.entries)
    if _list_rollbacks(known, now_ms):
        known = {**history.load_archive().entries, **known}
    rollbacks = _list_rollbacks(known, now_ms)
    approved = (e.committed_at_ms for e in rollbacks if keys.APPROVED_BY in e.summary)
    since = max(approved, default=0)
    earlier = [_count_removed(e, known) for e in rollbacks if e.committed_at_ms > since]
    if not any(rows != 0 for rows in earlier):
        return plan.model_copy(update={"rows_removed_earlier": 0})
    total = None if None in earlier else sum(rows or 0 for rows in earlier)
    rows = "an unknown number of rows" if total is None else count_noun(total, "row")
    text = f"earlier rollbacks of the last 24 hours without an approval removed {rows}"
    update = {"rows_removed_earlier": total, "text": f"{plan.text}\n{text}"}
    return plan.model_copy(update=update)


def _list_rollbacks(known: Mapping[int, LedgerEntry], now_ms: int) -> list[LedgerEntry]:
    """Return the rollbacks of the last day."""
    day = (entry for entry in known.values() if entry.committed_at_ms > now_ms - DAY_MS)
    return [entry for entry in day if keys.ABANDONED_HEAD in entry.summary]


def _count_removed(rewind: LedgerEntry, known: Mapping[int, LedgerEntry]) -> int | None:
    """Return how many rows a rollback removed; None if a summary does not have the number."""
    abandoned = known.get(int(rewind.summary[keys.ABANDONED_HEAD]))
    before, after = count_rows(abandoned) if abandoned else None, count_rows(rewind)
    return None if before is None or after is None else max(0, before - after)


def _format(rows: int | None) -> str:
    return "unknown" if rows is None else f"{rows:,}"


def _list_effects(
    rollback: Rollback, lost: Mapping[str, Ranges], windows: Mapping[str, list[Ranges]]
) -> Iterator[str]:
    """Yield lines about removed snapshots, ranges read again, and what is lost for good."""
    kinds = Counter(name_kind(entry.summary) for entry in rollback.removed)
    listed = ", ".join(f"{n} {describe_kind(kind)}" for kind, n in sorted(kinds.items()))
    yield f"removed snapshots: {listed or 'none'}"
    for stream, reread in rollback.reread.items():
        yield f"{stream} reads again: {describe_ranges(reread)}"
    for stream, ranges in lost.items():
        yield f"{stream} may not be able to read again: {describe_ranges(ranges)}"
    if foreign := list_foreign_snapshots(rollback.removed):
        yield f"changes of other writers that are lost: {count_noun(len(foreign), 'snapshot')}"
    for stream, filled in list_backfilled(rollback.removed).items():
        yield (
            f"{stream} loses {count_noun(len(filled), 'backfilled window')}, "
            f"{len(windows.get(stream, ()))} of them for good; `frazil backfill {stream}` fills "
            "the others again"
        )
    if erased := count_erased(rollback.removed):
        yield f"{count_noun(erased, 'erased row')} will be back: erase the keys again afterwards"
