"""Great Expectations itself: rows go to it without loss, answers come back in order."""

from datetime import UTC, datetime
from decimal import Decimal

import pandas as pd
import pyarrow as pa
import pytest

from frazil.errors import SuiteError
from frazil.quality.compiler import compile_suite
from frazil.quality.expectations import Expectation, Suite
from frazil.quality.great_expectations import add_floats, run_great_expectations, to_pandas
from frazil.quality.judge import judge_suite

pytestmark = pytest.mark.slow  # Great Expectations is imported and run

BIG = 2**53 + 1


def test_integers_beside_nulls_become_floats_only_where_that_is_exact() -> None:
    frame = to_pandas(pa.table({"small": [1, None], "big": [BIG, None], "none": [3, 4]}))

    assert [str(frame[name].dtype) for name in frame] == ["float64", "object", "int64"]
    assert frame["big"][0] == BIG
    assert frame["big"].isna().tolist() == [False, True]


def test_integers_whose_sum_would_wrap_stay_python_integers() -> None:
    frame = to_pandas(pa.table({"a": [2**53] * 1024}))

    assert frame["a"].sum() == 2**63


def test_times_are_nanoseconds_where_they_fit_and_single_floats_are_doubles() -> None:
    far = datetime(9999, 12, 31, tzinfo=UTC)
    near = datetime(2013, 1, 31, tzinfo=UTC)
    kind = pa.timestamp("us", "UTC")
    columns = {
        "near": pa.array([near], kind),
        "far": pa.array([far], kind),
        "f": pa.array([0.1], pa.float32()),
    }

    frame = to_pandas(pa.table(columns))

    assert [str(frame[name].dtype) for name in frame] == [
        "datetime64[ns, UTC]",
        "datetime64[us, UTC]",
        "float64",
    ]
    assert frame["far"][0] == far


def test_floats_of_decimals_are_copies_and_a_missing_value_is_nan() -> None:
    frame = pd.DataFrame({"g": [Decimal("1.50"), None], "h": [Decimal(1), None], "s": ["a", None]})

    added = add_floats(frame, {"g": "copy"})

    assert added[["g", "h", "s"]].equals(frame)
    assert str(added["copy"].dtype) == "float64"
    assert added["copy"][0] == 1.5


def test_sums_include_a_column_of_decimals_whose_values_are_all_missing() -> None:
    kind = pa.decimal128(12, 2)
    rows = pa.table({"g": pa.array([Decimal("0.10"), None], kind), "n": pa.nulls(2, kind)})
    both = {"column_list": ["g", "n"], "sum_total": 1, "ignore_row_if": "never"}
    questions = (
        Expectation(0, "expect_multicolumn_sum_to_equal", both),
        Expectation(1, "expect_column_sum_to_be_between", {"column": "n", "max_value": 0}),
        Expectation(2, "expect_column_mean_to_be_between", {"column": "n", "max_value": 0}),
    )

    answers = run_great_expectations(questions, rows)

    assert [(answer.success, answer.error) for answer in answers] == [
        (False, ""),
        (True, ""),
        (False, ""),
    ]


@pytest.mark.parametrize("checked", ["g", "h"])
def test_a_condition_on_a_decimal_compares_exactly_also_where_decimals_become_floats(
    checked: str,
) -> None:
    """0.10 is less than the float 0.1 and not equal to it, as for types that get decimals."""
    values = pa.array(map(Decimal, ("0.10", "0.30", "0.00")), pa.decimal128(12, 2))
    rows = pa.table({"g": values, "h": values})
    less, equal = (
        {"type": "comparison", "column": {"name": "g"}, "operator": sign, "parameter": 0.1}
        for sign in ("<", "==")
    )
    exactly = {"min_value": 0.1, "max_value": 0.1, "column": checked, "row_condition": less}
    both = {"column_list": ["g", "h"], "sum_total": 5}
    questions = (
        Expectation(0, "expect_column_sum_to_be_between", exactly),
        Expectation(1, "expect_multicolumn_sum_to_equal", {**both, "row_condition": less}),
        Expectation(2, "expect_multicolumn_sum_to_equal", {**both, "row_condition": equal}),
        Expectation(3, "expect_column_values_to_be_null", {"column": "g", "row_condition": less}),
    )

    answers = run_great_expectations(questions, rows)

    assert [answer.success for answer in answers] == [True, False, True, False]
    assert [answer.unexpected_count for answer in answers] == [None, 2, 0, 2]


