r"""SQL that finds the records whose decimals Spark's JSON parser would misread.

The parser takes `"12,50"` as 1250 and digits of any script as digits, rounds the thirty-second
digit behind the point, and needs a minute for `1e99999999`. Decimals of at most 18 digits are
parsed by it all the same, since a variant takes longer. So a pattern first looks for values that
could be misread, by the names of the fields: texts that are not short plain numbers, exponents of
two digits, short ones behind many digits, long numbers. Only the records found are parsed as
variants, which show what was sent.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from frazil.schemas.column_decoding import is_narrow_decimal
from frazil.schemas.text_grammar import is_plain_decimal
from frazil.streams.column_types import (
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    quote_name,
    write_text,
)
from frazil_spark.decode.frame import find_bytes

_SHORT_TEXT = '"(?!-?[0-9]{1,19}(?:[.][0-9]{1,18})?")'
_SHORT_NUMBER = "-?[0-9.]{1,11}+[^0-9.eE]"
"""Numbers that most records have: the pattern of suspects rejects them at the first character."""
_SUSPECT = (
    rf"(?!{_SHORT_NUMBER})(?:{_SHORT_TEXT}"
    r"|-?[0-9.]++[eE][+-]?[0-9]{2}|-?[0-9.]{12,20}+[eE]-|-?[0-9.]{21})"
)
"""A short exponent counts behind a long fraction: together they may pass the digits to spare."""
_LONG_EXPONENT = r"-?[0.]+[eE][+-]?0*[1-9][0-9]{2}|-?[0-9.]+[eE][+-]?0*[1-9][0-9]{3}"
"""Not `1e300`, which may be a double of another field; as a decimal a variant shows its misfit."""
_MANY_DIGITS = r"-?(?:[0-9.]{22,}+[eE]|[0-9]{21}[eE]|[0-9.]{40}|[0-9]{39})"
"""More than 20 digits in front of an exponent, or more than 38: a point is one character."""
_LOSSY = rf"(?:{_LONG_EXPONENT}|{_MANY_DIGITS})"
"""Numbers that a variant holds with other digits, and those whose parsing takes too long."""
_HUGE_EXPONENT = r"[0-9.][eE][+-]?0*[1-9][0-9]{5}"
"""Such a number takes a minute also where a variant does not show it: under a name that comes
again, behind the end of the record, in a record that a variant cannot hold."""
_NUMERAL = r"\p{Nd}.,+-"
_ESCAPED_NUMERAL = (
    r"\\u(?:00(?:2[b-eB-E]|3[0-9])"
    r"|(?:0[6-9a-fA-F]|1[0-9a-cA-C]|[aA][689abAB]|[fF]{2})[0-9a-fA-F]{2})"
)
"""An ASCII digit or sign, or a character of a script that has digits of its own."""
_ANY_NUMERAL, _ANY_E = rf"(?:[{_NUMERAL}]|{_ESCAPED_NUMERAL})", r"(?:[eE]|\\u00[46]5)"
_HUGE_TEXT = (
    rf'"(?:[{_NUMERAL}]*+[eE],*+[+-]?[\p{{Nd}},]{{6,}}+"'
    rf"|(?=[+.,-]{{0,9}}\p{{Nd}})[eE{_NUMERAL}]{{1000}}"
    rf'|(?=[^"\\]*\\u)(?:{_ANY_NUMERAL}{{0,400}}+{_ANY_E}{_ANY_NUMERAL}{{6,400}}+"'
    rf"|(?:{_ANY_NUMERAL}|{_ANY_E}){{400}}))"
)
"""The same as a text, which the parser also takes with commas, digits of any script and escapes;
or a thousand characters of digits, which take long too if they are a million."""
_IN_LIST, _IN_MAP = r"[\[,]\s*+", r":\s*+"
_UNNAMED = {_IN_LIST, _IN_MAP}
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_@.:$ -]+")
_ESCAPE = r"\u00"
_ESCAPED_NAME = r"\\u00(?!3[cCeE]|26)[2-7]"
"""A character of a plain name as an escape; not `<`, `>` and `&`, which Go writes so."""


def find_misread_decimals(payload: str, columns: tuple[Column, ...]) -> str | None:
    """Write the SQL that is true where a decimal would be misread; None without such columns.

    `payload` is the SQL of the record's bytes.
    """
    kept = tuple(each for column in columns if (each := _keep_decimals(column)))
    if not kept:
        return None
    record = StructType(kept)
    anchors = {*_list_anchors(record)}
    names = sorted(anchors - _UNNAMED)
    ddl = write_text(_write_ddl(record))
    lossy = f"(?:{'|'.join(names)}){_LOSSY}" if names else "(?!)"
    text = f"CAST({payload} AS STRING)"
    inexact = _find_inexact(record, "r", text, "")
    return (
        f"coalesce(({_find_suspects(payload, anchors)}) AND ({text} RLIKE r'{lossy}' "
        f"OR {_drop_texts(text)} RLIKE r'{_HUGE_EXPONENT}' OR {_hides_huge_text(text)} "
        f"OR exists(array(from_json({text}, {ddl})), r -> {inexact})), false)"
    )


def _hides_huge_text(payload: str) -> str:
    """Write the SQL that finds a text of a huge exponent in a record that is no single object.

    A variant shows no value of a record that is malformed or has a name twice, and none behind it.
    """
    parsed = f"try_parse_json(concat('[[', {payload}, '],0]'))"
    behind = f"try_variant_get({parsed}, '$[0][1]', 'VARIANT')"
    return f"({payload} RLIKE r'{_HUGE_TEXT}' AND ({parsed} IS NULL OR {behind} IS NOT NULL))"


def _drop_texts(payload: str) -> str:
    """Write the SQL of a record without the characters of its texts."""
    escaped = rf"replace(replace({payload}, r'\\', ''), r'\"', '')"
    return f"""regexp_replace({escaped}, '"[^"]*+"', '""')"""


def _find_suspects(payload: str, anchors: Iterable[str]) -> str:
    """Write the SQL that is true where a decimal may be misread.

    One pattern for each name: Java finds a pattern that begins with a text much faster than one
    that begins with a choice.
    """
    text = f"CAST({payload} AS STRING)"
    suspects = [f"{text} RLIKE r'{before}{_SUSPECT}'" for before in sorted(anchors)]
    escaped = f"{find_bytes(payload, _ESCAPE)} AND {text} RLIKE r'{_ESCAPED_NAME}'"
    return " OR ".join([*suspects, escaped])


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


def _list_anchors(column_type: ColumnType, anchor: str = "") -> Iterator[str]:
    """Yield patterns of what stands before a decimal: its name, or the sign before an element."""
    match column_type:
        case StructType(fields):
            for field in fields:
                yield from _list_anchors(field.type, _write_anchor(field))
        case ListType(element, _):
            yield from _list_anchors(element, _IN_LIST)
        case MapType(_, value, _):
            yield from _list_anchors(value, _IN_MAP)
        case Primitive():
            yield anchor


def _write_anchor(field: Column) -> str:
    """Write the pattern of a field's name; one that JSON may write in several ways is any name."""
    is_plain = _PLAIN_NAME.fullmatch(field.field)
    return rf'"{re.escape(field.field)}"\s*+:\s*+' if is_plain else _IN_MAP


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


