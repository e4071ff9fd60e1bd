"""The keys of an erasure: parse them as typed values, and select their rows.

Errors never repeat a value, since logs must not hold what is to be erased.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, In, Or
from pyiceberg.expressions.literals import (
    AboveMax,
    BelowMin,
    BooleanLiteral,
    Literal,
    TimestampLiteral,
    literal,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyiceberg.utils.datetime import datetime_to_micros

from frazil.errors import ConfigurationError
from frazil.iceberg.data_files import read_column
from frazil.iceberg.live_files import Flags
from frazil.iceberg.manifests import can_skip_files
from frazil.iceberg.row_changes import RowsToDelete
from frazil.ledger import keys
from frazil.maintenance.messages import ErasureRequest
from frazil.schemas.text_grammar import FORMS
from frazil.streams.models import Stream

RAW_KEY = f"{keys.KAFKA_COLUMN}.key"
"""Column with a record's raw key, in the table and in its dead letters."""

KeyValue: TypeAlias = "Literal[Any]"
"""A PyIceberg literal of any Python type."""

MIN_CHECKED_CHARACTERS = 4
"""Shorter key values may occur in a name or reason by chance, so they are not checked."""

_SHOWN_COLUMNS = 20
KEY_TYPES = (
    *(BinaryType, BooleanType, DateType, DecimalType, IntegerType, LongType, StringType),
    *(TimestampType, TimestamptzType, UUIDType),
)
_FORMS: Mapping[type[IcebergType], str] = {
    IntegerType: r"[+-]?[0-9]+",
    LongType: r"[+-]?[0-9]+",
    DecimalType: r"[+-]?[0-9]+([.][0-9]+)?([eE][+-]?0*[0-9]{1,2})?",
    DateType: r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    BooleanType: "true|false",
    TimestampType: FORMS["timestamp"],
    TimestamptzType: FORMS["timestamptz"],
    UUIDType: "-".join(f"[0-9A-Fa-f]{{{n}}}" for n in (8, 4, 4, 4, 12)),
}
"""How values are written, times as in records.

PyIceberg would also take `4711.9` for 4711, and erase another key.
"""

_WRITTEN: Mapping[type[IcebergType], str] = {
    BooleanType: "true or false",
    TimestampType: "a date, T and a time, as 2026-01-31T23:59:59.123456",
    TimestamptzType: "a date, T, a time and its zone, as 2026-01-31T23:59:59.123456Z",
}
"""How to write a value that a table shows in other ways."""

_MOST_OFFSET = timedelta(hours=18)
_NUMBER = re.compile(r"[+-]?[0-9]+(?:[.][0-9]+)?(?:[eE][+-]?[0-9]{1,4})?", re.ASCII)

_TIME = re.compile(
    r"(?<![0-9])[0-9]{4}-?[0-9]{2}-?[0-9]{2}(?:[T ][0-9]{2}:?[0-9]{2}(?::?[0-9]{2}(?:[.][0-9]+)?)?"
    r"(?: ?(?:Z|[+-][0-9]{2}(?::?[0-9]{2})?))?)?(?![0-9])",
    re.ASCII,
)
_BETWEEN = r"[,.'\u2019/() \u00a0\u202f-]"
_GROUPED = re.compile(rf"[+(-]?[0-9](?:[0-9]|{_BETWEEN})*", re.ASCII)
"""Digits as people group them: 1,234,567 and +49 170 1234567."""
_MIN_GROUPED_DIGITS = 7
"""Fewer may be a month or a day."""
_UUID = re.compile(f"(?=({'-?'.join(f'[0-9A-Fa-f]{{{n}}}' for n in (8, 4, 4, 4, 12))}))")
"""Also where digits stand before it."""

_NO_UTF8 = frozenset(map(chr, range(0xD800, 0xE000)))
"""How Python reads bytes of a command line that are not UTF-8."""
_EXAMPLE = "write COLUMN=VALUE, as customer_id=4711; _kafka.key=VALUE is the record's raw key"


@dataclass(frozen=True)
class ErasedKeys:
    """Values by column; `raw` are raw record keys, by which dead letters are found."""

    by_column: Mapping[str, tuple[str, ...]] = field(repr=False)
    raw: frozenset[bytes] = field(repr=False)
    in_all: bool = False
    """Whether a row must have a value in each of the columns, as those of a key, or in any."""


