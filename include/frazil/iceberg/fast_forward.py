"""Fast-forward main to a staging branch, for staged merges whose files cannot be appended again.

The staged snapshot must be a child of main's head. An empty snapshot with the full summary is added
to it, and main moves there in one compare-and-swap commit (protocol.md, PUBLISH). Iceberg does not
check the ancestry when a ref moves: on another head, commits of other writers would be lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from frazil.errors import CatalogUnavailableError, StageLostError, StageStaleError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ledger import keys
from frazil.ledger.recovery_point import LedgerEntry, PublishedBatch, find_batch
from frazil.ledger.state import StreamState, hint_properties


@dataclass(frozen=True)
class FastForward:
    """A staging branch, the summary of the snapshot to add, and the stream states that it changes.

    A repeated call finds an earlier commit by `frazil.batch-id` of the summary.
    """

    branch: str
    staged_id: int
    summary: Mapping[str, str]
    states: Mapping[str, StreamState] = field(default_factory=dict)

    @property
    def batch_id(self) -> str:
        """Return the id by which a repeated call finds the commit."""
        return self.summary[keys.BATCH_ID]


def fast_forward_main(view: TableView, forward: FastForward) -> PublishedBatch:
    """Publish a staging branch if main is still at the snapshot that it was staged on.

    `view` is the table after the stage.

    Raises:
        StageLostError: the branch does not exist or has moved; nothing was written.
        StageStaleError: main has moved since staging; nothing was written.
        CatalogUnavailableError: another writer overwrote the commit.
    """
    doing = f"publishing {forward.summary[keys.KIND]} {forward.batch_id} on {view.name}"
    views = iterate_views(view)
    landed = retry_commit(doing, lambda: _try_fast_forward(next(views), forward))
    if (
        find_batch(view.reload().history, forward.batch_id) is None
    ):  # some catalogs do not compare and swap
        raise CatalogUnavailableError(
            f"{doing}: it was committed as snapshot {landed.entry.snapshot_id}, but main does not "
            "contain it: the catalog let another writer overwrite it",
            "run again, which stages again; use a catalog with compare-and-swap commits",
        )
    return landed


def _try_fast_forward(view: TableView, forward: FastForward) -> PublishedBatch:
    """Try once; first check whether an earlier attempt with a lost response was committed."""
    table, history = view.table, view.history
    found = find_batch(history, forward.batch_id)
    if found is not None:
        return PublishedBatch(found, already_published=True)
    require_unmoved_branch(view, forward)
    reach_failpoint("seal.before-commit")
    summary = {**forward.summary, keys.SOURCE_SNAPSHOT_ID: str(forward.staged_id)}
    with translated_errors(f"writing the snapshot on {forward.branch}"):
        added = commits.build_append(table, summary, branch=forward.branch)
    new_id = added.snapshot.snapshot_id
    updates = commits.move_main(added)
    if forward.states:
        updates.append(commits.set_properties(hint_properties(forward.states, new_id)))
    updates += commits.drop_branch(forward.branch)
    heads = {commits.MAIN: history.head, forward.branch: forward.staged_id}
    commit_once(view.store, table, heads, updates)
    reach_failpoint("seal.after-commit")
    entry = LedgerEntry(new_id, forward.staged_id, added.snapshot.timestamp_ms, summary)
    return PublishedBatch(entry, already_published=False)


def require_unmoved_branch(view: TableView, forward: FastForward) -> None:
    """Check that the branch is at the staged snapshot, and that main is at its parent.

    Raises:
        StageLostError: the branch does not exist or has moved.
        StageStaleError: main has moved.
    """
    table, head, kind = view.table, view.history.head, forward.summary[keys.KIND]
    what = f"{kind} {forward.batch_id}: branch {forward.branch} of {view.name}"
    ref = table.metadata.refs.get(forward.branch)
    staged = table.snapshot_by_id(forward.staged_id)
    if ref is None or staged is None or ref.snapshot_id != forward.staged_id:
        raise StageLostError(
            f"{what} does not exist or has moved; snapshot {forward.staged_id} was staged there",
            "run again, which stages again",
        )
    if staged.parent_snapshot_id != head:
        raise StageStaleError(
            f"{what} was staged on snapshot {staged.parent_snapshot_id}, but main is at "
            f"{head} now: another writer was faster; nothing was written",
            "run again, which stages on the new head",
        )
