"""How a column's type travels through the decode, and in SQL which values do not fit it.

Spark's JSON parser is kinder than a ledger may be: it rounds decimals, reads `2024` as a day and
`12:30:00` as an instant of today, cuts nanoseconds off, takes a number for seconds since 1970,
turns `1e400` into infinity and keeps a key of a map twice. Such values travel in a wider form here,
are looked at, and only then converted. A text column takes any JSON value as its text, a number
with a fraction as its double prints.
"""

from dataclasses import dataclass

from frazil.streams.column_types import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    to_spark_ddl,
)

RECORD = "_frazil_record"
"""The column of the staged frame that holds a record as decoded."""

UUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID = UUID_PATTERN.replace("{", "{{").replace("}", "}}")
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6}0*)?)?"
"""Spark cuts off what is finer than a microsecond."""

_ZONE = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_PATTERNS = {
    "date": f"^{_DATE}$",
    "timestamp": f"^{_DATE}[T ]{_TIME}$",
    "timestamptz": f"^{_DATE}[T ]{_TIME}{_ZONE}$",
}
_INFINITY = "DOUBLE('Infinity')"
_MISFITS = {
    "float": f"abs({{w}}) = {_INFINITY}",
    "double": f"abs({{w}}) = {_INFINITY}",
    "uuid": f"NOT ({{w}} RLIKE '{_UUID}')",
}
_OVERFLOWING = frozenset({"float", "double"})
_WIDEST = 38
_SPARE_DIGITS = 20
"""A decimal with that many digits to spare shows every excess digit in its own wide form."""


@dataclass(frozen=True)
class Form:
    """One primitive on its way: `{w}` is the value as decoded, `{v}` as converted."""

    wire: str
    convert: str | None = None
    misfit: str | None = None


def form_of(primitive: Primitive) -> Form:
    """Choose the form in which no wrong value can hide."""
    ddl = to_spark_ddl(primitive)
    match primitive:
        case Primitive("decimal", (precision, scale)):
            return _decimal_form(precision, scale)
        case Primitive("fixed", (length,)):
            return Form(ddl, misfit=f"octet_length({{w}}) != {length}")
        case Primitive(name, _) if name in _PATTERNS:
            return _text_form(_PATTERNS[name], ddl)
    return Form(ddl, misfit=_MISFITS.get(primitive.name))


def _text_form(pattern: str, ddl: str) -> Form:
    """Let a date or an instant travel as text: only the text shows what was sent."""
    escaped = pattern.replace("{", "{{").replace("}", "}}")
    misfit = f"{{w}} IS NOT NULL AND ({{v}} IS NULL OR NOT ({{w}} RLIKE '{escaped}'))"
    return Form("STRING", f"try_cast({{w}} AS {ddl})", misfit)


def _decimal_form(precision: int, scale: int) -> Form:
    """Let a decimal travel with all the digits that Spark has, so that rounding shows.

    Wide decimals have no digits to spare; they travel as variants, slower and exact. There a
    number with an exponent is a double already, so it is refused.
    """
    target = f"DECIMAL({precision},{scale})"
    if precision + _SPARE_DIGITS <= _WIDEST:
        return Form(
            f"DECIMAL({_WIDEST},{_WIDEST - precision + scale})",
            f"try_cast({{w}} AS {target})",
            "{w} IS NOT NULL AND ({v} IS NULL OR {w} != {v})",
        )
    digits = f"[.][0-9]{{{{0,{scale}}}}}0*"
    text = "variant_get({w}, '$', 'STRING')"
    return Form(
        "VARIANT",
        f"try_variant_get({{w}}, '$', '{target}')",
        "{w} IS NOT NULL AND NOT is_variant_null({w}) AND ({v} IS NULL "
        f"OR schema_of_variant({{w}}) = 'DOUBLE' OR NOT ({text} RLIKE '^-?[0-9]+({digits})?$'))",
    )


def value_path(column: Column) -> str:
    """Write the SQL that reads a column's value from a staged frame.

    What travels in its own type stays inside the record: taking it out would copy every field
    once more for the counters. What had to be converted stands beside the record.
    """
    is_converted = convert_sql(column.type, "x") is not None
    return f"`{converted_name(column.name)}`" if is_converted else wire_path(column)


def wire_path(column: Column) -> str:
    """Write the SQL that reads a column as decoded."""
    return f"{RECORD}.`{column.name}`"


def converted_name(name: str) -> str:
    """Name the column of the frame that holds a converted value."""
    return f"_frazil_as_{name}"


def wire_ddl(column_type: ColumnType) -> str:
    """Write the Spark type that the JSON parser is asked for."""
    match column_type:
        case Primitive():
            return form_of(column_type).wire
        case ListType(element, _):
            return f"ARRAY<{wire_ddl(element)}>"
        case MapType(key, value, _):
            return f"MAP<{to_spark_ddl(key)},{wire_ddl(value)}>"
        case StructType(fields):
            return f"STRUCT<{','.join(f'`{f.name}`:{wire_ddl(f.type)}' for f in fields)}>"


def convert_sql(column_type: ColumnType, path: str, depth: int = 0) -> str | None:
    """Write the SQL from the decoded form to the column's type; None if they are the same."""
    variable = f"z{depth}"
    match column_type:
        case Primitive():
            template = form_of(column_type).convert
            return template.format(w=path) if template else None
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


def misfit_condition(
    column_type: ColumnType, path: str, value: str | None = None, depth: int = 0
) -> str | None:
    """Write the SQL that is true where a decoded value must not become a column's value.

    `path` is the value as decoded, `value` the converted one where that is at hand.
    """
    match column_type:
        case Primitive():
            form = form_of(column_type)
            converted = value or (form.convert or "{w}").format(w=path)
            return form.misfit.format(w=path, v=converted) if form.misfit else None
        case StructType(fields):
            parts = [misfit_condition(f.type, f"{path}.`{f.name}`", depth=depth) for f in fields]
            return _join(parts)
        case ListType(element, _):
            return _misfit_of_some(element, path, depth)
        case MapType(_, element, _):
            keys = f"map_keys({path})"
            repeated = f"size(array_distinct({keys})) != size({keys})"
            return _join([repeated, _misfit_of_some(element, f"map_values({path})", depth)])


def _misfit_of_some(element: ColumnType, path: str, depth: int) -> str | None:
    """Look at an array's elements, without a lambda where it can be: Spark interprets those."""
    match element:
        case Primitive(name, _) if name in _OVERFLOWING:
            infinity = f"{name.upper()}('Infinity')"
            return f"(array_contains({path}, {infinity}) OR array_contains({path}, -{infinity}))"
        case StructType(fields):
            return _join([_misfit_of_some(f.type, f"{path}.`{f.name}`", depth) for f in fields])
    variable = f"y{depth}"
    condition = misfit_condition(element, variable, depth=depth + 1)
    return f"exists({path}, {variable} -> {condition})" if condition else None


def _join(conditions: list[str | None]) -> str | None:
    present = [f"coalesce({c}, false)" for c in conditions if c]
    return " OR ".join(present) or None
