"""How a column of PostgreSQL is compared with a column of a state table: both become texts.

Equal values have equal texts: numbers without zeros at their end, days and microseconds since 1970,
bytes as hexadecimal digits, JSON with its fields in order. A row is compared by a digest of its
texts, so that no values are kept.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, time, timedelta
from decimal import Decimal, InvalidOperation
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import IncompatibleTableError
from frazil.messages import name_field
from frazil.streams.column_types import Column, ColumnType, ListType, Primitive, format_type

Text: TypeAlias = "str | list[str | None] | None"
"""A value as text; of an array, the texts of its elements."""
Read: TypeAlias = Callable[[str], str]

DIGEST_BYTES = 16
_MAX_DIGITS = 150_000
"""PostgreSQL has 131,072 digits before the point of a `numeric`, and 16,383 behind it."""
_EPOCH_DAY = date(1970, 1, 1).toordinal()

_CLOCK_TEXT = re.compile(r"([01]\d|2[0-4]):([0-5]\d)(?::([0-5]\d)(?:[.](\d{1,6})0*)?)?Z?", re.ASCII)
"""A time of day as PostgreSQL has it: to the microsecond."""
_NUMBER_TEXT = re.compile(r"[+-]?(?:\d+[.]?\d*|[.]\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_DAY = r"([+-]?\d{4,7})-(\d\d)-(\d\d)"
_DAY_TEXT = re.compile(rf"{_DAY}Z?", re.ASCII)
"""A day, in UTC too: `IsoDate` of a message without a schema."""
_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d){0,2})?"
_TIME_TEXT = re.compile(rf"{_DAY}[T ](\d\d:\d\d(?::\d\d(?:[.]\d{{1,6}}0*)?)?{_ZONE})", re.ASCII)
_CYCLE_DAYS = 146_097
"""The days of 400 years, after which the calendar repeats."""

_PLAIN = "{c}::text"
_OUTPUT = "CASE WHEN {c} IS NOT NULL THEN concat({c}) END"
"""Unlike a cast to text it keeps the blanks of `char(n)` and adds no mask to an `inet`."""
_NUMBER = "trim_scale({c})::text"
_DAYS = "CASE WHEN isfinite({c}) THEN ({c} - DATE '1970-01-01')::text ELSE {c}::text END"
_CLOCK = "trim_scale(EXTRACT(EPOCH FROM {c}) * 1000000)::text"
_MICROS = f"CASE WHEN isfinite({{c}}) THEN {_CLOCK} ELSE {{c}}::text END"
_HEX = "encode({c}, 'hex')"
_BASE64 = "translate(encode({c}, 'base64'), chr(10), '')"
"""On one line, as change events have it."""
_UUID = "replace({c}::text, '-', '')"
_ARRAY = (
    "CASE WHEN {{c}} IS NULL THEN NULL WHEN array_ndims({{c}}) > 1 THEN ARRAY['dimensions'] ELSE "
    "ARRAY(SELECT {element} FROM unnest({{c}}) WITH ORDINALITY AS u(e, n) ORDER BY n) END"
)


@dataclass(frozen=True)
class SourceColumn:
    """A column in PostgreSQL's catalog; `type` is that of a domain's base or an array's elements.

    `shown` is the type as PostgreSQL prints it.
    """

    name: str
    type: str
    shown: str
    is_enum: bool = False
    is_array: bool = False


@dataclass(frozen=True)
class Pairing:
    """A column of the state table and the column of the source that it is compared with.

    `sql` is an expression for the text of `{c}`; `of_source` and `of_state` finish the texts of
    either side.
    """

    column: Column
    source: SourceColumn
    sql: str
    of_source: Read | None = None
    of_state: Read | None = None

    @property
    def name(self) -> str:
        """Return the column's name in the state table."""
        return self.column.name

    @property
    def lookup_type(self) -> str:
        """Return the type as which a key is looked up by an index; empty if by its text."""
        return self.source.type if self.source.type in _INDEXED and not self.of_source else ""


