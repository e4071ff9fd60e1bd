"""Decide which snapshots expire and which staging branches are dropped (ARCHITECTURE.md, I9).

Expiry keeps the recovery point of every stream, the rollback window, everything that a branch or
tag references, and snapshots younger than a day that are not on main yet. What expires from main
is archived before.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
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
from frazil.ledger.stored_properties import ANY_TABLE
from frazil.messages import count_noun
from frazil.streams.timestamps import DAY_MS, RetentionWindow


@dataclass(frozen=True)
class ExpiryPlan:
    """Snapshots to expire once a `carry` snapshot repeats the states of the streams in `carry`."""

    ancestor_ids: tuple[int, ...] = ()
    abandoned_ids: tuple[int, ...] = ()
    carry: tuple[str, ...] = ()


def _list_main_ancestors(history: History) -> tuple[LedgerEntry, ...]:
    """Return main's ancestry; the archive is read only if some snapshots are not on main."""
    in_metadata = tuple(walk_ancestors(history, beyond_metadata=False))
    is_complete = len(in_metadata) == len(history.entries)
    return in_metadata if is_complete else tuple(walk_ancestors(history))


def decide_expiry(
    history: History, refs: Mapping[str, int], now_ms: int, window: RetentionWindow
) -> ExpiryPlan:
    """Return the snapshots that may expire; `refs` maps branches and tags to their snapshots.

    On main, snapshots stay that were current at any instant since the cutoff. Other snapshots
    expire only if they provably forked from main: where another writer expired history, their
    origin is unknown.

    Raises:
        TableError: a stream is halted; nothing may expire.
    """
    points = find_recovery_points(history)
    lineage = _list_main_ancestors(history)
    main_ids = {entry.snapshot_id for entry in lineage}
    off_main = [entry for entry in history.entries.values() if entry.snapshot_id not in main_ids]
    cutoff_ms = window.abandoned_cutoff_ms(now_ms)
    young = [entry.snapshot_id for entry in off_main if entry.committed_at_ms > cutoff_ms]
    held = _list_held(history, (*refs.values(), *young), main_ids)
    held |= set(_in_window(lineage, window.cutoff_ms(now_ms)))
    ancestors = tuple(
        entry.snapshot_id
        for entry in lineage
        if entry.snapshot_id in history.entries and entry.snapshot_id not in held
    )
    left = [entry.snapshot_id for entry in off_main if entry.snapshot_id not in held]
    abandoned = tuple(_select_forked(history, left, main_ids))
    return ExpiryPlan(ancestors, abandoned, _list_carried(history, points, lineage, ancestors))


def _in_window(lineage: tuple[LedgerEntry, ...], cutoff_ms: int) -> Iterator[int]:
    """Yield main's snapshots since the cutoff, and the one that was its head at the cutoff."""
    reached = False
    for entry in lineage:
        if not reached or entry.committed_at_ms > cutoff_ms:
            yield entry.snapshot_id
        reached = reached or entry.committed_at_ms <= cutoff_ms


def _list_held(history: History, roots: Iterable[int], main_ids: Collection[int]) -> set[int]:
    """Return the roots and their parents, each down to the first one on main, inclusive."""
    held: set[int] = set()
    ends = set(main_ids)
    for root in roots:
        path = _walk_back(history, root, ends)
        held.update(path)
        ends.update(path)
    return held


def _select_forked(
    history: History, snapshot_ids: Iterable[int], main_ids: Collection[int]
) -> Iterator[int]:
    """Yield the snapshots from which parents lead to main."""
    leads_to_main = dict.fromkeys(main_ids, True)
    for snapshot_id in snapshot_ids:
        path = _walk_back(history, snapshot_id, leads_to_main)
        leads_to_main |= dict.fromkeys(path, leads_to_main.get(path[-1], False))
        if leads_to_main[snapshot_id]:
            yield snapshot_id


def _walk_back(history: History, start: int, ends: Container[int]) -> tuple[int, ...]:
    """Return a snapshot and its parents down to the first of `ends`, inclusive."""
    path: dict[int, None] = {}
    current: int | None = start
    while current is not None and current not in path:
        path[current] = None
        entry = history.entries.get(current)
        current = None if current in ends or entry is None else entry.parent_id
    return tuple(path)


