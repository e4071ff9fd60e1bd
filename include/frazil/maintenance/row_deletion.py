"""Delete rows by a condition, copy-on-write, in a snapshot that lists their coordinates.

Each attempt searches the files that were added since the attempt before, so batches and
compactions go on meanwhile. A file with matching rows only is removed; any other is rewritten with
the rows that stay (decision records 16 and 33).

The commit that removes a file lists it with its smallest and largest values and its partition, and
a rewrite by Spark leaves such an entry beside those of files that stay. An erasure needs a further
commit, or the head would keep values that were erased.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate

from frazil.errors import StageStaleError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.data_files import flag_partition
from frazil.iceberg.ledger_archive import archive_new_entries
from frazil.iceberg.live_files import Flags
from frazil.iceberg.row_changes import (
    ChangedFile,
    RowSearch,
    RowsToDelete,
    collect_offsets,
    count_rows,
    sort_offsets,
)
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ledger import keys
from frazil.ledger.authors import Author
from frazil.ledger.coordinates import Coordinates, DeadLetterCoordinates, count_runs
from frazil.ledger.deletions import Deletion
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    PublishedBatch,
    find_batch,
    find_recovery_points,
    walk_ancestors,
)
from frazil.state_tables.merge_rules import describe_more_than_additions
from frazil.state_tables.messages import MergePosition
from frazil.workspace import Workspace

MAX_RUNS = 100_000
"""Runs of offsets that one snapshot may list: at most about 1 MiB of summary."""
FindDeadLetters = Callable[[History, Coordinates], DeadLetterCoordinates]
"""Return the dead letters to delete together with the rows at these coordinates."""


Precondition = Callable[[History], None]
"""Raise if the rows must not be deleted from this head."""


def accept_any(_history: History) -> None:
    """Accept any head."""


def delete_rows(
    view: TableView,
    rows: RowsToDelete,
    deletion: Deletion,
    find_dead_letters: FindDeadLetters,
    require: Precondition = accept_any,
) -> tuple[tuple[PublishedBatch, ...], TableView]:
    """Delete rows, in one snapshot or in several where one could not list them all.

    Portions are numbered from that of the deletion on.

    Returns:
        The snapshots, none if no row matches; and the table after the last one.

    Raises:
        TargetError: a file with rows to delete is not a Parquet file.
        TableError: the stream is halted; nothing was written.
        CommitContentionError, UnavailableError: run again; what landed is in the ledger.
    """
    landed: list[PublishedBatch] = []
    search, doing = RowSearch(rows, MAX_RUNS), f"{deletion.kind} of stream {deletion.stream}"
    for number in count(deletion.portion):
        # Before the attempts, whose time is limited: a first search may take minutes.
        retry_commit(doing, partial(_prepare, view, search))
        portion, views = replace(deletion, portion=number), iterate_views(view)
        attempt = partial(_try_delete, views, search, portion, (find_dead_letters, require))
        published = retry_commit(doing, attempt)
        if published is None:
            break
        landed.append(published)
        view = view.reload()
    if landed:
        archive_new_entries(view.store, view.history)
    return tuple(landed), view


def _prepare(view: TableView, search: RowSearch) -> None:
    """Search the head and copy rows that stay, so that an attempt has little left to do."""
    search.replace(view.table, limit_portion(search.find(view.table)))


def find_no_dead_letters(_history: History, _deleted: Coordinates) -> DeadLetterCoordinates:
    """Return no dead letters: all of them stay."""
    return {}


def _try_delete(
    views: Iterator[TableView],
    search: RowSearch,
    deletion: Deletion,
    asked: tuple[FindDeadLetters, Precondition],
) -> PublishedBatch | None:
    """Try one commit, unless the ledger shows that an earlier attempt landed; None for no rows."""
    view = next(views)
    table, history = view.table, view.history
    found = find_batch(history, deletion.name(history.table_uuid))
    if found is not None:
        return PublishedBatch(found, already_published=True)
    view.find_point(deletion.stream)  # raises if the stream is halted
    find_dead_letters, require = asked
    require(history)
    affected = tuple(limit_portion(search.find(table)))
    deleted = sort_offsets(collect_offsets(affected))
    dead_letters = find_dead_letters(history, deleted)
    if not affected and not dead_letters:
        return None
    summary = deletion.summarize(history.table_uuid, count_rows(affected), deleted, dead_letters)
    added = build_deletion(table, affected, summary, search)
    updates = commits.move_main(added)
    reach_failpoint("delete.before-commit")
    commit_once(view.store, table, {commits.MAIN: history.head}, updates)
    reach_failpoint("delete.after-commit")
    entry = LedgerEntry(
        added.snapshot.snapshot_id, history.head, added.snapshot.timestamp_ms, summary
    )
    return PublishedBatch(entry, already_published=False)


def select_rows_at(places: Coordinates) -> RowsToDelete:
    """Select the rows at these coordinates."""

    def flag(rows: pa.Table) -> Flags:
        kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
        offsets = np.asarray(kafka.field("offset"))
        flags = np.zeros(len(rows), dtype=np.bool_)
        for partition, listed in places.items():
            own = flag_partition(kafka, partition)
            flags[own] = np.isin(offsets[own], listed)
        return flags

    last = max((int(listed.max()) for listed in places.values() if len(listed)), default=-1)
    return RowsToDelete(f"{keys.KAFKA_COLUMN}.offset <= {last}", (), flag)


def remove_rows(
    work: Workspace, view: TableView, rows: RowsToDelete, author: Author
) -> tuple[int, TableView]:
    """Erase rows of a table that is not a ledger; return their number and the table without them.

    Raises:
        TargetError, CommitContentionError, UnavailableError: run again.
    """
    total, search = 0, RowSearch(rows)
    while True:
        tried: list[int] = []
        attempt = partial(_try_remove, work, iterate_views(view), search, author, tried)
        removed = retry_commit(f"erasing from {view.name}", attempt)
        if not removed:
            return total, view
        total += removed
        view = view.reload()


def _try_remove(
    work: Workspace,
    views: Iterator[TableView],
    search: RowSearch,
    author: Author,
    tried: list[int],
) -> int:
    """Try one commit; return the number of rows that it removed.

    If none is left, an earlier attempt was committed, but its response was lost: see `tried`.
    """
    table = next(views).table
    affected = tuple(search.find(table))
    if not affected:
        return tried[-1] if tried else 0
    rows = count_rows(affected)
    tried.append(rows)
    summary = {
        keys.KIND: keys.ERASE,
        keys.STREAM: work.stream.stream,
        keys.ROWS_DELETED: str(rows),
        keys.BY: author.by,
        keys.REASON: author.reason,
        keys.RUN_ID: work.run_id,
    }
    head = table.current_snapshot()
    added = build_deletion(table, affected, summary, search)
    updates = commits.move_main(added)
    if table.name()[-1].endswith(keys.DEAD_LETTERS_SUFFIX):
        # A rollback keeps the table's properties, and so is noticed.
        snapshot_id = str(added.snapshot.snapshot_id)
        updates += (commits.set_properties({keys.LAST_ERASURE: snapshot_id}),)
    reach_failpoint("remove.before-commit")
    commit_once(work.store, table, {commits.MAIN: head.snapshot_id if head else None}, updates)
    reach_failpoint("remove.after-commit")
    return rows


def build_deletion(
    table: Table, affected: tuple[ChangedFile, ...], summary: Mapping[str, str], search: RowSearch
) -> AddSnapshotUpdate:
    """Write the retained rows and build the snapshot, an empty one where no row is deleted."""
    replaced = search.replace(table, affected)
    with translated_errors(f"writing the manifests of a deletion in {'.'.join(table.name())}"):
        if not affected:
            return commits.build_append(table, summary)
        return commits.build_overwrite(table, summary, replaced)


def limit_portion(affected: Iterator[ChangedFile]) -> Iterator[ChangedFile]:
    """Yield as many files as one snapshot can list; the next portion has the rest."""
    runs = 0
    for file in affected:
        runs += count_runs(sort_offsets(file.offsets))
        if runs > MAX_RUNS and runs > count_runs(sort_offsets(file.offsets)):
            return
        yield file


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
    """Try one commit; if an earlier one was committed without a response, nothing is left to do."""
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


def delete_changes(
    work: Workspace,
    position: MergePosition,
    gone: tuple[Coordinates, Coordinates],
    words: Mapping[str, str],
) -> tuple[PublishedBatch, ...]:
    """Delete changes that a state has folded at a merge position.

    The newest change of each key (the second part) is deleted last: if only some of several
    snapshots are published, no older change becomes the newest of its key.

    Raises:
        StageStaleError: the table was changed by more than additions since that position.
        TargetError, CommitContentionError, UnavailableError: as `delete_rows`.
    """
    stream = work.stream.stream

    def require_additions(history: History) -> None:
        own = [e.snapshot_id for e in walk_ancestors(history) if _is_own(e, work.run_id)]
        followed = (*own, *position.erased)
        found = describe_more_than_additions(history, position.snapshot_id, followed)
        if found:
            raise StageStaleError(
                f"stream {stream}: the change table was changed while its changes were read: "
                f"{found}; nothing more was removed",
                f"run again after the next merge: `frazil merge {stream}`",
            )

    landed: tuple[PublishedBatch, ...] = ()
    for part in filter(None, gone):
        if landed:
            reach_failpoint("trim.before-newest")
        deletion = Deletion(keys.TRIM, stream, work.run_id, words, len(landed))
        view, rows = TableView(work.store, work.stream.table.name), select_rows_at(part)
        done, _ = delete_rows(view, rows, deletion, find_no_dead_letters, require_additions)
        landed += done
    if landed:
        reach_failpoint("trim.after-changes")
    return landed


def _is_own(entry: LedgerEntry, run_id: str) -> bool:
    is_trim = entry.summary.get(keys.KIND) == keys.TRIM
    return is_trim and entry.summary.get(keys.RUN_ID) == run_id
