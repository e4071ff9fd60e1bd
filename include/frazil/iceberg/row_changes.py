"""Copy-on-write deletes: find rows in data files, and copy files without these rows.

A copy keeps its file's columns, partition and the order of its rows (decision record 33).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import BooleanExpression
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table

from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commits import Replacement
from frazil.iceberg.data_files import COORDINATE, read_files, split_coordinates
from frazil.iceberg.live_files import FilePlanner, Flags, LiveFile, flag_hidden_rows
from frazil.iceberg.parquet_files import copy_retained_rows
from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition, count_runs


@dataclass(frozen=True)
class RowsToDelete:
    """Rows to delete: a condition that prunes files, and a function that flags the rows read.

    `even_hidden` also deletes the bytes of rows that another engine has deleted already.
    """

    condition: str | BooleanExpression
    columns: tuple[str, ...]
    flag: Callable[[pa.Table], Flags]
    even_hidden: bool = False


@dataclass(frozen=True)
class ChangedFile:
    """A data file with rows to delete.

    `is_removed` flags the rows that a copy leaves out: `rows` to delete, whose coordinates are
    `offsets`, and rows that another engine deleted.
    """

    live: LiveFile
    is_removed: Flags
    rows: int
    offsets: dict[Partition, Offsets]


@dataclass
class RowSearch:
    """A search for rows to delete, repeated at each attempt of a commit.

    Results are kept by file: a further attempt reads only manifests and data files that were added
    since, and copies only those. So it ends beside writers that commit all the time.
    """

    rows: RowsToDelete
    max_runs: int | None = None
    _planner: FilePlanner = field(init=False)
    _found: dict[tuple[str, ...], ChangedFile | None] = field(default_factory=dict)
    _copies: dict[tuple[str, ...], DataFile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with nothing read."""
        self._planner = FilePlanner(self.rows.condition)

    def find(self, table: Table) -> Iterator[ChangedFile]:
        """Yield main's files with matching rows, with at most `max_runs` runs of offsets per file.

        Raises:
            TargetError: rows are hidden by files that cannot be read.
            StorageError, CatalogUnavailableError: a file cannot be read.
        """
        with translated_errors(f"searching rows of {'.'.join(table.name())}"):
            files = self._planner.plan(table)
            live = {file.name for file in files}
            self._found = {name: file for name, file in self._found.items() if name in live}
            for file in files:
                if file.name not in self._found:
                    self._found[file.name] = _search_file(table, file, self.rows, self.max_runs)
                found = self._found[file.name]
                if found is not None:
                    yield found

    def replace(self, table: Table, affected: Iterable[ChangedFile]) -> Replacement:
        """Write the rows that stay beside deleted ones, each into its file's partition."""
        affected = tuple(affected)
        return Replacement(
            removed=[file.live.file for file in affected],
            manifests=frozenset(file.live.manifest for file in affected),
            added=[self._copy(table, file) for file in affected if not file.is_removed.all()],
        )

    def _copy(self, table: Table, file: ChangedFile) -> DataFile:
        name = file.live.name
        if name not in self._copies:
            self._copies[name] = copy_retained_rows(table, file.live.file, file.is_removed)
        return self._copies[name]


def find_rows(table: Table, rows: RowsToDelete) -> Iterator[ChangedFile]:
    """Yield the files of main's head with matching rows, one at a time, to bound memory.

    Raises:
        TargetError: rows are hidden by files that cannot be read.
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    with translated_errors(f"searching rows of {'.'.join(table.name())}"):
        for file in FilePlanner(rows.condition).plan(table):
            found = _search_file(table, file, rows, None)
            if found is not None:
                yield found


def _search_file(
    table: Table, live: LiveFile, wanted: RowsToDelete, max_runs: int | None
) -> ChangedFile | None:
    schema = table.schema().select(*COORDINATE, *wanted.columns)
    rows = read_files(table, schema, [FileScanTask(live.file)])  # positions count hidden rows
    is_deleted = wanted.flag(rows)
    if not is_deleted.any():
        return None
    is_hidden = flag_hidden_rows(table, live, len(rows))
    if not wanted.even_hidden:
        is_deleted &= ~is_hidden
        if not is_deleted.any():
            return None
    offsets = _group_offsets(rows, is_deleted)
    if max_runs is not None and count_runs(sort_offsets(offsets)) > max_runs:
        is_deleted[np.flatnonzero(is_deleted)[max_runs:]] = False
        offsets = _group_offsets(rows, is_deleted)
    count = int(np.count_nonzero(is_deleted))
    return ChangedFile(live, is_deleted | is_hidden, count, offsets)


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
