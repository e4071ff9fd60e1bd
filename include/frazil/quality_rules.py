"""Compile a suite: what one pass over the rows can count, and what it cannot.

Each one-pass expectation becomes a rule: names of metrics, and how to judge their values. A rule
exists only where its verdict is that of Great Expectations on the same rows (docs/quality.md);
`tests/spark/test_quality_parity.py` compares both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, cast

from frazil.expectation_catalogue import list_items
from frazil.expectations import Bound, Expectation, Json, Suite
from frazil.java_regex import to_java_regex
from frazil.quality_sql import (
    EXACT_INTEGER,
    Operator,
    SqlColumn,
    compare,
    compare_columns,
    compare_value,
    find_among,
    read_sql_column,
    write_text,
)
from frazil.row_conditions import parse_row_condition, write_condition

ROWS = ""
"""Stands for the count of all good rows, which the stage knows anyway."""

_DEFAULT_REGEX = "(?s).*"
_MAX_SUM = 10**37


@dataclass(frozen=True)
class Metric:
    """One aggregate expression of Spark SQL, to be computed under this name."""

    name: str
    sql: str


@dataclass(frozen=True)
class CountRule:
    """Of `considered` values so many are `unexpected`; in doubt if `doubtful` counts any."""

    expectation: Expectation
    considered: str
    unexpected: str
    doubtful: str | None = None


@dataclass(frozen=True)
class ExtremeRule:
    """A smallest or largest value; `complies` is 1 or 0."""

    expectation: Expectation
    complies: str
    observed: str
    unit: Literal["text", "micros"]


@dataclass(frozen=True)
class SumRule:
    """A sum, or a mean, of `count` values; `magnitude` is the sum of absolute values."""

    expectation: Expectation
    count: str
    total: str
    magnitude: str
    exact: Literal["integers", "doubles", "no"]


@dataclass(frozen=True)
class RowsRule:
    """A count of rows."""

    expectation: Expectation
    rows: str


@dataclass(frozen=True)
class ShareRule:
    """The share of values that are there."""

    expectation: Expectation
    missing: str
    rows: str


@dataclass(frozen=True)
class FixedRule:
    """A verdict on the columns alone, which no row changes."""

    expectation: Expectation
    success: bool
    observed: str


Rule: TypeAlias = CountRule | ExtremeRule | SumRule | RowsRule | ShareRule | FixedRule


@dataclass(frozen=True)
class CompiledSuite:
    """A suite split in two: `metrics` answer `one_pass`, Great Expectations answers `rest`."""

    metrics: tuple[Metric, ...]
    one_pass: tuple[Rule, ...]
    rest: tuple[Expectation, ...]


def compile_suite(suite: Suite, columns: Mapping[str, str], good: str = "TRUE") -> CompiledSuite:
    """Compile a suite for rows with these columns (name → type as in a stream file).

    `good` is a boolean SQL expression: rows for which it does not hold count nowhere. The same
    metric is computed once, however many expectations need it.
    """
    sql_columns = {name: read_sql_column(name, text) for name, text in columns.items()}
    collected: dict[str, str] = {}
    rules: list[Rule] = []
    rest: list[Expectation] = []
    for expectation in suite.expectations:
        scope = _enter_scope(expectation, sql_columns, good, collected)
        rule = _COMPILERS[expectation.type](expectation, scope) if scope and (
            expectation.type in _COMPILERS
        ) else None
        if rule is None:
            rest.append(_name_query_columns(expectation, tuple(columns)))
        else:
            rules.append(rule)
    metrics = tuple(Metric(name, sql) for sql, name in collected.items())
    return CompiledSuite(metrics, tuple(rules), tuple(rest))


@dataclass(frozen=True)
class _Scope:
    """Where an expectation looks: columns, and the condition under which a row counts."""

    columns: Mapping[str, SqlColumn]
    where: str
    conditional: bool
    collected: dict[str, str] = field(repr=False)

    def add(self, sql: str) -> str:
        return self.collected.setdefault(sql, f"quality_{len(self.collected)}")

    def count(self, *tests: str) -> str:
        return self.add(f"count_if({' AND '.join((self.where, *tests))})")

    def count_rows(self) -> str:
        return self.count() if self.conditional else ROWS

    def column(self, expectation: Expectation, name: str = "column") -> SqlColumn:
        return self.columns[expectation.text(name)]


def _enter_scope(
    expectation: Expectation,
    columns: Mapping[str, SqlColumn],
    good: str,
    collected: dict[str, str],
) -> _Scope | None:
    given = expectation.kwargs.get("row_condition")
    if given is None:
        return _Scope(columns, f"({good})", conditional=False, collected=collected)
    parser = expectation.kwargs.get("condition_parser")
    condition = parse_row_condition(given, parser if isinstance(parser, str) else None)
    sql = write_condition(condition, columns) if condition else None
    where = f"({good}) AND {sql}"
    return _Scope(columns, where, conditional=True, collected=collected) if sql else None


def _name_query_columns(expectation: Expectation, columns: tuple[str, ...]) -> Expectation:
    """Name the columns that a textual row condition may read: too many does no harm."""
    given = expectation.kwargs.get("row_condition")
    if isinstance(given, Mapping):
        given = given.get("pass_through_filter")
    named = tuple(name for name in columns if isinstance(given, str) and name in given)
    return replace(expectation, condition_columns=named)


def _compile_values(expectation: Expectation, scope: _Scope) -> Rule | None:
    column = scope.column(expectation)
    test = _TESTS[expectation.type](expectation, column)
    if test is None:
        return None
    present = f"NOT {column.is_null}"
    return CountRule(
        expectation, scope.count(present), scope.count(present, f"NOT ({test})")
    )


def _compile_nulls(expectation: Expectation, scope: _Scope) -> Rule:
    column = scope.column(expectation)
    wants_null = expectation.type == "expect_column_values_to_be_null"
    unexpected = f"NOT {column.is_null}" if wants_null else column.is_null
    return CountRule(expectation, scope.count_rows(), scope.count(unexpected))


def _compile_share(expectation: Expectation, scope: _Scope) -> Rule:
    missing = scope.count(scope.column(expectation).is_null)
    return ShareRule(expectation, missing, scope.count_rows())


def _compile_rows(expectation: Expectation, scope: _Scope) -> Rule:
    return RowsRule(expectation, scope.count_rows())


def _compile_extreme(expectation: Expectation, scope: _Scope) -> Rule | None:
    column = scope.column(expectation)
    function = "max" if "_max_" in expectation.type else "min"
    when = f"{scope.where} AND NOT {column.is_null}"
    extreme = f"{function}(CASE WHEN {when} THEN {column.value} END)"
    tests = [compare_value(column, extreme, sign, bound) for sign, bound in _bounds(expectation)]
    if None in tests:
        return None
    complies = f"CASE WHEN {' AND '.join(map(str, tests))} THEN 1 ELSE 0 END"
    if column.kind == "timestamptz":
        return ExtremeRule(
            expectation, scope.add(complies), scope.add(f"unix_micros({extreme})"), "micros"
        )
    observed = scope.add(f"CAST({extreme} AS STRING)")
    return ExtremeRule(expectation, scope.add(complies), observed, "text")


def _compile_sum(expectation: Expectation, scope: _Scope) -> Rule | None:
    column = scope.column(expectation)
    if not column.is_number:
        return None
    present = f"NOT {column.is_null}"
    value = f"CASE WHEN {scope.where} AND {present} THEN CAST({column.sql} AS DOUBLE) END"
    return SumRule(
        expectation,
        scope.count(present),
        scope.add(f"CAST(coalesce(sum({value}), 0D) AS STRING)"),
        scope.add(f"CAST(coalesce(sum(abs({value})), 0D) AS STRING)"),
        "integers" if column.is_integer else "no" if column.kind == "decimal" else "doubles",
    )


def _compile_pair(expectation: Expectation, scope: _Scope) -> Rule | None:
    left, right = (scope.column(expectation, name) for name in ("column_A", "column_B"))
    if expectation.type == "expect_column_pair_values_to_be_equal":
        test = compare_columns(left, "=", right)
    else:
        test = compare_columns(left, ">=" if expectation.flag("or_equal") else ">", right)
    if test is None:
        return None
    unmet = f"({left.is_null} OR {right.is_null} OR NOT ({test}))"
    ignored = _write_ignored(expectation, (left, right), "both_values_are_missing")
    return CountRule(expectation, scope.count(*ignored), scope.count(*ignored, unmet))


def _compile_equal_columns(expectation: Expectation, scope: _Scope) -> Rule | None:
    first, *others = (scope.columns[name] for name in expectation.texts("column_list"))
    tests = [(other, compare_columns(first, "=", other)) for other in others]
    if any(test is None for _, test in tests):
        return None
    met = [
        f"(({first.is_null} AND {other.is_null}) OR "
        f"(NOT {first.is_null} AND NOT {other.is_null} AND {test}))"
        for other, test in tests
    ]
    ignored = _write_ignored(expectation, (first, *others), "all_values_are_missing")
    unmet = f"NOT ({' AND '.join(met)})"
    return CountRule(expectation, scope.count(*ignored), scope.count(*ignored, unmet))


def _compile_row_sum(expectation: Expectation, scope: _Scope) -> Rule | None:
    columns = tuple(scope.columns[name] for name in expectation.texts("column_list"))
    if not all(column.is_integer for column in columns):
        return None
    wide = [f"CAST({column.sql} AS DECIMAL(38, 0))" for column in columns]
    total = cast("float", expectation.kwargs["sum_total"])
    reachable = total % 1 == 0 and abs(total) < _MAX_SUM
    met = f"coalesce({' + '.join(wide)} = {int(total)}BD, FALSE)" if reachable else "FALSE"
    ignored = _write_ignored(expectation, columns, "all_values_are_missing")
    magnitude = " + ".join(f"coalesce(abs({value}), 0BD)" for value in wide)
    return CountRule(
        expectation,
        scope.count(*ignored),
        scope.count(*ignored, f"NOT ({met})"),
        scope.count(*ignored, f"{magnitude} > {EXACT_INTEGER}BD"),
    )


def _write_ignored(
    expectation: Expectation, columns: tuple[SqlColumn, ...], default: str
) -> tuple[str, ...]:
    """Write the test that a row is not ignored, if rows can be."""
    rule = expectation.kwargs.get("ignore_row_if", default)
    if rule in ("neither", "never"):
        return ()
    word = " OR " if rule in ("either_value_is_missing", "any_value_is_missing") else " AND "
    return (f"NOT ({word.join(column.is_null for column in columns)})",)
