"""Random JSON records are decoded by Spark and by workers as the oracle of docs/types.md says."""

import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession
from support.column_fuzz import write_columns
from support.decoding import Outcome, decode_by_spark, decode_by_workers
from support.figures import FIRST_SEED, PROPERTY
from support.json_fuzz import ALL_COLUMNS, COLUMNS, make_records
from support.json_oracle import BAD, UNTOLD, judge

pytestmark = [pytest.mark.spark, pytest.mark.stack]

RECORDS = 1000
BATCH = 20
"""Workers refuse a whole batch for one record that they do not know; batches show them more."""


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
def test_random_records_are_decoded_as_the_oracle_says(
    spark: SparkSession, seed: int, record_property: Callable[[str, object], None]
) -> None:
    records = list(make_records(FIRST_SEED + seed, RECORDS))
    for columns in (ALL_COLUMNS, COLUMNS):
        told = [judge(record, columns) for record in records]
        assert 0 < told.count(BAD) < RECORDS
        types = write_columns(columns)

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
    record_property(PROPERTY, {"JSON records": RECORDS, "JSON rows by workers": len(by_workers)})