@dataclass(frozen=True)
class Pairings:
    """The columns that are compared, those of the key first, and why others are not."""

    keys: tuple[Pairing, ...]
    values: tuple[Pairing, ...]
    skipped: Mapping[str, str]

    @property
    def all(self) -> tuple[Pairing, ...]:
        """Return the columns of the key, then the others."""
        return (*self.keys, *self.values)


_INDEXED = frozenset({"bool", "int2", "int4", "int8", "numeric", "text", "uuid", "varchar"})


def pair_columns(
    columns: Iterable[Column],
    ids: Sequence[str],
    state: Iterable[str],
    source: Iterable[SourceColumn],
) -> Pairings:
    """Pair the columns of a stream file with those of the source table.

    `ids` are the columns of the key, `state` those that the state table has. A column of the source
    that the stream file does not read is skipped too.

    Raises:
        IncompatibleTableError: a column of the key cannot be compared.
    """
    by_name, have = {each.name: each for each in source}, frozenset(state)
    found: dict[str, Pairing] = {}
    skipped: dict[str, str] = {}
    columns = tuple(columns)
    for column in columns:
        if column.name not in have:
            skipped[column.name] = "the state table has no such column yet"
        elif column.field not in by_name:
            skipped[column.name] = f"the source table has no column {column.field}"
        elif pairing := _pair(column, by_name[column.field]):
            found[column.name] = pairing
        else:
            kind, shown = format_type(column.type), by_name[column.field].shown
            skipped[column.name] = f"{kind} of the table, {shown} of the source"
    for name in ids:
        if name not in found:
            raise IncompatibleTableError(
                f"column {name} of the key cannot be compared: {skipped.get(name, 'unknown')}",
                f"set {name_field('table')} to SCHEMA.NAME, or correct value.columns in the stream "
                "file",
            )
    skipped |= _list_unread(columns, by_name)
    values = tuple(pairing for name, pairing in found.items() if name not in ids)
    return Pairings(tuple(found[name] for name in ids), values, skipped)


def _list_unread(columns: Sequence[Column], by_name: Mapping[str, SourceColumn]) -> dict[str, str]:
    """List the columns that only the source has, with the reason why they are not compared."""
    own = {column.name for column in columns}  # a column of this name may read another field
    return {
        f"{field} of the source" if field in own else field: (
            f"only the source table has it: {by_name[field].shown}"
        )
        for field in sorted(by_name.keys() - {column.field for column in columns})
    }


def _pair(column: Column, source: SourceColumn) -> Pairing | None:
    """Return how two columns are compared; None if their types cannot be."""
    inner: ColumnType = column.type
    if source.is_array != isinstance(inner, ListType):
        return None
    if isinstance(inner, ListType):
        inner = inner.element
    kind = "enum" if source.is_enum else source.type
    rule = _RULES.get(inner.name, {}).get(kind) if isinstance(inner, Primitive) else None
    if rule is None:
        return None
    sql, of_source, of_state = rule
    if source.is_array:
        sql = _ARRAY.format(element=sql.format(c="e"))
    return Pairing(column, source, sql, of_source, of_state)


def _read_float(text: str) -> str:
    return repr(float(text) + 0.0)  # a zero has no sign, in PostgreSQL's comparison


def _read_single(text: str) -> str:
    return repr(float(np.float32(text)) + 0.0)


def _read_number(text: str) -> str:
    """Return a decimal number without zeros at its end."""
    if not _NUMBER_TEXT.fullmatch(text):
        return text  # as `NaN`, and `1_000`, which is a number for Python
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    if number == 0:
        return "0"
    return write_decimal(number) if abs(number.adjusted()) < _MAX_DIGITS else text


def write_decimal(number: Decimal) -> str:
    """Return the digits of a number, without zeros behind the point."""
    text = f"{number:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def _read_json(text: str) -> str:
    """Return JSON with its fields in order and its numbers with all their digits."""
    try:
        return repr(_JSON.decode(text))
    except (ValueError, RecursionError):
        return text


def _sort_fields(fields: list[tuple[str, object]]) -> dict[str, object]:
    return dict(sorted(dict(fields).items()))  # of a repeated field the last one counts


