"""Where a table keeps the coordinates of its records: ours, and those of other writers.

The names are facts from each writer's own sources or documentation:

* AutoMQ Table Topic: `RecordAssembler.java` in github.com/AutoMQ/automq (`_kafka_metadata`; a table
  holds one topic, so there is no column for it);
* Confluent Tableflow: `MetadataColumnNamingScheme` of the Tableflow API, `DEFAULT` (`$$offset`) and
  `PORTABLE` (`cflt_metadata_offset`);
* Kafka Connect: `KafkaMetadataTransform.java` in github.com/apache/iceberg, flat by default
  (`_kafka_metadata_offset`), or `nested`;
* Redpanda Iceberg topics: `table_definition.h` in github.com/redpanda-data/redpanda (struct
  `redpanda`);
* plain Spark: the columns of Spark's own Kafka source (`topic`, `partition`, `offset`).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from frazil.errors import ConfigurationError, IncompatibleTableError
from frazil.iceberg.catalog import translated_errors
from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition

_WHOLE = (IntegerType, LongType)


_INSTANT = (LongType, TimestampType, TimestamptzType)


_PARTS = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class OffsetColumns:
    """Full names of the columns with a record's coordinate; `topic` is None in one-topic tables.

    A `timestamp` of type long is in milliseconds since 1970, as Kafka's own. Top-level columns that
    begin with one of `prefixes` are the writer's own too.
    """

    writer: str
    partition: str
    offset: str
    topic: str | None = None
    timestamp: str | None = None
    prefixes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Name the columns that are there."""
        found = (self.topic, self.partition, self.offset, self.timestamp)
        return tuple(name for name in found if name is not None)

    def owns(self, column: str) -> bool:
        """Say whether a top-level column is the writer's own, and no part of the value."""
        tops = {name.partition(".")[0] for name in self.names}
        return column in tops or (bool(self.prefixes) and column.startswith(self.prefixes))


def _flat(writer: str, prefix: str) -> OffsetColumns:
    names = {part: prefix + part for part in _PARTS}
    return OffsetColumns(writer, **names, prefixes=(prefix,) if prefix else ())


def _struct(
    writer: str, name: str, parts: tuple[str, ...] = _PARTS, prefixes: tuple[str, ...] = ()
) -> OffsetColumns:
    return OffsetColumns(writer, **{part: f"{name}.{part}" for part in parts}, prefixes=prefixes)


FRAZIL = _struct("Frazil", keys.KAFKA_COLUMN)


LAYOUTS: tuple[OffsetColumns, ...] = (
    FRAZIL,
    _struct("Kafka Connect, nested", "_kafka_metadata"),
    _struct(
        "AutoMQ Table Topic",
        "_kafka_metadata",
        _PARTS[1:],
        prefixes=("_kafka_key", "_kafka_header"),
    ),
    _flat("Kafka Connect", "_kafka_metadata_"),
    _flat("Confluent Tableflow", "$$"),
    _flat("Confluent Tableflow, portable names", "cflt_metadata_"),
    _struct("Redpanda", "redpanda", _PARTS[1:]),
    _flat("plain columns", ""),
)
"""In the order in which they are recognised: the fuller of two that share names comes first."""


def recognize_columns(schema: Schema) -> tuple[OffsetColumns, ...]:
    """Recognise the coordinate columns of a table: one layout, or ours and an earlier writer's.

    In a table that was taken over, a row has its coordinate in one of both.
    """
    found = [fitted for layout in LAYOUTS if (fitted := _fit(schema, layout)) is not None]
    return tuple(found[:2] if found and found[0].writer == FRAZIL.writer else found[:1])


def find_columns(schema: Schema, named: str | None, table: str) -> tuple[OffsetColumns, ...]:
    """Find the coordinate columns: those that somebody named, else those that are recognised.

    Raises:
        ConfigurationError: the names cannot be read, or the table has no such columns.
        IncompatibleTableError: no layout is recognised.
    """
    if named is not None:
        return (_read_names(schema, named, table),)
    found = recognize_columns(schema)
    if found:
        return found
    known = "; ".join(f"{each.writer}: {', '.join(each.names[:-1])}" for each in LAYOUTS)
    raise IncompatibleTableError(
        f"table {table} has no columns with partition and offset of its records among "
        f"{', '.join(field.name for field in schema.fields)}; known are: {known}",
        "name them, as partition=kafka_partition,offset=kafka_offset,topic=kafka_topic; a table "
        "without offsets can be neither compared nor adopted",
    )


