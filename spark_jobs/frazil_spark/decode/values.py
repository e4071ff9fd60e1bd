"""Decode values once, and write the SQL of which records are good and why others are not.

These rules are the transform: when the same bytes would become other rows, increase
`frazil.ingest.planning.TRANSFORM_CODE`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.schemas.column_decoding import (
    RECORD,
    convert_sql,
    converted_name,
    decoded_ddl,
    decoded_path,
    mismatch_condition,
    missing_condition,
    value_path,
)
from frazil.schemas.wire_format import MAX_UNNAMED
from frazil.streams.column_types import (
    Column,
    StructType,
    parse_column,
    quote_name,
    to_spark_ddl,
    write_text,
)
from frazil_spark.decode.decimals import find_misread_decimals
from frazil_spark.decode.flat_values import (
    FAULT,
    FLATTENED,
    SKIP,
    add_flat_payload,
    leave_out_skipped,
    list_frames,
)
from frazil_spark.decode.frame import (
    DEFAULT_OPTIONS,
    GOOD,
    INVALID,
    KAFKA,
    VALUE,
    Decoded,
    DecodeOptions,
    find_bytes,
    join_any,
)
from frazil_spark.decode.keys import decode_key, include_key, is_added_operation
from frazil_spark.decode.limits import require_limits
from frazil_spark.decode.registered import decode_registered
from frazil_spark.decode.routes import keep_own
from frazil_spark.decode.sources import kafka_struct
from frazil_spark.decode.wire_format import PAYLOAD, WireFrame, add_payload
from frazil_spark.sampling import write_sampled

VALID_UTF8 = "_frazil_valid_utf8"
WHOLE = "_frazil_whole"
_SINGLE = "_frazil_single"
_SAMPLED = "_frazil_sampled"
_DECODED = "_frazil_decoded"
_RECORDS = "_frazil_null"
"""The name of the added array; `null` in it, since one search among the bytes is for both."""
_CLOSING = r"null[ \t\r\n]*\]"
_CORRUPT = "_frazil_corrupt"
_BLANKS = r"' \t\r\n'"
_UNICODE = r"\u"
_ESCAPE = r"(?<!\\)(?:\\\\)*"
_HALF_PAIR = (
    rf"{_ESCAPE}\\u[dD][89abAB][0-9a-fA-F]{{2}}(?!\\u[dD][c-fC-F])"
    rf"|{_ESCAPE}(?<!\\u[dD][89abAB][0-9a-fA-F]{{2}})\\u[dD][c-fC-F][0-9a-fA-F]{{2}}"
    # Behind an even number of backslashes the first half is no escape.
    r"|(?<!\\)(?:\\\\)+u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F]"
)
_PARSER_OPTIONS = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": _CORRUPT,
    "allowSingleQuotes": "false",
    "allowNonNumericNumbers": "false",
    # Spark's usual limit of a thousand levels for the record; `_parse_records` adds two.
    "maxNestingDepth": "1002",
}
_COLUMN_NAME = "^[A-Za-z_][A-Za-z0-9_]*$"
_WORD = r"[\p{L}_][\p{L}\p{N}_]*"
_NAME = rf"^(#(text|comment|cdata-section)|[@$]?{_WORD}([-./: ]{_WORD})*)$"
"""Names of fields, not the ids and addresses by which some records key their values. Converters of
XML write those with `#`."""

MAX_LETTERS = 60
MAX_BYTES = 20_000
"""Longer records are not looked through: a name is not worth the time."""


def _has_half_pair(value: str) -> str:
    """Write the SQL that finds half of a surrogate pair, which Spark would read as `?`.

    A cheap search for the prefix among the bytes comes first.
    """
    return f"({find_bytes(value, _UNICODE)} AND CAST({value} AS STRING) RLIKE r'{_HALF_PAIR}')"


def _write_valid_utf8(payload: str) -> str:
    """Write the SQL that is true for text that Spark reads without replacement characters."""
    is_text = f"is_valid_utf8(CAST({payload} AS STRING))"
    return f"coalesce({is_text} AND NOT {_has_half_pair(payload)}, false)"


def _write_json_reason(payload: str, header: str) -> str:
    """Write the reason, one of the closed set of docs/formats.md; read only for bad records."""
    kept = f"CAST({payload} AS STRING)"
    return (
        f"CASE WHEN {VALUE} IS NULL THEN 'null_value' "
        f"WHEN length({VALUE}) = 0 THEN 'empty_value' {header}"
        f"WHEN NOT {VALID_UTF8} THEN 'invalid_utf8' "
        f"WHEN {WHOLE} AND NOT {INVALID} THEN 'required_missing' "
        f"WHEN {WHOLE} THEN 'type_mismatch' "
        f"WHEN try_parse_json({kept}) IS NULL THEN 'malformed_json' "
        f"WHEN coalesce(json_array_length(concat('[', {kept}, ',null]')), 0) != 2 "
        f"OR {_is_more(kept)} THEN 'malformed_json' "
        f"WHEN NOT startswith(ltrim({_BLANKS}, {kept}), '{{') THEN 'not_an_object' "
        "ELSE 'type_mismatch' END"
    )


def decode(
    records: DataFrame,
    convert: str,
    columns: dict[str, str],
    carried: Sequence[str] = (),
    options: DecodeOptions = DEFAULT_OPTIONS,
) -> Decoded:
    """Decode values into columns; the plan has exactly one decode per record and schema.

    `carried` lists columns of the records that the frame keeps.
    """
    parsed = tuple(parse_column(name, text) for name, text in columns.items())
    key = options.key
    if key is None or not key.columns:
        values = _decode_value(records, convert, parsed, carried, options)
        return require_limits(keep_own(values, options.route), options.limits)
    as_key = DecodeOptions(is_flat=key.is_flat, wire=key.wire, part="key")
    own = tuple(column for column in parsed if column.name in key.columns)
    keyed = decode_key(records, key, own, as_key, _decode_value)
    others = tuple(c for c in parsed if c not in own and not is_added_operation(c, key))
    values = _decode_value(keyed.frame, convert, others, (*carried, *keyed.carried), options)
    names = tuple(column.name for column in parsed)
    own_values = keep_own(include_key(values, keyed, names), options.route)
    return require_limits(own_values, options.limits)


def _decode_value(
    records: DataFrame,
    convert: str,
    columns: tuple[Column, ...],
    carried: Sequence[str],
    options: DecodeOptions,
) -> Decoded:
    if options.events is not None:
        return _decode_events(records, columns, carried, options)
    if options.wire is not None:
        frame = WireFrame(options.part, options.wire)
        if options.wire.format != "json_schema":
            return decode_registered(records, frame, columns, carried)
        return _decode_json(add_payload(records, frame), columns, carried, options)
    if convert == "json":
        flat = add_flat_payload(records, options, columns) if options.has_rest else records
        return _decode_json(flat, columns, carried, options)
    return _decode_whole(records, columns, carried)


def _decode_events(
    records: DataFrame, columns: tuple[Column, ...], carried: Sequence[str], options: DecodeOptions
) -> Decoded:
    """Decode change events, which Python workers write as flat objects."""
    flat = add_flat_payload(records, options, columns)
    frames = list_frames(options)
    ids = [frame.id_column for frame in frames if frame.part == "key"]
    decoded = _decode_json(flat, columns, [*carried, *ids], options)
    return leave_out_skipped(replace(decoded, wires=frames))


def _decode_json(
    records: DataFrame, columns: tuple[Column, ...], carried: Sequence[str], options: DecodeOptions
) -> Decoded:
    missing = [missing_condition(c, value_path(c)) for c in columns]
    mismatches = [mismatch_condition(c.type, decoded_path(c), value_path(c)) for c in columns]
    wire = None if options.wire is None else WireFrame(options.part, options.wire)
    payload = PAYLOAD if options.has_payload else VALUE
    kept = [wire.id_column] if wire else []
    kept += [PAYLOAD] if options.has_payload else []
    kept += [FLATTENED, SKIP] if options.is_flattened else []
    frame = _parse_records(records, columns, [*carried, *kept], options)
    frame = frame.withColumn(
        INVALID, F.expr(f"NOT {VALID_UTF8} OR NOT {WHOLE} OR {join_any(mismatches)}")
    )
    header = wire.header_reason_sql() if wire else ""
    header += f"WHEN {FAULT} IS NOT NULL THEN {FAULT} " if options.events else ""
    detail = _json_detail(columns, missing, mismatches)
    fields = columns if options.is_flat else _fields_of(columns[0])
    return Decoded(
        frame=frame.withColumn(GOOD, F.expr(f"NOT {INVALID} AND NOT ({join_any(missing)})")),
        columns=columns,
        invalid=INVALID,
        reason=_write_json_reason(payload, header),
        detail=wire.header_detail_sql(detail) if wire else detail,
        wires=(wire,) if wire else (),
        unmapped_fields=write_unmapped_fields(_SAMPLED, fields) if fields else "",
    )


def _parse_records(
    records: DataFrame, columns: tuple[Column, ...], carried: Sequence[str], options: DecodeOptions
) -> DataFrame:
    """Parse each value once, wrapped in an array as the only element before a null.

    Spark's parser stops at the end of the first object and ignores what follows, and reads the
    first element of a top-level array as the record. Inside an array any further text is one
    element too many, or an error. `_closes` finds text that closes the added array itself.

    All expressions that read the text are in one projection with the parser, so that Spark copies
    the text into later rows only for dead letters.
    """
    fields = StructType(columns if options.is_flat else _fields_of(columns[0]))
    kind = decoded_ddl(fields, by_field=True)
    parsed = records.select(*_parse_text(fields, kind, options), *carried)
    # `try_element_at`, not `get`: the optimizer would repeat the latter in every column.
    first, second = (f"try_element_at({_DECODED}.{_RECORDS}, {index})" for index in (1, 2))
    whole = f"{_DECODED}.{_CORRUPT} IS NULL AND size({_DECODED}.{_RECORDS}) = 2"
    whole += f" AND {first} IS NOT NULL AND {second} IS NULL AND {_SINGLE}"
    renamed = first if kind == decoded_ddl(fields) else f"CAST({first} AS {decoded_ddl(fields)})"
    whole_record = renamed if options.is_flat else f"named_struct('{columns[0].name}', {renamed})"
    record = parsed.select(
        F.expr(whole_record).alias(RECORD),
        F.expr(f"coalesce({whole}, false)").alias(WHOLE),
        KAFKA,
        VALUE,
        VALID_UTF8,
        _SAMPLED,
        *carried,
    )
    return record.select("*", *_convert(columns))


def _parse_text(fields: StructType, kind: str, options: DecodeOptions) -> list[SparkColumn]:
    """List the columns that are read from the text of a record, and what dead letters need."""
    payload = PAYLOAD if options.has_payload else "value"
    sent = PAYLOAD if options.wire or options.events else "value"
    schema = f"{_RECORDS} ARRAY<{kind}>, {_CORRUPT} STRING"
    single = f"NOT {_closes(payload)}"
    single += f" AND NOT {_has_raw_control(payload)}" if "BINARY" in kind else ""
    schema_id = F.col(WireFrame(options.part, options.wire).id_column) if options.wire else None
    return [
        F.from_json(F.expr(_wrap(payload, fields.fields)), schema, _PARSER_OPTIONS).alias(_DECODED),
        kafka_struct(schema_id).alias(KAFKA),
        F.col("value").alias(VALUE),
        F.expr(_write_valid_utf8(payload)).alias(VALID_UTF8),
        F.expr(single).alias(_SINGLE),
        F.expr(f"CASE WHEN {write_sampled(options.sample_step)} THEN {sent} END").alias(_SAMPLED),
    ]


def _wrap(payload: str, columns: tuple[Column, ...]) -> str:
    """Write the SQL of a record in the added array; null where a decimal would be misread."""
    wrapped = f"concat('{{\"{_RECORDS}\":[', CAST({payload} AS STRING), ',null]}}')"
    misread = find_misread_decimals(payload, columns)
    return f"CASE WHEN NOT {misread} THEN {wrapped} END" if misread else wrapped


def _closes(payload: str) -> str:
    """Write the SQL that finds text which closes the added array.

    Such text ends the array behind a null, or repeats its name, as it is or with escapes. Cheap
    searches come first, since a pattern on each text would cost a fifth of the decode.
    """
    text = f"CAST({payload} AS STRING)"
    escaped = find_bytes(payload, _UNICODE)
    may_close = f"({find_bytes(payload, 'null')} OR {escaped}) AND {find_bytes(payload, ']')}"
    ends = f"{escaped} OR {text} RLIKE r'{_CLOSING}' OR {find_bytes(payload, _RECORDS)}"
    return f"coalesce({may_close} AND ({ends}) AND {_is_more(text)}, false)"


def _is_more(text: str) -> str:
    """Write the SQL that finds text which closes an array and continues.

    Behind the added array it would continue inside an object; in the array here it is an error.
    """
    return f"coalesce(json_array_length(concat('[[', {text}, '],0]')), 0) != 2"


def _has_raw_control(payload: str) -> str:
    """Write the SQL that finds a raw control character in a text.

    The parser refuses one everywhere but in Base64, which it reads as bytes. Here it reads texts.
    """
    text = f"CAST({payload} AS STRING)"
    options = ", ".join(f"'{name}', '{value}'" for name, value in _PARSER_OPTIONS.items())
    texts = f"from_json(concat('[', {text}, ']'), 'ARRAY<STRING>', map({options}))"
    return f"coalesce({text} RLIKE r'[\\x00-\\x1f]' AND {texts} IS NULL, false)"


def _convert(columns: tuple[Column, ...]) -> list[SparkColumn]:
    """Write the columns whose values are parsed in another type and converted."""
    return [
        F.expr(sql).alias(converted_name(column.name))
        for column in columns
        if (sql := convert_sql(column.type, decoded_path(column)))
    ]


def _fields_of(column: Column) -> tuple[Column, ...]:
    """Return the fields of a value that is stored in one column."""
    return column.type.fields if isinstance(column.type, StructType) else ()


def _json_detail(
    columns: tuple[Column, ...], missing: list[str | None], mismatches: list[str | None]
) -> str:
    """Write the detail that names the columns at fault, never their values."""
    parts = [
        f"CASE WHEN {mismatch or 'false'} THEN '{column.name} has a wrong form' "
        f"WHEN {required or 'false'} THEN '{column.name} is required' END"
        for column, required, mismatch in zip(columns, missing, mismatches, strict=True)
        if required or mismatch
    ]
    named = f"concat_ws(', ', {', '.join(parts)})" if parts else "''"
    return (
        f"CASE WHEN NOT {VALID_UTF8} THEN 'the value is no text in UTF-8' "
        f"WHEN NOT {WHOLE} THEN 'no JSON object, or a value that does not fit its column' "
        f"ELSE {named} END"
    )


def _decode_whole(
    records: DataFrame, columns: tuple[Column, ...], carried: Sequence[str]
) -> Decoded:
    """Store the value whole; null and empty stay different."""
    column = columns[0]
    is_text = to_spark_ddl(column.type) == "STRING"
    value = F.col("value").cast("string") if is_text else F.col("value")
    valid = "coalesce(is_valid_utf8(CAST(value AS STRING)), true)" if is_text else "true"
    flat = records.select(
        F.struct(value.alias(column.name)).alias(RECORD),
        kafka_struct().alias(KAFKA),
        F.col("value").alias(VALUE),
        F.expr(valid).alias(VALID_UTF8),
        *carried,
    )
    missing = f"{VALUE} IS NULL" if column.required else "false"
    return Decoded(
        frame=flat.withColumn(GOOD, F.expr(f"{VALID_UTF8} AND NOT ({missing})")),
        columns=columns,
        invalid=f"NOT {GOOD}",
        reason=f"CASE WHEN NOT {VALID_UTF8} THEN 'invalid_utf8' ELSE 'null_value' END",
        detail=f"CASE WHEN NOT {VALID_UTF8} THEN 'not UTF-8' ELSE 'value is required' END",
    )


def write_unmapped_fields(payload: str, columns: tuple[Column, ...]) -> str:
    """Write the SQL that lists a record's first unmapped fields, in structs as `a.b`.

    Names that no column can have are in backticks.
    """
    levels = ", ".join(_write_levels(f"CAST({payload} AS STRING)", columns, ""))
    found = f"slice(array_sort(array_distinct(concat({levels}))), 1, {MAX_UNNAMED})"
    return f"CASE WHEN length({payload}) <= {MAX_BYTES} THEN {found} END"


def _write_levels(text: str, columns: tuple[Column, ...], path: str) -> Iterator[str]:
    """Write the unmapped fields of a level, then of the structs in it."""
    named = ", ".join(write_text(column.field) for column in columns)
    others = f"array_except(json_object_keys({text}), array({named}))"
    fitting = f"filter({others}, name -> length(name) <= {MAX_LETTERS} AND name RLIKE r'{_NAME}')"
    shown = f"if(name RLIKE '{_COLUMN_NAME}', name, concat('`', name, '`'))"
    yield f"coalesce(transform({fitting}, name -> concat({write_text(path)}, {shown})), array())"
    for column in columns:
        if isinstance(column.type, StructType) and not re.search("['?]", column.field):
            at = write_text(f"$['{column.field}']")
            is_plain = re.search(_COLUMN_NAME, column.field)
            shown_field = column.field if is_plain else quote_name(column.field)
            inner, prefix = f"get_json_object({text}, {at})", f"{path}{shown_field}."
            yield from _write_levels(inner, column.type.fields, prefix)
