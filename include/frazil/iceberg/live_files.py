"""The data files of main's head that may hold given rows, and the rows of them that are hidden.

Another engine deletes rows by position or by equality in delete files, and leaves them in the data
files. Manifests never change, so each is read once, however often a commit is tried; PyIceberg's
own scan reads all of them again, and refuses tables with equality deletes.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestEntry
from pyiceberg.manifest import ManifestFile as Manifest
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.transforms import VoidTransform

from frazil.iceberg.data_files import read_column, read_files
from frazil.iceberg.parquet_files import require_parquet

Flags: TypeAlias = NDArray[np.bool_]

_READERS = 8
"""Manifests read at the same time: in an object store the wait for each is long."""


@dataclass(frozen=True)
class LiveFile:
    """A data file, the location of the manifest that lists it, and its delete files."""

    file: DataFile
    manifest: str
    deletes: tuple[DataFile, ...] = ()

    @property
    def name(self) -> tuple[str, ...]:
        """Return the locations of the file and its delete files, which determine visible rows."""
        return (self.file.file_path, *sorted(each.file_path for each in self.deletes))


@dataclass
class FilePlanner:
    """Plans the files of a table's head; a further plan reads only manifests that are new."""

    condition: str | BooleanExpression
    _schema: tuple[str, int] = ("", -1)
    _entries: dict[str, list[ManifestEntry]] = field(default_factory=dict)

    def plan(self, table: Table) -> list[LiveFile]:
        """Return the data files of main's head that may hold rows of the condition."""
        snapshot = table.current_snapshot()
        manifests = snapshot.manifests(table.io) if snapshot else []
        schema = (str(table.metadata.table_uuid), table.metadata.current_schema_id)
        known = self._entries if schema == self._schema else {}
        self._schema = schema  # the same name may be another column now
        unread = [each for each in manifests if each.manifest_path not in known]
        with ThreadPoolExecutor(_READERS) as readers:
            read = readers.map(lambda manifest: self._read(table, manifest), unread)
            known |= {each.manifest_path: found for each, found in zip(unread, read, strict=True)}
        self._entries = {each.manifest_path: known[each.manifest_path] for each in manifests}
        return list(self._list_files(table, manifests))

    def _read(self, table: Table, manifest: Manifest) -> list[ManifestEntry]:
        """Read the entries of data files that may match, or of all delete files."""
        if manifest.content == ManifestContent.DELETES:
            return manifest.fetch_manifest_entry(table.io)
        planner = ManifestGroupPlanner(table.metadata, table.io, self.condition)
        return [entry for found in planner.plan_manifest_entries([manifest]) for entry in found]

    def _list_files(self, table: Table, manifests: Iterable[Manifest]) -> Iterator[LiveFile]:
        deletes = _Deletes(table)
        for manifest in manifests:
            if manifest.content == ManifestContent.DELETES:
                deletes.add(self._entries[manifest.manifest_path])
        for manifest in manifests:
            if manifest.content == ManifestContent.DATA:
                for entry in self._entries[manifest.manifest_path]:
                    yield LiveFile(entry.data_file, manifest.manifest_path, deletes.find(entry))


class _Deletes:
    """The delete files of a snapshot, by the data files that they apply to."""

    def __init__(self, table: Table) -> None:
        self._specs = table.specs()
        self._by_position = DeleteFileIndex()
        self._by_equality: list[ManifestEntry] = []

    def add(self, entries: Iterable[ManifestEntry]) -> None:
        """Add delete files."""
        for entry in entries:
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                self._by_equality.append(entry)
            else:
                self._by_position.add_delete_file(entry, entry.data_file.partition)

    def find(self, entry: ManifestEntry) -> tuple[DataFile, ...]:
        """Return the delete files that apply to a data file (Iceberg spec, "Scan Planning")."""
        file, number = entry.data_file, entry.sequence_number or 0
        positions = self._by_position.for_data_file(number, file, file.partition)
        equality = (
            each.data_file
            for each in self._by_equality
            if (each.sequence_number or 0) > number and self._covers(each.data_file, file)
        )
        return (*positions, *equality)

    def _covers(self, deletes: DataFile, file: DataFile) -> bool:
        """Return whether equality deletes are of the file's partition, or of all partitions."""
        if _is_unpartitioned(self._specs[deletes.spec_id]):
            return True
        return deletes.spec_id == file.spec_id and deletes.partition == file.partition


def _is_unpartitioned(spec: PartitionSpec) -> bool:
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)


def count_hidden_rows(live: LiveFile) -> int:
    """Count the rows of a data file that delete files list by position; manifests are enough."""
    by_position = DataFileContent.POSITION_DELETES
    listed = sum(each.record_count for each in live.deletes if each.content == by_position)
    return min(listed, live.file.record_count)


def count_live_rows(table: Table) -> int:
    """Count the rows of main's head by its manifests, without rows deleted by position."""
    files = FilePlanner(AlwaysTrue()).plan(table)
    return sum(live.file.record_count - count_hidden_rows(live) for live in files)


def flag_hidden_rows(table: Table, live: LiveFile, rows: int) -> Flags:
    """Flag the rows of a data file that other engines deleted, but left in the file.

    Raises:
        TargetError: a delete file is not a Parquet file.
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    is_hidden = np.zeros(rows, dtype=np.bool_)
    for deletes in live.deletes:
        require_parquet(table, deletes)
        if deletes.content == DataFileContent.EQUALITY_DELETES:
            is_hidden |= _flag_equal_rows(table, live.file, deletes)
            continue
        with table.io.new_input(deletes.file_path).open() as stream:
            found = pq.ParquetFile(stream).read(["file_path", "pos"])
        own = np.asarray(found["file_path"]) == live.file.file_path
        is_hidden[np.asarray(found["pos"])[own]] = True
    return is_hidden


def _flag_equal_rows(table: Table, file: DataFile, deletes: DataFile) -> Flags:
    """Flag the rows whose values are those of an equality delete, where null equals null."""
    deleted = set(_read_values(table, deletes, deletes.equality_ids or []))
    held = _read_values(table, file, deletes.equality_ids or [])
    flags: Flags = np.fromiter((values in deleted for values in held), np.bool_, len(held))
    return flags


def _read_values(table: Table, file: DataFile, field_ids: list[int]) -> list[tuple[object, ...]]:
    """Read columns by their field ids, also those that the table no longer has."""
    schemas = (table.schema(), *reversed(table.schemas().values()))
    schema = next(each for each in schemas if set(field_ids) <= each.field_ids)
    names = [schema.find_column_name(field_id) or "" for field_id in field_ids]
    rows = read_files(table, schema.select(*names), [FileScanTask(file)])
    return list(zip(*(read_column(rows, name).to_pylist() for name in names), strict=True))
