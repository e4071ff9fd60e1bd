"""No result of an expectation holds a value of a row: results are stored where no erasure reaches.

The rows hold one text and one number that occur nowhere else, and every type of the catalogue fails
over them, or cannot be answered because of them.
"""

import json
from collections.abc import Iterator
from typing import cast

import pandas as pd
import pyarrow as pa
import pytest

from frazil.quality.catalogue import CATALOGUE
from frazil.quality.compiler import ONE_PASS_TYPES, compile_suite
from frazil.quality.expectations import Expectation, Suite
from frazil.quality.great_expectations import run_great_expectations
from frazil.quality.judge import judge
from frazil.quality.rules import ExpectationResult

TEXT, NUMBER = "marker-4711", 987_654_321
COLUMNS = {"id": "long", "other": "long", "name": "string", "copy": "string"}
ROWS = pa.table(
    {
        "id": [NUMBER, NUMBER, NUMBER, 1],
        "other": [NUMBER - 1, NUMBER + 1, 5, 5],
        "name": [TEXT, TEXT, TEXT, None],
        "copy": [TEXT, f"{TEXT}!", "x", None],
    }
)
NEVER = {"min_value": -2, "max_value": -1}
PAIR = {"column_A": "id", "column_B": "other"}
SEVERAL = {"column_list": ["id", "other"]}
KINDS: dict[str, dict[str, object]] = {
    "expect_column_distinct_values_to_be_in_set": {"column": "name", "value_set": ["a"]},
    "expect_column_distinct_values_to_contain_set": {"column": "name", "value_set": ["a"]},
    "expect_column_distinct_values_to_equal_set": {"column": "name", "value_set": ["a"]},
    "expect_column_kl_divergence_to_be_less_than": {
        "column": "name",
        "partition_object": {"values": ["a", "b"], "weights": [0.5, 0.5]},
        "threshold": 0.1,
    },
    "expect_column_max_to_be_between": {"column": "id", **NEVER},
    "expect_column_mean_to_be_between": {"column": "id", **NEVER},
    "expect_column_median_to_be_between": {"column": "id", **NEVER},
    "expect_column_min_to_be_between": {"column": "id", **NEVER},
    "expect_column_most_common_value_to_be_in_set": {"column": "name", "value_set": ["a"]},
    "expect_column_pair_values_a_to_be_greater_than_b": PAIR,
    "expect_column_pair_values_to_be_equal": PAIR,
    "expect_column_pair_values_to_be_in_set": {**PAIR, "value_pairs_set": [[1, 2]]},
    "expect_column_proportion_of_non_null_values_to_be_between": {"column": "id", **NEVER},
    "expect_column_proportion_of_unique_values_to_be_between": {"column": "id", **NEVER},
    "expect_column_quantile_values_to_be_between": {
        "column": "id",
        "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 1]]},
    },
    "expect_column_stdev_to_be_between": {"column": "id", **NEVER},
    "expect_column_sum_to_be_between": {"column": "id", **NEVER},
    "expect_column_to_exist": {"column": "ghost"},
    "expect_column_unique_value_count_to_be_between": {"column": "id", **NEVER},
    "expect_column_value_lengths_to_be_between": {"column": "name", **NEVER},
    "expect_column_value_lengths_to_equal": {"column": "name", "value": 1},
    "expect_column_value_z_scores_to_be_less_than": {
        "column": "id",
        "threshold": -9,
        "double_sided": False,
    },
    "expect_column_values_to_be_between": {"column": "id", **NEVER},
    "expect_column_values_to_be_dateutil_parseable": {"column": "name"},
    "expect_column_values_to_be_decreasing": {"column": "other"},
    "expect_column_values_to_be_in_set": {"column": "name", "value_set": ["a"]},
    "expect_column_values_to_be_increasing": {"column": "id"},
    "expect_column_values_to_be_json_parseable": {"column": "name"},
    "expect_column_values_to_be_null": {"column": "name"},
    "expect_column_values_to_be_unique": {"column": "name"},
    "expect_column_values_to_match_json_schema": {"column": "name", "json_schema": {}},
    "expect_column_values_to_match_regex": {"column": "name", "regex": "^z"},
    "expect_column_values_to_match_regex_list": {"column": "name", "regex_list": ["^z"]},
    "expect_column_values_to_match_strftime_format": {"column": "name", "strftime_format": "%Y"},
    "expect_column_values_to_not_be_in_set": {"column": "id", "value_set": [1]},
    "expect_column_values_to_not_be_null": {"column": "name"},
    "expect_column_values_to_not_be_outliers": {
        "column": "id",
        "method": "iqr",
        "multiplier": 0.01,
    },
    "expect_column_values_to_not_match_regex": {"column": "name", "regex": "mark"},
    "expect_column_values_to_not_match_regex_list": {"column": "name", "regex_list": ["mark"]},
    "expect_compound_columns_to_be_unique": {"column_list": ["id", "name"]},
    "expect_multicolumn_sum_to_equal": {**SEVERAL, "sum_total": 1},
    "expect_multicolumn_values_to_be_equal": SEVERAL,
    "expect_select_column_values_to_be_unique_within_record": {"column_list": ["name", "copy"]},
    "expect_table_column_count_to_be_between": NEVER,
    "expect_table_column_count_to_equal": {"value": 1},
    "expect_table_columns_to_match_ordered_list": {"column_list": ["a"]},
    "expect_table_columns_to_match_set": {"column_set": ["a"]},
    "expect_table_row_count_to_be_between": NEVER,
    "expect_table_row_count_to_equal": {"value": 1},
}