def _split_number(text: str) -> tuple[str, int]:
    """Return the digits of a number, without zeros at either end, and the power of ten behind."""
    base, _, power = text.lower().partition("e")
    whole, _, part = base.partition(".")
    digits = (whole + part).lstrip("-0")
    kept = digits.rstrip("0")
    if not kept:
        return "0", 0
    sign = "-" if whole.startswith("-") else ""
    return sign + kept, int(power or "0") - len(part) + len(digits) - len(kept)


_JSON = json.JSONDecoder(
    parse_float=_split_number, parse_int=_split_number, object_pairs_hook=_sort_fields
)
"""Numbers become tuples, which nothing else of JSON is."""


def _read_days(text: str) -> str:
    """Return the days since 1970 of a date."""
    found = _DAY_TEXT.fullmatch(text)
    try:
        return text if found is None else str(_count_days(found))
    except ValueError:
        return text


def _count_days(found: re.Match[str]) -> int:
    """Return the days since 1970, of any year; Python knows the years 1 to 9999."""
    cycles, year = divmod(int(found[1]), 400)
    day = date(year + 400, int(found[2]), int(found[3])).toordinal() - _EPOCH_DAY
    return day + (cycles - 1) * _CYCLE_DAYS


def _read_micros(text: str) -> str:
    """Return the microseconds since 1970 of a time, which may have a zone."""
    found = _TIME_TEXT.fullmatch(text)
    try:
        if found is None:
            return text
        at, days = time.fromisoformat(found[4]), _count_days(found)
    except ValueError:
        return text
    ahead = at.utcoffset() or timedelta(0)
    seconds = (at.hour * 60 + at.minute) * 60 + at.second - int(ahead.total_seconds())
    return str((days * 86_400 + seconds) * 1_000_000 + at.microsecond)


def _read_clock(text: str) -> str:
    """Return the microseconds of a time, which may be 24:00:00."""
    found = _CLOCK_TEXT.fullmatch(text)
    if found is None:
        return text
    hours, minutes, seconds, fraction = found.groups(default="0")
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return str(whole * 1_000_000 + int(fraction.ljust(6, "0")))


_Rule: TypeAlias = "tuple[str, Read | None, Read | None]"
_SAME: _Rule = (_PLAIN, None, None)
_WHOLE = ("int2", "int4", "int8")
_OF_INTEGER: dict[str, _Rule] = {
    **dict.fromkeys(_WHOLE, _SAME),
    "date": (_DAYS, None, None),
    "time": (_CLOCK, None, None),
}
_NUMBERS = ("float4", "float8", "numeric", *_WHOLE)
_OF_STRING: dict[str, _Rule] = {
    **dict.fromkeys(
        (
            *("text", "varchar", "bpchar", "citext", "name", "enum", "xml", "ltree"),
            *("inet", "cidr", "macaddr", "macaddr8"),
        ),
        (_OUTPUT, None, None),
    ),
    **dict.fromkeys(("uuid", "bool", *_WHOLE), _SAME),
    **dict.fromkeys(("json", "jsonb"), (_PLAIN, _read_json, _read_json)),
    "bytea": (_BASE64, None, None),
    "numeric": (_NUMBER, None, _read_number),
    "date": (_DAYS, None, _read_days),
    "timestamp": (_MICROS, None, _read_micros),
    "timestamptz": (_MICROS, None, _read_micros),
    "time": (_CLOCK, None, _read_clock),
}
_BYTES: dict[str, _Rule] = {"bytea": (_HEX, None, None)}
_RULES: dict[str, dict[str, _Rule]] = {
    "boolean": {"bool": _SAME},
    "int": _OF_INTEGER,
    "long": _OF_INTEGER,
    "float": dict.fromkeys(_NUMBERS, (_PLAIN, _read_single, _read_single)),
    "double": dict.fromkeys(_NUMBERS, (_PLAIN, _read_float, _read_float)),
    "decimal": dict.fromkeys(("numeric", *_WHOLE), (_NUMBER, None, None)),
    "date": {"date": (_DAYS, None, None)},
    "timestamp": {"timestamp": (_MICROS, None, None)},
    "timestamptz": {"timestamptz": (_MICROS, None, None)},
    "uuid": {"uuid": (_UUID, None, None)},
    "binary": _BYTES,
    "fixed": _BYTES,
    "string": _OF_STRING,
}
"""Column type → PostgreSQL's type → its SQL, and what finishes the texts of source and state."""


