"""Forget removed files: no manifest of main's head lists them any more.

The commit that removes a file lists it with its smallest and largest values and its partition, and
a rewrite by Spark leaves such an entry beside those of files that stay. Without a further commit
the head would keep them, and with it values that were erased.
"""

from functools import partial

from pyiceberg.table.update import TableUpdate

from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.ledger_archive import load_with_history
from frazil.ledger import keys
from frazil.ledger.recovery_point import find_recovery_points
from frazil.workspace import Workspace


def forget_removed_files(work: Workspace, name: str) -> None:
    """Drop the entries of removed files from main's head; a head without any stays as it is.

    Raises:
        TableError: a stream of the table is halted.
        CommitContentionError, UnavailableError: run again.
    """
    if work.store.find(name) is not None:
        reach_failpoint("erase.before-manifests")
        retry_commit(f"rewriting manifests of {name}", partial(_try_forget, work, name))


def _try_forget(work: Workspace, name: str) -> None:
    """Try one commit; after one that landed without an answer there is nothing left to do."""
    table, history = load_with_history(work.store, name)
    find_recovery_points(history)
    head = table.current_snapshot()
    with translated_errors(f"rewriting manifests of {name}"):
        manifests = head.manifests(table.io) if head else []
        if head is None or not any(map(commits.lists_removed_files, manifests)):
            return
        added = commits.build_manifest_rewrite(table, {keys.RUN_ID: work.run_id})
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, added.snapshot.snapshot_id),
    ]
    commit_once(work.store, table, {commits.MAIN: head.snapshot_id}, updates)