def _find_inexact(
    column_type: ColumnType, path: str, payload: str, anchor: str, depth: int = 0
) -> str:
    """Write the SQL that is true where a variant is no exact value of its decimal."""
    item = f"i{depth}"
    match column_type:
        case ListType(element, _):
            inner = _find_inexact(element, item, payload, _IN_LIST, depth + 1)
            return f"exists({path}, {item} -> {inner})"
        case MapType(_, value, _):
            inner = _find_inexact(value, item, payload, _IN_MAP, depth + 1)
            return f"exists(map_values({path}), {item} -> {inner})"
        case StructType(fields):
            parts = [
                _find_inexact(
                    f.type, f"{path}.{quote_name(f.field)}", payload, _write_anchor(f), depth
                )
                for f in fields
            ]
            return f"({' OR '.join(parts)})"
        case Primitive(_, (precision, scale)):
            return _is_inexact(path, (precision, scale), _may_be_lossy(payload, anchor))
    message = f"no decimal: {column_type}"
    raise ValueError(message)


def _may_be_lossy(payload: str, anchor: str) -> str:
    """Write the SQL that is true where a double may have lost digits, or a name has escapes."""
    numbers = _drop_texts(payload)
    if anchor in _UNNAMED:
        return f"{numbers} RLIKE r'{anchor}{_LOSSY}'"
    return rf"({payload} RLIKE r'{_ESCAPED_NAME}' AND {numbers} RLIKE r'{_IN_MAP}{_LOSSY}')"


def _is_inexact(variant: str, digits: tuple[int, int], may_be_lossy: str) -> str:
    precision, scale = digits
    number = f"try_variant_get({variant}, '$', 'DOUBLE')"
    rounded = f"CAST(try_variant_get({variant}, '$', 'DECIMAL({precision},{scale})') AS DOUBLE)"
    # A name for the text: its expression at each place would make every plan longer.
    text = f"array(try_variant_get({variant}, '$', 'STRING'))"
    is_exact = (
        f"CASE WHEN schema_of_variant({variant}) = 'DOUBLE' "
        f"THEN NOT {may_be_lossy} AND {rounded} = {number} "
        f"ELSE exists({text}, text -> {is_plain_decimal('text', scale)}) END"
    )
    return (
        f"coalesce({variant} IS NOT NULL AND NOT is_variant_null({variant}) "
        f"AND NOT coalesce({is_exact}, false), false)"
    )
