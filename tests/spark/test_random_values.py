"""Random JSON records are decoded by Spark and by workers as the oracle of docs/types.md says."""

import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import pytest
from conftest import Stack
from pyspark.sql import SparkSession
from support.decoding import Outcome, decode_by_spark, decode_by_workers
from support.json_fuzz import ALL_COLUMNS, COLUMNS, make_records
from support.json_oracle import BAD, UNTOLD, judge

pytestmark = [pytest.mark.spark, pytest.mark.stack]

RECORDS = 1000
BATCH = 20
"""Workers refuse a whole batch for one record that they do not know; batches show them more."""


@pytest.fixture(scope="module")
def spark(stack: Stack) -> Iterator[SparkSession]:
    """Open a session of this module."""
    session: SparkSession = SparkSession.builder.remote(
        str(stack.facts["spark_connect"]["url"])
    ).create()
    yield session
    session.stop()


def write_type(kind: object) -> str:
    """Write a type of the oracle as in a stream file."""
    match kind:
        case ["list", inner]:
            return f"list<{write_type(inner)}>"
        case ["map", inner]:
            return f"map<string, {write_type(inner)}>"
        case ["struct", dict(inner)]:
            fields = (
                f"{name.rstrip('!')}: {write_type(each)}{'!' * name.endswith('!')}"
                for name, each in inner.items()
            )
            return f"struct<{', '.join(fields)}>"
    return str(kind)


def is_same(value: object, told: object, kind: object) -> bool:
    """Return whether a decoded value is the oracle's."""
    return told == UNTOLD or is_equal(value, told, kind)


def is_equal(value: object, told: object, kind: object) -> bool:
    """Compare a value that the oracle computes."""
    match kind, value, told:
        case ["struct", dict(inner)], dict(), dict():
            names = ((name.rstrip("!"), each) for name, each in inner.items())
            return all(is_same(value[name], told[name], each) for name, each in names)
        case ["list", inner], list(), list():
            pairs = zip(value, told, strict=False)
            return len(value) == len(told) and all(is_same(*pair, inner) for pair in pairs)
        case ["map", inner], list(), list():
            return [k for k, _ in value] == [k for k, _ in told] and all(
                is_same(a, b, inner) for (_, a), (_, b) in zip(value, told, strict=True)
            )
        case _, str(), bytes() if kind == "uuid":
            return uuid.UUID(value).bytes == told
        case _, datetime(tzinfo=zone), datetime() if zone is not None:
            return value.astimezone(UTC) == told
    return value == told


def is_as_told(found: Outcome, told: Outcome, columns: Mapping[str, object]) -> bool:
    """Return whether a record became a dead letter or a row as the oracle says."""
    if isinstance(found, str) or isinstance(told, str):
        return isinstance(found, str) and told == BAD
    return is_same(found, told, ["struct", dict(columns)])


@pytest.mark.storm(1)
@pytest.mark.parametrize("seed", range(10))
def test_random_records_are_decoded_as_the_oracle_says(spark: SparkSession, seed: int) -> None:
    records = list(make_records(seed, RECORDS))
    for columns in (ALL_COLUMNS, COLUMNS):
        told = [judge(record, columns) for record in records]
        assert 0 < told.count(BAD) < RECORDS
        types = {
            name.rstrip("!"): write_type(kind) + "!" * name.endswith("!")
            for name, kind in columns.items()
        }

        found = decode_by_spark(spark, types, records)

        differ = [n for n in range(RECORDS) if not is_as_told(found[n], told[n], columns)]
        assert not differ, [(records[n], found[n], told[n]) for n in differ[:3]]

    by_workers: dict[int, Outcome] = {}
    for begin in range(0, RECORDS, BATCH):
        part = decode_by_workers(types, records[begin : begin + BATCH])
        by_workers |= {begin + index: row for index, row in part.items()}
    differ = [n for n, row in by_workers.items() if not is_as_told(row, told[n], COLUMNS)]
    assert not differ, [(records[n], by_workers[n], told[n]) for n in differ[:3]]
    assert by_workers
