"""Counters over rows that stand for others, beside counters over all rows, in one batch.

A topic of well-formed and odd records is staged twice, once with workers and once without.
"""

import json
import math
import secrets
import sys
import time
from typing import Any

import pytest
from conftest import Lab
from pyspark.sql import SparkSession
from support.json_corpus import COLUMNS, make_records

import stage_batch as job
from frazil.iceberg.branches import create_branch, name_branch
from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE
from frazil.ingest.messages import BatchPlan, StageRequest
from frazil.ingest.pipeline import plan_next_batch
from frazil.ingest.staging import build_request
from frazil.quality.sql import is_sum
from frazil.workspace import open_workspace
from frazil_spark import sampling

pytestmark = [pytest.mark.spark, pytest.mark.stack]

CONDITION = {
    "row_condition": {
        "type": "comparison",
        "column": {"name": "id"},
        "operator": ">",
        "parameter": 500,
    }
}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("expect_column_values_to_not_be_null", {"column": "text"}),
    ("expect_column_values_to_not_be_null", {"column": "text", **CONDITION}),
    ("expect_column_values_to_be_null", {"column": "deep"}),
    (
        "expect_column_proportion_of_non_null_values_to_be_between",
        {"column": "day", "min_value": 0},
    ),
    ("expect_column_values_to_be_between", {"column": "id", "min_value": 0.5, "max_value": 1000}),
    ("expect_column_values_to_be_between", {"column": "real", "min_value": -2.5, "max_value": 1}),
    ("expect_column_values_to_be_between", {"column": "price", "min_value": 7.005}),
    ("expect_column_values_to_be_between", {"column": "day", "min_value": "2000-01-01"}),
    (
        "expect_column_values_to_be_between",
        {"column": "instant", "max_value": "2000-01-01T00:00:00Z"},
    ),
    (
        "expect_column_values_to_be_between",
        {"column": "local", "min_value": "2024-01-01T00:00:00.5", "strict_min": True},
    ),
    ("expect_column_values_to_be_in_set", {"column": "text", "value_set": ["plain", "\U0001f600"]}),
    ("expect_column_values_to_not_be_in_set", {"column": "small", "value_set": [0, -7]}),
    ("expect_column_values_to_be_in_set", {"column": "flag", "value_set": [True]}),
    ("expect_column_value_lengths_to_be_between", {"column": "text", "min_value": 1}),
    ("expect_column_value_lengths_to_equal", {"column": "text", "value": 5}),
    ("expect_column_values_to_match_regex", {"column": "text", "regex": r"^[^\d\s]+$"}),
    (
        "expect_column_values_to_not_match_regex_list",
        {"column": "text", "regex_list": ["plain", r"\S.\s"]},
    ),
    ("expect_column_values_to_match_regex", {"column": "text", "regex": r"\bpl\w+\b"}),
    ("expect_column_values_to_match_regex", {"column": "text", "regex": r"\W", **CONDITION}),
    ("expect_column_max_to_be_between", {"column": "id", "min_value": 10}),
    ("expect_column_sum_to_be_between", {"column": "small", "min_value": 10}),
    ("expect_column_mean_to_be_between", {"column": "real", "min_value": 0}),
    ("expect_column_sum_to_be_between", {"column": "price", "min_value": 0}),
    ("expect_column_mean_to_be_between", {"column": "small", "min_value": 10, **CONDITION}),
    ("expect_column_min_to_be_between", {"column": "price", "max_value": 0}),
    ("expect_column_max_to_be_between", {"column": "instant", "min_value": "2024-01-01T00:00:00Z"}),
    ("expect_column_max_to_be_between", {"column": "real", "max_value": 0}),
    ("expect_table_row_count_to_be_between", {"min_value": 1, **CONDITION}),
]
LOOKAHEAD = ("expect_column_values_to_match_regex", {"column": "text", "regex": "a(?=b)"})


def fill_topic(lab: Lab) -> int:
    """Send well-formed and odd records; give an instant between two halves of them, ms."""
    seed = secrets.randbelow(10**6)
    sys.stdout.write(f"seed {seed}\n")
    lab.create_topic()
    plain = [b'{"id":%d,"real":%d.5,"price":%d}' % (n, n, -n) for n in range(5000, 6000)]
    lab.produce([*make_records(seed, 2000), *plain])
    time.sleep(0.01)
    middle_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    lab.produce([*plain, *make_records(seed + 1, 1000)])
    return middle_ms


def write_stream(lab: Lab, asked: list[tuple[str, dict[str, Any]]]) -> None:
    """Write the stream's file and its suite."""
    suite = {"name": "alike", "expectations": [{"type": t, "kwargs": k} for t, k in asked]}
    (lab.folder / "expectations").mkdir()
    (lab.folder / "expectations" / "alike.json").write_text(json.dumps(suite))
    lab.document |= {
        "value": {"convert": "json", "columns": COLUMNS},
        "table": {"name": lab.table},
        "errors": {"max_bad_ratio": 1.0},
        "batch": {"max_records": 10_000},
        "quality": {"suite": "alike"},
    }
    lab.write_stream()


def plan_request(lab: Lab, late_before_ms: int) -> StageRequest:
    """Plan the batch, and say what its stage is asked for, on a branch of its own."""
    work = open_workspace(lab.stream, "test")
    plan = plan_next_batch(work)
    assert isinstance(plan, BatchPlan)
    attempt = name_branch(plan.stream, plan.base_epoch)
    create_branch(work.store, plan.table, attempt)
    request = build_request(work, plan, attempt)
    return request.model_copy(update={"late_before_ms": late_before_ms})


@pytest.mark.parametrize("lookahead", [False, True], ids=["cut_points", "every row"])
def test_what_is_counted_of_few_rows_is_what_is_counted_of_all(
    spark: SparkSession, lab: Lab, monkeypatch: pytest.MonkeyPatch, *, lookahead: bool
) -> None:
    # Sampled rows are shown too, and of so few records every fourth would be.
    monkeypatch.setattr(sampling, "SAMPLED_RECORDS", 1)
    middle_ms = fill_topic(lab)
    write_stream(lab, [*ASKED, LOOKAHEAD] if lookahead else ASKED)
    for name, value in lab.environment(**{MIN_RECORDS_VARIABLE: "0"}).items():
        monkeypatch.setenv(name, value)
    first, second = (plan_request(lab, middle_ms) for _ in range(2))
    assert first.fast_path is not None
    assert (first.fast_path.cut_points is None) is lookahead

    by_workers = job.stage_batch(spark, first)
    by_spark = job.stage_batch(spark, second.model_copy(update={"fast_path": None}))

    assert by_workers.files
    assert len(by_spark.metrics) > 25
    assert len({*by_spark.metrics.values()}) > 10
    assert by_workers.metrics.keys() == by_spark.metrics.keys()
    for name, value in by_spark.metrics.items():
        found = by_workers.metrics[name]
        if is_sum(first.metrics[name]):  # in another order it is rounded otherwise
            assert math.isclose(float(str(found)), float(str(value)), rel_tol=1e-9), name
        else:
            assert found == value, name
    ignored = {"files", "metrics"}
    assert by_workers.model_dump(exclude=ignored) == by_spark.model_dump(exclude=ignored)
    assert 0 < by_spark.rows_late < by_spark.rows_read
