"""The catalogue against the installed Great Expectations: an upgrade cannot drift unseen."""

import json
from collections.abc import Mapping
from pathlib import Path

import pandas as pd
import pytest

from frazil.quality.catalogue import CATALOGUE, REFUSED
from frazil.quality.compiler import ONE_PASS_TYPES
from frazil.quality.expectations import Expectation
from frazil.quality.great_expectations import run_great_expectations
from frazil.quality.suite_files import load_suite

pytestmark = pytest.mark.slow  # Great Expectations is imported and run

COMMON = frozenset(
    {"id", "meta", "notes", "result_format", "description", "catch_exceptions", "severity"}
    | {"rendered_content", "windows", "batch_id", "library_metadata"}
)
ROWS = pd.DataFrame(
    {"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 4.0], "s": ["x", "y", "z"], "q": ["{}"] * 3}
)
EXAMPLES: Mapping[str, dict[str, object]] = {
    "expect_column_distinct_values_to_be_in_set": {"column": "a", "value_set": [1, 2, 3]},
    "expect_column_distinct_values_to_contain_set": {"column": "a", "value_set": [1]},
    "expect_column_distinct_values_to_equal_set": {"column": "a", "value_set": [1, 2, 3]},
    "expect_column_kl_divergence_to_be_less_than": {
        "column": "s",
        "partition_object": {"values": ["x", "y", "z"], "weights": [0.4, 0.3, 0.3]},
        "threshold": 1,
    },
    "expect_column_median_to_be_between": {"column": "a", "min_value": 2, "max_value": 2},
    "expect_column_most_common_value_to_be_in_set": {
        "column": "s",
        "value_set": ["x"],
        "ties_okay": True,
    },
    "expect_column_pair_values_to_be_in_set": {
        "column_A": "a",
        "column_B": "b",
        "value_pairs_set": [[1, 1], [2, 2], [3, 4]],
    },
    "expect_column_proportion_of_unique_values_to_be_between": {"column": "a", "min_value": 1},
    "expect_column_quantile_values_to_be_between": {
        "column": "a",
        "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[2, 2]]},
    },
    "expect_column_stdev_to_be_between": {"column": "a", "min_value": 0.99, "max_value": 1.01},
    "expect_column_unique_value_count_to_be_between": {"column": "a", "min_value": 3},
    "expect_column_value_z_scores_to_be_less_than": {
        "column": "a",
        "threshold": 2,
        "double_sided": True,
    },
    "expect_column_values_to_be_increasing": {"column": "a"},
    "expect_column_values_to_be_unique": {"column": "a"},
    "expect_column_values_to_match_json_schema": {
        "column": "q",
        "json_schema": {"type": "object"},
    },
    "expect_column_values_to_not_be_outliers": {"column": "a"},
    "expect_compound_columns_to_be_unique": {"column_list": ["a", "b"]},
}
"""Expectations that hold on `ROWS`, for types that only Great Expectations answers."""
FAILING: Mapping[str, dict[str, object]] = {
    "expect_column_values_to_be_dateutil_parseable": {"column": "s"},
    "expect_column_values_to_be_decreasing": {"column": "a"},
    "expect_column_values_to_be_json_parseable": {"column": "s"},
    "expect_column_values_to_match_strftime_format": {"column": "s", "strftime_format": "%Y"},
    "expect_select_column_values_to_be_unique_within_record": {"column_list": ["a", "b"]},
}


@pytest.fixture(scope="module")
def models() -> Mapping[str, object]:
    import great_expectations.expectations  # noqa: F401, PLC0415 - fills the registry; 2.5 s
    from great_expectations.expectations import registry  # noqa: PLC0415

    names = registry.list_registered_expectation_implementations()
    return {name: registry.get_expectation_impl(name) for name in names}


def test_every_expectation_of_the_package_is_either_taken_or_refused_with_a_reason(
    models: Mapping[str, object],
) -> None:
    assert set(models) == set(CATALOGUE) | set(REFUSED)


@pytest.mark.parametrize("kind", sorted(CATALOGUE))
def test_arguments_and_required_ones_are_those_of_the_package(
    models: Mapping[str, object], kind: str
) -> None:
    fields = {n: f for n, f in models[kind].__fields__.items() if n not in COMMON}
    required = {name for name, field in fields.items() if field.required}

    assert set(CATALOGUE[kind].kinds) == set(fields)
    assert CATALOGUE[kind].required == required


def test_the_examples_are_of_all_types_that_one_pass_never_answers() -> None:
    assert set(EXAMPLES) | set(FAILING) == set(CATALOGUE) - ONE_PASS_TYPES


@pytest.mark.parametrize("kind", sorted({**EXAMPLES, **FAILING}))
def test_what_one_pass_leaves_over_is_answered_by_great_expectations(kind: str) -> None:
    kwargs = {**EXAMPLES, **FAILING}[kind]

    (result,) = run_great_expectations([Expectation(7, kind, kwargs)], ROWS)

    assert (result.error, result.success) == ("", kind in EXAMPLES)


def test_the_json_that_the_package_writes_is_read_unchanged(tmp_path: Path) -> None:
    from great_expectations.core import ExpectationSuite  # noqa: PLC0415 - slow to import

    shipped = Path("include/streams/expectations/flights.json")
    suite = ExpectationSuite(**json.loads(shipped.read_text(encoding="utf-8")))
    path = tmp_path / "flights.json"
    path.write_text(json.dumps(suite.to_json_dict()), encoding="utf-8")

    again, original = load_suite(path), load_suite(shipped)

    assert [dict(e.kwargs) for e in again.expectations] == [
        dict(e.kwargs) for e in original.expectations
    ]
