"""Rows are found by keys of every type, compared by Arrow: few bytes a row, no Python objects."""

import tracemalloc
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from frazil.state_tables.trim_rules import drop_headers, flag_keys, flag_runs

AT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
VALUES = {
    "boolean": pa.array([True, False, True]),
    "int": pa.array([1, -2, 3], pa.int32()),
    "long": pa.array([1, -(2**62), 3]),
    "decimal": pa.array([Decimal("1.50"), Decimal("-2.00"), Decimal("0.01")]),
    "date": pa.array([date(2026, 1, 2), date(1960, 1, 1), date(1970, 1, 1)]),
    "timestamp": pa.array([AT, AT.replace(year=1900), AT.replace(microsecond=7)]),
    "string": pa.array(["", "é", "é "]),
    "uuid": pa.array([uuid.UUID(int=n).bytes for n in (0, 5, 2**127)], pa.uuid()),
}


@pytest.mark.parametrize("name", VALUES)
def test_keys_of_every_type_are_found(name: str) -> None:
    values = VALUES[name]
    rows = pa.table({"id": pa.chunked_array([values, values.slice(1)])})
    wanted = values[1].as_py()

    flags = flag_keys(rows, rows.slice(1, 1), ("id",))

    assert flags.tolist() == [each == wanted for each in rows["id"].to_pylist()]
    assert not flag_keys(rows, rows.slice(0, 0), ("id",)).any()


@pytest.mark.parametrize("seed", range(20))
def test_keys_of_several_columns_are_found_as_a_set_finds_them(seed: int) -> None:
    dice = np.random.default_rng(seed)
    names = [name for name in VALUES if dice.random() < 0.6] or ["long", "string"]
    picked = {name: VALUES[name].take(pa.array(dice.integers(0, 3, 60))) for name in names}
    rows = pa.table(picked)
    chosen = rows.take(pa.array(dice.integers(0, 60, 4)))

    flags = flag_keys(rows, chosen, names)

    keys = [tuple(key) for key in zip(*(rows[name].to_pylist() for name in names), strict=True)]
    found = {*zip(*(chosen[name].to_pylist() for name in names), strict=True)}
    assert flags.tolist() == [key in found for key in keys]


@pytest.mark.parametrize("ids", [("id",), ("id", "part")])
def test_a_key_that_was_widened_meanwhile_is_found(ids: tuple[str, ...]) -> None:
    narrow = pa.table({"id": pa.array([1, 2], pa.int32()), "part": ["a", "b"]})
    wide = pa.table({"id": pa.array([2, 2**40]), "part": pa.array(["b", "a"], pa.large_string())})

    assert flag_keys(narrow, wide, ids).tolist() == [False, True]
    assert flag_keys(wide, narrow, ids).tolist() == [True, False]


@pytest.mark.parametrize(("ids", "limit"), [(("id",), 4), (("id", "text"), 60)])
def test_a_row_takes_few_bytes(ids: tuple[str, ...], limit: int) -> None:
    numbers = pa.array(np.arange(100_000))
    rows = pa.table({"id": numbers, "text": numbers.cast(pa.string())})

    tracemalloc.start()
    flags = flag_keys(rows, rows.slice(0, 10), ids)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert flags.sum() == 10
    assert peak < limit * len(rows)


def test_headers_are_held_only_for_events_that_did_not_carry_all_values() -> None:
    headers = [
        [{"key": "__debezium.oldkey", "value": b"1"}],
        [],
        None,
        [{"key": "k", "value": b""}],
    ]
    lacks = [["doc"], ["doc"], None, []]
    read = [
        {"id": n, "_unavailable": lack, "_kafka": {"offset": n, "headers": each}}
        for n, (lack, each) in enumerate(zip(lacks, headers, strict=True))
    ]

    held = drop_headers(pa.Table.from_pylist(read)).to_pylist()

    assert [row["_kafka"].pop("headers") for row in held] == [*headers[:2], None, None]
    assert [row["_kafka"] for row in held] == [{"offset": n} for n in range(4)]
    assert [row["_unavailable"] for row in held] == lacks


def test_offsets_in_runs_are_found_by_partition() -> None:
    places = [("a", 0, n) for n in range(9)] + [("a", 1, 3), ("b", 0, 3)]
    rows = pa.table({"_kafka": [{"topic": t, "partition": p, "offset": o} for t, p, o in places]})

    flags = flag_runs(rows, {"a": {0: [(1, 3), (5, 6)]}, "b": {0: [(3, 4)]}})

    assert [place for place, flag in zip(places, flags, strict=True) if flag] == [
        *(("a", 0, n) for n in (1, 2, 5)),
        ("b", 0, 3),
    ]
    assert not flag_runs(rows, {}).any()
