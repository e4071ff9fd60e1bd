"""The keys of an erasure: parse them as typed values, and select their rows.

Errors never repeat a value, since logs must not hold what is to be erased.
"""

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysFalse, AlwaysTrue, And, BooleanExpression, In, Or
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
from frazil.iceberg.data_files import flag_in, flag_whole, read_column, to_arrow
from frazil.iceberg.live_files import Flags
from frazil.iceberg.manifests import can_skip_files
from frazil.iceberg.row_changes import RowsToDelete
from frazil.ledger import keys
from frazil.maintenance.messages import ErasureRequest
from frazil.messages import count_noun, name_field
from frazil.schemas.merge import find_earlier_columns
from frazil.schemas.text_grammar import FORMS
from frazil.streams.models import Stream

RAW_KEY = f"{keys.KAFKA_COLUMN}.key"
"""Column with a record's raw key, in the table and in its dead letters."""

KeyValue: TypeAlias = "Literal[Any]"
"""A PyIceberg literal of any Python type."""

_SHOWN_COLUMNS = 20
KEY_TYPES = (
    *(BinaryType, BooleanType, DateType, DecimalType, IntegerType, LongType, StringType),
    *(TimestampType, TimestamptzType, UUIDType),
)
_NUMBERS = (DecimalType, IntegerType, LongType)
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
_UTF8 = "[^\ud800-\udfff]*"
"""Excludes the surrogates to which Python decodes command-line bytes that are not UTF-8."""
LEFT_SIDE = "what stands before the = of a key, or in the first line of a CSV file of keys,"
_FILE_FORM = (
    "give a text file with one COLUMN=VALUE per line; or a CSV file with the names of the key's "
    "columns in its first line, as tenant,id, and the values of one key in each further line"
)
_EMPTY = [""]
"""A line of two quotes, as CSV has it: the only way to write an empty value that is alone."""
_EXAMPLE = "write COLUMN=VALUE, as customer_id=4711; _kafka.key=VALUE is the record's raw key"


@dataclass(frozen=True)
class ErasedKeys:
    """Values by column; `raw` are raw record keys, by which dead letters are found."""

    by_column: Mapping[str, tuple[str, ...]] = field(repr=False)
    raw: frozenset[bytes] = field(repr=False)
    in_all: bool = False
    """Whether a row must have a value in each of the columns, as those of a key, or in any."""
    whole: tuple[Mapping[str, str], ...] = field(default=(), repr=False)
    """Further keys of several columns: a row has all values of one. Each has the same columns."""

    def restrict(self, columns: Collection[str]) -> "ErasedKeys":
        """Return the keys with their values in these columns only."""
        by_column = {c: values for c, values in self.by_column.items() if c in columns}
        whole = [{c: value for c, value in key.items() if c in columns} for key in self.whole]
        return replace(self, by_column=by_column, whole=tuple(filter(None, whole)))


def load_keys(stream: Stream, request: ErasureRequest) -> ErasedKeys:
    """Read the keys of a request, including those in its file.

    Raises:
        ConfigurationError: no key, one that is not COLUMN=VALUE, or a file that cannot be read.
    """
    lines, whole = _read_file(request.keys_file)
    texts = [*request.keys, *lines]
    by_column: dict[str, list[str]] = {}
    for number, text in enumerate(texts, start=1):
        column, sign, value = text.partition("=")
        if not (column and sign):  # the table's types say whether a value may be empty
            raise ConfigurationError(f"key {number} of {len(texts)} is not COLUMN=VALUE", _EXAMPLE)
        if re.fullmatch(_UTF8, value) is None:
            raise ConfigurationError(
                f"key {number} of {len(texts)} is not UTF-8, and only such keys can be given",
                "set the encoding of the shell to UTF-8; keys of other bytes can be erased by "
                "another column of their rows",
            )
        by_column.setdefault(column, []).append(value)
    if not by_column and not whole:
        raise ConfigurationError(f"erase of stream {stream.stream} needs a key", _EXAMPLE)
    is_raw = {RAW_KEY} | ({stream.key.column} if stream.key.convert in {"string", "raw"} else set())
    raw = [value for column in is_raw & by_column.keys() for value in by_column[column]]
    if raw:  # also finds rows from before the key had its own column
        by_column[RAW_KEY] = raw
    # An empty raw key alone would find the dead letters of all other columns' values.
    raw += [key[column] for key in whole for column in is_raw & key.keys() if key[column]]
    return ErasedKeys(
        {c: tuple(values) for c, values in by_column.items()},
        frozenset(v.encode() for v in raw),
        whole=whole,
    )


