"""Decode values once, and say in SQL which records are good and why others are not.

The rules here are the transform: when the same bytes would give other rows, raise
`frazil.planning.TRANSFORM_CODE`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.columns import Column, parse_column, to_spark_ddl
from frazil.contracts import KeyDecode, StageRequest, WireFormat
from frazil.value_forms import (
    RECORD,
    convert_sql,
    converted_name,
    misfit_condition,
    missing_condition,
    value_path,
    wire_ddl,
    wire_path,
)
from frazil_spark.decoded import GOOD, INVALID, KAFKA, VALUE, Decoded, join_any
from frazil_spark.kafka_source import kafka_struct
from frazil_spark.registered_values import decode_registered
from frazil_spark.wire_frame import WireFrame

__all__ = ["GOOD", "INVALID", "KAFKA", "VALUE", "Decoded", "Forms", "decode", "forms_of"]

LEGIBLE = "_frazil_legible"
WHOLE = "_frazil_whole"
_DECODED = "_frazil_decoded"
_RECORDS = "_frazil_records"
_CORRUPT = "_frazil_corrupt"
_TEXT = "CAST(value AS STRING)"
_BLANKS = r"' \t\r\n'"
_ESCAPE = r"(?<!\\)(?:\\\\)*"
_HALF_PAIR = (
    rf"{_ESCAPE}\\u[dD][89abAB][0-9a-fA-F]{{2}}(?!\\u[dD][c-fC-F])"
    rf"|{_ESCAPE}(?<!\\u[dD][89abAB][0-9a-fA-F]{{2}})\\u[dD][c-fC-F][0-9a-fA-F]{{2}}"
)


def _has_half_pair(value: str) -> str:
    """Write the SQL that finds half of a surrogate pair, which Spark would read as `?`.

    Its prefix is looked for among the bytes, which costs next to nothing.
    """
    return f"(contains({value}, X'5C75') AND CAST({value} AS STRING) RLIKE r'{_HALF_PAIR}')"


# Spark's parser reads invalid UTF-8 as replacement characters: this is looked at beside it.
_LEGIBLE_SQL = f"coalesce(is_valid_utf8({_TEXT}) AND NOT {_has_half_pair('value')}, false)"
_PARSER_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
}


_KEPT = f"CAST({VALUE} AS STRING)"
_JSON_REASON = (
    f"CASE WHEN {VALUE} IS NULL THEN 'null_value' "
    f"WHEN length({VALUE}) = 0 THEN 'empty_value' "
    f"WHEN NOT {LEGIBLE} THEN 'invalid_utf8' "
    f"WHEN try_parse_json({_KEPT}) IS NULL THEN 'malformed_json' "
    f"WHEN coalesce(json_array_length(concat('[', {_KEPT}, ',null]')), 0) != 2 "
    "THEN 'malformed_json' "
    f"WHEN NOT startswith(ltrim({_BLANKS}, {_KEPT}), '{{') THEN 'not_an_object' "
    f"WHEN {INVALID} THEN 'type_mismatch' "
    "ELSE 'required_missing' END"
)
"""One of the closed set of docs/formats.md; read only for records that are bad."""


@dataclass(frozen=True)
class Forms:
    """What a decode needs beyond the columns: flat or whole values, a registry's schemas, keys."""

    is_flat: bool = True
    wire: WireFormat | None = None
    key: KeyDecode | None = None


def forms_of(request: StageRequest) -> Forms:
    """Take the forms out of a request."""
    return Forms(request.is_flat, request.wire, request.key)


def decode(
    records: DataFrame,
    convert: str,
    columns: dict[str, str],
    carried: Sequence[str] = (),
    forms: Forms = Forms(),
) -> Decoded:
    """Turn values into columns; exactly one decode per record and schema is in the plan.

    `carried` names columns of the records that the frame keeps beside its own.
    """
    parsed = tuple(parse_column(name, text) for name, text in columns.items())
    if forms.wire is not None:
        return decode_registered(records, WireFrame("value", forms.wire), parsed, carried)
    if convert == "json":
        return _decode_json(records, parsed, carried)
    return _decode_whole(records, parsed)


