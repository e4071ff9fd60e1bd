"""Judge a suite: the arithmetic of Great Expectations on the metrics of one pass."""

import math
import operator
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias, cast

from frazil.errors import ConservationError
from frazil.messages import count_noun
from frazil.quality.event_rows import split_by_rows
from frazil.quality.expectations import Expectation
from frazil.quality.great_expectations import run_great_expectations
from frazil.quality.rules import (
    ROWS,
    CompiledSuite,
    CountRule,
    ExpectationResult,
    ExtremeRule,
    FixedRule,
    RowsRule,
    Rule,
    ShareRule,
    SumRule,
    describe_count,
    describe_expected,
    describe_hidden,
    describe_unchecked,
)
from frazil.quality.sql import EXACT_INTEGER, Operator
from frazil.quality.value_tests import list_bounds

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.quality.great_expectations import Frame


MetricValue: TypeAlias = int | float | str | None
_ROUNDING = 2.0**-53
"""Largest relative error of one rounding of a 64-bit float."""
_EXACT_TERMS = 2
"""The sum of two doubles is rounded once, whatever their order."""
_HOLDS: Mapping[Operator, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ReadRows: TypeAlias = "Callable[[tuple[Expectation, ...]], Frame]"


def list_undecided(
    compiled: CompiledSuite, results: tuple[ExpectationResult, ...]
) -> tuple[Expectation, ...]:
    """Return the expectations that rounding could decide: Great Expectations judges them."""
    undecided = {result.index for result in results if result.undecided}
    rules = (rule.expectation for rule in compiled.one_pass)
    return tuple(expectation for expectation in rules if expectation.index in undecided)


def judge(
    compiled: CompiledSuite, metric_values: Mapping[str, MetricValue], row_count: int
) -> tuple[ExpectationResult, ...]:
    """Judge the expectations of one pass; `row_count` is the number of good rows.

    Raises:
        ConservationError: rows were staged, but a metric of this suite was not counted.
    """
    missing = [metric.name for metric in compiled.metrics if metric.name not in metric_values]
    if missing and row_count > 0:
        raise ConservationError(
            f"{count_noun(row_count, 'row')} staged without the suite's metrics: "
            f"{', '.join(missing)}",
            "nothing is visible; run the batch again, so that it is staged with the current suite",
        )
    values = _Values(metric_values, row_count)
    unchecked = {
        index for index, name in compiled.checked.items() if row_count and not values.count(name)
    }
    return tuple(
        describe_unchecked(rule.expectation)
        if rule.expectation.index in unchecked
        else _judge_rule(rule, values)
        for rule in compiled.one_pass
    )


class _Values:
    """Metric values by name; without rows Spark observes nothing, which counts as zero."""

    def __init__(self, metric_values: Mapping[str, MetricValue], row_count: int) -> None:
        self.metric_values = metric_values
        self.row_count = row_count

    def count(self, name: str) -> int:
        if name == ROWS:
            return self.row_count
        return int(self.metric_values.get(name) or 0)

    def number(self, name: str) -> float:
        return float(self.metric_values.get(name) or 0)


def _judge_rule(rule: Rule, values: _Values) -> ExpectationResult:
    match rule:
        case CountRule():
            return _judge_count(rule, values)
        case SumRule():
            return _judge_sum(rule, values)
    success, observed = _judge_figure(rule, values)
    return _result(rule.expectation, success=success, observed=observed)


def _judge_figure(
    rule: ExtremeRule | RowsRule | ShareRule | FixedRule, values: _Values
) -> tuple[bool, str]:
    match rule:
        case ExtremeRule():
            what = "largest" if "_max_" in rule.expectation.type else "smallest"
            observed = describe_hidden(what, values.count(rule.count))
            return values.count(rule.complies) == 1, observed
        case RowsRule():
            rows = values.count(rule.rows)
            return _is_expected_count(rule.expectation, rows), count_noun(rows, "row")
        case ShareRule():
            rows = values.count(rule.rows)
            share = (rows - values.count(rule.missing)) / rows if rows else 0.0
            return _is_between(rule.expectation, share), f"{share:.4f}"
        case FixedRule():
            return rule.success, rule.observed


def _judge_count(rule: CountRule, values: _Values) -> ExpectationResult:
    considered, unexpected = values.count(rule.considered), values.count(rule.unexpected)
    # Exactly the arithmetic of Great Expectations, so that no ratio rounds to the other side.
    ratio = (float(considered) - float(unexpected)) / float(considered) if considered else 1.0
    return ExpectationResult(
        index=rule.expectation.index,
        type=rule.expectation.type,
        column=", ".join(rule.expectation.domain) or None,
        success=considered == 0 or ratio >= rule.expectation.mostly,
        observed=describe_count(unexpected, considered),
        expected=describe_expected(rule.expectation),
        severity=rule.expectation.severity,
        unexpected_count=unexpected,
        unexpected_percent=unexpected / considered * 100 if considered else None,
        undecided=rule.doubtful is not None and values.count(rule.doubtful) > 0,
    )


def _judge_sum(rule: SumRule, values: _Values) -> ExpectationResult:
    count, value = values.count(rule.count), values.number(rule.total)
    magnitude = values.number(rule.magnitude)
    margin = _bound_rounding(rule, count, magnitude)
    what = "mean" if "_mean_" in rule.expectation.type else "sum"
    if what == "mean":
        if count == 0:
            return _result(rule.expectation, success=False, observed="no values")
        value, margin = value / count, margin / count
        margin += 2 * _ROUNDING * abs(value) if margin else 0.0
    near = any(abs(value - bound) <= margin for bound in _list_numbers(rule.expectation))
    return _result(
        rule.expectation,
        success=_is_between(rule.expectation, value),
        observed=f"{value:.15g}" if count > 1 else describe_hidden(what, count),
        undecided=not math.isfinite(magnitude) or (margin > 0 and near),
    )


def _bound_rounding(rule: SumRule, count: int, magnitude: float) -> float:
    """Return a bound of the difference between two sums of the same values in different orders.

    The error of adding n values in any order is below (n - 1) · 2⁻⁵³ · Σ|x| (Higham, Accuracy and
    Stability of Numerical Algorithms, 4.2), for Spark and for pandas. Converting decimals and long
    integers to doubles adds one rounding per value, in Python workers two. A sum of integers below
    2⁵³ is exact; one of 2⁵³ may have been rounded down to it.
    """
    if rule.exact == "integers" and magnitude < EXACT_INTEGER:
        return 0.0
    if rule.exact == "doubles" and count <= _EXACT_TERMS:
        return 0.0
    return (2 * count + 4) * _ROUNDING * magnitude


def _list_numbers(expectation: Expectation) -> list[float]:
    return [bound for _, bound in list_bounds(expectation) if isinstance(bound, int | float)]


def _is_between(expectation: Expectation, value: float) -> bool:
    return all(
        isinstance(bound, int | float) and _HOLDS[sign](value, bound)
        for sign, bound in list_bounds(expectation)
    )


def _is_expected_count(expectation: Expectation, rows: int) -> bool:
    wanted = expectation.kwargs.get("value")
    return rows == wanted if wanted is not None else _is_between(expectation, rows)


def _result(
    expectation: Expectation, *, success: bool, observed: str, undecided: bool = False
) -> ExpectationResult:
    return ExpectationResult(
        index=expectation.index,
        type=expectation.type,
        column=", ".join(expectation.domain) or None,
        success=success,
        observed=observed,
        expected=describe_expected(expectation),
        severity=expectation.severity,
        undecided=undecided,
    )


def judge_suite(
    compiled: CompiledSuite,
    metric_values: Mapping[str, MetricValue],
    row_count: int,
    read_rows: ReadRows,
) -> tuple[ExpectationResult, ...]:
    """Judge every expectation, in the suite's order.

    `read_rows` returns the rows with at least the columns of the given expectations, and those of
    `EventColumns` if the suite has events; it is called at most once, and not at all if one pass
    answered all of them.
    """
    results = judge(compiled, metric_values, row_count)
    undecided = list_undecided(compiled, results)
    unanswered = (*compiled.rest, *undecided)
    if not unanswered:
        return results
    answered = _answer(compiled, unanswered, read_rows(unanswered))
    kept = [result for result in results if not result.undecided]
    return tuple(sorted((*kept, *answered), key=lambda result: result.index))


def _answer(
    compiled: CompiledSuite, unanswered: tuple[Expectation, ...], rows: "Frame"
) -> list[ExpectationResult]:
    """Return the results of Great Expectations; of change events each one checks its own rows."""
    if not compiled.has_events:
        return [*run_great_expectations(unanswered, rows)]
    answered: list[ExpectationResult] = []
    for group, checked in split_by_rows(unanswered, cast("pa.Table", rows)):
        if len(checked) or not len(rows):
            answered += run_great_expectations(group, checked)
        else:
            answered += map(describe_unchecked, group)
    return answered
