"""Cut points: the constants that separate rows which metrics may count differently.

Two rows are in the same group if each counted column is below, at or above the same cut points, and
its text matches the same patterns. Every metric counts all rows of a group the same, so that one
row with the group's size and sums is enough.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from math import ceil, floor
from typing import TypeAlias, cast

from frazil.quality.catalogue import list_items
from frazil.quality.compiler import compile_suite
from frazil.quality.expectations import Bound, Expectation, Json, Suite
from frazil.quality.messages import CutPoints, Point
from frazil.quality.regex import to_re2_regex
from frazil.quality.row_conditions import (
    ColumnComparison,
    Condition,
    Membership,
    list_leaves,
    parse_row_condition,
)
from frazil.quality.rules import CountRule, ExtremeRule, Rule, SumRule
from frazil.quality.sql import SqlColumn, read_sql_column
from frazil.quality.value_tests import PATTERN_TYPES, list_bounds, list_patterns

Constant: TypeAlias = "Bound | Json"

_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FLOATS = frozenset({"float", "double"})
_RANGES = frozenset(
    {"expect_column_values_to_be_between", "expect_column_max_to_be_between"}
    | {"expect_column_min_to_be_between"}
)
_SETS = frozenset({"expect_column_values_to_be_in_set", "expect_column_values_to_not_be_in_set"})
_NULLS = frozenset({"expect_column_values_to_be_null", "expect_column_values_to_not_be_null"})
_LENGTHS = frozenset(
    {"expect_column_value_lengths_to_be_between", "expect_column_value_lengths_to_equal"}
)
_INSTANTS = frozenset({"timestamp", "timestamptz"})
_ORDERED = frozenset({"int", "long", "decimal", "date"}) | _FLOATS | _INSTANTS


def find_cut_points(suite: Suite | None, columns: Mapping[str, str]) -> CutPoints | None:
    """Find the cut points of the metrics of one pass, or return None if they do not suffice.

    They do not for comparisons of two columns, and for patterns that RE2 cannot or should not run.
    """
    if suite is None:
        return CutPoints()
    sql_columns = {name: read_sql_column(name, text) for name, text in columns.items()}
    rules = compile_suite(suite, columns).one_pass
    if not all(_is_decided_by_cut_points(rule, sql_columns) for rule in rules):
        return None
    values: dict[str, set[Point]] = defaultdict(set)
    lengths: dict[str, set[int]] = defaultdict(set)
    patterns: dict[str, dict[str, None]] = defaultdict(dict)
    for rule in rules:
        expectation = rule.expectation
        for name, constant in _list_constants(expectation):
            values[name] |= {*cut_points_of(sql_columns[name], constant)}
        if expectation.type in _LENGTHS:
            lengths[expectation.text("column")] |= {*_list_lengths(expectation)}
        if expectation.type in PATTERN_TYPES:
            found = map(to_re2_regex, list_patterns(expectation))
            patterns[expectation.text("column")] |= {
                each: None for each in found if each is not None
            }
    return CutPoints(
        values={name: _sort(points) for name, points in values.items() if points},
        lengths={name: tuple(sorted(points)) for name, points in lengths.items()},
        patterns={name: tuple(each) for name, each in patterns.items()},
        extremes=_list_columns(rules, ExtremeRule),
        sums=_list_columns(rules, SumRule),
    )


def _list_columns(rules: tuple[Rule, ...], kind: type[Rule]) -> tuple[str, ...]:
    found = (rule.expectation.text("column") for rule in rules if isinstance(rule, kind))
    return tuple(dict.fromkeys(found))


def _is_decided_by_cut_points(rule: Rule, columns: Mapping[str, SqlColumn]) -> bool:
    """Return whether cut points and patterns decide how a row is counted."""
    expectation = rule.expectation
    # Texts have no order here: they are equal to a cut point or not.
    if any(
        isinstance(c.value, str) and c.operator not in ("=", "!=")
        for c in list_leaves(_read_condition(expectation))
        if isinstance(c, ColumnComparison)
    ):
        return False
    match rule:
        case ExtremeRule():
            is_ordered = columns[expectation.text("column")].kind in _ORDERED
            return is_ordered and "row_condition" not in expectation.kwargs
        case CountRule() if expectation.type in PATTERN_TYPES:
            return None not in map(to_re2_regex, list_patterns(expectation))
        case CountRule():
            return expectation.type in _RANGES | _SETS | _NULLS | _LENGTHS
    return True


def _list_constants(expectation: Expectation) -> Iterator[tuple[str, Constant]]:
    """Yield each column with a constant that it is compared with, also in row conditions."""
    if expectation.type in _RANGES:
        yield from ((expectation.text("column"), bound) for _, bound in list_bounds(expectation))
    if expectation.type in _SETS:
        members = list_items(expectation.kwargs["value_set"]) or ()
        yield from ((expectation.text("column"), member) for member in members)
    for leaf in list_leaves(_read_condition(expectation)):
        match leaf:
            case ColumnComparison(column, _, value):
                yield column, value
            case Membership(column, values, _):
                yield from ((column, value) for value in values)


def _read_condition(expectation: Expectation) -> Condition | None:
    given = expectation.kwargs.get("row_condition")
    return None if given is None else parse_row_condition(given)


def _list_lengths(expectation: Expectation) -> Iterator[int]:
    for name in ("min_value", "max_value", "value"):
        bound = cast("float | None", expectation.kwargs.get(name))
        if bound is not None:
            yield from (floor(bound), ceil(bound))


def cut_points_of(column: SqlColumn, constant: Constant) -> tuple[Point, ...]:
    """Return a constant as the column's type holds it, or both neighbours if it lies between two.

    Dates are days and instants microseconds since 1970, decimals unscaled integers. A constant that
    separates no values of the column gives none.
    """
    match constant:
        case bool() | None:
            return ()
        case str() if column.kind == "string":
            return (constant,)
        case datetime() if column.kind in _INSTANTS:
            since = constant.replace(tzinfo=constant.tzinfo or UTC) - _EPOCH
            return (since // timedelta(microseconds=1),)
        case date() if column.kind == "date":
            return ((constant - _EPOCH.date()).days,)
        case int() | float() if column.is_number:
            return _locate_number(column, constant)
    return ()


def _locate_number(column: SqlColumn, constant: float) -> tuple[Point, ...]:
    if column.kind in _FLOATS:
        return (float(constant),)
    scaled = Fraction(constant) * 10**column.scale
    points = {floor(scaled), ceil(scaled)}
    return tuple(p for p in points if _LONG_MIN <= p <= _LONG_MAX)


def _sort(points: set[Point]) -> tuple[Point, ...]:
    return tuple(sorted(points, key=lambda point: (isinstance(point, str), point)))
