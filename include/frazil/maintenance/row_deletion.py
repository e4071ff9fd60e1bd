"""The commit of a deletion: rows of a condition leave the table, in one snapshot that lists them.

Which files hold such rows is asked of the head that the commit asserts, turn by turn; neither a
batch nor a compaction has to wait. A file that only such rows fill goes whole, of any other the
rest is written again (decision record 16).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate

from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.data_files import read_files, split_coordinates
from frazil.iceberg.ledger_archive import archive_new_entries, load_with_history
from frazil.iceberg.row_changes import (
    COORDINATE,
    ChangedFile,
    RetainedRows,
    collect_offsets,
    count_rows,
    write_retained_rows,
)
from frazil.ingest.dead_letters import Flags
from frazil.ledger import keys
from frazil.ledger.coordinates import (
    Coordinates,
    DeadLetterCoordinates,
    Offsets,
    Partition,
    count_runs,
)
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
"""So many runs of offsets one snapshot may list: about a MiB of summary in the worst case."""


@dataclass(frozen=True)
class RowsToDelete:
    """Rows that should go: a condition that prunes files, and the flags of rows that were read."""

    condition: BooleanExpression
    columns: tuple[str, ...]
    flag: Callable[[pa.Table], Flags]


FindLetters = Callable[[History, Coordinates], DeadLetterCoordinates]
"""Finds the letters that go with rows at these coordinates."""


def delete_rows(
    work: Workspace, wanted: RowsToDelete, deletion: Deletion, find_letters: FindLetters
) -> tuple[PublishedBatch, ...]:
    """Take out the wanted rows, in one snapshot unless it could not list them all; none for none.

    Raises:
        TargetError: a file with rows that stay is of an older partition spec.
        TableError: a stream halts; nothing was written.
        CommitContentionError, UnavailableError: what landed is in the ledger; run again.
    """
    landed: list[PublishedBatch] = []
    for number in count():
        turn = partial(
            _try_delete,
            work,
            wanted,
            replace(deletion, portion=number),
            find_letters,
            RetainedRows(deletion.stream),
        )
        done = retry_commit(f"{deletion.kind} of stream {deletion.stream}", turn)
        if done is None:
            break
        landed.append(done)
    if landed:
        _, history = load_with_history(work.store, work.stream.table.name)
        archive_new_entries(work.store, history)
    return tuple(landed)


def find_no_letters(_history: History, _gone: Coordinates) -> DeadLetterCoordinates:
    """Let every letter stay."""
    return {}


def _try_delete(
    work: Workspace,
    wanted: RowsToDelete,
    deletion: Deletion,
    find_letters: FindLetters,
    known: RetainedRows,
) -> PublishedBatch | None:
    """Take one turn; its first line decides whether an earlier one with no answer landed."""
    name = work.stream.table.name
    table, history = load_with_history(work.store, name)
    found = find_batch(history, deletion.name(history.table_uuid))
    if found is not None:
        return PublishedBatch(found, already_published=True)
    find_recovery_point(history, deletion.stream)
    affected = tuple(choose_portion(find_rows(table, wanted)))
    gone = sort_offsets(collect_offsets(affected))
    letters = find_letters(history, gone)
    if not affected and not letters:
        return None
    summary = deletion.summarize(history.table_uuid, count_rows(affected), gone, letters)
    added = build_deletion(table, affected, summary, known)
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
    table: Table, affected: tuple[ChangedFile, ...], summary: Mapping[str, str], known: RetainedRows
) -> AddSnapshotUpdate:
    """Build the snapshot, an empty one where no row goes; nothing is committed."""
    files = list(write_retained_rows(table, affected, known))
    with translated_errors(f"writing the manifests of a deletion in {'.'.join(table.name())}"):
        if not affected:
            return commits.build_append(table, summary)
        return commits.build_overwrite(table, summary, files, [file.task.file for file in affected])


def find_rows(table: Table, wanted: RowsToDelete) -> Iterator[ChangedFile]:
    """Find the files of main's head that hold wanted rows, one after the other.

    Raises:
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    with translated_errors(f"looking for rows in {'.'.join(table.name())}"):
        for task in table.scan(row_filter=wanted.condition).plan_files():
            affected = _search_file(table, task, wanted)
            if affected is not None:
                yield affected


def _search_file(table: Table, task: FileScanTask, wanted: RowsToDelete) -> ChangedFile | None:
    rows = read_files(table, table.schema().select(*COORDINATE, *wanted.columns), [task])
    is_inside = wanted.flag(rows)
    if not is_inside.any():
        return None
    offsets = _group(rows, is_inside)
    if count_runs(sort_offsets(offsets)) > MAX_RUNS:
        is_inside = is_inside.copy()
        is_inside[np.flatnonzero(is_inside)[MAX_RUNS:]] = False
        offsets = _group(rows, is_inside)
    return ChangedFile(task, is_inside, offsets)


def _group(rows: pa.Table, is_inside: Flags) -> dict[Partition, Offsets]:
    """Group the coordinates of flagged rows by partition; rows of others may have none."""
    chosen = rows[keys.KAFKA_COLUMN].filter(pa.array(is_inside)).combine_chunks()
    known = chosen.filter(pc.struct_field(chosen, "offset").is_valid())
    return {(topic, number): offsets for topic, number, offsets in split_coordinates(known)}


def read_column(rows: pa.Table, path: str) -> pa.ChunkedArray:
    """Take a column, or a field of a struct by its dotted path; null where its struct is null."""
    name, *fields = path.split(".")
    column = rows[name]
    return pc.struct_field(column, fields) if fields else column


def choose_portion(affected: Iterator[ChangedFile]) -> Iterator[ChangedFile]:
    """Take files until one snapshot could not list more; the next portion takes the rest."""
    runs = 0
    for file in affected:
        runs += count_runs(sort_offsets(file.offsets))
        if runs > MAX_RUNS and runs > count_runs(sort_offsets(file.offsets)):
            return
        yield file


def sort_offsets(offsets: Mapping[Partition, Offsets]) -> dict[Partition, Offsets]:
    """Sort the offsets of each partition, as whatever speaks of them expects."""
    return {partition: np.sort(each) for partition, each in offsets.items()}
