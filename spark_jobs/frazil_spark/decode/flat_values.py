"""Values that Python workers write as flat objects, which SQL then decodes."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import from_arrow_type

from frazil.streams.change_events import FIELD_PREFIX, ChangeEvents
from frazil.streams.column_types import Column, ColumnType, ListType, Primitive, StructType
from frazil_spark.decode import change_events
from frazil_spark.decode.change_events import FLAT, SKIPS, FlatSpec, Target, read_values
from frazil_spark.decode.frame import Decoded, DecodeOptions
from frazil_spark.decode.wire_format import PAYLOAD

FLATTENED = "_frazil_flat"
SKIP = "_frazil_skip"
FAULT = f"{FLATTENED}.fault"

# Workers do not need this package: its code travels with the task.
cloudpickle.register_pickle_by_value(change_events)  # type: ignore[no-untyped-call]


def add_flat_payload(
    records: DataFrame, options: DecodeOptions, columns: Sequence[Column]
) -> DataFrame:
    """Add the flat object of each record as payload, and why a record has none."""
    events = options.events or ChangeEvents()
    spec = FlatSpec(
        targets=describe_columns(columns),
        has_events=options.events is not None,
        has_rest=options.has_rest,
        applies_truncate=events.truncate == "apply",
        has_text_decimals=events.decimals == "string",
        prefix=FIELD_PREFIX,
    )

    def read(batches: Iterator[tuple[pa.Array, pa.Array]]) -> Iterator[pa.Array]:
        return read_values(spec, batches)

    udf = arrow_udf(read, from_arrow_type(FLAT))  # type: ignore[call-overload]  # as in wire_format
    tombstone = "value IS NULL AND key IS NOT NULL"
    skip = f"CASE WHEN {tombstone} THEN '{SKIPS[0]}' ELSE {FLATTENED}.skip END"
    flat = records.withColumn(FLATTENED, udf(F.col("key"), F.col("value")))
    return flat.withColumns({PAYLOAD: F.col(f"{FLATTENED}.payload"), SKIP: F.expr(skip)})


def describe_columns(columns: Sequence[Column]) -> dict[str, Target]:
    """Describe columns for workers, by the fields of the record that they read."""
    return {c.field: _describe(c) for c in columns if not c.field.startswith(FIELD_PREFIX)}


def _describe(column: Column) -> Target:
    kind, inner = _describe_type(column.type)
    return Target(column.field, kind, inner, column.name)


def _describe_type(column_type: ColumnType) -> tuple[str, tuple[Target, ...]]:
    match column_type:
        case Primitive(name, _):
            return name, ()
        case ListType(element, _):
            return "list", (_describe(Column("", element)),)
        case StructType(fields):
            return "struct", tuple(map(_describe, fields))
    return "other", ()


def leave_out_skipped(decoded: Decoded) -> Decoded:
    """Mark events that are no change of a row: they are neither rows nor dead letters."""
    return replace(
        decoded,
        routed_elsewhere=f"({SKIP} IS NOT NULL)",
        skips={name: f"{SKIP} = '{name}'" for name in SKIPS},
        truncates=f"coalesce({FAULT} = '{change_events.TRUNCATE}', false)",
        detail=f"coalesce({FLATTENED}.detail, {decoded.detail})",
    )
