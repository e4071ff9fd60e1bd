"""Which snapshots and staging branches may go: pure decisions (protocol.md, I9).

Expiry keeps the recovery point of every stream, the rollback window, whatever a branch or tag
holds, and what is younger than a day and on its way. Everything else that it takes is archived.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from frazil.errors import ConfigurationError, HistoryCutError
from frazil.iceberg import commits
from frazil.iceberg.branches import StagingBranch, parse_branch
from frazil.ingest.blocked_batches import read_blocked
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    RecoveryPoint,
    find_recovery_points,
    walk_ancestors,
)
from frazil.streams.models import RetentionWindow
from frazil.streams.timestamps import DAY_MS


@dataclass(frozen=True)
class ExpiryPlan:
    """What goes; the ids hold once the states of `carry` stand in a `carry` snapshot on head."""

    ancestor_ids: tuple[int, ...] = ()
    abandoned_ids: tuple[int, ...] = ()
    carry: tuple[str, ...] = ()


def _walk_as_far_as_needed(history: History) -> tuple[LedgerEntry, ...]:
    """Walk main's ancestry; into the archive only if the metadata holds something off this line."""
    near = tuple(walk_ancestors(history, beyond_metadata=False))
    is_whole = len(near) == len(history.entries)
    return near if is_whole else tuple(walk_ancestors(history))


def decide_expiry(
    history: History, refs: Mapping[str, int], now_ms: int, window: RetentionWindow
) -> ExpiryPlan:
    """Choose the snapshots that may go; `refs` are branches and tags with their snapshots.

    On main everything stays that was current at any instant since the cutoff. Off main only what
    provably forked from it may go: below a cut by others nobody knows what a snapshot is.

    Raises:
        TableError: a stream halts; nothing may go.
    """
    points = find_recovery_points(history)
    lineage = _walk_as_far_as_needed(history)
    main_ids = {entry.snapshot_id for entry in lineage}
    off_main = [entry for entry in history.entries.values() if entry.snapshot_id not in main_ids]
    cutoff_ms = window.abandoned_cutoff_ms(now_ms)
    young = [entry.snapshot_id for entry in off_main if entry.committed_at_ms > cutoff_ms]
    held = {
        snapshot_id
        for root in (*refs.values(), *young)
        for snapshot_id in _walk_to_main(history, root, main_ids)
    }
    held |= set(_in_window(lineage, window.cutoff_ms(now_ms)))
    ancestors = tuple(
        entry.snapshot_id
        for entry in lineage
        if entry.snapshot_id in history.entries and entry.snapshot_id not in held
    )
    abandoned = tuple(
        entry.snapshot_id
        for entry in off_main
        if entry.snapshot_id not in held and _forked_from_main(history, entry, main_ids)
    )
    return ExpiryPlan(ancestors, abandoned, _must_carry(history, points, lineage, ancestors))


def _in_window(lineage: tuple[LedgerEntry, ...], cutoff_ms: int) -> Iterator[int]:
    """Yield main's snapshots since the cutoff, and the one that was its head at that instant."""
    reached = False
    for entry in lineage:
        if not reached or entry.committed_at_ms > cutoff_ms:
            yield entry.snapshot_id
        reached = reached or entry.committed_at_ms <= cutoff_ms


def _walk_to_main(history: History, start: int, main_ids: Collection[int]) -> Iterator[int]:
    """Yield a snapshot and its parents down to the first one on main, that one included."""
    current: int | None = start
    seen: set[int] = set()
    while current is not None and current not in seen:
        yield current
        seen.add(current)
        entry = history.entries.get(current)
        current = None if current in main_ids or entry is None else entry.parent_id


def _forked_from_main(history: History, entry: LedgerEntry, main_ids: Collection[int]) -> bool:
    return any(i in main_ids for i in _walk_to_main(history, entry.snapshot_id, main_ids))


