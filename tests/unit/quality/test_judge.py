"""Judging counts: the arithmetic of Great Expectations, on figures that one pass observed."""

from collections.abc import Sequence

import pyarrow as pa
import pytest

from frazil.errors import ConservationError
from frazil.quality.compiler import compile_suite
from frazil.quality.expectations import Expectation, Suite
from frazil.quality.judge import judge, judge_suite
from frazil.quality.rules import CompiledSuite, ExpectationResult

COLUMNS = {"a": "int", "c": "double", "s": "string"}
NOT_NULL, RANGE = "expect_column_values_to_not_be_null", "expect_column_values_to_be_between"
SUM, MEAN = "expect_column_sum_to_be_between", "expect_column_mean_to_be_between"


def compile_all(*listed: tuple[str, dict[str, object]]) -> CompiledSuite:
    numbered = (Expectation(n, kind, kwargs) for n, (kind, kwargs) in enumerate(listed))
    return compile_suite(Suite("suite", "0" * 16, tuple(numbered)), COLUMNS, good="_good")


def judge_one(
    kind: str, kwargs: dict[str, object], figures: Sequence[object], rows: int
) -> ExpectationResult:
    compiled = compile_all((kind, kwargs))
    return judge(compiled, name_figures(compiled, *figures), rows)[0]


def name_figures(compiled: CompiledSuite, *figures: object) -> dict[str, object]:
    names = [metric.name for metric in compiled.metrics]
    return dict(zip(names, figures, strict=True))


@pytest.mark.parametrize(
    ("kind", "kwargs", "figures", "rows", "success"),
    [
        pytest.param(NOT_NULL, {"column": "a"}, [0], 5, True, id="none missing"),
        pytest.param(NOT_NULL, {"column": "a"}, [1], 5, False, id="one missing"),
        pytest.param(NOT_NULL, {"column": "a", "mostly": 0.8}, [1], 5, True, id="mostly, met"),
        pytest.param(NOT_NULL, {"column": "a", "mostly": 0.81}, [1], 5, False, id="mostly, unmet"),
        pytest.param(NOT_NULL, {"column": "a"}, [0], 0, True, id="no rows"),
        pytest.param(RANGE, {"column": "a", "min_value": 1}, [3, 1], 5, False, id="range"),
        pytest.param(RANGE, {"column": "a", "min_value": 1}, [0, 0], 5, True, id="all null"),
        pytest.param(SUM, {"column": "c", "min_value": 1}, [3, "1.5", "1.5"], 5, True, id="sum"),
        pytest.param(SUM, {"column": "c", "min_value": 0}, [0, "0.0", "0.0"], 5, True, id="no sum"),
        pytest.param(
            MEAN, {"column": "c", "min_value": 0}, [0, "0.0", "0.0"], 5, False, id="no mean"
        ),
        pytest.param(
            MEAN, {"column": "c", "max_value": 1}, [3, "1.0E1", "1.0E1"], 5, False, id="mean"
        ),
        pytest.param(
            "expect_column_max_to_be_between",
            {"column": "a", "max_value": 3},
            ["3", 1],
            5,
            True,
            id="largest",
        ),
        pytest.param(
            "expect_table_row_count_to_be_between",
            {"min_value": 5, "strict_min": True},
            [],
            5,
            False,
            id="rows, strict",
        ),
        pytest.param(
            "expect_column_proportion_of_non_null_values_to_be_between",
            {"column": "a", "min_value": 0.5},
            [5],
            10,
            True,
            id="share of values",
        ),
    ],
)
def test_a_verdict_follows_from_counts(
    kind: str, kwargs: dict[str, object], figures: list[object], rows: int, *, success: bool
) -> None:
    assert judge_one(kind, kwargs, figures, rows).success is success


@pytest.mark.parametrize("observed", [True, False], ids=["nulls", "no metrics"])
def test_an_empty_batch_observes_nothing_and_nothing_is_unexpected(*, observed: bool) -> None:
    compiled = compile_all((RANGE, {"column": "a", "min_value": 1}))
    values = name_figures(compiled, None, None) if observed else {}

    (result,) = judge(compiled, values, 0)

    assert (result.success, result.unexpected_percent, result.observed) == (True, None, "no values")


def test_rows_without_the_metrics_of_the_suite_are_never_judged() -> None:
    staged = compile_all((RANGE, {"column": "a", "min_value": 1}))
    today = compile_all((RANGE, {"column": "a", "min_value": 2}))

    with pytest.raises(ConservationError, match="without the suite's metrics: quality_"):
        judge(today, name_figures(staged, 5, 0), 5)


@pytest.mark.parametrize(
    ("total", "undecided"),
    [("10.0", True), ("10.000000000000002", True), ("10.1", False), ("Infinity", True)],
)
def test_a_sum_as_near_its_bound_as_rounding_reaches_is_undecided(
    total: str, *, undecided: bool
) -> None:
    kwargs = {"column": "c", "max_value": 10}

    assert judge_one(SUM, kwargs, [5, total, total], 5).undecided is undecided


@pytest.mark.parametrize(("doubtful", "undecided"), [(0, False), (1, True)])
def test_a_value_in_doubt_leaves_its_expectation_undecided(
    doubtful: int, *, undecided: bool
) -> None:
    kwargs = {"column": "s", "regex": r"^\w+$"}
    result = judge_one("expect_column_values_to_match_regex", kwargs, [5, 0, doubtful], 5)

    assert (result.success, result.undecided) == (True, undecided)


def test_a_sum_of_integers_is_exact_and_so_decided_on_its_bound() -> None:
    result = judge_one(SUM, {"column": "a", "max_value": 10}, [5, "10.0", "10.0"], 5)

    assert (result.success, result.undecided, result.observed) == (True, False, "10")


def test_a_sum_of_integers_that_may_have_been_rounded_to_a_bound_is_undecided() -> None:
    largest = str(2.0**53)

    assert judge_one(SUM, {"column": "a", "max_value": 2**53}, [4, largest, largest], 4).undecided


def test_rows_are_not_read_when_one_pass_answered_everything() -> None:
    compiled = compile_all((NOT_NULL, {"column": "a"}))

    def read_rows(_: tuple[Expectation, ...]) -> pa.Table:
        raise AssertionError

    assert judge_suite(compiled, name_figures(compiled, 0), 3, read_rows)[0].success


@pytest.mark.parametrize(
    ("severity", "blocking", "mark"),
    [
        ("critical", True, "FAILED"),
        ("warning", False, "failed (warning)"),
        ("info", False, "failed (info)"),
    ],
)
def test_only_critical_failures_block_and_each_says_so_in_one_line(
    severity: str, mark: str, *, blocking: bool
) -> None:
    kwargs = {"column": "a", "min_value": 1, "max_value": 9, "strict_max": True, "mostly": 0.95}
    suite = Suite("suite", "0" * 16, (Expectation(0, RANGE, kwargs, severity),))
    compiled = compile_suite(suite, COLUMNS)

    (result,) = judge(compiled, name_figures(compiled, 40, 10), 40)

    assert result.blocking is blocking
    assert result.line == (
        f"{mark}: {RANGE}(a): expected ≥ 1, < 9, in at least 95%; "
        "observed 10 of 40 unexpected (25.00%)"
    )
