"""Which rows of change events an expectation checks."""

import pyarrow as pa
import pytest

from frazil.errors import SuiteError
from frazil.quality.compiler import compile_suite
from frazil.quality.event_rows import split_by_rows
from frazil.quality.expectations import Expectation, Suite
from frazil.quality.judge import judge_suite
from frazil.quality.suite_files import check_suite_fits
from frazil.streams.change_events import EVENT_COLUMNS

COLUMNS = {"id": "long!", "doc": "string", "code": "string", **EVENT_COLUMNS}
ROWS = pa.table(
    {
        "n": [0, 1, 2, 3],
        "_op": ["c", "u", "d", "t"],
        "_unavailable": pa.array([[], ["doc"], [], None], pa.list_(pa.string())),
    }
)
NOT_NULL = "expect_column_values_to_not_be_null"
COMPARE_OP = {"type": "comparison", "column": {"name": "_op"}, "operator": "==", "parameter": "d"}


def expect(kind: str, **kwargs: object) -> Expectation:
    return Expectation(0, kind, kwargs)  # type: ignore[arg-type] # arguments of each type


@pytest.mark.parametrize(
    ("expectation", "rows"),
    [
        (expect(NOT_NULL, column="doc"), [0]),
        (expect(NOT_NULL, column="code"), [0, 1]),
        (expect("expect_compound_columns_to_be_unique", column_list=["code", "doc"]), [0]),
        (expect(NOT_NULL, column="_op"), [0, 1, 2, 3]),
        (expect("expect_table_row_count_to_equal", value=4), [0, 1, 2, 3]),
        (expect(NOT_NULL, column="code", row_condition=COMPARE_OP), [0, 1, 2, 3]),
        (expect(NOT_NULL, column="doc", row_condition=COMPARE_OP), [0, 2, 3]),
    ],
)
def test_rows_that_are_checked(expectation: Expectation, rows: list[int]) -> None:
    ((_, found),) = split_by_rows([expectation], ROWS)

    assert found["n"].to_pylist() == rows


def test_expectations_of_the_same_rows_are_answered_together() -> None:
    asked = [expect(NOT_NULL, column=name) for name in ("doc", "code", "doc", "code")]

    groups = [len(group) for group, _ in split_by_rows(asked, ROWS)]

    assert groups == [2, 2]


def test_only_the_metrics_of_change_events_leave_rows_out() -> None:
    suite = Suite("s", "0" * 16, (expect(NOT_NULL, column="doc"),))

    plain = compile_suite(suite, COLUMNS, "good").metrics
    events = compile_suite(suite, COLUMNS, "good", has_events=True).metrics

    assert not any("_op" in metric.sql for metric in plain)
    assert all("`_op` NOT IN ('d', 't')" in metric.sql for metric in events)
    assert all("array('doc')" in metric.sql for metric in events)


OF_NOTHING = (
    ("expect_column_max_to_be_between", {"column": "id", "max_value": 5}),
    ("expect_column_mean_to_be_between", {"column": "id", "max_value": 5}),
    ("expect_column_proportion_of_unique_values_to_be_between", {"column": "id", "min_value": 1}),
    ("expect_column_median_to_be_between", {"column": "id", "max_value": 5}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "passes"), [(2, True), (0, False)])
def test_where_no_row_is_checked_nothing_fails(rows: int, passes: bool) -> None:  # noqa: FBT001
    """A batch without any row is judged as Great Expectations does."""
    listed = tuple(Expectation(n, kind, kwargs) for n, (kind, kwargs) in enumerate(OF_NOTHING))
    compiled = compile_suite(Suite("s", "0" * 16, listed), COLUMNS, has_events=True)
    frame = pa.table(
        {
            "id": pa.array([1, 2][:rows], pa.int64()),
            "_op": pa.array(["d", "t"][:rows]),
            "_unavailable": pa.array([[], []][:rows], pa.list_(pa.string())),
        }
    )
    figures = {metric.name: 0 for metric in compiled.metrics}

    results = judge_suite(compiled, figures, rows, lambda _: frame)

    assert [result.success for result in results[:2]] == [passes] * 2
    assert all(result.success for result in results) == passes
    assert ("no rows to check" in results[3].line) == passes


@pytest.mark.parametrize("operator", ["==", "!=", "NOT_IN"])
def test_a_condition_cannot_compare_a_nested_column(operator: str) -> None:
    parameter = ["doc"] if operator == "NOT_IN" else "doc"
    condition = {"type": "comparison", "column": {"name": "_unavailable"}, "operator": operator}
    asked = expect(NOT_NULL, column="doc", row_condition=condition | {"parameter": parameter})

    with pytest.raises(SuiteError, match="compares column '_unavailable', which is nested"):
        check_suite_fits(Suite("s", "0" * 16, (asked,)), COLUMNS)


def test_a_condition_can_ask_whether_a_nested_column_is_null() -> None:
    condition = {"type": "nullity", "column": {"name": "_unavailable"}, "is_null": True}

    check_suite_fits(
        Suite("s", "0" * 16, (expect(NOT_NULL, column="doc", row_condition=condition),)), COLUMNS
    )