def test_rows_are_put_in_the_order_of_kafka_before_order_is_judged() -> None:
    kafka = [{"topic": "t", "partition": 0, "offset": offset} for offset in (2, 0, 1)]
    rows = pa.table({"a": [30, 10, 20], "_kafka": kafka})
    rising = Expectation(0, "expect_column_values_to_be_increasing", {"column": "a"})

    assert run_great_expectations([rising], rows)[0].success
    assert not run_great_expectations([rising], rows.drop_columns(["_kafka"]))[0].success


def test_rows_are_read_only_for_what_one_pass_left_open_and_results_come_in_the_suites_order() -> (
    None
):
    questions = (
        Expectation(0, "expect_column_values_to_be_unique", {"column": "a"}),
        Expectation(1, "expect_column_values_to_not_be_null", {"column": "a"}),
        Expectation(2, "expect_column_sum_to_be_between", {"column": "c", "max_value": 0.6}),
    )
    suite = Suite("suite", "0" * 16, questions)
    compiled = compile_suite(suite, {"a": "int", "c": "double"}, good="_good")
    names = [metric.name for metric in compiled.metrics]
    figures = dict(zip(names, (0, 3, "0.6", "0.6"), strict=True))
    asked: list[tuple[Expectation, ...]] = []

    def read_rows(needs: tuple[Expectation, ...]) -> pa.Table:
        asked.append(needs)
        return pa.table({"a": [1, 1, 2], "c": [0.1, 0.2, 0.3]})

    results = judge_suite(compiled, figures, 3, read_rows)

    assert [[need.index for need in needs] for needs in asked] == [[0, 2]]
    assert [(r.index, r.success) for r in results] == [(0, False), (1, True), (2, False)]


def test_answers_come_in_the_order_of_the_questions_with_counts_and_severity() -> None:
    rows = pa.table({"a": [1, 1, 2, None], "g": [Decimal("1.10"), None, Decimal("2.20"), None]})
    questions = [
        Expectation(5, "expect_column_sum_to_be_between", {"column": "g", "max_value": 3.5}),
        Expectation(2, "expect_column_values_to_be_unique", {"column": "a"}, "warning"),
    ]

    total, unique = run_great_expectations(questions, rows)

    assert (total.index, total.success, total.observed) == (5, True, "3.3000000000000003")
    assert (unique.index, unique.success, unique.blocking) == (2, False, False)
    assert (unique.unexpected_count, unique.observed) == (2, "2 of 3 unexpected (66.67%)")


def test_a_sum_of_decimals_under_a_row_condition_is_that_of_its_rows() -> None:
    rows = pa.table({"a": [1, 2, 3], "g": [Decimal("1.00"), Decimal("2.00"), Decimal("4.00")]})
    condition = {"type": "comparison", "column": {"name": "a"}, "operator": ">", "parameter": 1}
    kwargs = {"column": "g", "min_value": 6, "max_value": 6, "row_condition": condition}

    (result,) = run_great_expectations(
        [Expectation(0, "expect_column_sum_to_be_between", kwargs)], rows
    )

    assert result.success


def test_what_great_expectations_cannot_answer_has_failed_and_says_why() -> None:
    question = Expectation(0, "expect_column_values_to_be_unique", {"column": "ghost"})

    (result,) = run_great_expectations([question], pa.table({"a": [1]}))

    assert not result.success
    assert result.error.startswith("Great Expectations could not answer: ")
    assert "ghost" in result.line


def test_arguments_that_great_expectations_refuses_are_an_error_of_the_suite() -> None:
    kwargs = {"column": "a", "multiplier": -1}
    question = Expectation(4, "expect_column_values_to_not_be_outliers", kwargs)

    with pytest.raises(SuiteError, match=r"expectations\[4\]"):
        run_great_expectations([question], pa.table({"a": [1]}))