def read_source(pairing: Pairing, texts: Iterable[Text]) -> list[Text]:
    """Finish the texts that PostgreSQL sent for a column."""
    return _finish(pairing.of_source, texts)


def read_state(pairing: Pairing, values: pa.Array) -> list[Text]:
    """Return a column of the state table as texts."""
    return _finish(pairing.of_state, _to_texts(values))


def _finish(read: Read | None, texts: Iterable[Text]) -> list[Text]:
    if read is None:
        return list(texts)
    return [_finish_one(read, text) for text in texts]


def _finish_one(read: Read, text: Text) -> Text:
    if isinstance(text, list):
        return [None if each is None else read(each) for each in text]
    return None if text is None else read(text)


def _to_texts(values: pa.Array) -> Sequence[Text]:
    if isinstance(values, pa.ExtensionArray):
        values = values.storage  # of a uuid
    kind = values.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _split(values)
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    if pa.types.is_decimal(kind):
        return [None if each is None else write_decimal(each) for each in values.to_pylist()]
    if pa.types.is_floating(kind):
        return [None if each is None else repr(each) for each in values.to_pylist()]
    if _is_bytes(kind):
        return [None if each is None else each.hex() for each in values.to_pylist()]
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    texts: list[Text] = (values if is_text else values.cast(pa.string())).to_pylist()
    return texts


def _is_bytes(kind: pa.DataType) -> bool:
    tests = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(test(kind) for test in tests)


def _split(values: pa.Array) -> list[Text]:
    """Return the texts of the elements of each list."""
    elements = [each for each in _to_texts(pc.list_flatten(values)) if not isinstance(each, list)]
    found: list[Text] = []
    start = 0
    for length in pc.list_value_length(values).to_pylist():
        found.append(None if length is None else elements[start : start + length])
        start += length or 0
    return found


def digest(texts: Sequence[Text], size: int = DIGEST_BYTES) -> bytes:
    """Return a digest of texts; it is no secret, but says nothing about them."""
    return blake2b(repr(texts).encode(), digest_size=size).digest()


def may_be_in_source(pairings: Sequence[Pairing], texts: Sequence[Text]) -> bool:
    """Return whether PostgreSQL may have a key: its types refuse some texts that a state may hold.

    One such key would end the query for all of them.
    """
    return all(_may_hold(*each) for each in zip(pairings, texts, strict=True))


def _may_hold(pairing: Pairing, text: Text) -> bool:
    if not isinstance(text, str):
        return True
    form = _LOOKED_UP.get(pairing.lookup_type, _NO_NUL)
    bits = _WHOLE_BITS.get(pairing.lookup_type)
    return form.fullmatch(text) is not None and (
        bits is None or -(1 << bits) <= int(text) < 1 << bits
    )


_WHOLE_BITS = {"int2": 15, "int4": 31, "int8": 63}
_NO_NUL = re.compile(r"[^\0]*")
_LOOKED_UP: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(_WHOLE_BITS, re.compile(r"-?[0-9]{1,19}")),
    "bool": re.compile("true|false"),
    "numeric": re.compile(r"-?[0-9]{1,131072}(?:[.][0-9]{1,16383})?|NaN|-?Infinity"),
    "uuid": re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
}
"""How PostgreSQL prints the keys of each type."""


def show_key(pairings: Sequence[Pairing], texts: Sequence[Text]) -> dict[str, str]:
    """Return a key as a person writes it: name of the column → value."""
    return {p.name: _show(p, str(text)) for p, text in zip(pairings, texts, strict=True)}


def _show(pairing: Pairing, text: str) -> str:
    kind, number = pairing.source.type, re.fullmatch(r"-?[0-9]{1,18}", text)
    if kind == "uuid" and len(text) == 32:  # noqa: PLR2004 - digits of a uuid
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
    if kind == "date" and number:
        return str(np.datetime64(int(text), "D"))
    if kind in {"timestamp", "timestamptz"} and number:
        return str(np.datetime64(int(text), "us")) + ("Z" if kind == "timestamptz" else "")
    return text