def _read_file(path: str | None) -> tuple[list[str], tuple[Mapping[str, str], ...]]:
    """Return the keys of a file that are COLUMN=VALUE, and those of several columns.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    if path is None:
        return [], ()
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except (OSError, ValueError) as error:  # also a name with a character of code 0
        raise ConfigurationError(
            f"the key file cannot be read: {type(error).__name__}", _FILE_FORM
        ) from error
    # Only line feeds end a line: a value may contain what `splitlines` takes for others.
    lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
    if not lines or "=" in lines[0]:
        return lines, ()
    whole = _read_table(text)
    if len(whole[0]) > 1:
        return [], whole
    return [f"{column}={value}" for key in whole for column, value in key.items()], ()


def _read_table(text: str) -> tuple[Mapping[str, str], ...]:
    """Read keys whose columns the first line names.

    Raises:
        ConfigurationError: a key has another number of values, or the columns cannot be a key.
    """
    try:
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        rows = [row for row in lines if len(row) > 1 or row == _EMPTY or "".join(row).strip()]
    except csv.Error:  # not chained: the error may quote a value
        raise ConfigurationError("the key file is not valid CSV", _FILE_FORM) from None
    names, *found = rows or [_EMPTY]
    problem = ""
    if not found:
        problem = "has one line and no `=` in it, so no key"
    elif len({*names}) < len(names) or not all(names):
        problem = "names a column twice in its first line, or one without a name"
    elif any(name != name.strip() for name in names):
        problem = "has blanks beside a name in its first line; they would be part of the values too"
    elif RAW_KEY in names and len(names) > 1:
        problem = (
            f"names {RAW_KEY} beside other columns: give raw keys by {name_field('keys', 'key')}"
        )
    for number, row in enumerate(found, start=1):
        if fault := _describe_misfit(row, len(names)):
            problem = problem or (
                f"names {count_noun(len(names), 'column')} in its first line, and its key "
                f"{number} of {len(found)} has {fault}"
            )
    if problem:
        raise ConfigurationError(f"the key file {problem}", _FILE_FORM)
    return tuple(dict(zip(names, row, strict=True)) for row in found)


def _describe_misfit(row: Sequence[str], columns: int) -> str:
    """Return what a line has instead of one key; empty if it has one."""
    if not any(row):  # as a program exports a missing value, or a spreadsheet a blank line
        return f"only empty values: give such a key by {name_field('keys', 'key')}"
    return "" if len(row) == columns else count_noun(len(row), "value")


def select_rows_by_key(
    table: Table, erased: ErasedKeys, only: Collection[str] | None = None
) -> RowsToDelete:
    """Select the rows that have one of the keys, in its columns or those that were set aside.

    `only` are the columns that can be read, where these are not all.

    Raises:
        ConfigurationError: unknown column, unsupported column type, or a value of another type.
    """
    parts = [
        _select(table, wanted, join, find)
        for wanted, join, find in _list_searches(table, erased, only)
        if wanted and all(wanted.values())
    ]

    def flag(rows: pa.Table) -> Flags:
        none = np.zeros(len(rows), dtype=np.bool_)
        flags: Flags = np.logical_or.reduce([none, *(part.flag(rows) for part in parts)])
        return flags

    columns = tuple(dict.fromkeys(column for part in parts for column in part.columns))
    return RowsToDelete(_join(Or, parts), columns, flag, even_hidden=True)


Values: TypeAlias = "list[tuple[IcebergType, KeyValue]]"
Version: TypeAlias = "tuple[str, list[tuple[IcebergType, KeyValue] | None]]"
"""A column with values of a key, or of an earlier type of it, and each key as one of them."""

Sets: TypeAlias = "Mapping[str, pa.Array]"
"""Column → values that are wanted."""

Find: TypeAlias = "Callable[[Sets, pa.Table], Flags]"


def _list_searches(
    table: Table, erased: ErasedKeys, only: Collection[str] | None
) -> Iterator[tuple[Mapping[str, Values], type[And] | type[Or], Find]]:
    """Yield searches: values by column, how their conditions join, and a function that flags rows.

    After a change of type, each key column of a row may be in the column or in an earlier one of
    it, so there is one search for each combination.
    """
    given = [read_versions(table, c, texts, only) for c, texts in erased.by_column.items()]
    typed = [[(name, list(filter(None, found))) for name, found in each] for each in given]
    if erased.in_all and typed:
        for chosen in product(*typed):
            yield dict(chosen), And, partial(_flag_values, np.logical_and)
    elif typed:
        joined: dict[str, Values] = {}
        for name, values in (pair for each in typed for pair in each if pair[1]):
            joined[name] = [*joined.get(name, ()), *values]
        yield joined, Or, partial(_flag_values, np.logical_or)
    if erased.whole:
        columns = {column: [key[column] for key in erased.whole] for column in erased.whole[0]}
        given = [read_versions(table, c, texts, only) for c, texts in columns.items()]
        for versions in product(*given):
            keys_read = [
                tuple(filter(None, key)) for key in zip(*(v for _, v in versions), strict=True)
            ]
            whole = [key for key in keys_read if len(key) == len(versions)]
            yield (
                {n: [key[i] for key in whole] for i, (n, _) in enumerate(versions)},
                And,
                flag_whole,
            )


def _select(
    table: Table, found: Mapping[str, Values], join: type[And] | type[Or], find: Find
) -> RowsToDelete:
    """Select rows by the values of some columns."""
    conditions: list[BooleanExpression] = [
        In(term=column, literals={value for _, value in values})
        if can_skip_files(table, column, [value.value for _, value in values])
        else AlwaysTrue()
        for column, values in found.items()
    ]
    sets = {
        column: to_arrow([value for _, value in values], values[0][0])
        for column, values in found.items()
    }
    condition = conditions[0] if len(conditions) == 1 else join(*conditions)
    return RowsToDelete(condition, tuple(found), partial(find, sets))


def _join(join: type[And] | type[Or], parts: Iterable[RowsToDelete]) -> BooleanExpression:
    conditions = [part.condition for part in parts if isinstance(part.condition, BooleanExpression)]
    if len(conditions) > 1:
        return join(*conditions)
    return conditions[0] if conditions else AlwaysFalse()


def _flag_values(combine: np.ufunc, sets: Sets, rows: pa.Table) -> Flags:
    found = [flag_in(read_column(rows, column), values) for column, values in sets.items()]
    flags: Flags = combine.reduce(found)
    return flags


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

    columns = tuple(dict.fromkeys(column for part in parts for column in part.columns))
    return RowsToDelete(_join(And, parts), columns, flag)


def read_versions(
    table: Table, column: str, texts: Sequence[str], only: Collection[str] | None = None
) -> list[Version]:
    """Read texts as values of a column and of its earlier columns; None for no value of a type.

    A column comes twice where its type has two texts for a value.

    Raises:
        ConfigurationError: as `select_rows_by_key`.
    """
    schema = table.schema()
    own = _read_values(schema, column, texts)
    found: list[Version] = [(column, [*own])]
    for name in find_earlier_columns(table.schemas(), schema, column).proven:
        kind = _find_key_type(schema, name)
        given = list(zip(own, texts, strict=True))
        found.append((name, [_read_earlier(kind, *value, text) for value, text in given]))
        if isinstance(kind, StringType):  # records may have written a uuid in capitals
            found.append((name, [(kind, _read_value(kind, "", text)) for text in texts]))
    return [each for each in found if only is None or each[0] in only]


def _read_earlier(
    kind: IcebergType | None, now: IcebergType, value: KeyValue, text: str
) -> tuple[IcebergType, KeyValue] | None:
    """Read a key as a value of an earlier column; None if it has another text in that type."""
    if kind is None:
        return None
    if isinstance(now, _NUMBERS):
        text = _write_number(value.value, kind)
    elif isinstance(now, UUIDType):
        text = text.lower()
    try:
        found = _read_value(kind, "", text)
    except ConfigurationError:
        return None
    is_other = isinstance(kind, _NUMBERS) and _write_number(found.value, kind) != text
    return None if is_other and not isinstance(now, _NUMBERS) else (kind, found)


def _write_number(number: int | Decimal, kind: IcebergType) -> str:
    """Write a number as a type shows it, in whole numbers without a fraction; 0 has no sign."""
    is_whole = isinstance(kind, IntegerType | LongType) and number == int(number)
    exact = Decimal(int(number) if is_whole else number)
    return f"{exact or exact.copy_abs():f}"


def _read_values(
    schema: Schema, column: str, values: Iterable[str]
) -> list[tuple[IcebergType, KeyValue]]:
    kind = _find_key_type(schema, column)
    if kind is None:
        # This may be the value itself, if no column has this name.
        known = column if column in schema.column_names else LEFT_SIDE
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
    form = _FORMS.get(type(kind), _UTF8)
    if not text and type(kind) in _FORMS:
        raise ConfigurationError(
            f"the value for {column} is empty, which is not a valid {kind}",
            "give the value; only a text may be empty",
        )
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
