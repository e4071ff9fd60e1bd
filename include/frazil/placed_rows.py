"""Rows of any table with the coordinates of their records, batch by batch, in bounded memory."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import FileScanTask, Table

from frazil.coordinates import Offsets, Partition
from frazil.errors import ConfigurationError, IncompatibleTableError
from frazil.offset_columns import OffsetColumns
from frazil.tables import translated_errors


@dataclass(frozen=True)
class PlacedBatch:
    """Some rows: `places` are their partitions with the row numbers and offsets of each."""

    rows: pa.RecordBatch
    places: Mapping[Partition, tuple[npt.NDArray[np.int64], Offsets]]
    unplaced: int
    instants_ms: pa.Array
    task: FileScanTask


@dataclass(frozen=True)
class TablePlaces:
    """The coordinates of all rows, ascending, doubled ones kept; 8 bytes a row.

    `unplaced` rows have no coordinate. `final_ms` is per partition the timestamp of its highest
    offset, where the table keeps one, in milliseconds since 1970.
    """

    offsets: Mapping[Partition, Offsets]
    unplaced: int = 0
    newest_event_at: datetime | None = None
    final_ms: Mapping[Partition, int] = field(default_factory=dict)


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
            IncompatibleTableError: it has equality deletes.
            CatalogUnavailableError, StorageError: a file cannot be read.
        """
        parts: defaultdict[Partition, list[Offsets]] = defaultdict(list)
        finals: dict[Partition, tuple[int, int | None]] = {}
        unplaced, newest = 0, None
        for batch in self.iterate(()):
            unplaced += batch.unplaced
            found = pc.max(batch.instants_ms).as_py()
            newest = max(newest or found, found) if found is not None else newest
            for partition, (indexes, offsets) in batch.places.items():
                parts[partition].append(offsets)
                top = int(np.argmax(offsets))
                at_top = batch.instants_ms[int(indexes[top])].as_py()
                final = (int(offsets[top]), at_top)
                finals[partition] = max(final, finals.get(partition, final), key=lambda f: f[0])
        return TablePlaces(
            offsets={key: np.sort(np.concatenate(parts.pop(key))) for key in sorted(parts)},
            unplaced=unplaced,
            newest_event_at=_instant(newest),
            final_ms={key: at_ms for key, (_, at_ms) in finals.items() if at_ms is not None},
        )

    def iterate(self, names: tuple[str, ...]) -> Iterator[PlacedBatch]:
        """Read these top-level columns beside the coordinates, file by file."""
        wanted = [name for each in self.columns for name in each.names]
        schema = self.table.schema().select(*dict.fromkeys([*names, *wanted]))
        scan = ArrowScan(self.table.metadata, self.table.io, schema, AlwaysTrue())
        refuse_equality_deletes(self.table)
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
        unplaced = rows.num_rows - len(indexes)
        return PlacedBatch(rows, _group(known, indexes), unplaced, self._read_instants(rows), task)

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


def _instant(milliseconds: int | None) -> datetime | None:
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, tz=UTC)


def refuse_equality_deletes(table: Table) -> None:
    """Refuse a table whose rows only an engine that knows equality deletes can tell.

    Raises:
        IncompatibleTableError: some writers of upserts leave such deletes.
    """
    head = table.current_snapshot()
    summary = head.summary if head else None
    count = summary.get("total-equality-deletes", "0") if summary else "0"
    if count not in {"0", None}:
        name = ".".join(table.name())
        raise IncompatibleTableError(
            f"table {name} has {count} equality deletes, which many readers do not know",
            f"let Spark rewrite them: CALL system.rewrite_data_files(table => '{name}', options => "
            "map('delete-file-threshold', '1')), then again",
        )


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
