"""Random JSON records are decoded by Spark and by workers as the oracle of docs/types.md says."""

from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from support.column_fuzz import write_columns
from support.decoding import Outcome, decode_by_spark, decode_by_workers
from support.figures import FIRST_SEED, PROPERTY
from support.json_fuzz import ALL_COLUMNS, COLUMNS, make_records
from support.json_oracle import BAD, judge
from support.told_values import is_as_told

pytestmark = [pytest.mark.spark, pytest.mark.stack]

RECORDS = 1000
BATCH = 20
"""Workers refuse a whole batch for one record that they do not know; batches show them more."""


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