def load_keys(stream: Stream, request: ErasureRequest) -> ErasedKeys:
    """Read the keys of a request, including those in its file.

    Raises:
        ConfigurationError: no key, one that is not COLUMN=VALUE, or a file that cannot be read.
    """
    texts = [*request.keys, *_read_lines(request.keys_file)]
    by_column: dict[str, list[str]] = {}
    for number, text in enumerate(texts, start=1):
        column, sign, value = text.partition("=")
        if not (column and sign and value):
            raise ConfigurationError(f"key {number} of {len(texts)} is not COLUMN=VALUE", _EXAMPLE)
        if not value.isascii() and any(character in _NO_UTF8 for character in value):
            raise ConfigurationError(
                f"key {number} of {len(texts)} is not UTF-8, and only such keys can be given",
                "set the encoding of the shell to UTF-8; keys of other bytes can be erased by "
                "another column of their rows",
            )
        by_column.setdefault(column, []).append(value)
    if not by_column:
        raise ConfigurationError(f"erase of stream {stream.stream} needs a key", _EXAMPLE)
    is_raw = {RAW_KEY} | ({stream.key.column} if stream.key.convert in {"string", "raw"} else set())
    raw = [value for column in is_raw & by_column.keys() for value in by_column[column]]
    if raw:  # also finds rows from before the key had its own column
        by_column[RAW_KEY] = raw
    return ErasedKeys(
        {c: tuple(values) for c, values in by_column.items()}, frozenset(v.encode() for v in raw)
    )


def validate_no_key_in_text(request: ErasureRequest, erased: ErasedKeys) -> None:
    """Refuse a name or reason that contains a key: both stay in the table's history.

    Raises:
        ConfigurationError: a key value occurs in the name or the reason.
    """
    text = f"{request.by} {request.reason}"
    values = [value for values in erased.by_column.values() for value in values]
    checked = {value for value in values if len(value) >= MIN_CHECKED_CHARACTERS}
    plain = _fold_text(text)
    same = {each for value in checked for word, each in _read_meanings(value) if word == value}
    written = {each for _, each in _read_meanings(text)}
    if (
        any(value in text or _has_word(plain, _fold_text(value)) for value in checked)
        or same & written
        or any(_has_digits(text, value) for value in checked if _GROUPED.fullmatch(value))
    ):
        raise ConfigurationError(
            f"erase of stream {request.stream}: --by or --reason contains a key, and both are kept "
            "in the table",
            "name the request by its number instead",
        )


