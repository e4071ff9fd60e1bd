"""SQL that compares column values with the constants of a suite, exactly as Python would.

Spark widens, rounds and raises where Python does not: a bigint compared with a double loses digits,
a text compared with a number fails the job. So each constant is written in the column's own type;
where that is not exact the result is None, and Great Expectations judges the expectation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from fractions import Fraction
from typing import Literal, TypeAlias

from frazil.quality.expectations import Bound, Json
from frazil.streams.column_types import Primitive, parse_column, quote_name, write_text

Operator: TypeAlias = Literal["<", "<=", ">", ">=", "=", "!="]

EXACT_INTEGER = 2**53
"""Largest integer that is exact as a 64-bit float, which pandas uses for integers with nulls."""

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_DECIMAL_MAX = 10**38 - 1
_MAX_PRECISION = 38
_INTEGER_DIGITS = {"int": 10, "long": 19}
_FLOATS = frozenset({"float", "double"})
_INTEGERS = frozenset({"int", "long"})
_SAME_KIND = frozenset({"date", "timestamp", "timestamptz", "string"})
_TRUE, _FALSE = "TRUE", "FALSE"
_SUM = "CAST(coalesce(sum("


@dataclass(frozen=True)
class SqlColumn:
    """A column of the rows: `kind` is its primitive type, or `nested`; `scale` of decimals.

    `path` is the SQL that reads it, where that is not its name.
    """

    name: str
    kind: str
    precision: int = 0
    scale: int = 0
    path: str = ""

    @property
    def sql(self) -> str:
        """Return the Spark SQL that reads the column."""
        return self.path or quote_name(self.name)

    @property
    def is_number(self) -> bool:
        """Return whether values are numbers."""
        return self.kind in _INTEGERS | _FLOATS or self.kind == "decimal"

    @property
    def is_integer(self) -> bool:
        """Return whether values are integers."""
        return self.kind in _INTEGERS

    @property
    def is_null(self) -> str:
        """Return the SQL that is true for a missing value; as in pandas, NaN is missing."""
        test = f"{self.sql} IS NULL"
        return f"({test} OR isnan({self.sql}))" if self.kind in _FLOATS else f"({test})"

    @property
    def value(self) -> str:
        """Return the SQL of the value for comparisons; floats become doubles, which is exact."""
        return f"CAST({self.sql} AS DOUBLE)" if self.kind == "float" else self.sql


def read_sql_column(name: str, type_text: str) -> SqlColumn:
    """Read a column's type as in a stream file or table; unknown types are `nested`."""
    try:
        parsed = parse_column("column", type_text).type
    except ValueError:
        return SqlColumn(name, "nested")
    match parsed:
        case Primitive("decimal", (precision, scale)):
            return SqlColumn(name, "decimal", precision, scale)
        case Primitive(kind, _):
            return SqlColumn(name, kind)
    return SqlColumn(name, "nested")


def write_count(*tests: str) -> str:
    """Write the count of rows that pass all tests.

    Not `count_if`, whose condition becomes an extra column, copied for every row.
    """
    return f"count(CASE WHEN {' AND '.join(tests)} THEN 1 END)"


def write_weighted_count(sql: str, weight: str) -> str:
    """Rewrite a count of `write_count` to count each row `weight` times; other SQL stays."""
    inner = sql.removeprefix("count(").removesuffix("1 END)")
    if inner == sql:
        return sql
    return f"coalesce(sum({inner}{weight} END), 0)"


def write_sum(where: str, column: str, *, is_absolute: bool) -> str:
    """Write the sum of doubles, or of their absolute values, of rows that pass a test."""
    value = f"CASE WHEN {where} THEN CAST({column} AS DOUBLE) END"
    return f"{_SUM}{f'abs({value})' if is_absolute else value}), 0D) AS STRING)"


def write_weighted_sum(sql: str, column: str, total: str, magnitude: str) -> str:
    """Rewrite a sum of `write_sum` to use the sums of a row's group, if given; other SQL stays."""
    value = f"CAST({column} AS DOUBLE)"
    before, found, after = sql.rpartition(f"THEN {value} END")
    if not found or not is_sum(sql):
        return sql
    carried = magnitude if sql.startswith(f"{_SUM}abs(") else total
    return f"{before}THEN coalesce({carried}, {value}) END{after}"


def is_sum(sql: str) -> bool:
    """Return whether `write_sum` wrote this SQL."""
    return sql.startswith(_SUM)


def write_double(value: float) -> str:
    """Write a finite double."""
    return f"{value!r}D"


def compare(column: SqlColumn, operator: Operator, bound: Bound | str) -> str | None:
    """Write the comparison of a value with a constant; None if their kinds differ."""
    return compare_value(column, column.value, operator, bound)


