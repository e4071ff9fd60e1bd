"""Slices of a merge of many changes: a merge that is killed goes on after the last slice.

A slice ends at a snapshot of the change table, as if it had been the newest when the merge began.
"""

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate, takewhile

from frazil.ledger import keys
from frazil.ledger.offsets import Runs
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors
from frazil.state_tables.merge_rules import (
    CAME_LATE,
    FIRST_MERGE,
    MergePlan,
    Rest,
    join_added,
    list_since,
    list_unfolded,
    read_added,
)
from frazil.state_tables.messages import MergePosition


def take_slice(
    changes: History, plan: MergePlan, before: MergePosition | None, most: int
) -> MergePlan:
    """Return the first slice of a merge: at most `most` changes, but at least one batch.

    The changes up to the newest snapshot that did more than add are one slice. A rebuild has no
    slices, since readers would see the state go back; but for a late change of a slice all changes
    up to the end of that slice are folded. Such a slice takes as many new changes as are folded
    already, so that many late changes cost a few rebuilds, not one for each slice.
    """
    if plan.added is None and plan.reason not in {FIRST_MERGE, CAME_LATE}:
        return plan
    erased = before.erased if before else ()
    since = list_since(changes, before.snapshot_id) if before else [*walk_ancestors(changes)]
    unfolded = list_unfolded(changes, since or [], erased)[::-1]
    totals = [*accumulate(map(_count_changes, unfolded))]
    if plan.reason == CAME_LATE and before is not None:
        most = max(most, _count_folded(changes, before))
    if not totals or totals[-1] <= most:
        return plan
    parts: list[Runs] = []
    for entry in reversed(unfolded):
        part = read_added(entry)
        if part is None:
            break
        parts.insert(0, part)
    first = len(unfolded) - len(parts)  # the oldest of those behind which all only added
    end = max(first, bisect_right(totals, 0) + 1, bisect_right(totals, most))
    end = bisect_right(totals, totals[end - 1])  # batches without a row are no rest
    if end == len(unfolded):
        return plan
    last = unfolded[end - 1].snapshot_id
    newer = {e.snapshot_id for e in takewhile(lambda e: e.snapshot_id != last, since or [])}
    followed = tuple(number for number in erased if number in newer)
    rest = Rest(plan.head, join_added(parts[end - first :]), totals[-1] - totals[end - 1], followed)
    folded = None if plan.added is None else join_added(parts[: end - first])
    return MergePlan(last, folded, plan.reason, rest)


def _count_folded(changes: History, position: MergePosition) -> int:
    """Count the changes that the state has folded, at most: some may have left the table."""
    line = walk_ancestors(replace(changes, head=position.snapshot_id))
    return sum(map(_count_changes, line))


def _count_changes(entry: LedgerEntry) -> int:
    """Count the changes that a snapshot added, by its summary or at most by its offsets."""
    if keys.ROWS_WRITTEN in entry.summary:
        return int(entry.summary[keys.ROWS_WRITTEN])
    runs = (read_added(entry) or {}).values()
    return sum(end - start for parts in runs for found in parts.values() for start, end in found)