def _read_names(schema: Schema, text: str, table: str) -> OffsetColumns:
    """Read `topic=…,partition=…,offset=…,timestamp=…`; topic and timestamp may be left out."""
    pairs = [part.strip().partition("=") for part in text.split(",")]
    given: Mapping[str, str] = {name: column for name, _, column in pairs if column}
    if len(given) != len(pairs) or not {"partition", "offset"} <= given.keys() <= set(_PARTS):
        raise ConfigurationError(
            f"{text!r} does not name offset columns",
            "write partition=COLUMN,offset=COLUMN and, where they exist, topic=COLUMN and "
            "timestamp=COLUMN; fields of a struct with a dot",
        )
    layout = OffsetColumns(
        "named columns",
        given["partition"],
        given["offset"],
        given.get("topic"),
        given.get("timestamp"),
    )
    fitted = _fit(schema, layout)
    if fitted is None or fitted != layout:
        types = {name: str(_type_of(schema, name) or "missing") for name in layout.names}
        raise ConfigurationError(
            f"table {table} cannot be read by {text!r}: {types}",
            "partition and offset must be int or long, topic string, timestamp a timestamp or long",
        )
    return layout


def _fit(schema: Schema, layout: OffsetColumns) -> OffsetColumns | None:
    """Fit a layout to a table; without its timestamp where that is of another type."""
    if not isinstance(_type_of(schema, layout.partition), _WHOLE):
        return None
    if not isinstance(_type_of(schema, layout.offset), _WHOLE):
        return None
    if layout.topic is not None and not isinstance(_type_of(schema, layout.topic), StringType):
        return None
    has_instant = layout.timestamp and isinstance(_type_of(schema, layout.timestamp), _INSTANT)
    return layout if has_instant else replace(layout, timestamp=None)


def _type_of(schema: Schema, name: str) -> IcebergType | None:
    try:
        return schema.find_field(name).field_type
    except ValueError:
        return None


@dataclass(frozen=True)
class LocatedBatch:
    """Some rows: `places` are their partitions with the row numbers and offsets of each."""

    rows: pa.RecordBatch
    places: Mapping[Partition, tuple[npt.NDArray[np.int64], Offsets]]
    unplaced: int
    instants_ms: pa.Array
    task: FileScanTask


@dataclass(frozen=True)
class TableOffsets:
    """The coordinates of all rows, ascending, doubled ones kept; 8 bytes a row.

    `unplaced` rows have no coordinate. `final_ms` is per partition the timestamp of its highest
    offset, where the table keeps one, in milliseconds since 1970.
    """

    offsets: Mapping[Partition, Offsets]
    unplaced: int = 0
    newest_event_at: datetime | None = None
    final_ms: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class LocatedTable:
    """A table, its coordinate columns, and the topic of rows that do not name one."""

    table: Table
    columns: tuple[OffsetColumns, ...]
    topic: str | None = None

    def read_places(self) -> TableOffsets:
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
        return TableOffsets(
            offsets={key: np.sort(np.concatenate(parts.pop(key))) for key in sorted(parts)},
            unplaced=unplaced,
            newest_event_at=_instant(newest),
            final_ms={key: at_ms for key, (_, at_ms) in finals.items() if at_ms is not None},
        )

    def iterate(self, names: tuple[str, ...]) -> Iterator[LocatedBatch]:
        """Read these top-level columns beside the coordinates, file by file."""
        wanted = [name for each in self.columns for name in each.names]
        schema = self.table.schema().select(*dict.fromkeys([*names, *wanted]))
        scan = ArrowScan(self.table.metadata, self.table.io, schema, AlwaysTrue())
        require_no_equality_deletes(self.table)
        with translated_errors(f"reading rows of {'.'.join(self.table.name())}"):
            for task in self.table.scan().plan_files():
                for rows in scan.to_record_batches([task]):
                    yield self._place(rows, task)

    def _place(self, rows: pa.RecordBatch, task: FileScanTask) -> LocatedBatch:
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
        return LocatedBatch(rows, _group(known, indexes), unplaced, self._read_instants(rows), task)

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


def require_no_equality_deletes(table: Table) -> None:
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
