r"""SQL that finds the records whose decimals Spark's JSON parser would misread.

The parser takes `"12,50"` as 1250 and digits of any script as digits, rounds the thirty-second
digit behind the point, and needs a minute for `1e99999999`. Decimals of at most 18 digits are
parsed by it all the same, since a variant takes longer. So a pattern first looks for values that
could be misread, by the names of the fields: texts that are not short plain numbers, exponents of
two digits, long numbers. Only the records found are parsed as variants, which show what was sent.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from frazil.quality.sql import write_text
from frazil.schemas.column_decoding import is_narrow_decimal
from frazil.schemas.text_grammar import is_exact_variant
from frazil.streams.column_types import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    quote_name,
)

_SHORT_TEXT = '"(?!-?[0-9]{1,19}(?:[.][0-9]{1,18})?")'
_SUSPECT = rf"{_SHORT_TEXT}|-?[0-9.]+[eE][+-]?[0-9]{{2}}|-?[0-9.]{{21}}"
_LONG_EXPONENT = r"-?[0.]+[eE][+-]?[0-9]{3}|-?[0-9.]+[eE][+-]?0*[1-9][0-9]{3}"
"""Not `1e300`, which may be a double of another field; as a decimal a variant shows its misfit."""
_LOSSY = rf"{_LONG_EXPONENT}|-?[0-9.]{{21,}}[eE]|-?[0-9.]{{39}}"
"""Numbers that a variant holds with other digits, and those whose parsing takes too long."""
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_@.:$ -]+")
_ESCAPED_NAME = r"\\u00(?!3[cCeE]|26)[2-7]"
"""A character of a plain name as an escape; not `<`, `>` and `&`, which Go writes so."""


def find_misread_decimals(payload: str, columns: tuple[Column, ...]) -> str | None:
    """Write the SQL that is true where a decimal would be misread; None without such columns.

    `payload` is the SQL of the record's text.
    """
    kept = tuple(each for column in columns if (each := _keep_decimals(column)))
    if not kept:
        return None
    record = StructType(kept)
    before = "|".join(sorted({*_list_anchors(record)}))
    ddl = write_text(_write_ddl(record))
    inexact = _find_inexact(record, "r", 0)
    suspect = f"(?:{before})(?:{_SUSPECT})|{_ESCAPED_NAME}"
    lossy = f"(?:{before})(?:{_LOSSY})"
    escaped = rf"\\u00.*[\[,:]\s*(?:{_LOSSY})"
    return (
        f"coalesce({payload} RLIKE r'{suspect}' AND ({payload} RLIKE r'{lossy}|(?s:{escaped})' "
        f"OR exists(array(from_json({payload}, {ddl})), r -> {inexact})), false)"
    )


def _keep_decimals(column: Column) -> Column | None:
    """Return a column with its narrow decimals only; None if it has none."""
    kept = _keep_types(column.type)
    return replace(column, type=kept) if kept else None


def _keep_types(column_type: ColumnType) -> ColumnType | None:
    match column_type:
        case ListType(element, _):
            inner = _keep_types(element)
            return inner and ListType(inner)
        case MapType(key, value, _):
            inner = _keep_types(value)
            return inner and MapType(key, inner)
        case StructType(fields):
            kept = tuple(each for field in fields if (each := _keep_decimals(field)))
            return StructType(kept) if kept else None
    return column_type if is_narrow_decimal(column_type) else None


def _list_anchors(column_type: ColumnType) -> Iterator[str]:
    """Yield patterns of what stands before a decimal: its name, or the sign before an element."""
    match column_type:
        case StructType(fields):
            for field in fields:
                if isinstance(field.type, Primitive):
                    is_plain = _PLAIN_NAME.fullmatch(field.field)
                    yield rf'"{re.escape(field.field)}"\s*:\s*' if is_plain else r":\s*"
                else:
                    yield from _list_anchors(field.type)
        case ListType(element, _):
            yield from [r"[\[,]\s*"] if isinstance(element, Primitive) else _list_anchors(element)
        case MapType(_, value, _):
            yield from [r":\s*"] if isinstance(value, Primitive) else _list_anchors(value)


def _write_ddl(column_type: ColumnType) -> str:
    match column_type:
        case ListType(element, _):
            return f"ARRAY<{_write_ddl(element)}>"
        case MapType(_, value, _):
            return f"MAP<STRING,{_write_ddl(value)}>"
        case StructType(fields):
            parts = [f"{quote_name(f.field)}:{_write_ddl(f.type)}" for f in fields]
            return f"STRUCT<{','.join(parts)}>"
    return "VARIANT"


def _find_inexact(column_type: ColumnType, path: str, depth: int) -> str:
    """Write the SQL that is true where a variant is no exact value of its decimal."""
    item = f"i{depth}"
    match column_type:
        case ListType(element, _):
            return f"exists({path}, {item} -> {_find_inexact(element, item, depth + 1)})"
        case MapType(_, value, _):
            inner = _find_inexact(value, item, depth + 1)
            return f"exists(map_values({path}), {item} -> {inner})"
        case StructType(fields):
            parts = [_find_inexact(f.type, f"{path}.{quote_name(f.field)}", depth) for f in fields]
            return f"({' OR '.join(parts)})"
        case Primitive(_, (precision, scale)):
            return _is_inexact(path, precision, scale)
    message = f"no decimal: {column_type}"
    raise ValueError(message)


def _is_inexact(variant: str, precision: int, scale: int) -> str:
    number = f"try_variant_get({variant}, '$', 'DOUBLE')"
    rounded = f"CAST(try_variant_get({variant}, '$', 'DECIMAL({precision},{scale})') AS DOUBLE)"
    is_exact = (
        f"CASE WHEN schema_of_variant({variant}) = 'DOUBLE' THEN {rounded} = {number} "
        f"ELSE {is_exact_variant(variant, scale)} END"
    )
    return (
        f"coalesce({variant} IS NOT NULL AND NOT is_variant_null({variant}) "
        f"AND NOT coalesce({is_exact}, false), false)"
    )
