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

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.schema import Schema
from pyiceberg.types import (
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from frazil import keys
from frazil.errors import ConfigurationError, IncompatibleTableError

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


def recognise_columns(schema: Schema) -> tuple[OffsetColumns, ...]:
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
    found = recognise_columns(schema)
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
