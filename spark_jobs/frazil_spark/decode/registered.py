"""Values of registered schemas as columns, and the SQL of why a record is bad."""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.schemas.column_decoding import (
    RECORD,
    convert_sql,
    converted_name,
    missing_condition,
    value_path,
)
from frazil.streams.column_types import Column, to_spark_ddl
from frazil_spark.decode.frame import GOOD, INVALID, KAFKA, VALUE, Decoded, join_any, name_missing
from frazil_spark.decode.sources import kafka_struct
from frazil_spark.decode.wire_format import WireFrame, add_decoded

_WHOLE = "_frazil_whole"
_MISMATCH = "_frazil_mismatch"


def decode_registered(
    records: DataFrame, frame: WireFrame, columns: tuple[Column, ...], carried: Sequence[str]
) -> Decoded:
    """Decode values into columns by the schema that their header names."""
    decoded = add_decoded(records, frame)
    values = {c.name: frame.value_sql(c.name, to_spark_ddl(c.type)) for c in columns}
    beside = [c for c in columns if convert_sql(c.type, "x")]
    inside = [c for c in columns if c not in beside]
    struct = ", ".join(f"'{c.name}', {values[c.name]}" for c in inside)
    flat = decoded.select(
        F.expr(f"named_struct({struct})" if inside else "named_struct('none', NULL)").alias(RECORD),
        *[F.expr(values[c.name]).alias(converted_name(c.name)) for c in beside],
        kafka_struct(F.col(frame.id_column)).alias(KAFKA),
        F.col(frame.part).alias(VALUE),
        F.expr(frame.any_whole_sql()).alias(_WHOLE),
        F.expr(frame.mismatch_sql()).alias(_MISMATCH),
        *[F.col(name) for name in _kept_columns(frame)],
        *carried,
    )
    missing = [missing_condition(c, value_path(c)) for c in columns]
    flat = flat.withColumn(INVALID, F.expr(f"NOT {_WHOLE} OR {_MISMATCH}"))
    return Decoded(
        frame=flat.withColumn(GOOD, F.expr(f"NOT {INVALID} AND NOT ({join_any(missing)})")),
        columns=columns,
        invalid=INVALID,
        reason=_write_reason(frame),
        detail=_write_detail(frame, columns, missing),
        wires=(frame,),
    )


def _kept_columns(frame: WireFrame) -> list[str]:
    """List the columns that reasons need; Spark prunes them where no dead letter is written."""
    return [frame.id_column, *map(frame.decoded_column, frame.usable)]


def _write_reason(frame: WireFrame) -> str:
    """Write the reason, one of the closed set of docs/formats.md; read only for bad records."""
    empty = f"WHEN length({VALUE}) = 0 THEN 'empty_value' " if frame.wire.has_schema_id else ""
    return (
        f"CASE WHEN {VALUE} IS NULL THEN 'null_value' {empty}{frame.header_reason_sql()}"
        f"WHEN NOT {_WHOLE} THEN {frame.malformed_sql()} "
        f"WHEN {_MISMATCH} THEN 'type_mismatch' ELSE 'required_missing' END"
    )


def _write_detail(
    frame: WireFrame, columns: tuple[Column, ...], missing: Sequence[str | None]
) -> str:
    """Write the detail that names schema and columns at fault, never a value."""
    schema = f"concat('schema ', {frame.id_column})"
    return frame.header_detail_sql(
        f"CASE WHEN NOT {_WHOLE} THEN concat('no whole record of ', {schema}) "
        f"WHEN {_MISMATCH} THEN concat({schema}, ': ', {frame.mismatch_detail_sql()}) "
        f"ELSE {name_missing(columns, missing)} END"
    )
