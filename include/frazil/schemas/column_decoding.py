"""Write the SQL that decodes JSON to columns without loss: decoded type, conversion, conditions.

Spark's JSON parser changes values silently: it rounds decimals, reads `2024` as a date and
`12:30:00` as a time of today, truncates nanoseconds, reads a number as seconds since 1970, turns
`1e400` into infinity and keeps a repeated key of a map. Such types are decoded as a wider type
(`Form.decoded`), checked (`Form.mismatch`) and only then converted (`Form.convert`). A string
column accepts any JSON value as text; a number with a fraction is printed as a double.
"""

from collections.abc import Callable
from dataclasses import dataclass

from frazil.schemas.text_grammar import has_form, is_exact_variant, is_out_of_range
from frazil.streams.column_types import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    quote_name,
    to_spark_ddl,
)

RECORD = "_frazil_record"
"""The column of the staged data frame with the decoded record."""

_INFINITY = "DOUBLE('Infinity')"
_OVERFLOWING = frozenset({"float", "double"})
_WIDEST = 38
_SPARE_DIGITS = 20
"""With this many digits to spare, a decimal decoded with 38 digits shows every excess digit of a
number; what it does not show is found before by `frazil_spark.decode.decimals`."""


@dataclass(frozen=True)
class Form:
    """A decoded type, and functions that write SQL from a decoded value.

    `mismatch` is also given the converted value.
    """

    decoded: str
    convert: Callable[[str], str] | None = None
    mismatch: Callable[[str, str], str] | None = None


def choose_form(primitive: Primitive) -> Form:
    """Choose a decoded type that shows every value the column cannot hold exactly."""
    ddl = to_spark_ddl(primitive)
    match primitive:
        case Primitive("decimal", (precision, scale)):
            return _decimal_form(precision, scale)
        case Primitive("fixed", (length,)):
            return Form(ddl, mismatch=lambda given, _: f"octet_length({given}) != {length}")
        case Primitive("date" | "timestamp" | "timestamptz" as name, _):
            return _text_form(name, ddl)
        case Primitive("uuid", _):
            return Form(ddl, mismatch=lambda given, _: f"NOT ({has_form(given, 'uuid')})")
        case Primitive("float" | "double", _):
            return Form(ddl, mismatch=lambda given, _: f"abs({given}) = {_INFINITY}")
    return Form(ddl)


def _text_form(name: str, ddl: str) -> Form:
    """Decode a date or a timestamp as text: only the text shows what was sent."""

    def find_mismatch(given: str, value: str) -> str:
        is_read = f"{has_form(given, name)} AND NOT ({is_out_of_range(value, name)})"
        return f"{given} IS NOT NULL AND NOT coalesce({is_read}, false)"

    return Form("STRING", lambda given: f"try_cast({given} AS {ddl})", find_mismatch)


def is_narrow_decimal(column_type: ColumnType) -> bool:
    """Return whether a type is a decimal that is decoded with digits to spare."""
    match column_type:
        case Primitive("decimal", (precision, _)):
            return precision + _SPARE_DIGITS <= _WIDEST
    return False


def _decimal_form(precision: int, scale: int) -> Form:
    """Decode a decimal with 38 digits, so that rounding is detected.

    Wide decimals have no digits to spare and are decoded as variants, which is slower and exact. A
    variant holds a number with an exponent as a double, so such numbers are a mismatch.
    """
    target = f"DECIMAL({precision},{scale})"
    if is_narrow_decimal(Primitive("decimal", (precision, scale))):
        return Form(
            f"DECIMAL({_WIDEST},{_WIDEST - precision + scale})",
            lambda given: f"try_cast({given} AS {target})",
            lambda given, value: f"{given} IS NOT NULL AND ({value} IS NULL OR {given} != {value})",
        )

    def convert(given: str) -> str:
        value = f"try_variant_get({given}, '$', '{target}')"
        return f"CASE WHEN {is_exact_variant(given, scale)} THEN {value} END"

    def find_mismatch(given: str, value: str) -> str:
        return f"{given} IS NOT NULL AND NOT is_variant_null({given}) AND {value} IS NULL"

    return Form("VARIANT", convert, find_mismatch)


