"""What a suite asks must suit the columns: else Great Expectations would raise in every batch."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.errors import SuiteError
from frazil.quality.expectations import Expectation, Suite
from frazil.quality.great_expectations import run_great_expectations
from frazil.quality.suite_files import check_suite_fits

COLUMNS = {
    "i": "int!",
    "d": "double",
    "g": "decimal(9,2)",
    "s": "string",
    "b": "boolean",
    "n": "date",
    "x": "timestamp",
    "z": "timestamptz",
    "l": "list<long>",
}
ROWS = pa.table(
    {
        "i": [1, 2],
        "d": [0.5, None],
        "g": [Decimal("1.10"), None],
        "s": ["a", "b"],
        "b": [True, None],
        "n": [date(2013, 1, 31), None],
        "x": [datetime(2013, 1, 31), None],  # noqa: DTZ001 - a time without offset
        "z": [datetime(2013, 1, 31, tzinfo=UTC), None],
        "l": [[1], None],
    }
)
RANGE = "expect_column_values_to_be_between"
MEMBERS = "expect_column_values_to_be_in_set"


def suite_of(kind: str, kwargs: dict[str, object]) -> Suite:
    return Suite("suite", "0" * 16, (Expectation(3, kind, kwargs),), "suite.json")


RAISING = [
    (RANGE, {"column": "i", "min_value": "2013-01-31"}),
    (RANGE, {"column": "s", "min_value": 1}),
    (RANGE, {"column": "n", "min_value": "2013-01-31T00:00:00"}),
    (RANGE, {"column": "x", "min_value": "2013-01-31"}),
    (RANGE, {"column": "x", "min_value": "2013-01-31T00:00:00Z"}),
    (RANGE, {"column": "z", "min_value": "2013-01-31T00:00:00"}),
    ("expect_column_max_to_be_between", {"column": "s", "min_value": 1}),
    ("expect_column_mean_to_be_between", {"column": "n", "min_value": "2013-01-31"}),
    ("expect_column_sum_to_be_between", {"column": "s", "min_value": 1}),
    ("expect_column_values_to_be_increasing", {"column": "s"}),
    ("expect_column_values_to_be_dateutil_parseable", {"column": "i"}),
    (MEMBERS, {"column": "x", "value_set": [True]}),
    (
        "expect_column_pair_values_a_to_be_greater_than_b",
        {"column_A": "i", "column_B": "s"},
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kwargs"), RAISING)
def test_what_great_expectations_cannot_answer_is_refused_before_anything_runs(
    kind: str, kwargs: dict[str, object]
) -> None:
    suite = suite_of(kind, kwargs)

    (answer,) = run_great_expectations(suite.expectations, ROWS)

    assert answer.error
    with pytest.raises(SuiteError, match=rf"suite\.json: expectations\[3\] \({kind}\)"):
        check_suite_fits(suite, COLUMNS)


@pytest.mark.parametrize(
    ("kind", "kwargs", "said"),
    [
        pytest.param(RANGE, {"column": "S", "min_value": 1}, "no such column", id="case"),
        pytest.param(
            RANGE,
            {
                "column": "i",
                "min_value": 1,
                "row_condition": {
                    "type": "and",
                    "conditions": [
                        {"type": "nullity", "column": {"name": "ghost"}, "is_null": True}
                    ],
                },
            },
            "column 'ghost'",
            id="column of the row condition",
        ),
        pytest.param(MEMBERS, {"column": "n", "value_set": ["2013-01-31"]}, "never", id="dates"),
        pytest.param(MEMBERS, {"column": "s", "value_set": [1]}, "a set of number", id="members"),
        pytest.param(
            "expect_column_values_to_match_regex", {"column": "i"}, "checks text", id="no text"
        ),
        pytest.param(RANGE, {"column": "l", "min_value": 1}, "nested", id="nested column"),
    ],
)
def test_what_would_never_mean_anything_is_refused_too(
    kind: str, kwargs: dict[str, object], said: str
) -> None:
    with pytest.raises(SuiteError, match=said):
        check_suite_fits(suite_of(kind, kwargs), COLUMNS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        (RANGE, {"column": "g", "min_value": 1}),
        (RANGE, {"column": "n", "max_value": "2013-01-31"}),
        (RANGE, {"column": "x", "max_value": "2013-01-31 00:00"}),
        (RANGE, {"column": "z", "max_value": "2013-01-31T00:00:00+02:00"}),
        (MEMBERS, {"column": "s", "value_set": ["a", None]}),
        (MEMBERS, {"column": "b", "value_set": [True]}),
        (MEMBERS, {"column": "x", "value_set": ["2013-01-31T00:00:00"]}),
        ("expect_column_values_to_not_be_null", {"column": "l"}),
        ("expect_column_to_exist", {"column": "ghost"}),
        ("expect_table_columns_to_match_ordered_list", {"column_list": ["ghost"]}),
        ("expect_multicolumn_sum_to_equal", {"column_list": ["i", "d"], "sum_total": 1}),
    ],
)
def test_what_suits_its_columns_is_answered_without_an_error(
    kind: str, kwargs: dict[str, object]
) -> None:
    suite = suite_of(kind, kwargs)

    check_suite_fits(suite, COLUMNS)

    assert not run_great_expectations(suite.expectations, ROWS)[0].error
