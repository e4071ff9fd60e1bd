"""Snapshots by others that changed rows: noticed always, allowed or refused by policy."""

from collections.abc import Iterable
from typing import Literal

from frazil.errors import WriterActiveError
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors

OtherWriters = Literal["allow", "refuse"]


def list_foreign_snapshots(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """List the snapshots of others that changed rows: nobody reads their changes again.

    Compaction changes none, and a staged merge is ours, told by the seal above it.
    """
    known = tuple(entries)
    staged = {entry.summary.get(keys.SOURCE_SNAPSHOT_ID) for entry in known}
    return tuple(
        entry
        for entry in known
        if keys.KIND not in entry.summary
        and entry.summary.get("operation") != "replace"
        and str(entry.snapshot_id) not in staged
    )


def count_foreign_snapshots(history: History) -> int:
    """Count them since the table was made; what came with one that was taken over is none."""
    entries: list[LedgerEntry] = []
    for entry in walk_ancestors(history):
        if entry.summary.get(keys.KIND) == keys.ADOPT:
            break
        entries.append(entry)
    return len(list_foreign_snapshots(entries))


def require_sole_writer(history: History, stream: str, policy: OtherWriters) -> None:
    """Halt a stream that allows none where others changed rows since its newest state.

    Raises:
        WriterActiveError: a person takes the changes back, or allows them.
    """
    if policy == "allow":
        return
    newer: list[LedgerEntry] = []
    carrier = None
    for entry in walk_ancestors(history):
        if keys.state_key(stream) in entry.summary:
            carrier = entry
            break
        newer.append(entry)
    foreign = list_foreign_snapshots(newer)
    if carrier is None or not foreign:
        return
    told = ", ".join(f"{e.snapshot_id} ({e.summary.get('operation')})" for e in reversed(foreign))
    raise WriterActiveError(
        f"stream {stream}: another writer changed rows of {history.table} since snapshot "
        f"{carrier.snapshot_id}: {told}; table.other_writers is refuse, nothing was written",
        f"`frazil recover {stream} --to-snapshot {carrier.snapshot_id}` shows how to take the "
        "changes back; to keep them set table.other_writers to allow",
    )
