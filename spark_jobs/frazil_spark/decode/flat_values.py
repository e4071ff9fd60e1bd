"""Values that Python workers write as flat objects, which SQL then decodes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from frazil.streams.change_events import FIELD_PREFIX, RESERVED_FIELDS, ChangeEvents
from frazil.streams.column_types import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
)
from frazil_spark.decode import avro_events, change_events, json_parts, logical_values
from frazil_spark.decode.avro_events import AvroReader
from frazil_spark.decode.change_events import FLAT, SKIPS, FlatSpec, Target, read_values
from frazil_spark.decode.frame import Decoded, DecodeOptions
from frazil_spark.decode.wire_format import PAYLOAD, WireFrame, write_header

FLATTENED = "_frazil_flat"
SKIP = "_frazil_skip"
FAULT = f"{FLATTENED}.fault"

# Workers do not need this package: its code travels with the task.
for _module in (avro_events, change_events, json_parts, logical_values):
    cloudpickle.register_pickle_by_value(_module)  # type: ignore[no-untyped-call]


def add_flat_payload(
    records: DataFrame, options: DecodeOptions, columns: Sequence[Column]
) -> DataFrame:
    """Add the flat object of each record as payload, and why a record has none.

    With a registry, add the schema ids of keys and values.
    """
    events = options.events or ChangeEvents()
    frames = list_frames(options)
    readers = {frame.part: _list_readers(frame) for frame in frames}
    spec = FlatSpec(
        targets=describe_columns(columns),
        has_events=options.events is not None,
        has_rest=options.has_rest,
        applies_truncate=events.truncate == "apply",
        has_text_decimals=events.decimals == "string",
        prefix=FIELD_PREFIX,
        key_fields=frozenset(options.key.fields if options.key else ()),
        has_registry=bool(frames),
        values=readers.get("value", {}),
        keys=readers.get("key", {}),
    )

    def read(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        return read_values(spec, batches)

    udf = arrow_udf(read, from_arrow_type(FLAT))  # type: ignore[call-overload]  # as in wire_format
    tombstone = "value IS NULL AND key IS NOT NULL"
    skip = f"CASE WHEN {tombstone} THEN '{SKIPS[0]}' ELSE {FLATTENED}.skip END"
    ids = {frame.id_column: F.expr(frame.id_sql()) for frame in frames}
    identified = records.withColumns(ids) if ids else records
    flat = identified.withColumn(FLATTENED, udf(F.col("key"), F.col("value")))
    return flat.withColumns({PAYLOAD: F.col(f"{FLATTENED}.payload"), SKIP: F.expr(skip)})


def list_frames(options: DecodeOptions) -> tuple[WireFrame, ...]:
    """List the parts of change events that a registry's schemas describe, the value first."""
    if options.wire is None:
        return ()
    key = options.key.wire if options.key else None
    return (WireFrame("value", options.wire), *((WireFrame("key", key),) if key else ()))


def _list_readers(frame: WireFrame) -> dict[bytes, AvroReader]:
    """Return the readers of schemas by the header of their payloads."""
    return {
        bytes.fromhex(write_header(schema.schema_id)): AvroReader(schema.reader)
        for schema in frame.usable
    }


def describe_columns(columns: Sequence[Column]) -> dict[str, Target]:
    """Describe columns for workers, by the fields of the record that they read."""
    return {c.field: _describe(c) for c in columns if c.field not in RESERVED_FIELDS}


def _describe(column: Column) -> Target:
    kind, inner = _describe_type(column.type)
    return Target(column.field, kind, inner, column.name)


def _describe_type(column_type: ColumnType) -> tuple[str, tuple[Target, ...]]:
    match column_type:
        case Primitive(name, _):
            return name, ()
        case ListType(element, _):
            return "list", (_describe(Column("", element)),)
        case MapType(_, value, _):
            return "map", (_describe(Column("", value)),)
        case StructType(fields):
            return "struct", tuple(map(_describe, fields))


def leave_out_skipped(decoded: Decoded) -> Decoded:
    """Mark events that are no change of a row: they are neither rows nor dead letters."""
    return replace(
        decoded,
        routed_elsewhere=f"({SKIP} IS NOT NULL)",
        skips={name: f"{SKIP} = '{name}'" for name in SKIPS},
        truncates=f"coalesce({FAULT} = '{change_events.TRUNCATE}', false)",
        detail=f"coalesce({FLATTENED}.detail, {decoded.detail})",
    )
