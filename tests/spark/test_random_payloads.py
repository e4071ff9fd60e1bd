"""Random Avro and Protobuf payloads are decoded by Spark and by workers as the oracles say."""

import json
import math
import random
import struct
from collections.abc import Callable, Mapping

import pytest
from pyspark.sql import SparkSession
from support import avro_oracle
from support.avro_fuzz import AvroFuzz
from support.column_fuzz import break_header, write_columns
from support.decoding import Outcome, decode_by_spark, decode_by_workers, use_framed_schema
from support.figures import FIRST_SEED, PROPERTY
from support.json_oracle import BAD, UNTOLD
from support.proto_fuzz import ProtoFuzz
from support.proto_oracle import Oracle

from frazil.kafka.schema_registry import Registered

pytestmark = [pytest.mark.spark, pytest.mark.stack]

SCHEMAS, RECORDS = 4, 250
BATCH = 20
"""Workers refuse a whole batch for one record that they do not know; batches show them more."""
KNOWN, UNKNOWN = 7, 999
HEADER = struct.pack(">bI", 0, KNOWN)


def is_same(value: object, told: object, kind: object) -> bool:
    """Return whether a decoded value is the oracle's; the entries of a map have no order."""
    match kind, value, told:
        case _, _, _ if told == UNTOLD:
            return True
        case ["struct", dict(inner)], dict(), dict():
            names = ((name.rstrip("!"), each) for name, each in inner.items())
            return all(is_same(value[name], told[name], each) for name, each in names)
        case ["list", inner], list(), list():
            pairs = zip(value, told, strict=False)
            return len(value) == len(told) and all(is_same(*pair, inner) for pair in pairs)
        case ["map", inner], list(), list():
            pairs = zip(
                sorted(value, key=lambda e: e[0]), sorted(told, key=lambda e: e[0]), strict=False
            )
            return len(value) == len(told) and all(
                a[0] == b[0] and is_same(a[1], b[1], inner) for a, b in pairs
            )
        case _, float(), float():
            return value.hex() == told.hex() or (math.isnan(value) and math.isnan(told))
    return type(value) is type(told) and value == told


def is_as_told(found: Outcome, told: object, columns: Mapping[str, object]) -> bool:
    """Return whether a record became a dead letter or a row as the oracle says."""
    if isinstance(found, str) or isinstance(told, str):
        return told == UNTOLD or (isinstance(found, str) and told == BAD)
    return is_same(found, told, ["struct", dict(columns)])


def make_values(
    fuzz: AvroFuzz | ProtoFuzz, indexes: bytes, judge: Callable[[bytes], object]
) -> list[tuple[bytes | None, object]]:
    """Make values of one schema, and what becomes of each; the header of some is broken."""
    rnd, made = random.Random(fuzz.seed), list[tuple[bytes | None, object]]()
    for _ in range(RECORDS):
        payload = indexes + fuzz.make_payload()
        if rnd.random() < 0.05:
            made.append((break_header(rnd, HEADER, payload), BAD))
        else:
            made.append((HEADER + payload, judge(payload[len(indexes) :])))
    return made


def assert_as_told(
    spark: SparkSession,
    fuzz: AvroFuzz | ProtoFuzz,
    schema: Registered,
    values: list[tuple[bytes | None, object]],
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
        values = make_values(fuzz, b"", lambda p, f=fuzz: avro_oracle.judge(p, f.schema, f.columns))
        by_workers += assert_as_told(spark, fuzz, schema, values)
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
        oracle = Oracle(fuzz.message, fuzz.is_open)
        values = make_values(fuzz, b"\x00", lambda p, f=fuzz, o=oracle: o.judge(p, f.columns))
        by_workers += assert_as_told(spark, fuzz, schema, values)
    counts = {"Protobuf records": SCHEMAS * RECORDS, "Protobuf rows by workers": by_workers}
    record_property(PROPERTY, counts)