def _fold_text(text: str) -> str:
    """Return a text without the difference of upper and lower case, and of Unicode's forms."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def _has_digits(text: str, key: str) -> bool:
    """Return whether a text contains the digits of a key, grouped in any way."""
    digits = [*filter(str.isdigit, key)]
    pattern = f"(?<![0-9]){f'{_BETWEEN}{{0,3}}'.join(digits)}(?![0-9])"
    return len(digits) >= _MIN_GROUPED_DIGITS and re.search(pattern, text) is not None


def _has_word(text: str, word: str) -> bool:
    """Return whether a text contains a word that no letters or digits continue."""
    start = text.find(word)
    while start >= 0:
        around = text[max(start - 1, 0) : start] + text[start + len(word) :][:1]
        if not any(map(str.isalnum, around)):
            return True
        start = text.find(word, start + 1)
    return False


def _read_meanings(text: str) -> Iterator[tuple[str, Decimal | datetime | UUID]]:
    """Yield the numbers, times and uuids in a text: each is the same key however it is written.

    1234.5 is 1234.50, and 12:00Z is 14:00+02:00. A time without a zone is read as UTC.
    """
    for number in _NUMBER.findall(text):
        if len(number) >= MIN_CHECKED_CHARACTERS:
            yield number, Decimal(number)
    for time in _TIME.findall(text):
        with suppress(ValueError, OverflowError):  # no such time, or beyond the years 1 to 9999
            found = datetime.fromisoformat(time.replace(" ", "T", 1).replace(" ", ""))
            yield time, found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    for uuid in _UUID.findall(text):
        yield uuid, UUID(uuid)


def _read_lines(path: str | None) -> list[str]:
    if path is None:
        return []
    try:
        # Only line feeds end a line: a value may contain what `splitlines` takes for others.
        lines = Path(path).read_bytes().decode("utf-8-sig").split("\n")
        return [line.removesuffix("\r") for line in lines if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the key file cannot be read: {type(error).__name__}",
            "give a text file with one COLUMN=VALUE per line",
        ) from error


def select_rows_by_key(table: Table, erased: ErasedKeys) -> RowsToDelete:
    """Select the rows of a table that have one of the values in any, or each, of the columns.

    Raises:
        ConfigurationError: unknown column, unsupported column type, or a value of another type.
    """
    schema = table.schema()
    found = {c: _read_values(schema, c, values) for c, values in erased.by_column.items()}
    conditions: list[BooleanExpression] = [
        In(term=column, literals={value for _, value in values})
        if can_skip_files(table, column, [value.value for _, value in values])
        else AlwaysTrue()
        for column, values in found.items()
    ]
    sets = {
        column: _to_arrow([value for _, value in values], values[0][0])
        for column, values in found.items()
    }

    combine = np.logical_and if erased.in_all else np.logical_or

    def flag(rows: pa.Table) -> Flags:
        found = [_is_in(read_column(rows, column), values) for column, values in sets.items()]
        flags: Flags = combine.reduce(found)
        return flags

    join = And if erased.in_all else Or
    condition = conditions[0] if len(conditions) == 1 else join(*conditions)
    return RowsToDelete(condition, tuple(found), flag, even_hidden=True)


def select_key(table: Table, values: Mapping[str, str]) -> RowsToDelete:
    """Select the visible rows that have all of these values.

    Raises:
        ConfigurationError: as `select_rows_by_key`.
    """
    parts = [
        select_rows_by_key(table, ErasedKeys({column: (value,)}, frozenset()))
        for column, value in values.items()
    ]

    def flag(rows: pa.Table) -> Flags:
        flags: Flags = np.logical_and.reduce([part.flag(rows) for part in parts])
        return flags

    conditions = [part.condition for part in parts if isinstance(part.condition, BooleanExpression)]
    condition = And(*conditions) if len(conditions) > 1 else conditions[0]
    return RowsToDelete(condition, tuple(values), flag)


def _read_values(
    schema: Schema, column: str, values: Iterable[str]
) -> list[tuple[IcebergType, KeyValue]]:
    kind = _find_key_type(schema, column)
    if kind is None:
        # What stands before the = may be the value itself, if no column has this name.
        known = column if column in schema.column_names else "what stands before the = of a key"
        raise ConfigurationError(
            f"{known} is not a column of the table that can hold a key", _suggest_columns(schema)
        )
    return [(kind, _read_value(kind, column, value)) for value in values]


def _suggest_columns(schema: Schema) -> str:
    names = [name for name in schema.column_names if _find_key_type(schema, name)]
    more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    types = ", ".join(sorted(kind.__name__.removesuffix("Type").lower() for kind in KEY_TYPES))
    return (
        f"choose one of these columns, in upper and lower case as here: "
        f"{', '.join(names[:_SHOWN_COLUMNS])}{more}; a key has one of the types {types}"
    )


def _find_key_type(schema: Schema, column: str) -> IcebergType | None:
    """Return the type of a column that can hold a key; None for any other name."""
    with suppress(ValueError):  # unknown column, or a field inside a list or map
        found = schema.find_field(column)
        schema.accessor_for_field(found.field_id)
        if isinstance(found.field_type, KEY_TYPES):
            return found.field_type
    return None


def _read_value(kind: IcebergType, column: str, text: str) -> KeyValue:
    form = _FORMS.get(type(kind), ".*")
    try:
        is_written_so = re.fullmatch(form, text, re.DOTALL) is not None
        value = _to_literal(kind, text).to(kind) if is_written_so else None
    except (ValueError, TypeError, ArithmeticError):
        value = None
    if value is None or isinstance(value, AboveMax | BelowMin):
        # Not chained: the library's error contains the value.
        raise ConfigurationError(
            f"a value for {column} is not a valid {kind}",
            f"write it as {_WRITTEN.get(type(kind), 'the table shows it')}",
        ) from None
    return value


def _to_literal(kind: IcebergType, text: str) -> KeyValue:
    """Return a literal that PyIceberg can convert to the type.

    Raises:
        ArithmeticError: a decimal with more digits before or after its point than the type.
    """
    match kind:
        case BinaryType():
            return literal(text.encode())
        case BooleanType():
            return BooleanLiteral(text == "true")
        case TimestampType() | TimestamptzType():
            return TimestampLiteral(_to_micros(text))
        case DecimalType(precision=precision, scale=scale):
            # PyIceberg takes a decimal only with exactly its type's digits after the point.
            exact = Context(prec=precision, traps=[Inexact, InvalidOperation])
            return literal(exact.quantize(Decimal(text), Decimal(1).scaleb(-scale)))
    return literal(text)


def _to_micros(text: str) -> int:
    """Return a timestamp as microseconds since 1970.

    Raises:
        ValueError: no such instant.
    """
    found = datetime.fromisoformat(re.sub(r"([.][0-9]{6})0+", r"\1", text))
    if abs(found.utcoffset() or timedelta()) > _MOST_OFFSET:
        raise ValueError
    return datetime_to_micros(found.astimezone(UTC) if found.tzinfo else found)


def _to_arrow(values: list[KeyValue], kind: IcebergType) -> pa.Array:
    plain = [value.value for value in values]
    match kind:
        case DateType():
            return pa.array(plain, pa.int32()).cast(pa.date32())
        case TimestampType():
            return pa.array(plain, pa.timestamp("us"))
        case TimestamptzType():
            return pa.array(plain, pa.timestamp("us", "UTC"))
        case DecimalType():
            return pa.array(plain, pa.decimal128(kind.precision, kind.scale))
        case UUIDType():
            return pa.array(plain, pa.binary(16))
        case _:
            return pa.array(plain)


def _is_in(column: pa.ChunkedArray, values: pa.Array) -> Flags:
    if isinstance(column.type, pa.UuidType):
        column = column.cast(pa.binary(16))
    flags: Flags = pc.is_in(column, value_set=values.cast(column.type)).to_numpy()
    return flags