def _decode_json(
    records: DataFrame, columns: tuple[Column, ...], carried: Sequence[str]
) -> Decoded:
    missing = [missing_condition(c, value_path(c)) for c in columns]
    misfits = [misfit_condition(c.type, wire_path(c), value_path(c)) for c in columns]
    frame = _parse_records(records, columns, carried)
    frame = frame.withColumn(
        INVALID, F.expr(f"NOT {LEGIBLE} OR NOT {WHOLE} OR {join_any(misfits)}")
    )
    return Decoded(
        frame=frame.withColumn(GOOD, F.expr(f"NOT {INVALID} AND NOT ({join_any(missing)})")),
        columns=columns,
        invalid=INVALID,
        reason=_JSON_REASON,
        detail=_json_detail(columns, missing, misfits),
    )


def _parse_records(
    records: DataFrame, columns: tuple[Column, ...], carried: Sequence[str]
) -> DataFrame:
    """Parse each value once, as the only element before a null in an array of ours.

    Spark's parser stops where the first object ends and would not see what follows it, and takes
    the first element of a top-level array for the record; inside an array any further text is an
    element too many or an error. What could still pass is text that closes our array itself.
    """
    fields = ", ".join(f"`{column.name}` {wire_ddl(column.type)}" for column in columns)
    wrapped = f"concat('{{\"{_RECORDS}\":[', {_TEXT}, ',null]}}')"
    decoded = F.from_json(
        F.expr(wrapped), f"{_RECORDS} ARRAY<STRUCT<{fields}>>, {_CORRUPT} STRING", _PARSER_OPTIONS
    )
    # `try_element_at`, not `get`: the optimizer would repeat the latter in every column.
    first, second = (f"try_element_at({_DECODED}.{_RECORDS}, {place})" for place in (1, 2))
    whole = (
        f"coalesce({_DECODED}.{_CORRUPT} IS NULL AND size({_DECODED}.{_RECORDS}) = 2 "
        f"AND {first} IS NOT NULL AND {second} IS NULL, false)"
    )
    parsed = records.select(
        decoded.alias(_DECODED),
        kafka_struct().alias(KAFKA),
        F.col("value").alias(VALUE),
        F.expr(_LEGIBLE_SQL).alias(LEGIBLE),
        *carried,
    )
    record = parsed.select(
        F.expr(first).alias(RECORD), F.expr(whole).alias(WHOLE), KAFKA, VALUE, LEGIBLE, *carried
    )
    converted = [
        F.expr(sql).alias(converted_name(column.name))
        for column in columns
        if (sql := convert_sql(column.type, wire_path(column)))
    ]
    return record.select("*", *converted)


def _json_detail(
    columns: tuple[Column, ...], missing: list[str | None], misfits: list[str | None]
) -> str:
    """Name the columns at fault, never their values; a wrong value is no missing one."""
    parts = [
        f"CASE WHEN {misfit or 'false'} THEN '{column.name} has a wrong form' "
        f"WHEN {required or 'false'} THEN '{column.name} is required' END"
        for column, required, misfit in zip(columns, missing, misfits, strict=True)
        if required or misfit
    ]
    named = f"concat_ws(', ', {', '.join(parts)})" if parts else "''"
    return (
        f"CASE WHEN NOT {LEGIBLE} THEN 'the value is no text in UTF-8' "
        f"WHEN NOT {WHOLE} THEN 'no JSON object, or a value that does not fit its column' "
        f"ELSE {named} END"
    )


def _decode_whole(records: DataFrame, columns: tuple[Column, ...]) -> Decoded:
    """Keep the value whole; null and empty stay apart."""
    column = columns[0]
    is_text = to_spark_ddl(column.type) == "STRING"
    value = F.col("value").cast("string") if is_text else F.col("value")
    legible = "coalesce(is_valid_utf8(CAST(value AS STRING)), true)" if is_text else "true"
    flat = records.select(
        F.struct(value.alias(column.name)).alias(RECORD),
        kafka_struct().alias(KAFKA),
        F.col("value").alias(VALUE),
        F.expr(legible).alias(LEGIBLE),
    )
    missing = f"{VALUE} IS NULL" if column.required else "false"
    return Decoded(
        frame=flat.withColumn(GOOD, F.expr(f"{LEGIBLE} AND NOT ({missing})")),
        columns=columns,
        invalid=f"NOT {GOOD}",
        reason=f"CASE WHEN NOT {LEGIBLE} THEN 'invalid_utf8' ELSE 'null_value' END",
        detail=f"CASE WHEN NOT {LEGIBLE} THEN 'not UTF-8' ELSE 'value is required' END",
    )
