"""SEAL: make a staged branch main as it is, where re-appending its files will not do.

The staged snapshot must be a child of main's head: an empty snapshot with the full summary is put
on it, and main moves there in one compare-and-set (protocol.md, PUBLISH). Moving a ref has no
ancestry check of its own: on any other head it would silently drop what others committed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil.errors import CatalogUnavailableError, StageLostError, StageStaleError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import TableStore, translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.ledger_archive import load_with_history
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, LedgerEntry, PublishedBatch, find_batch
from frazil.ledger.state import StreamState, hint_properties

Refusal = Callable[[Table, History], None]
"""Looks at a fresh table and raises where the seal may not stand on it."""


@dataclass(frozen=True)
class FastForward:
    """A staged branch and what its snapshot will say; `states` are those that it moves, if any.

    The summary's `frazil.batch-id` is the seal's own id, by which a repetition finds it.
    """

    table: str
    branch: str
    staged_id: int
    summary: Mapping[str, str]
    states: Mapping[str, StreamState] = field(default_factory=dict)

    @property
    def batch_id(self) -> str:
        """Give the id by which the seal is found again."""
        return self.summary[keys.BATCH_ID]


def fast_forward_main(store: TableStore, seal: FastForward, refuse: Refusal) -> PublishedBatch:
    """Publish a staged branch on exactly the head that it was staged on.

    Raises:
        StageLostError: the branch is gone or moved; nothing was written.
        StageStaleError: main moved since the stage; nothing was written.
        CatalogUnavailableError: the catalog let another writer overwrite the commit.
        FrazilError: whatever `refuse` raises; nothing was written.
    """
    doing = f"sealing {seal.summary[keys.KIND]} {seal.batch_id} on {seal.table}"
    landed = retry_commit(doing, lambda: _try_fast_forward(store, seal, refuse))
    _, history = load_with_history(store, seal.table)
    if find_batch(history, seal.batch_id) is None:  # some catalogs do not compare and set (A13)
        raise CatalogUnavailableError(
            f"{doing}: it was committed as snapshot {landed.entry.snapshot_id}, but main does not "
            "have it: the catalog let another writer overwrite it",
            "run again: it stages afresh; use a catalog that compares and sets",
        )
    return landed


def _try_fast_forward(store: TableStore, seal: FastForward, refuse: Refusal) -> PublishedBatch:
    """Take one turn; its first line decides whether an earlier one with no answer landed."""
    table, history = load_with_history(store, seal.table)
    found = find_batch(history, seal.batch_id)
    if found is not None:
        return PublishedBatch(found, already_published=True)
    refuse(table, history)
    require_unmoved_branch(table, history, seal)
    reach_failpoint("seal.before-commit")
    summary = {**seal.summary, keys.SOURCE_SNAPSHOT_ID: str(seal.staged_id)}
    with translated_errors(f"writing the seal of {seal.branch}"):
        added = commits.build_append(table, summary, branch=seal.branch)
    new_id = added.snapshot.snapshot_id
    updates: list[TableUpdate] = [added, commits.set_branch(commits.MAIN, new_id)]
    if seal.states:
        updates.append(commits.set_properties(hint_properties(seal.states, new_id)))
    updates += commits.drop_branch(seal.branch)
    commit_once(store, table, {commits.MAIN: history.head, seal.branch: seal.staged_id}, updates)
    reach_failpoint("seal.after-commit")
    entry = LedgerEntry(new_id, seal.staged_id, added.snapshot.timestamp_ms, summary)
    return PublishedBatch(entry, already_published=False)


def require_unmoved_branch(table: Table, history: History, seal: FastForward) -> None:
    """Refuse a branch that is not where it was staged, and a head that is not its parent."""
    what = f"{seal.summary[keys.KIND]} {seal.batch_id}: branch {seal.branch} of {seal.table}"
    ref = table.metadata.refs.get(seal.branch)
    staged = table.snapshot_by_id(seal.staged_id)
    if ref is None or staged is None or ref.snapshot_id != seal.staged_id:
        raise StageLostError(
            f"{what} is gone or moved; snapshot {seal.staged_id} was staged there",
            "run again: it stages afresh",
        )
    if staged.parent_snapshot_id != history.head:
        raise StageStaleError(
            f"{what} was staged on snapshot {staged.parent_snapshot_id}, main is at "
            f"{history.head} now: another writer was faster, and nothing was written",
            "run again: it stages on the new head",
        )