def value_path(column: Column) -> str:
    """Write the SQL that reads a column's value from the staged data frame.

    A converted value has a column of its own. Other values stay inside the record: a column for
    each would copy every field once more for the metrics.
    """
    is_converted = convert_sql(column.type, "x") is not None
    return f"`{converted_name(column.name)}`" if is_converted else decoded_path(column)


def decoded_path(column: Column) -> str:
    """Write the SQL that reads a column's decoded value."""
    return f"{RECORD}.`{column.name}`"


def converted_name(name: str) -> str:
    """Return the name of the data frame's column with a converted value."""
    return f"_frazil_as_{name}"


def decoded_ddl(column_type: ColumnType, *, by_field: bool = False) -> str:
    """Return the Spark type with which the JSON parser decodes a column.

    Fields of structs have the names of their columns or, with `by_field`, those in the record.
    """
    match column_type:
        case Primitive():
            return choose_form(column_type).decoded
        case ListType(element, _):
            return f"ARRAY<{decoded_ddl(element, by_field=by_field)}>"
        case MapType(key, value, _):
            return f"MAP<{to_spark_ddl(key)},{decoded_ddl(value, by_field=by_field)}>"
        case StructType(fields):
            parts = [
                f"{quote_name(f.field if by_field else f.name)}:"
                f"{decoded_ddl(f.type, by_field=by_field)}"
                for f in fields
            ]
            return f"STRUCT<{','.join(parts)}>"


def convert_sql(column_type: ColumnType, path: str, depth: int = 0) -> str | None:
    """Write the SQL from the decoded type to the column's; None if they are the same."""
    variable = f"z{depth}"
    match column_type:
        case Primitive():
            convert = choose_form(column_type).convert
            return convert(path) if convert else None
        case ListType(element, _):
            inner = convert_sql(element, variable, depth + 1)
            return f"transform({path}, {variable} -> {inner})" if inner else None
        case MapType(_, value, _):
            inner = convert_sql(value, variable, depth + 1)
            return f"transform_values({path}, (k{depth}, {variable}) -> {inner})" if inner else None
        case StructType(fields):
            paths = [(f, f"{path}.`{f.name}`") for f in fields]
            converted = [convert_sql(f.type, p, depth) for f, p in paths]
            if not any(converted):
                return None
            parts = [f"'{f.name}', {c or p}" for (f, p), c in zip(paths, converted, strict=True)]
            return f"CASE WHEN {path} IS NOT NULL THEN named_struct({', '.join(parts)}) END"


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


def mismatch_condition(
    column_type: ColumnType, path: str, value: str | None = None, depth: int = 0
) -> str | None:
    """Write the SQL that is true where the column cannot hold a decoded value exactly; or None.

    `path` is the decoded value, `value` the converted one if the data frame has it.
    """
    match column_type:
        case Primitive():
            form = choose_form(column_type)
            converted = value or (form.convert(path) if form.convert else path)
            return form.mismatch(path, converted) if form.mismatch else None
        case StructType(fields):
            parts = [mismatch_condition(f.type, f"{path}.`{f.name}`", depth=depth) for f in fields]
            return _join(parts)
        case ListType(element, _):
            return _mismatch_of_elements(element, path, depth)
        case MapType(_, element, _):
            keys = f"map_keys({path})"
            repeated = f"size(array_distinct({keys})) != size({keys})"
            return _join([repeated, _mismatch_of_elements(element, f"map_values({path})", depth)])


def _mismatch_of_elements(element: ColumnType, path: str, depth: int) -> str | None:
    """Check an array's elements, without a lambda if possible: Spark interprets lambdas."""
    match element:
        case Primitive(name, _) if name in _OVERFLOWING:
            infinity = f"{name.upper()}('Infinity')"
            return f"(array_contains({path}, {infinity}) OR array_contains({path}, -{infinity}))"
        case StructType(fields):
            return _join(
                [_mismatch_of_elements(f.type, f"{path}.`{f.name}`", depth) for f in fields]
            )
    variable = f"y{depth}"
    condition = mismatch_condition(element, variable, depth=depth + 1)
    return f"exists({path}, {variable} -> {condition})" if condition else None


def _join(conditions: list[str | None]) -> str | None:
    present = [f"coalesce({c}, false)" for c in conditions if c]
    return " OR ".join(present) or None
