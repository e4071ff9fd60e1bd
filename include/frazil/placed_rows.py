"""Rows of any table with the coordinates of their records, batch by batch, in bounded memory."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table

from frazil.coordinates import Offsets, Partition
from frazil.errors import ConfigurationError
from frazil.offset_columns import OffsetColumns
from frazil.tables import translated_errors


@dataclass(frozen=True)
class PlacedBatch:
    """Some rows: `places` are their partitions with the row numbers and offsets of each."""

    rows: pa.RecordBatch
    places: Mapping[Partition, tuple[npt.NDArray[np.int64], Offsets]]
    unplaced: int
    newest_ms: int | None
    task: FileScanTask


@dataclass(frozen=True)
class TablePlaces:
    """The coordinates of all rows, ascending, doubled ones kept; 8 bytes a row.

    `unplaced` rows have no coordinate. `newest` is per partition the newest record's timestamp.
    """

    offsets: Mapping[Partition, Offsets]
    unplaced: int = 0
    newest_event_at: datetime | None = None


@dataclass(frozen=True)
class PlacedTable:
    """A table, its coordinate columns, and the topic of rows that do not name one."""

    table: Table
    columns: tuple[OffsetColumns, ...]
    topic: str | None = None

    def read_places(self) -> TablePlaces:
        """Read nothing but the coordinates.

        Raises:
            ConfigurationError: nobody said which topic the rows came from.
            CatalogUnavailableError, StorageError: a file cannot be read.
        """
        parts: defaultdict[Partition, list[Offsets]] = defaultdict(list)
        unplaced, newest = 0, None
        for batch in self.iterate(()):
            unplaced += batch.unplaced
            newest = max(filter(None, (newest, batch.newest_ms)), default=None)
            for partition, (_, offsets) in batch.places.items():
                parts[partition].append(offsets)
        sorted_parts = {key: np.sort(np.concatenate(parts.pop(key))) for key in sorted(parts)}
        at = datetime.fromtimestamp(newest / 1000, tz=UTC) if newest is not None else None
        return TablePlaces(sorted_parts, unplaced, at)

    def iterate(self, names: tuple[str, ...]) -> Iterator[PlacedBatch]:
        """Read these top-level columns beside the coordinates, file by file."""
        wanted = [name for each in self.columns for name in each.names]
        schema = self.table.schema().select(*dict.fromkeys([*names, *wanted]))
        scan = ArrowScan(self.table.metadata, self.table.io, schema, AlwaysTrue())
        with translated_errors(f"reading rows of {'.'.join(self.table.name())}"):
            for task in self.table.scan().plan_files():
                for rows in scan.to_record_batches([task]):
                    yield self._place(rows, task)

    def _place(self, rows: pa.RecordBatch, task: FileScanTask) -> PlacedBatch:
        topics = self._coalesce(rows, "topic", pa.string())
        partitions = self._coalesce(rows, "partition", pa.int64())
        offsets = self._coalesce(rows, "offset", pa.int64())
        is_known = pc.and_(pc.is_valid(partitions), pc.is_valid(offsets))
        if self.topic is not None:
            topics = topics.fill_null(self.topic)
        elif pc.any(pc.and_(is_known, pc.is_null(topics))).as_py():
            raise ConfigurationError(
                f"table {'.'.join(self.table.name())} has no column with the topic of its records",
                "say which topic filled it: --topic TOPIC",
            )
        indexes = np.flatnonzero(is_known.to_numpy(zero_copy_only=False))
        known = pa.table({"topic": topics, "partition": partitions, "offset": offsets}).take(
            indexes
        )
        newest = pc.max(self._read_instants(rows)).as_py()
        return PlacedBatch(rows, _group(known, indexes), rows.num_rows - len(indexes), newest, task)

    def _coalesce(self, rows: pa.RecordBatch, part: str, kind: pa.DataType) -> pa.Array:
        """Take a part of the coordinate from the first layout that has it."""
        arrays = [
            read_column(rows, name).cast(kind)
            for columns in self.columns
            if (name := getattr(columns, part)) is not None
        ]
        return pc.coalesce(*arrays) if arrays else pa.nulls(rows.num_rows, kind)

    def _read_instants(self, rows: pa.RecordBatch) -> pa.Array:
        """Read timestamps in milliseconds since 1970."""
        arrays = []
        for name in (columns.timestamp for columns in self.columns):
            found = read_column(rows, name) if name else pa.nulls(rows.num_rows, pa.int64())
            if pa.types.is_timestamp(found.type):
                found = found.cast(pa.timestamp("ms", found.type.tz), safe=False)
            arrays.append(found.cast(pa.int64()))
        return pc.coalesce(*arrays)


def read_column(rows: pa.RecordBatch, name: str) -> pa.Array:
    """Take a column, or with dots a field of a struct; null where the struct is."""
    if name in rows.schema.names:
        return rows[name]
    top, _, rest = name.partition(".")
    return pc.struct_field(rows[top], rest.split("."))


def _group(
    known: pa.Table, indexes: npt.NDArray[np.int64]
) -> dict[Partition, tuple[npt.NDArray[np.int64], Offsets]]:
    """Sort row numbers and offsets into partitions."""
    topics = known["topic"].combine_chunks().dictionary_encode()
    names = topics.dictionary.to_pylist()
    codes = topics.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    numbers, offsets = known["partition"].to_numpy(), known["offset"].to_numpy()
    found: dict[Partition, tuple[npt.NDArray[np.int64], Offsets]] = {}
    for code in np.unique(codes).tolist():
        for number in np.unique(numbers[codes == code]).tolist():
            own = np.flatnonzero((codes == code) & (numbers == number))
            found[names[code], number] = indexes[own], offsets[own]
    return found
