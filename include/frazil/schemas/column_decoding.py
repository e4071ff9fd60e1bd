"""Write the SQL that decodes JSON to columns without loss: decoded type, conversion, conditions.

Spark's JSON parser changes values silently: it rounds decimals, reads `2024` as a date and
`12:30:00` as a time of today, truncates nanoseconds, reads a number as seconds since 1970, turns
`1e400` into infinity and keeps a repeated key of a map. Such types are decoded as a wider type
(`Form.decoded`), checked (`Form.mismatch`) and only then converted (`Form.convert`). A string
column accepts any JSON value as text; a number with a fraction is printed as a double.
"""

from dataclasses import dataclass

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

UUID_PATTERN = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_UUID = UUID_PATTERN.replace("{", "{{").replace("}", "}}")
_DATE = "[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = "[0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]{1,6}0*)?)?"
"""At most six digits, and zeros: Spark truncates to microseconds."""

_ZONE = "(Z|[+-][0-9]{2}(:?[0-9]{2})?)"
_PATTERNS = {
    "date": f"^{_DATE}$",
    "timestamp": f"^{_DATE}[T ]{_TIME}$",
    "timestamptz": f"^{_DATE}[T ]{_TIME}{_ZONE}$",
}
_INFINITY = "DOUBLE('Infinity')"
_MISMATCHES = {
    "float": f"abs({{w}}) = {_INFINITY}",
    "double": f"abs({{w}}) = {_INFINITY}",
    "uuid": f"NOT ({{w}} RLIKE '{_UUID}')",
}
_OVERFLOWING = frozenset({"float", "double"})
_WIDEST = 38
_SPARE_DIGITS = 20
"""With this many digits to spare, a decimal decoded with 38 digits shows every excess digit."""


@dataclass(frozen=True)
class Form:
    """A decoded type and SQL templates; `{w}` is the decoded value, `{v}` the converted one."""

    decoded: str
    convert: str | None = None
    mismatch: str | None = None


def choose_form(primitive: Primitive) -> Form:
    """Choose a decoded type that shows every value the column cannot hold exactly."""
    ddl = to_spark_ddl(primitive)
    match primitive:
        case Primitive("decimal", (precision, scale)):
            return _decimal_form(precision, scale)
        case Primitive("fixed", (length,)):
            return Form(ddl, mismatch=f"octet_length({{w}}) != {length}")
        case Primitive(name, _) if name in _PATTERNS:
            return _text_form(_PATTERNS[name], ddl)
    return Form(ddl, mismatch=_MISMATCHES.get(primitive.name))


def _text_form(pattern: str, ddl: str) -> Form:
    """Decode a date or a timestamp as text: only the text shows what was sent."""
    escaped = pattern.replace("{", "{{").replace("}", "}}")
    mismatch = f"{{w}} IS NOT NULL AND ({{v}} IS NULL OR NOT ({{w}} RLIKE '{escaped}'))"
    return Form("STRING", f"try_cast({{w}} AS {ddl})", mismatch)


def _decimal_form(precision: int, scale: int) -> Form:
    """Decode a decimal with 38 digits, so that rounding is detected.

    Wide decimals have no digits to spare and are decoded as variants, which is slower and exact. A
    variant holds a number with an exponent as a double, so such numbers are a mismatch.
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
            template = choose_form(column_type).convert
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


def mismatch_condition(
    column_type: ColumnType, path: str, value: str | None = None, depth: int = 0
) -> str | None:
    """Write the SQL that is true where the column cannot hold a decoded value exactly; or None.

    `path` is the decoded value, `value` the converted one if the data frame has it.
    """
    match column_type:
        case Primitive():
            form = choose_form(column_type)
            converted = value or (form.convert or "{w}").format(w=path)
            return form.mismatch.format(w=path, v=converted) if form.mismatch else None
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
