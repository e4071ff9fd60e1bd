"""Find and read the columns with the coordinates of a table's records, of Frazil or other writers.

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.table import Table
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
from frazil.iceberg.data_files import read_column, require_no_equality_deletes
from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition
from frazil.messages import name_field
from frazil.streams.column_types import quote_name, write_text

_INTEGERS = (IntegerType, LongType)


_TIMESTAMPS = (LongType, TimestampType, TimestamptzType)


_PARTS = ("topic", "partition", "offset", "timestamp")


@dataclass(frozen=True)
class OffsetColumns:
    """Full names of the columns with a record's coordinate; `topic` is None without such a column.

    A `timestamp` of type long is in milliseconds since 1970, as in Kafka. Top-level columns that
    begin with one of `prefixes` are metadata of the writer too.
    """

    writer: str
    partition: str
    offset: str
    topic: str | None = None
    timestamp: str | None = None
    prefixes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the columns that exist."""
        found = (self.topic, self.partition, self.offset, self.timestamp)
        return tuple(name for name in found if name is not None)

    def owns(self, column: str) -> bool:
        """Return whether a top-level column is metadata of the writer, not part of the value."""
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
"""Layouts in the order in which they are tried; the one with more columns comes first."""


def recognize_columns(schema: Schema) -> tuple[OffsetColumns, ...]:
    """Return the layout of a table's coordinate columns; an adopted table has two.

    In an adopted table each row has its coordinate in one of the two layouts.
    """
    found = [fitted for layout in LAYOUTS if (fitted := _fit(schema, layout)) is not None]
    return tuple(found[:2] if found and found[0].writer == FRAZIL.writer else found[:1])


def find_columns(schema: Schema, named: str | None, table: str) -> tuple[OffsetColumns, ...]:
    """Return the named coordinate columns; without names, those of a known layout.

    Raises:
        ConfigurationError: the names cannot be read, or the table has no such columns.
        IncompatibleTableError: no layout is recognised.
    """
    if named is not None:
        return (_read_names(schema, named, table),)
    found = recognize_columns(schema)
    if found:
        return found
    layouts = "; ".join(f"{each.writer}: {', '.join(each.names[:-1])}" for each in LAYOUTS)
    raise IncompatibleTableError(
        f"table {table} has no known columns for partition and offset among its columns "
        f"{', '.join(field.name for field in schema.fields)}; known layouts: {layouts}",
        f"set {name_field('columns')} (adopt), or {name_field('left_columns')} and "
        f"{name_field('right_columns')} (compare), for "
        "example partition=kafka_partition,offset=kafka_offset,topic=kafka_topic; a table without "
        "offsets can be neither compared nor adopted",
    )


def _read_names(schema: Schema, text: str, table: str) -> OffsetColumns:
    """Parse `topic=…,partition=…,offset=…,timestamp=…`; topic and timestamp are optional."""
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
        types = (f"{name} is {_type_of(schema, name) or 'missing'}" for name in layout.names)
        raise ConfigurationError(
            f"table {table}: columns {text!r} are missing or of a wrong type: {', '.join(types)}",
            "partition and offset must be int or long, topic string, timestamp a timestamp or long",
        )
    return layout


def _fit(schema: Schema, layout: OffsetColumns) -> OffsetColumns | None:
    """Return a layout if the table has it, without its timestamp if that has another type."""
    if not isinstance(_type_of(schema, layout.partition), _INTEGERS):
        return None
    if not isinstance(_type_of(schema, layout.offset), _INTEGERS):
        return None
    if layout.topic is not None and not isinstance(_type_of(schema, layout.topic), StringType):
        return None
    has_timestamp = layout.timestamp and isinstance(_type_of(schema, layout.timestamp), _TIMESTAMPS)
    return layout if has_timestamp else replace(layout, timestamp=None)


def _type_of(schema: Schema, name: str) -> IcebergType | None:
    try:
        return schema.find_field(name).field_type
    except ValueError:
        return None


def write_coordinates(
    schema: Schema, columns: tuple[OffsetColumns, ...], topic: str | None
) -> dict[str, str]:
    """Write Spark SQL for the coordinates of a row: topic, partition, offset and timestamp_ms.

    A row has them in one of `columns`; `topic` stands for a topic that no column names.
    """

    def coalesce(names: Iterable[str | None], kind: str, *others: str) -> str:
        found = [_write_path(schema, name) for name in names if name is not None]
        return f"CAST(coalesce({', '.join([*found, *others, 'NULL'])}) AS {kind})"

    instants = [_write_instant(schema, each.timestamp) for each in columns if each.timestamp]
    return {
        "topic": coalesce(
            (each.topic for each in columns), "STRING", *([write_text(topic)] if topic else [])
        ),
        "partition": coalesce((each.partition for each in columns), "INT"),
        "offset": coalesce((each.offset for each in columns), "BIGINT"),
        "timestamp_ms": coalesce((), "BIGINT", *instants),
    }


