"""Delete rows by a condition, copy-on-write, in a snapshot that lists their coordinates.

Each attempt searches the files of the head on which it commits, so batches and compactions go on
meanwhile. A file with matching rows only is removed; any other is rewritten with the rows that
stay (decision record 16).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import count

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate

from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.ledger_archive import archive_new_entries, load_with_history
from frazil.iceberg.row_changes import (
    ChangedFile,
    RetainedRows,
    RowsToDelete,
    collect_offsets,
    count_rows,
    find_rows,
    sort_offsets,
    write_retained_rows,
)
from frazil.ledger.coordinates import Coordinates, DeadLetterCoordinates, count_runs
from frazil.ledger.deletions import Deletion
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    PublishedBatch,
    find_batch,
    find_recovery_point,
)
from frazil.workspace import Workspace

MAX_RUNS = 100_000
"""Runs of offsets that one snapshot may list: at most about 1 MiB of summary."""
FindDeadLetters = Callable[[History, Coordinates], DeadLetterCoordinates]
"""Return the dead letters to delete together with the rows at these coordinates."""


def delete_rows(
    work: Workspace, rows: RowsToDelete, deletion: Deletion, find_dead_letters: FindDeadLetters
) -> tuple[PublishedBatch, ...]:
    """Delete rows, in one snapshot or in several where one could not list them all.

    Returns:
        The snapshots, none if no row matches.

    Raises:
        TargetError: a file with rows that stay has an older partition spec.
        TableError: the stream is halted; nothing was written.
        CommitContentionError, UnavailableError: run again; what landed is in the ledger.
    """
    landed: list[PublishedBatch] = []
    for number in count():
        attempt = partial(
            _try_delete,
            work,
            rows,
            replace(deletion, portion=number),
            find_dead_letters,
            RetainedRows(deletion.stream),
        )
        published = retry_commit(f"{deletion.kind} of stream {deletion.stream}", attempt)
        if published is None:
            break
        landed.append(published)
    if landed:
        _, history = load_with_history(work.store, work.stream.table.name)
        archive_new_entries(work.store, history)
    return tuple(landed)


def find_no_dead_letters(_history: History, _deleted: Coordinates) -> DeadLetterCoordinates:
    """Return no dead letters: all of them stay."""
    return {}


def _try_delete(
    work: Workspace,
    rows: RowsToDelete,
    deletion: Deletion,
    find_dead_letters: FindDeadLetters,
    retained: RetainedRows,
) -> PublishedBatch | None:
    """Try one commit, unless the ledger shows that an earlier attempt landed; None for no rows."""
    name = work.stream.table.name
    table, history = load_with_history(work.store, name)
    found = find_batch(history, deletion.name(history.table_uuid))
    if found is not None:
        return PublishedBatch(found, already_published=True)
    find_recovery_point(history, deletion.stream)
    affected = tuple(limit_portion(find_rows(table, rows, MAX_RUNS)))
    deleted = sort_offsets(collect_offsets(affected))
    dead_letters = find_dead_letters(history, deleted)
    if not affected and not dead_letters:
        return None
    summary = deletion.summarize(history.table_uuid, count_rows(affected), deleted, dead_letters)
    added = build_deletion(table, affected, summary, retained)
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, added.snapshot.snapshot_id),
    ]
    reach_failpoint("delete.before-commit")
    commit_once(work.store, table, {commits.MAIN: history.head}, updates)
    reach_failpoint("delete.after-commit")
    entry = LedgerEntry(
        added.snapshot.snapshot_id, history.head, added.snapshot.timestamp_ms, summary
    )
    return PublishedBatch(entry, already_published=False)


def build_deletion(
    table: Table,
    affected: tuple[ChangedFile, ...],
    summary: Mapping[str, str],
    retained: RetainedRows,
) -> AddSnapshotUpdate:
    """Write the retained rows and build the snapshot, an empty one where no row is deleted."""
    files = list(write_retained_rows(table, affected, retained))
    with translated_errors(f"writing the manifests of a deletion in {'.'.join(table.name())}"):
        if not affected:
            return commits.build_append(table, summary)
        return commits.build_overwrite(table, summary, files, [file.task.file for file in affected])


def read_column(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Return a column, or a struct's field by its dotted path, null where the struct is null."""
    name, *fields = path.split(".")
    column = rows[name]
    return pc.struct_field(column, fields) if fields else column


def limit_portion(affected: Iterator[ChangedFile]) -> Iterator[ChangedFile]:
    """Yield as many files as one snapshot can list; the next portion has the rest."""
    runs = 0
    for file in affected:
        runs += count_runs(sort_offsets(file.offsets))
        if runs > MAX_RUNS and runs > count_runs(sort_offsets(file.offsets)):
            return
        yield file
