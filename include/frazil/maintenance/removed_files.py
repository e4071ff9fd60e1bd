"""Forget removed files: no manifest of main's head lists them any more.

The commit that removes a file lists it with its smallest and largest values and its partition, and
a rewrite by Spark leaves such an entry beside those of files that stay. Without a further commit
the head would keep them, and with it values that were erased.
"""

from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ledger import keys
from frazil.ledger.recovery_point import find_recovery_points
from frazil.workspace import Workspace


def forget_removed_files(work: Workspace, view: TableView) -> TableView:
    """Drop the entries of removed files from main's head; return the table afterwards.

    A head without any stays as it is.

    Raises:
        TableError: a stream of the table is halted.
        CommitContentionError, UnavailableError: run again.
    """
    if view.found is None:
        return view
    reach_failpoint("erase.before-manifests")
    views = iterate_views(view)
    return retry_commit(
        f"rewriting manifests of {view.name}", lambda: _try_forget(work, next(views))
    )


def _try_forget(work: Workspace, view: TableView) -> TableView:
    """Try one commit; after one that landed without an answer there is nothing left to do."""
    table = view.table
    find_recovery_points(view.history)
    head = table.current_snapshot()
    with translated_errors(f"rewriting manifests of {view.name}"):
        manifests = head.manifests(table.io) if head else []
        if head is None or not any(map(commits.lists_removed_files, manifests)):
            return view
        added = commits.build_manifest_rewrite(table, {keys.RUN_ID: work.run_id})
    updates = commits.move_main(added)
    heads = {commits.MAIN: head.snapshot_id}
    return view.with_table(commit_once(work.store, table, heads, updates))