def _must_carry(
    history: History,
    points: Mapping[str, RecoveryPoint],
    lineage: Iterable[LedgerEntry],
    going: Collection[int],
) -> tuple[str, ...]:
    """Name all streams, if a walk through the metadata alone would miss the carrier of one.

    All, because the carry snapshot becomes the head, and what was the head may then go too.
    """
    reached: set[int] = set()
    for entry in lineage:
        if entry.snapshot_id in going or entry.snapshot_id not in history.entries:
            break
        reached.add(entry.snapshot_id)
    is_missed = any(point.snapshot_id not in reached for point in points.values())
    return tuple(points) if is_missed else ()


def decide_branches(
    names: Iterable[str],
    now_ms: int,
    points: Mapping[str, RecoveryPoint],
    properties: Mapping[str, str],
) -> tuple[str, ...]:
    """Choose the staging branches that nobody will publish; `properties` are the base table's.

    A branch a day old goes when its batch can no longer be published, or when another attempt
    took its place; that of a blocked batch stays, for people look at its rows.
    """
    parsed = (parse_branch(name, now_ms) for name in names)
    return tuple(
        branch.name
        for branch in parsed
        if branch is not None
        and branch.age_ms >= DAY_MS
        and _is_abandoned(branch, points.get(branch.stream), properties)
    )


def _is_abandoned(
    branch: StagingBranch, point: RecoveryPoint | None, properties: Mapping[str, str]
) -> bool:
    if point is None or branch.epoch < point.state.epoch:
        return True
    blocked = read_blocked(properties, branch.stream)
    return branch.epoch == point.state.epoch and (blocked is None or blocked.branch != branch.name)


def require_kept_states(
    table: str, before: Mapping[str, RecoveryPoint], after: Mapping[str, RecoveryPoint]
) -> None:
    """See that every stream is where it was, or further on (I8, C1).

    Raises:
        HistoryCutError: a stream lost or changed its recovery point.
    """
    for stream, point in before.items():
        now = after.get(stream)
        if now is not None and (now.state == point.state or now.state.epoch > point.state.epoch):
            continue
        found = f"epoch {now.state.epoch}, batch {now.state.batch}" if now else "no state"
        raise HistoryCutError(
            f"table {table}: before expiry stream {stream} stood at epoch {point.state.epoch}, "
            f"batch {point.state.batch}; now main carries {found}",
            f"stop the stream and report this; `frazil snapshots {stream}` shows what the archive "
            "holds",
        )


def require_kept_snapshots(before: History, after: History, expired: Collection[int]) -> None:
    """See that nothing else of main's metadata went than what was asked (I9).

    Raises:
        HistoryCutError: somebody or something else expired snapshots at the same time.
    """
    kept = {
        entry.snapshot_id
        for entry in walk_ancestors(before, beyond_metadata=False)
        if entry.snapshot_id not in expired
    }
    lost = sorted(kept - set(after.entries))
    if lost:
        raise HistoryCutError(
            f"table {before.table}: expiry was asked for {len(expired)} snapshots, but "
            f"{len(lost)} more of main are gone: {', '.join(map(str, lost[:5]))}",
            "their ledger entries are in the archive and no stream lost its place; look for "
            "another expiry of this table, and for retention properties of its own",
        )


def validate_table_retention(
    table: str, properties: Mapping[str, str], main_max_snapshot_age_ms: int | None
) -> None:
    """Refuse retention rules of the table that would take more than was decided.

    Iceberg applies them in the same commit, whatever ids it is asked for.

    Raises:
        ConfigurationError: such a rule is set; nothing was expired.
    """
    rule = "history.expire.max-ref-age-ms"
    if rule in properties:
        raise ConfigurationError(
            f"table {table}: property {rule} would let expiry drop staging branches by the age of "
            "the snapshot they began on",
            f"`ALTER TABLE {table} UNSET TBLPROPERTIES ('{rule}')`",
        )
    if main_max_snapshot_age_ms is not None:
        raise ConfigurationError(
            f"table {table}: branch {commits.MAIN} has a snapshot retention of its own "
            f"({main_max_snapshot_age_ms} ms), which expiry would apply beside the stream file's",
            f"`ALTER TABLE {table} REPLACE BRANCH {commits.MAIN}` without RETAIN",
        )