def find_values(result: ExpectationResult) -> list[str]:
    """List the planted values that a result's texts contain."""
    text = json.dumps([result.line, result.observed, result.error, result.expected])
    planted = (TEXT, str(NUMBER), str(NUMBER - 1), str(NUMBER + 1), f"{NUMBER:.6g}")
    return [value for value in planted if value in text]


@pytest.fixture(scope="module")
def answers() -> dict[str, ExpectationResult]:
    """Judge every type by Great Expectations itself."""
    listed = [Expectation(n, kind, kwargs) for n, (kind, kwargs) in enumerate(KINDS.items())]
    return {result.type: result for result in run_great_expectations(listed, ROWS)}


def test_every_type_of_the_catalogue_is_tried() -> None:
    assert set(KINDS) == set(CATALOGUE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_failed_expectation_of_great_expectations_shows_no_value(
    answers: dict[str, ExpectationResult], kind: str
) -> None:
    assert not answers[kind].success
    assert find_values(answers[kind]) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_a_figure_of_one_value_is_that_value_and_not_shown(kind: str) -> None:
    asked = Expectation(0, f"expect_column_{kind}_to_be_between", {"column": "id", **NEVER})
    compiled = compile_suite(Suite("s", "0" * 16, (asked,)), COLUMNS)
    figures = dict(zip((m.name for m in compiled.metrics), (1, NUMBER, NUMBER), strict=True))

    (counted,) = judge(compiled, figures, 1)
    (asked_alone,) = run_great_expectations([asked], ROWS.slice(0, 1))

    assert (counted.success, counted.observed) == (False, f"the {kind} of 1 value (not shown)")
    assert find_values(asked_alone) == []


@pytest.mark.slow
def test_an_error_of_great_expectations_shows_its_class_alone() -> None:
    rows = pd.DataFrame({"id": pd.Series([TEXT, "2"], dtype=object)})
    asked = Expectation(0, "expect_column_mean_to_be_between", {"column": "id", "max_value": 1})

    (result,) = run_great_expectations([asked], rows)

    assert not result.success
    assert result.error.startswith("Great Expectations could not answer: ")
    assert "Error" in result.error
    assert find_values(result) == []


def list_metrics() -> Iterator[tuple[str, str]]:
    """Yield the SQL of every metric of one pass, with the type that needs it."""
    for kind in sorted(ONE_PASS_TYPES):
        suite = Suite("s", "0" * 16, (Expectation(0, kind, KINDS[kind]),))
        yield from ((kind, metric.sql) for metric in compile_suite(suite, COLUMNS).metrics)


def test_metrics_are_counts_sums_and_tests() -> None:
    """The metrics of a stage are in XCom, so that no metric may return a single value."""
    listed = list(list_metrics())
    sums = ("sum(", "coalesce(sum(", "CAST(coalesce(sum(", "CAST(sum(")
    returning = [each for each in listed if not each[1].startswith(("count(", *sums, "CASE WHEN"))]
    tests = [sql for _, sql in listed if sql.startswith("CASE")]

    assert returning == []
    assert tests != []
    assert [sql for sql in tests if not sql.endswith("THEN 1 ELSE 0 END")] == []


def test_an_extreme_that_one_pass_counted_shows_how_many_values_there_are() -> None:
    kind = "expect_column_max_to_be_between"
    compiled = compile_suite(Suite("s", "0" * 16, (Expectation(0, kind, KINDS[kind]),)), COLUMNS)
    names = [metric.name for metric in compiled.metrics]

    (result,) = judge(compiled, dict(zip(names, (4, 0), strict=True)), 4)
    (empty,) = judge(compiled, cast("dict[str, float]", dict.fromkeys(names)), 4)

    assert result.line.endswith("observed the largest of 4 values (not shown)")
    assert empty.observed == "no values"
