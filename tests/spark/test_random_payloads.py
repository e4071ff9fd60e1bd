"""Random Avro and Protobuf payloads are decoded by Spark and by workers as the oracles say."""

import json
import struct
from collections.abc import Callable

import pytest
from pyspark.sql import SparkSession
from support.avro_fuzz import AvroFuzz
from support.column_fuzz import write_columns
from support.decoding import decode_by_spark, decode_by_workers, use_framed_schema
from support.figures import FIRST_SEED, PROPERTY
from support.json_oracle import UNTOLD
from support.proto_fuzz import ProtoFuzz
from support.random_topics import Told, make_avro, make_protobuf
from support.told_values import is_as_told

from frazil.kafka.schema_registry import Registered

pytestmark = [pytest.mark.spark, pytest.mark.stack]

SCHEMAS, RECORDS = 4, 250
BATCH = 20
"""Workers refuse a whole batch for one record that they do not know; batches show them more."""
KNOWN, UNKNOWN = 7, 999
HEADER = struct.pack(">bI", 0, KNOWN)


def assert_as_told(
    spark: SparkSession,
    fuzz: AvroFuzz | ProtoFuzz,
    schema: Registered,
    values: Told,
) -> int:
    """Compare what both decoders give with the oracle; return the number of rows by workers."""
    columns, types = fuzz.columns, write_columns(fuzz.columns)
    options = use_framed_schema(types, schema, unknown=[UNKNOWN, 2**31 - 1])
    given = [value for value, _ in values]
    told = [each for _, each in values]

    found = decode_by_spark(spark, types, given, "by_schema_id", options)

    differ = [n for n in range(len(given)) if not is_as_told(found[n], told[n], columns)]
    shown = [(given[n], found[n], told[n]) for n in differ[:2]]
    assert not differ, (fuzz.seed, schema.text, types, shown)
    assert told.count(UNTOLD) < len(told) / 8
    count = 0
    for begin in range(0, len(given), BATCH):
        rows = decode_by_workers(types, given[begin : begin + BATCH], options)
        for index, row in rows.items():
            n = begin + index
            assert is_as_told(row, told[n], columns), (schema.text, types, given[n], row, told[n])
        count += len(rows)
    return count


@pytest.mark.storm(1)
@pytest.mark.parametrize("seed", range(10))
def test_random_avro_is_decoded_as_the_oracle_says(
    spark: SparkSession, seed: int, record_property: Callable[[str, object], None]
) -> None:
    by_workers = 0
    for number in range(SCHEMAS):
        fuzz = AvroFuzz((FIRST_SEED + seed) * SCHEMAS + number)
        schema = Registered(KNOWN, "AVRO", json.dumps(fuzz.schema))
        by_workers += assert_as_told(spark, fuzz, schema, make_avro(fuzz, HEADER, RECORDS))
    counts = {"Avro records": SCHEMAS * RECORDS, "Avro rows by workers": by_workers}
    record_property(PROPERTY, counts)


@pytest.mark.storm(1)
@pytest.mark.parametrize("seed", range(10))
def test_random_protobuf_is_decoded_as_the_oracle_says(
    spark: SparkSession, seed: int, record_property: Callable[[str, object], None]
) -> None:
    by_workers = 0
    for number in range(SCHEMAS):
        fuzz = ProtoFuzz((FIRST_SEED + seed) * SCHEMAS + number)
        schema = Registered(KNOWN, "PROTOBUF", fuzz.text)
        by_workers += assert_as_told(spark, fuzz, schema, make_protobuf(fuzz, HEADER, RECORDS))
    counts = {"Protobuf records": SCHEMAS * RECORDS, "Protobuf rows by workers": by_workers}
    record_property(PROPERTY, counts)
