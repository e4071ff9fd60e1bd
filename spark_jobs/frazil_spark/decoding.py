"""Decode values once, and say in SQL which records are good and why others are not.

The rules here are the transform: when the same bytes would give other rows, raise
`frazil.planning.TRANSFORM_CODE`.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.columns import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    parse_column,
    to_spark_ddl,
)
from frazil_spark.kafka_source import kafka_struct

KAFKA = "_kafka"
VALUE = "_frazil_value"
CORRUPT = "_frazil_corrupt"
SHAPED = "_frazil_shaped"
GOOD = "_frazil_good"
_DECODED = "_frazil_decoded"
_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_BLANKS = r"' \t\r\n'"


@dataclass(frozen=True)
class Decoded:
    """Records as columns beside `_kafka`, the raw value and the flag that says which are good."""

    frame: DataFrame
    names: tuple[str, ...]
    invalid: str
    reason: str
    detail: str


def decode(records: DataFrame, convert: str, columns: dict[str, str]) -> Decoded:
    """Turn values into columns; exactly one decode per record is in the plan."""
    parsed = tuple(parse_column(name, text) for name, text in columns.items())
    return _decode_json(records, parsed) if convert == "json" else _decode_whole(records, parsed)


def _decode_json(records: DataFrame, columns: tuple[Column, ...]) -> Decoded:
    fields = [f"`{column.name}` {to_spark_ddl(column.type)}" for column in columns]
    options = {
        "mode": "PERMISSIVE",
        "columnNameOfCorruptRecord": CORRUPT,
        "enableDateTimeParsingFallback": "false",
    }
    decoded = F.from_json(
        F.col("value").cast("string"), ", ".join([*fields, f"{CORRUPT} STRING"]), options
    )
    # Spark's parser takes the first element of a top-level array for the record, and reads
    # invalid UTF-8 as replacement characters: both are refused before its answer is believed.
    shaped = (
        "coalesce(is_valid_utf8(CAST(value AS STRING)) "
        f"AND startswith(ltrim({_BLANKS}, CAST(value AS STRING)), '{{'), false)"
    )
    flat = records.select(
        decoded.alias(_DECODED),
        kafka_struct().alias(KAFKA),
        F.col("value").alias(VALUE),
        F.expr(shaped).alias(SHAPED),
    ).select(f"{_DECODED}.*", KAFKA, VALUE, SHAPED)
    broken = f"(NOT {SHAPED} OR {CORRUPT} IS NOT NULL)"
    missing = [missing_condition(c, f"`{c.name}`") for c in columns]
    misfits = [misfit_condition(c.type, f"`{c.name}`") for c in columns]
    wrong = _any([c for c in (*missing, *misfits) if c])
    good = f"NOT {broken} AND NOT ({wrong})"
    return Decoded(
        frame=flat.withColumn(GOOD, F.expr(good)),
        names=tuple(column.name for column in columns),
        invalid=broken,
        reason=_json_reason(_any([m for m in missing if m])),
        detail=_json_detail(columns, missing, misfits),
    )


def _json_reason(missing: str) -> str:
    """Name the reason from the closed set of docs/formats.md."""
    text = f"CAST({VALUE} AS STRING)"
    return (
        f"CASE WHEN {VALUE} IS NULL THEN 'null_value' "
        f"WHEN length({VALUE}) = 0 THEN 'empty_value' "
        f"WHEN NOT is_valid_utf8({text}) THEN 'invalid_utf8' "
        f"WHEN try_parse_json({text}) IS NULL THEN 'malformed_json' "
        f"WHEN NOT {SHAPED} THEN 'not_an_object' "
        f"WHEN {CORRUPT} IS NOT NULL THEN 'type_mismatch' "
        f"WHEN {missing} THEN 'required_missing' "
        "ELSE 'type_mismatch' END"
    )


def _json_detail(
    columns: tuple[Column, ...], missing: list[str | None], misfits: list[str | None]
) -> str:
    """Name the columns at fault, never their values."""
    parts = [
        f"CASE WHEN {condition} THEN '{column.name} {what}' END"
        for column, required, misfit in zip(columns, missing, misfits, strict=True)
        for condition, what in ((required, "is required"), (misfit, "has a wrong form"))
        if condition
    ]
    named = f"concat_ws(', ', {', '.join(parts)})" if parts else "''"
    return (
        f"CASE WHEN NOT {SHAPED} THEN 'the value is no JSON object in UTF-8' "
        f"WHEN {CORRUPT} IS NOT NULL THEN 'no JSON, or a value that does not fit its column' "
        f"ELSE {named} END"
    )


def _decode_whole(records: DataFrame, columns: tuple[Column, ...]) -> Decoded:
    """Keep the value whole; null and empty stay apart."""
    column = columns[0]
    is_text = to_spark_ddl(column.type) == "STRING"
    value = F.col("value").cast("string") if is_text else F.col("value")
    shaped = "coalesce(is_valid_utf8(CAST(value AS STRING)), true)" if is_text else "true"
    flat = records.select(
        value.alias(column.name),
        kafka_struct().alias(KAFKA),
        F.col("value").alias(VALUE),
        F.expr(shaped).alias(SHAPED),
    )
    missing = f"{VALUE} IS NULL" if column.required else "false"
    return Decoded(
        frame=flat.withColumn(GOOD, F.expr(f"{SHAPED} AND NOT ({missing})")),
        names=(column.name,),
        invalid=f"(NOT {SHAPED} OR {VALUE} IS NULL)",
        reason=f"CASE WHEN NOT {SHAPED} THEN 'invalid_utf8' ELSE 'null_value' END",
        detail=f"CASE WHEN NOT {SHAPED} THEN 'not UTF-8' ELSE 'value is required' END",
    )


def missing_condition(column: Column, path: str, depth: int = 0) -> str | None:
    """Write the SQL that is true where a required field is absent; None if nothing is required."""
    inner = _missing_inside(column.type, path, depth)
    own = f"{path} IS NULL" if column.required else None
    return _join([own, inner])


def _missing_inside(column_type: ColumnType, path: str, depth: int) -> str | None:
    variable = f"x{depth}"
    match column_type:
        case StructType(fields):
            parts = [missing_condition(f, f"{path}.`{f.name}`", depth) for f in fields]
            joined = _join(parts)
            return f"({path} IS NOT NULL AND ({joined}))" if joined else None
        case ListType(element, required):
            condition = missing_condition(Column("", element, required), variable, depth + 1)
            return f"exists({path}, {variable} -> {condition})" if condition else None
        case MapType(_, value, required):
            condition = missing_condition(Column("", value, required), variable, depth + 1)
            return f"exists(map_values({path}), {variable} -> {condition})" if condition else None
    return None


def misfit_condition(column_type: ColumnType, path: str, depth: int = 0) -> str | None:
    """Write the SQL that is true where a uuid or fixed value has a wrong form."""
    variable = f"y{depth}"
    match column_type:
        case Primitive("uuid", _):
            return f"NOT ({path} RLIKE '{_UUID}')"
        case Primitive("fixed", (length,)):
            return f"octet_length({path}) != {length}"
        case StructType(fields):
            return _join([misfit_condition(f.type, f"{path}.`{f.name}`", depth) for f in fields])
        case ListType(element, _):
            condition = misfit_condition(element, variable, depth + 1)
            return f"exists({path}, {variable} -> {condition})" if condition else None
        case MapType(_, value, _):
            condition = misfit_condition(value, variable, depth + 1)
            return f"exists(map_values({path}), {variable} -> {condition})" if condition else None
    return None


def _join(conditions: list[str | None]) -> str | None:
    present = [f"coalesce({c}, false)" for c in conditions if c]
    return " OR ".join(present) or None


def _any(conditions: list[str]) -> str:
    return " OR ".join(conditions) or "false"
