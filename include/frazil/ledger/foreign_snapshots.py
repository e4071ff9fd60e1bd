"""Snapshots of other writers that changed rows, and the policy `table.other_writers`."""

from collections.abc import Iterable, Mapping
from typing import Literal

from frazil.errors import WriterActiveError
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors

OtherWriters = Literal["allow", "refuse"]
_FOREIGN = "foreign "


def name_kind(summary: Mapping[str, str]) -> str:
    """Return the kind of a snapshot; another writer's is `compaction` or `foreign OPERATION`.

    Only a compaction leaves the rows unchanged. The timeline's table and JSON have these kinds.
    """
    operation = summary.get("operation", "change")
    other = "compaction" if operation == "replace" else f"{_FOREIGN}{operation}"
    return summary.get(keys.KIND) or other


def describe_kind(kind: str) -> str:
    """Return the kind of a snapshot or event for people: `append by another writer`."""
    operation = kind.removeprefix(_FOREIGN)
    return kind if operation == kind else f"{operation} by another writer"


def list_foreign_snapshots(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """List the snapshots of other writers that changed rows.

    Compaction (operation `replace`) changes no rows. A staged snapshot has no `frazil.kind` either;
    it is recognised by the fast-forward snapshot that names it as its source.
    """
    snapshots = tuple(entries)
    staged = {entry.summary.get(keys.SOURCE_SNAPSHOT_ID) for entry in snapshots}
    return tuple(
        entry
        for entry in snapshots
        if keys.KIND not in entry.summary
        and entry.summary.get("operation") != "replace"
        and str(entry.snapshot_id) not in staged
    )


def count_foreign_snapshots(history: History) -> int:
    """Count the snapshots of other writers since the table was created or adopted."""
    entries: list[LedgerEntry] = []
    for entry in walk_ancestors(history):
        if entry.summary.get(keys.KIND) == keys.ADOPT:
            break
        entries.append(entry)
    return len(list_foreign_snapshots(entries))


def require_sole_writer(history: History, stream: str, policy: OtherWriters) -> None:
    """Check that no other writer changed rows since the stream's newest state.

    Raises:
        WriterActiveError: one did, and the policy is `refuse`.
    """
    if policy == "allow":
        return
    newer: list[LedgerEntry] = []
    state_snapshot = None
    for entry in walk_ancestors(history):
        if keys.state_key(stream) in entry.summary:
            state_snapshot = entry
            break
        newer.append(entry)
    foreign = list_foreign_snapshots(newer)
    if state_snapshot is None or not foreign:
        return
    listed = ", ".join(f"{e.snapshot_id} ({e.summary.get('operation')})" for e in reversed(foreign))
    good_id = state_snapshot.snapshot_id
    raise WriterActiveError(
        f"stream {stream}: another writer changed rows of {history.table} since snapshot "
        f"{good_id}: {listed}; table.other_writers is refuse, nothing was written",
        f"`frazil recover {stream} --to-snapshot {good_id}` previews a rollback of these changes; "
        "to keep them, set table.other_writers to allow in the stream file",
    )