def _list_carried(
    history: History,
    points: Mapping[str, RecoveryPoint],
    lineage: Iterable[LedgerEntry],
    expired: Collection[int],
) -> tuple[str, ...]:
    """Return all streams if the newest state of one would no longer be found in the metadata.

    All of them, because the carry snapshot becomes the head and the old head may then expire too.
    """
    reached: set[int] = set()
    for entry in lineage:
        if entry.snapshot_id in expired or entry.snapshot_id not in history.entries:
            break
        reached.add(entry.snapshot_id)
    is_missed = any(point.snapshot_id not in reached for point in points.values())
    return tuple(points) if is_missed else ()


def find_expiring_value(history: History, expired: Collection[int], key: str) -> str | None:
    """Return the newest value of a summary key on main if expiry would make it unreachable."""
    is_cut = False
    for entry in walk_ancestors(history, beyond_metadata=False):
        is_cut = is_cut or entry.snapshot_id in expired
        if key in entry.summary:
            return entry.summary[key] if is_cut else None
    return None


def decide_branches(
    names: Iterable[str],
    now_ms: int,
    points: Mapping[str, RecoveryPoint],
    properties: Mapping[str, str],
    table: str = ANY_TABLE,
) -> tuple[str, ...]:
    """Return the abandoned staging branches; `properties` are those of the base `table`.

    A branch older than a day is abandoned when its batch can no longer be published or another
    attempt replaced it. The branch of a blocked batch stays, so that its rows can be inspected.
    """
    parsed = (parse_branch(name, now_ms) for name in names)
    return tuple(
        branch.name
        for branch in parsed
        if branch is not None
        and branch.age_ms >= DAY_MS
        and _is_abandoned(branch, points.get(branch.stream), properties, table)
    )


def _is_abandoned(
    branch: StagingBranch,
    point: RecoveryPoint | None,
    properties: Mapping[str, str],
    table: str,
) -> bool:
    if point is None or branch.epoch < point.state.epoch:
        return True
    blocked = read_blocked(properties, branch.stream, table)
    return branch.epoch == point.state.epoch and (blocked is None or blocked.branch != branch.name)


def require_kept_states(
    table: str, before: Mapping[str, RecoveryPoint], after: Mapping[str, RecoveryPoint]
) -> None:
    """Check that no stream lost its recovery point or went back (I8).

    Raises:
        HistoryCutError: a stream lost or changed its recovery point.
    """
    for stream, point in before.items():
        now = after.get(stream)
        if now is not None and (now.state == point.state or now.state.epoch > point.state.epoch):
            continue
        found = f"epoch {now.state.epoch}, batch {now.state.batch}" if now else "no state"
        raise HistoryCutError(
            f"table {table}: before expiry stream {stream} was at epoch {point.state.epoch}, "
            f"batch {point.state.batch}; now main has {found}",
            f"stop the stream and report this; `frazil snapshots {stream}` lists main and the "
            "archive",
        )


def require_kept_snapshots(before: History, after: History, expired: Collection[int]) -> None:
    """Check that only the chosen snapshots of main expired (I9).

    Raises:
        HistoryCutError: another writer expired snapshots at the same time.
    """
    kept = {
        entry.snapshot_id
        for entry in walk_ancestors(before, beyond_metadata=False)
        if entry.snapshot_id not in expired
    }
    lost = sorted(kept - set(after.entries))
    if lost:
        raise HistoryCutError(
            f"table {before.table}: Frazil expired {count_noun(len(expired), 'snapshot')}; "
            f"further snapshots of main that are gone ({len(lost)}): "
            f"{', '.join(map(str, lost[:5]))}",
            "their ledger entries are archived and no stream lost its recovery point; find the "
            "other job that expires snapshots of this table, or its retention properties",
        )


def validate_table_retention(
    table: str, properties: Mapping[str, str], main_max_snapshot_age_ms: int | None
) -> None:
    """Refuse retention settings of the table that would expire more than was decided.

    Iceberg applies them in the same commit, whichever snapshot ids it is given.

    Raises:
        ConfigurationError: such a setting exists; nothing was expired.
    """
    rule = "history.expire.max-ref-age-ms"
    if rule in properties:
        raise ConfigurationError(
            f"table {table}: property {rule} would make expiry drop staging branches by the age of "
            "the snapshot that they start from",
            f"`ALTER TABLE {table} UNSET TBLPROPERTIES ('{rule}')`",
        )
    if main_max_snapshot_age_ms is not None:
        raise ConfigurationError(
            f"table {table}: branch {commits.MAIN} has its own snapshot retention "
            f"({main_max_snapshot_age_ms} ms), which expiry would apply besides the stream file's",
            f"`ALTER TABLE {table} REPLACE BRANCH {commits.MAIN}` without RETAIN",
        )