def compare_value(
    column: SqlColumn, value: str, operator: Operator, bound: Bound | str
) -> str | None:
    """Write the comparison of an expression of the column's type, such as its maximum."""
    match bound:
        case str():
            return f"{value} {operator} {write_text(bound)}" if column.kind == "string" else None
        case datetime():
            return _compare_instant(column, value, operator, bound)
        case date():
            is_date = column.kind == "date"
            return f"{value} {operator} DATE'{bound.isoformat()}'" if is_date else None
    if column.kind in _FLOATS:
        return f"{value} {operator} {write_double(float(bound))}"
    if column.is_number:
        return _compare_exact(column, value, operator, Fraction(bound))
    return None


def _compare_instant(
    column: SqlColumn, value: str, operator: Operator, bound: datetime
) -> str | None:
    if column.kind == "timestamp" and bound.tzinfo is None:
        return f"{value} {operator} TIMESTAMP_NTZ'{bound.isoformat(sep=' ')}'"
    if column.kind == "timestamptz" and bound.tzinfo is not None:
        in_utc = bound.astimezone(UTC).replace(tzinfo=None)
        return f"{value} {operator} TIMESTAMP'{in_utc.isoformat(sep=' ')}Z'"
    return None


def _compare_exact(column: SqlColumn, value: str, operator: Operator, bound: Fraction) -> str:
    """Compare integers and decimals with a float's exact value, rounded to the column's scale.

    A multiple of 10⁻ˢ is ≥ b iff it is ≥ b rounded up to such a multiple; likewise the others.
    """
    scaled = bound * 10**column.scale
    if operator in ("=", "!=") and scaled.denominator != 1:
        return _FALSE if operator == "=" else _TRUE
    number = math.ceil(scaled) if operator in (">=", "<") else math.floor(scaled)
    low, high = (_LONG_MIN, _LONG_MAX) if column.is_integer else (-_DECIMAL_MAX, _DECIMAL_MAX)
    if number > high:
        return _TRUE if operator in ("<", "<=", "!=") else _FALSE
    if number < low:
        return _TRUE if operator in (">", ">=", "!=") else _FALSE
    return f"{value} {operator} {_write_exact(column, number)}"


def _write_exact(column: SqlColumn, number: int) -> str:
    if not column.is_integer:
        digits = f"{abs(number):0{column.scale + 1}d}"
        split = len(digits) - column.scale
        return f"{'-' * (number < 0)}{digits[:split]}.{digits[split:]}BD"
    return f"({_LONG_MIN + 1}L - 1L)" if number == _LONG_MIN else f"{number}L"


def compare_columns(left: SqlColumn, operator: Operator, right: SqlColumn) -> str | None:
    """Write the comparison of two columns; None if Spark would round one of them."""
    kinds = {left.kind, right.kind}
    if len(kinds) == 1 and kinds <= _SAME_KIND:
        return f"{left.value} {operator} {right.value}"
    if kinds <= _INTEGERS or kinds <= _FLOATS:
        return f"{left.value} {operator} {right.value}"
    if kinds <= {"int", *_FLOATS}:
        return f"CAST({left.sql} AS DOUBLE) {operator} CAST({right.sql} AS DOUBLE)"
    if kinds <= {"decimal", *_INTEGERS} and _fit_one_decimal(left, right):
        return f"{left.value} {operator} {right.value}"
    return None


def _fit_one_decimal(left: SqlColumn, right: SqlColumn) -> bool:
    whole = [
        _INTEGER_DIGITS.get(column.kind, column.precision - column.scale)
        for column in (left, right)
    ]
    # Spark reads a bigint as decimal(20, 0).
    return max(*whole, 20) + max(left.scale, right.scale) <= _MAX_PRECISION


def find_among(column: SqlColumn, values: Sequence[Json]) -> str | None:
    """Write the test that a value is in the set, with the meaning of pandas' `isin`.

    Return None if the set mixes kinds, or has numbers that pandas itself would round.
    """
    members = [value for value in values if value is not None]
    literals = [_write_member(column, value) for value in members]
    if None in literals:
        return None
    written = [literal for literal in literals if literal]
    return f"{column.value} IN ({', '.join(written)})" if written else _FALSE


def _write_member(column: SqlColumn, value: Json) -> str | None:
    """Write one member; an empty text if no value of the column equals it."""
    if isinstance(value, bool):
        return str(value).upper() if column.kind == "boolean" else None
    if isinstance(value, str):
        return write_text(value) if column.kind == "string" else None
    if not isinstance(value, int | float) or abs(value) > EXACT_INTEGER:
        return None
    if column.kind in _FLOATS:
        return write_double(float(value))
    if column.is_integer:
        return f"{int(value)}L" if value % 1 == 0 else ""
    return None
