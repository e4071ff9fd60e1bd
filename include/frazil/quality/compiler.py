"""Compile a suite into counters of one pass over the rows, and the expectations left over."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from frazil.quality.event_rows import write_checked_rows
from frazil.quality.expectations import Expectation, Suite
from frazil.quality.row_conditions import parse_row_condition, write_condition
from frazil.quality.rules import (
    CompiledSuite,
    CountRule,
    ExtremeRule,
    FixedRule,
    Metric,
    RowScope,
    RowsRule,
    Rule,
    ShareRule,
    SumRule,
)
from frazil.quality.sql import (
    EXACT_INTEGER,
    SqlColumn,
    compare_columns,
    compare_value,
    read_sql_column,
    write_sum,
)
from frazil.quality.value_tests import VALUE_TESTS, list_bounds, write_doubt

_MAX_SUM = 10**37


def compile_suite(
    suite: Suite,
    columns: Mapping[str, str],
    good: str = "TRUE",
    paths: Mapping[str, str] | None = None,
    *,
    has_events: bool = False,
) -> CompiledSuite:
    """Compile a suite for rows with these columns (name → type as in a stream file).

    `good` is a boolean SQL expression; other rows are not counted. `paths` has the SQL that reads a
    column where that is not its name. A metric that several expectations need is computed once.
    With `has_events` the rows are change events, of which some are not checked (`event_rows`).
    """
    sql_columns = {
        name: replace(read_sql_column(name, text), path=(paths or {}).get(name, ""))
        for name, text in columns.items()
    }
    collected: dict[str, str] = {}
    counts: dict[int, str] = {}
    rules: list[Rule] = []
    rest: list[Expectation] = []
    for expectation in suite.expectations:
        compiler = _COMPILERS.get(expectation.type)
        checked = write_checked_rows(expectation, sql_columns) if has_events else ""
        if checked:
            where = f"({good}) AND {checked}"
            rows = RowScope(sql_columns, where, conditional=True, collected=collected)
            counts[expectation.index] = rows.count_rows()
        scope = _enter_scope(expectation, sql_columns, (good, checked), collected)
        rule = compiler(expectation, scope) if compiler and scope else None
        if rule is None:
            rest.append(expectation)
        else:
            rules.append(rule)
    metrics = tuple(Metric(name, sql) for sql, name in collected.items())
    return CompiledSuite(metrics, tuple(rules), tuple(rest), has_events, counts)


def _enter_scope(
    expectation: Expectation,
    columns: Mapping[str, SqlColumn],
    tests: tuple[str, str],
    collected: dict[str, str],
) -> RowScope | None:
    good, checked = tests
    where = f"({good}) AND {checked}" if checked else f"({good})"
    given = expectation.kwargs.get("row_condition")
    if given is None:
        return RowScope(columns, where, conditional=bool(checked), collected=collected)
    sql = write_condition(parse_row_condition(given), columns)
    where = f"{where} AND {sql}"
    return RowScope(columns, where, conditional=True, collected=collected) if sql else None


def _compile_values(expectation: Expectation, scope: RowScope) -> Rule | None:
    column = scope.column(expectation)
    test = VALUE_TESTS[expectation.type](expectation, column)
    if test is None:
        return None
    present = f"NOT {column.is_null}"
    doubt = write_doubt(expectation, column)
    return CountRule(
        expectation,
        scope.count(present),
        scope.count(present, f"NOT ({test})"),
        None if doubt is None else scope.count(present, doubt),
    )


def _compile_nulls(expectation: Expectation, scope: RowScope) -> Rule:
    column = scope.column(expectation)
    wants_null = expectation.type == "expect_column_values_to_be_null"
    unexpected = f"NOT {column.is_null}" if wants_null else column.is_null
    return CountRule(expectation, scope.count_rows(), scope.count(unexpected))


def _compile_share(expectation: Expectation, scope: RowScope) -> Rule:
    missing = scope.count(scope.column(expectation).is_null)
    return ShareRule(expectation, missing, scope.count_rows())


def _compile_rows(expectation: Expectation, scope: RowScope) -> Rule:
    return RowsRule(expectation, scope.count_rows())


def _compile_extreme(expectation: Expectation, scope: RowScope) -> Rule | None:
    column = scope.column(expectation)
    function = "max" if "_max_" in expectation.type else "min"
    when = f"{scope.where} AND NOT {column.is_null}"
    extreme = f"{function}(CASE WHEN {when} THEN {column.value} END)"
    tests = [
        compare_value(column, extreme, sign, bound) for sign, bound in list_bounds(expectation)
    ]
    if None in tests:
        return None
    met = " AND ".join((f"{extreme} IS NOT NULL", *map(str, tests)))
    count = scope.count(f"NOT {column.is_null}")
    return ExtremeRule(expectation, count, scope.add(f"CASE WHEN {met} THEN 1 ELSE 0 END"))


def _compile_sum(expectation: Expectation, scope: RowScope) -> Rule | None:
    column = scope.column(expectation)
    if not column.is_number:
        return None
    present = f"NOT {column.is_null}"
    where = f"{scope.where} AND {present}"
    return SumRule(
        expectation,
        scope.count(present),
        scope.add(write_sum(where, column.sql, is_absolute=False)),
        scope.add(write_sum(where, column.sql, is_absolute=True)),
        "integers" if column.is_integer else "no" if column.kind == "decimal" else "doubles",
    )


def _compile_pair(expectation: Expectation, scope: RowScope) -> Rule | None:
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


def _compile_equal_columns(expectation: Expectation, scope: RowScope) -> Rule | None:
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


def _compile_row_sum(expectation: Expectation, scope: RowScope) -> Rule | None:
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
    """Write the test that a row is not ignored; none if no row is."""
    rule = expectation.kwargs.get("ignore_row_if", default)
    if rule in ("neither", "never"):
        return ()
    word = " OR " if rule in ("either_value_is_missing", "any_value_is_missing") else " AND "
    return (f"NOT ({word.join(column.is_null for column in columns)})",)


def _compile_exists(expectation: Expectation, scope: RowScope) -> Rule:
    names = list(scope.columns)
    index = expectation.kwargs.get("column_index")
    # Great Expectations treats index 0 as "not given".
    if isinstance(index, int | float) and index:
        inside = -len(names) <= index < len(names)
        success = inside and names[int(index)] == expectation.text("column")
    else:
        success = expectation.text("column") in names
    return FixedRule(expectation, success, ", ".join(names))


def _compile_columns(expectation: Expectation, scope: RowScope) -> Rule:
    names = list(scope.columns)
    wanted = [*expectation.texts("column_set")] if "column_set" in expectation.kwargs else []
    exact = expectation.kwargs.get("exact_match", True)
    success = set(names) == set(wanted) if exact else set(wanted) <= set(names)
    return FixedRule(expectation, success, ", ".join(names))


def _compile_column_order(expectation: Expectation, scope: RowScope) -> Rule:
    names = tuple(scope.columns)
    given = "column_list" in expectation.kwargs
    success = not given or expectation.texts("column_list") == names
    return FixedRule(expectation, success, ", ".join(names))


def _compile_column_count(expectation: Expectation, scope: RowScope) -> Rule:
    count = len(scope.columns)
    value = expectation.kwargs.get("value", count)
    low = expectation.kwargs.get("min_value", count)
    high = expectation.kwargs.get("max_value", count)
    success = value == count and cast("float", low) <= count <= cast("float", high)
    return FixedRule(expectation, success, str(count))


_COMPILERS: Mapping[str, Callable[[Expectation, RowScope], Rule | None]] = {
    **dict.fromkeys(VALUE_TESTS, _compile_values),
    "expect_column_max_to_be_between": _compile_extreme,
    "expect_column_mean_to_be_between": _compile_sum,
    "expect_column_min_to_be_between": _compile_extreme,
    "expect_column_pair_values_a_to_be_greater_than_b": _compile_pair,
    "expect_column_pair_values_to_be_equal": _compile_pair,
    "expect_column_proportion_of_non_null_values_to_be_between": _compile_share,
    "expect_column_sum_to_be_between": _compile_sum,
    "expect_column_to_exist": _compile_exists,
    "expect_column_values_to_be_null": _compile_nulls,
    "expect_column_values_to_not_be_null": _compile_nulls,
    "expect_multicolumn_sum_to_equal": _compile_row_sum,
    "expect_multicolumn_values_to_be_equal": _compile_equal_columns,
    "expect_table_column_count_to_be_between": _compile_column_count,
    "expect_table_column_count_to_equal": _compile_column_count,
    "expect_table_columns_to_match_ordered_list": _compile_column_order,
    "expect_table_columns_to_match_set": _compile_columns,
    "expect_table_row_count_to_be_between": _compile_rows,
    "expect_table_row_count_to_equal": _compile_rows,
}

ONE_PASS_TYPES = frozenset(_COMPILERS)
"""Types that one pass can answer, depending on their arguments and columns."""
