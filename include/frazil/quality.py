"""The quality check as pure decisions: load, compile, judge.

    suite = load_suite(path)                    # plan: typed errors, no Great Expectations
    check_suite_fits(suite, columns)
    compiled = compile_suite(suite, columns, good="…")
    …observe(…, *[expr(m.sql).alias(m.name) for m in compiled.metrics])     # stage: one pass
    judge_suite(compiled, metrics, rows, read_rows)                         # check

`read_rows` is called only if something is left that one pass cannot answer.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from frazil.expectations import Expectation, Suite
from frazil.gx_validation import run_great_expectations
from frazil.quality_compiler import compile_suite
from frazil.quality_judge import MetricValue, judge, list_undecided
from frazil.quality_results import ExpectationResult
from frazil.quality_rules import CompiledSuite, Metric
from frazil.suite_fit import check_suite_fits
from frazil.suites import load_suite

if TYPE_CHECKING:
    from frazil.gx_frame import Frame

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

ReadRows: TypeAlias = "Callable[[tuple[Expectation, ...]], Frame]"


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
