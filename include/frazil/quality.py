"""The quality check as pure decisions: load, compile, judge.

    suite = load_suite(path)                    # plan: typed errors, no Great Expectations
    check_suite_fits(suite, columns)
    compiled = compile_suite(suite, columns, good="…")
    …observe(…, *[expr(m.sql).alias(m.name) for m in compiled.metrics])     # stage: one pass
    judge_suite(compiled, metrics, rows, read_rows)                         # check

`read_rows` is called only if something is left that one pass cannot answer.
"""

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, TypeAlias

from frazil.errors import ConservationError
from frazil.expectations import Expectation, Suite, parse_bound
from frazil.gx_validation import run_great_expectations
from frazil.quality_compiler import compile_suite
from frazil.quality_results import ExpectationResult, describe_count, describe_expected
from frazil.quality_rules import (
    ROWS,
    CompiledSuite,
    CountRule,
    ExtremeRule,
    FixedRule,
    Metric,
    RowsRule,
    Rule,
    ShareRule,
    SumRule,
)
from frazil.quality_sql import EXACT_INTEGER
from frazil.suite_fit import check_suite_fits
from frazil.suites import load_suite

if TYPE_CHECKING:
    from frazil.gx_validation import Frame

__all__ = [
    "CompiledSuite",
    "Expectation",
    "ExpectationResult",
    "Metric",
    "Suite",
    "check_suite_fits",
    "compile_suite",
    "judge",
    "judge_suite",
    "list_undecided",
    "load_suite",
    "run_great_expectations",
]

MetricValue: TypeAlias = int | float | str | None
ReadRows: TypeAlias = "Callable[[tuple[Expectation, ...]], Frame]"

_ROUNDING = 2.0**-53
"""Largest relative error of one rounding of a 64-bit float."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def judge_suite(
    compiled: CompiledSuite,
    metric_values: Mapping[str, MetricValue],
    row_count: int,
    read_rows: ReadRows,
) -> tuple[ExpectationResult, ...]:
    """Judge every expectation, in the suite's order.

    `read_rows` gives the rows with at least the columns that the expectations name; it is called
    at most once, and not at all if one pass answered everything.
    """
    results = judge(compiled, metric_values, row_count)
    undecided = list_undecided(compiled, results)
    open_questions = (*compiled.rest, *undecided)
    if not open_questions:
        return results
    answered = run_great_expectations(open_questions, read_rows(open_questions))
    kept = [result for result in results if not result.undecided]
    return tuple(sorted((*kept, *answered), key=lambda result: result.index))


def list_undecided(
    compiled: CompiledSuite, results: tuple[ExpectationResult, ...]
) -> tuple[Expectation, ...]:
    """List the expectations whose verdict could turn on rounding: Great Expectations decides."""
    undecided = {result.index for result in results if result.undecided}
    rules = (rule.expectation for rule in compiled.one_pass)
    return tuple(expectation for expectation in rules if expectation.index in undecided)


def judge(
    compiled: CompiledSuite, metric_values: Mapping[str, MetricValue], row_count: int
) -> tuple[ExpectationResult, ...]:
    """Judge what one pass answered; `row_count` is the number of good rows.

    Raises:
        ConservationError: there are rows, but a metric of this suite was not counted.
    """
    missing = [metric.name for metric in compiled.metrics if metric.name not in metric_values]
    if missing and row_count > 0:
        raise ConservationError(
            f"{row_count} rows were staged without the suite's metrics: {', '.join(missing)}",
            "nothing is visible; run the batch again, so that it is staged with today's suite",
        )
    values = _Values(metric_values, row_count)
    return tuple(_judge_rule(rule, values) for rule in compiled.one_pass)


class _Values:
    """Metric values by name; over no rows Spark observes nothing, which counts as zero."""

    def __init__(self, metric_values: Mapping[str, MetricValue], row_count: int) -> None:
        self.metric_values = metric_values
        self.row_count = row_count

    def count(self, name: str) -> int:
        if name == ROWS:
            return self.row_count
        return int(self.metric_values.get(name) or 0)

    def number(self, name: str) -> float:
        return float(self.metric_values.get(name) or 0)

    def text(self, name: str) -> str | None:
        value = self.metric_values.get(name)
        return None if value is None else str(value)


def _judge_rule(rule: Rule, values: _Values) -> ExpectationResult:
    match rule:
        case CountRule():
            return _judge_count(rule, values)
        case ExtremeRule():
            observed = values.text(rule.observed)
            return _result(rule, values.count(rule.complies) == 1, _show_extreme(rule, observed))
        case SumRule():
            return _judge_sum(rule, values)
        case RowsRule():
            rows = values.count(rule.rows)
            return _result(rule, _is_expected_count(rule.expectation, rows), f"{rows} rows")
        case ShareRule():
            rows = values.count(rule.rows)
            share = (rows - values.count(rule.missing)) / rows if rows else 0.0
            return _result(rule, _is_between(rule.expectation, share), f"{share:.4f}")
        case FixedRule():
            return _result(rule, rule.success, rule.observed)


def _judge_count(rule: CountRule, values: _Values) -> ExpectationResult:
    considered, unexpected = values.count(rule.considered), values.count(rule.unexpected)
    # The very arithmetic of Great Expectations, so that no ratio falls on the other side.
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
