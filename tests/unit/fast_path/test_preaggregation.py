"""Rows that no cut point of a suite tells apart are counted the same by each of its metrics.

Python says what each expectation asks of a row; no test here reads the SQL.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from frazil.quality.expectations import Expectation, Json, Suite
from frazil.quality.messages import CutPoints
from frazil.quality.preaggregation import find_cut_points
from frazil_spark.fast_path import preaggregation
from frazil_spark.fast_path.parquet_files import FileSpec
from frazil_spark.fast_path.preaggregation import PreaggregationSpec, name_sums, preaggregate
from frazil_spark.fast_path.readers import ValueSpec
from frazil_spark.fast_path.worker import FILE, TOO_BIG, WEIGHT, write_fast_path_rows

COLUMNS = {
    "n": "long",
    "x": "double",
    "d": "decimal(9,2)",
    "s": "string",
    "b": "boolean",
    "on": "date",
    "at": "timestamptz",
}
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("d", pa.decimal128(9, 2)),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("on", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"
LENGTHS = "expect_column_value_lengths_to_be_between"
REGEX = "expect_column_values_to_match_regex"
NO_REGEX = "expect_column_values_to_not_match_regex_list"
NOT_NULL = "expect_column_values_to_not_be_null"
NEW_YEAR = datetime(2024, 1, 1, tzinfo=UTC)

Row = Mapping[str, object]
Asked = tuple[str, Mapping[str, Json], Callable[[Row], bool]]


def compare_to(name: str, operator: str, parameter: Json) -> Mapping[str, Json]:
    compared = {"type": "comparison", "column": {"name": name}}
    return {**compared, "operator": operator, "parameter": parameter}


def has(row: Row, name: str) -> bool:
    """Return whether a value is there; NaN is none, as everywhere in suites."""
    return row[name] is not None and row[name] == row[name]


def there(name: str, test: Callable[[Any], object]) -> Callable[[Row], bool]:
    return lambda row: has(row, name) and bool(test(row[name]))


ASKED: list[Asked] = [
    (NOT_NULL, {"column": "x"}, there("x", lambda _: True)),
    (BETWEEN, {"column": "n", "min_value": 0.5}, there("n", lambda n: n >= 0.5)),
    (
        BETWEEN,
        {"column": "n", "max_value": 2, "strict_max": True},
        there("n", lambda n: n < 2),
    ),
    (BETWEEN, {"column": "n", "max_value": 1e300}, there("n", lambda n: n <= 1e300)),
    (BETWEEN, {"column": "x", "min_value": -1.5}, there("x", lambda x: x >= -1.5)),
    (BETWEEN, {"column": "d", "max_value": 0.005}, there("d", lambda d: d <= Decimal("0.005"))),
    (
        BETWEEN,
        {"column": "on", "min_value": "2024-01-01"},
        there("on", lambda on: on >= date(2024, 1, 1)),
    ),
    (
        BETWEEN,
        {"column": "at", "min_value": "2024-01-01T00:00:00Z"},
        there("at", lambda at: at >= NEW_YEAR),
    ),
    (
        IN_SET,
        {"column": "s", "value_set": ["a", "é", ""]},
        there("s", lambda s: s in ("a", "é", "")),
    ),
    (IN_SET, {"column": "n", "value_set": [1, -1]}, there("n", lambda n: n in (1, -1))),
    (IN_SET, {"column": "b", "value_set": [True]}, there("b", lambda b: b is True)),
    (LENGTHS, {"column": "s", "min_value": 2}, there("s", lambda s: len(s) >= 2)),
    (
        "expect_column_value_lengths_to_equal",
        {"column": "s", "value": 1},
        there("s", lambda s: len(s) == 1),
    ),
    (REGEX, {"column": "s", "regex": r"^\d$"}, there("s", re.compile(r"^\d$").search)),
    (
        REGEX,
        {"column": "s", "regex": "^(?:a|b){2}$"},
        there("s", re.compile("^(?:a|b){2}$").search),
    ),
    (REGEX, {"column": "s", "regex": r"\b\w$"}, there("s", re.compile(r"\b\w$").search)),
    (REGEX, {"column": "s"}, there("s", lambda _: True)),
    (
        NO_REGEX,
        {"column": "s", "regex_list": ["b.", "^$"]},
        there("s", lambda s: not re.search("b.|^$", s)),
    ),
    (
        NOT_NULL,
        {"column": "x", "row_condition": compare_to("n", ">", 1)},
        lambda row: row["n"] is not None and row["n"] > 1 and has(row, "x"),
    ),
    (
        NOT_NULL,
        {
            "column": "b",
            "row_condition": {
                "type": "or",
                "conditions": [compare_to("s", "==", "bb"), compare_to("n", "IN", [3])],
            },
        },
        lambda row: (row["s"] == "bb" or row["n"] == 3) and row["b"] is not None,
    ),
]
EXTREMES = [
    ("expect_column_max_to_be_between", {"column": "n", "min_value": 0}),
    ("expect_column_min_to_be_between", {"column": "d", "min_value": 0}),
    ("expect_column_min_to_be_between", {"column": "x", "min_value": 0}),
    ("expect_column_sum_to_be_between", {"column": "n", "min_value": 0}),
    ("expect_column_mean_to_be_between", {"column": "n", "min_value": 0}),
    ("expect_column_mean_to_be_between", {"column": "x", "min_value": 0}),
    ("expect_column_sum_to_be_between", {"column": "d", "min_value": 0}),
    ("expect_column_max_to_be_between", {"column": "at", "min_value": "2024-01-01T00:00:00Z"}),
]
ROWS = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-2, 4) | st.sampled_from([2**63 - 1, -(2**63)]),
        "x": st.none() | st.sampled_from([-1.5, -1.6, 0.0, -0.0, 7.0, float("inf"), float("nan")]),
        "d": st.none() | st.integers(-3, 3).map(lambda n: Decimal(n).scaleb(-2)),
        "s": st.none() | st.sampled_from(["", "a", "é", "b", "bb", "bb\n", "7", "٣", "😀"]),
        "b": st.none() | st.booleans(),
        "on": st.none() | st.dates(date(2023, 12, 30), date(2024, 1, 3)),
        "at": st.none() | st.integers(-2, 2).map(lambda n: NEW_YEAR + timedelta(microseconds=n)),
    }
)


def find(*expectations: tuple[str, Mapping[str, Json]]) -> CutPoints | None:
    listed = [Expectation(i, kind, kwargs) for i, (kind, kwargs) in enumerate(expectations)]
    return find_cut_points(Suite("suite", "0" * 16, tuple(listed)), COLUMNS)


def order_of(cut_points: CutPoints | None) -> PreaggregationSpec:
    assert cut_points is not None
    return PreaggregationSpec(
        **{name: getattr(cut_points, name) for name in CutPoints.model_fields}
    )


ORDER = order_of(find(*[(kind, kwargs) for kind, kwargs, _ in ASKED], *EXTREMES))


def weigh_rows(
    rows: list[Row], order: PreaggregationSpec = ORDER
) -> tuple[list[int], list[bool], Mapping[str, NDArray[np.float64]]]:
    # A slice, as a filter or a batch of Arrow's may be: what lies before it counts for nothing.
    first = {"n": -1, "x": 9.0, "d": Decimal("9.99"), "s": "a", "b": True}
    columns = pa.RecordBatch.from_pylist([first, *({**row} for row in rows)], SCHEMA).slice(1)
    shown = {name: columns[name] for name in COLUMNS}
    found = preaggregate(order, shown, pa.nulls(len(rows), pa.timestamp("us", "UTC")), [])
    return found.weights.tolist(), found.is_extreme.tolist(), found.sums


@given(st.lists(ROWS, min_size=1, max_size=60))
def test_the_rows_that_are_left_count_what_all_rows_count(rows: list[Row]) -> None:
    weights, marks, sums = weigh_rows(rows)

    assert sum(weights) == len(rows)
    for name in ORDER.sums:
        held = [float(row[name]) if has(row, name) else 0.0 for row in rows]
        total, magnitude = (sums[each] for each in name_sums(name))
        largest = sum(map(abs, held))
        assert sum(total) == pytest.approx(sum(held), abs=1e-12 * largest)
        assert sum(magnitude) == pytest.approx(largest)
        assert not any(m for m, weight in zip(magnitude, weights, strict=True) if not weight)
    for kind, kwargs, asks in ASKED:
        counted = sum(w for row, w in zip(rows, weights, strict=True) if asks(row))
        assert counted == sum(map(asks, rows)), (kind, kwargs)
    for name in ORDER.extremes:
        held = [row[name] for row in rows if has(row, name)]
        marked = [r[name] for r, m in zip(rows, marks, strict=True) if m and has(r, name)]
        assert (min(held, default=None), max(held, default=None)) == (
            min(marked, default=None),
            max(marked, default=None),
        )


@pytest.mark.parametrize("asked", ASKED, ids=lambda asked: f"{asked[0]}-{asked[1]}")
def test_each_expectation_tells_apart_what_it_counts_apart(asked: Asked) -> None:
    kind, kwargs, asks = asked
    order = order_of(find((kind, kwargs)))
    rows = [
        {"n": n, "x": n, "d": n, "s": s, "b": n == 1, "on": date(2023 + n, 1, 1), "at": at}
        for n, s, at in [
            (0, "", datetime(2023, 12, 31, tzinfo=UTC)),
            (1, "a", NEW_YEAR),
            (2, "bb", NEW_YEAR),
            (3, "7", NEW_YEAR),
        ]
    ]
    rows += [dict.fromkeys(COLUMNS), {**rows[0], "x": -2}, {**rows[2], "b": None}]
    rows += [{**rows[3], "x": float("nan")}]

    weights, _, _ = weigh_rows(rows, order)

    assert sum(w for row, w in zip(rows, weights, strict=True) if asks(row)) == sum(map(asks, rows))


def test_many_rows_of_one_group_become_one() -> None:
    rows = [{"n": 5 + n, "x": 1.0, "d": None, "s": "zz", "b": None} for n in range(1000)]

    weights, marks, _ = weigh_rows([{**row, "on": None, "at": None} for row in rows])

    assert sorted(weights)[-2:] == [0, 1000]
    assert [n for n, mark in enumerate(marks) if mark] == [0, 999]


def test_records_of_two_partitions_and_late_records_are_in_groups_of_their_own() -> None:
    times = pa.array([5, 5, 9, None, 9], pa.timestamp("us", "UTC"))
    partitions = pa.array([0, 1, 0, 0, 0], pa.int32())

    found = preaggregate(PreaggregationSpec(timestamps=(7,)), {}, times, [partitions])

    assert found.weights.tolist() == [1, 1, 2, 1, 0]
    assert found.is_extreme.tolist() == [True, False, True, False, False]


def test_more_combinations_than_a_number_holds_are_told_apart_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [{"n": n % 3, "x": n % 2, "s": "ab"[n % 2]} for n in range(12)]
    expected, _, _ = weigh_rows(rows)

    monkeypatch.setattr(preaggregation, "_MAX_COMBINATIONS", 4)

    assert weigh_rows(rows)[0] == expected
    assert sum(w > 0 for w in expected) == 6


@pytest.mark.parametrize(
    ("kind", "kwargs"),
    [
        (REGEX, {"column": "s", "regex": "^(?=a)"}),
        (NO_REGEX, {"column": "s", "regex_list": ["a", "(?:a{1000}){64}"]}),
        ("expect_column_pair_values_to_be_equal", {"column_A": "n", "column_B": "n"}),
        (
            "expect_column_max_to_be_between",
            {"column": "n", "min_value": 0, "row_condition": compare_to("x", ">", 1)},
        ),
        (NOT_NULL, {"column": "n", "row_condition": compare_to("s", ">", "a")}),
        ("expect_multicolumn_sum_to_equal", {"column_list": ["n", "n"], "sum_total": 4}),
    ],
)
def test_what_depends_on_more_than_cut_points_lets_spark_count_every_row(
    kind: str, kwargs: Mapping[str, Json]
) -> None:
    assert find((NOT_NULL, {"column": "n"})) is not None
    assert find((NOT_NULL, {"column": "n"}), (kind, kwargs)) is None


def test_what_no_pass_counts_needs_no_cut_points() -> None:
    assert find(("expect_column_values_to_be_unique", {"column": "n"})) == CutPoints()
    assert find_cut_points(None, COLUMNS) == CutPoints()


KAFKA = pa.struct(
    {
        "topic": pa.string(),
        "partition": pa.int32(),
        "offset": pa.int64(),
        "timestamp": pa.timestamp("us", "UTC"),
    }.items()
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def records_of(text: list[bytes]) -> pa.RecordBatch:
    """Return Kafka records of one partition as Spark passes them to a worker."""
    count = len(text)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(text, pa.binary()),
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(np.arange(count)),
            "timestamp": pa.array(range(count), pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
            "headers": pa.nulls(count, HEADERS),
            TOO_BIG: pa.array([False] * count),
        }
    )


def test_workers_show_spark_one_row_of_those_that_are_alike(tmp_path: Path) -> None:
    count = 5000
    records = records_of(
        [b'{"n":%d,"s":"%s"}' % (n, b"ab"[n % 2 : n % 2 + 1]) for n in range(count)]
    )
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("_kafka", KAFKA)])
    cut_points = find((IN_SET, {"column": "s", "value_set": ["a"]}), *EXTREMES[:1])
    order = FileSpec(
        ValueSpec("json"),
        schema,
        str(tmp_path),
        "batch",
        2**30,
        {},
        ("n", "s"),
        sample_step=10**9,
        preaggregation=order_of(cut_points),
    )

    halves = [records.slice(0, count // 2), records.slice(count // 2)]
    (shown,) = write_fast_path_rows(order, iter(halves))

    assert shown.num_rows <= 5
    assert sum(shown[WEIGHT].to_pylist()) == count
    # Zero is a cut point, the others are above it.
    assert sorted(w for w in shown[WEIGHT].to_pylist() if w) == [1, count // 2 - 1, count // 2]
    assert max(shown["_frazil_counted_n"].to_pylist()) == count - 1
    assert [bool(path) for path in shown[FILE].to_pylist()] == [True] + [False] * (
        shown.num_rows - 1
    )
    (file,) = tmp_path.iterdir()
    assert f"file://{file}" == shown[FILE][0].as_py()
    assert pq.read_metadata(file).num_rows == count