def _write_path(schema: Schema, name: str) -> str:
    """Quote a column, or with dots a field of a struct."""
    is_column = any(field.name == name for field in schema.fields)
    return ".".join(map(quote_name, [name] if is_column else name.split(".")))


def _write_instant(schema: Schema, name: str) -> str:
    path = _write_path(schema, name)
    is_number = isinstance(_type_of(schema, name), LongType)
    return path if is_number else f"unix_millis(CAST({path} AS TIMESTAMP))"


@dataclass(frozen=True)
class TableOffsets:
    """The offsets of all rows by partition, ascending, with duplicates; 8 bytes a row.

    `without_offset` rows have no partition or no offset. `final_ms` is the timestamp at the highest
    offset of a partition, in milliseconds since 1970, where the table has one.
    """

    offsets: Mapping[Partition, Offsets]
    without_offset: int = 0
    final_ms: Mapping[Partition, int] = field(default_factory=dict)


def read_offsets(table: Table, columns: tuple[OffsetColumns, ...], topic: str) -> TableOffsets:
    """Read the coordinates of all rows; rows that name no topic belong to `topic`.

    Raises:
        IncompatibleTableError: the table has equality deletes.
        CatalogUnavailableError, StorageError: a file cannot be read.
    """
    parts: defaultdict[Partition, list[Offsets]] = defaultdict(list)
    finals: dict[Partition, tuple[int, int | None]] = {}
    without_offset = 0
    for rows in _read_coordinates(table, columns):
        partitions = _coalesce(rows, (each.partition for each in columns), pa.int64())
        offsets = _coalesce(rows, (each.offset for each in columns), pa.int64())
        topics = _coalesce(rows, (each.topic for each in columns), pa.string()).fill_null(topic)
        instants = _read_instants(rows, columns)
        has_offset = pc.and_(pc.is_valid(partitions), pc.is_valid(offsets))
        located = pa.table([topics, partitions, offsets, instants], ["t", "p", "o", "ms"])
        located = located.filter(has_offset)
        without_offset += rows.num_rows - len(located)
        for key, own in _group(located):
            parts[key].append(own["o"].to_numpy())
            top = own.slice(pc.index(own["o"], pc.max(own["o"])).as_py(), 1).to_pylist()[0]
            final = (top["o"], top["ms"])
            finals[key] = max(final, finals.get(key, final), key=lambda each: each[0])
    return TableOffsets(
        offsets={key: np.sort(np.concatenate(parts.pop(key))) for key in sorted(parts)},
        without_offset=without_offset,
        final_ms={key: at_ms for key, (_, at_ms) in finals.items() if at_ms is not None},
    )


def _read_coordinates(table: Table, columns: tuple[OffsetColumns, ...]) -> Iterator[pa.RecordBatch]:
    """Read nothing but the coordinate columns, file by file."""
    name = ".".join(table.name())
    require_no_equality_deletes(
        table,
        table.current_snapshot(),
        f"rewrite them by Spark: CALL system.rewrite_data_files(table => '{name}', options => "
        "map('rewrite-all', 'true', 'remove-dangling-deletes', 'true')), then run again",
    )
    schema = table.schema().select(*dict.fromkeys(name for each in columns for name in each.names))
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    with translated_errors(f"reading rows of {name}"):
        for task in table.scan().plan_files():
            yield from scan.to_record_batches([task])


def _coalesce(rows: pa.RecordBatch, names: Iterable[str | None], kind: pa.DataType) -> pa.Array:
    """Return each row's first value among these columns."""
    arrays = [read_column(rows, name).cast(kind) for name in names if name is not None]
    return pc.coalesce(*arrays) if arrays else pa.nulls(rows.num_rows, kind)


def _read_instants(rows: pa.RecordBatch, columns: tuple[OffsetColumns, ...]) -> pa.Array:
    """Return timestamps in milliseconds since 1970."""
    arrays = [pa.nulls(rows.num_rows, pa.int64())]
    for name in (each.timestamp for each in columns if each.timestamp):
        found = read_column(rows, name)
        if pa.types.is_timestamp(found.type):
            found = found.cast(pa.timestamp("ms", found.type.tz), safe=False)
        arrays.append(found.cast(pa.int64()))
    return pc.coalesce(*arrays)


def _group(located: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """Split rows by topic and partition."""
    keys_found = located.group_by(["t", "p"]).aggregate([]).to_pylist()
    for each in keys_found:
        is_own = pc.and_(pc.equal(located["t"], each["t"]), pc.equal(located["p"], each["p"]))
        yield (each["t"], each["p"]), located.filter(is_own)
