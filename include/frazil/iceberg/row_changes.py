"""Copy-on-write deletes: find rows in data files, and copy files without these rows.

A copy keeps its file's partition and the order of its rows. Results are kept by file, so that a
repeated commit attempt searches and copies only files that were added since.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from frazil.errors import TargetError
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.data_files import COORDINATE, read_files, split_coordinates
from frazil.iceberg.parquet_files import copy_retained_rows, flag_hidden_rows
from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition, count_runs

Flags: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True)
class RowsToDelete:
    """Rows to delete: a condition that prunes files, and a function that flags the rows read."""

    condition: str | BooleanExpression
    columns: tuple[str, ...]
    flag: Callable[[pa.Table], Flags]


@dataclass(frozen=True)
class ChangedFile:
    """A data file with rows to delete.

    `is_removed` flags the rows that a copy leaves out: `rows` to delete, whose coordinates are
    `offsets`, and rows that another engine deleted by position.
    """

    task: FileScanTask
    is_removed: Flags
    rows: int
    offsets: dict[Partition, Offsets]

    @property
    def path(self) -> str:
        """Return the file's location."""
        return self.task.file.file_path

    @property
    def name(self) -> tuple[str, ...]:
        """Return the file's path and those of its delete files, which hide rows of it."""
        return (self.path, *sorted(file.file_path for file in self.task.delete_files))


@dataclass
class RetainedRows:
    """Files already written for retained rows, by source file; a commit retry uses them again."""

    stream: str
    by_name: dict[tuple[str, ...], DataFile] = field(default_factory=dict)


def find_rows(
    table: Table, rows: RowsToDelete, max_runs: int | None = None
) -> Iterator[ChangedFile]:
    """Yield the files of main's head with matching rows; of each, at most `max_runs` of offsets.

    Raises:
        TargetError: rows are hidden by files that cannot be read.
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    with translated_errors(f"searching rows of {'.'.join(table.name())}"):
        for task in table.scan(row_filter=rows.condition).plan_files():
            affected = _search_file(table, task, rows, max_runs)
            if affected is not None:
                yield affected


def _search_file(
    table: Table, task: FileScanTask, wanted: RowsToDelete, max_runs: int | None
) -> ChangedFile | None:
    schema = table.schema().select(*COORDINATE, *wanted.columns)
    rows = read_files(table, schema, [FileScanTask(task.file)])  # by position, so with hidden rows
    is_hidden = flag_hidden_rows(table, task, len(rows))
    is_deleted = wanted.flag(rows) & ~is_hidden
    if not is_deleted.any():
        return None
    offsets = _group_offsets(rows, is_deleted)
    if max_runs is not None and count_runs(sort_offsets(offsets)) > max_runs:
        is_deleted[np.flatnonzero(is_deleted)[max_runs:]] = False
        offsets = _group_offsets(rows, is_deleted)
    count = int(np.count_nonzero(is_deleted))
    return ChangedFile(task, is_deleted | is_hidden, count, offsets)


def _group_offsets(rows: pa.Table, is_deleted: Flags) -> dict[Partition, Offsets]:
    """Group flagged rows' offsets by partition; rows of other writers without any are left out."""
    chosen = rows[keys.KAFKA_COLUMN].filter(pa.array(is_deleted)).combine_chunks()
    known = chosen.filter(pc.struct_field(chosen, "offset").is_valid())
    return {(topic, number): offsets for topic, number, offsets in split_coordinates(known)}


def collect_offsets(affected: Iterable[ChangedFile]) -> dict[Partition, Offsets]:
    """Return the coordinates of all deleted rows, by partition."""
    parts: dict[Partition, list[Offsets]] = {}
    for file in affected:
        for partition, offsets in file.offsets.items():
            parts.setdefault(partition, []).append(offsets)
    return {partition: np.concatenate(offsets) for partition, offsets in parts.items()}


def sort_offsets(offsets: Mapping[Partition, Offsets]) -> dict[Partition, Offsets]:
    """Return the offsets of each partition in ascending order."""
    return {partition: np.sort(each) for partition, each in offsets.items()}


def count_rows(affected: Iterable[ChangedFile]) -> int:
    """Count the deleted rows."""
    return sum(file.rows for file in affected)


def write_retained_rows(
    table: Table, affected: Iterable[ChangedFile], known: RetainedRows
) -> Iterator[DataFile]:
    """Write the retained rows of files with some deleted rows, each into its old partition.

    Raises:
        TargetError: such a file has an older partition spec.
    """
    affected = tuple(affected)
    require_current_spec(table, affected, known.stream)
    for file in affected:
        if file.is_removed.all():
            continue
        if file.name not in known.by_name:
            known.by_name[file.name] = copy_retained_rows(table, file.task.file, file.is_removed)
        yield known.by_name[file.name]


def require_current_spec(table: Table, affected: Iterable[ChangedFile], stream: str) -> None:
    """Check that all files with retained rows have the current partition spec.

    Raises:
        TargetError: one has an older partition spec.
    """
    spec_id = table.spec().spec_id
    for file in affected:
        if file.is_removed.all() or file.task.file.spec_id == spec_id:
            continue
        raise TargetError(
            f"table {'.'.join(table.name())}: {file.path} must be rewritten, but it has partition "
            f"spec {file.task.file.spec_id} and the table has {spec_id} now; nothing was written",
            f"`frazil maintain {stream} --only compact --rewrite-all --no-dry-run` rewrites every "
            "file with the current spec; then run again",
        )
