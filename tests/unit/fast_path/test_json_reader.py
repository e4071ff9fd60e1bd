"""A record is sure only if nothing about it is in doubt; what is not sure is read by Spark."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.json_corpus import (
    BIG,
    COLUMNS,
    ODD,
    PLAIN,
    STILL_SURE,
    SURE_AS_A_WHOLE,
    WHOLE,
    make_records,
)

from frazil.iceberg.table_schema import build_table_schema
from frazil.ingest.fast_path import narrow_schema
from frazil.streams.column_types import parse_column
from frazil_spark.fast_path.json_reader import MAX_SPLITS, JsonReader
from frazil_spark.fast_path.parquet_files import FileSpec
from frazil_spark.fast_path.readers import ValueSpec
from frazil_spark.fast_path.worker import (
    TOO_BIG,
    build_kafka,
    find_sampled,
    write_fast_path_rows,
)

from pyiceberg.io.pyarrow import schema_to_pyarrow  # isort: skip


def make_schema() -> pa.Schema:
    columns = tuple(parse_column(name, text) for name, text in COLUMNS.items())
    schema = schema_to_pyarrow(build_table_schema(columns), include_field_ids=True)
    return narrow_schema(schema)


def make_reader() -> JsonReader:
    return JsonReader(pa.schema([f for f in make_schema() if f.name != "_kafka"]))


def find_sure(*values: bytes | None) -> list[int]:
    places: list[int] = make_reader().read(pa.array(values, pa.binary())).indexes.to_pylist()
    return places


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in PLAIN.items() for t in texts])
def test_a_plain_value_is_sure(name: str, text: str) -> None:
    value = b'{"id":1,"' + name.encode() + b'":' + text.encode() + b"}"

    has_half_of_a_pair = "\\ud" in text
    assert find_sure(value) == ([] if has_half_of_a_pair else [0])


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in ODD.items() for t in texts])
def test_an_odd_value_is_left_to_spark(name: str, text: str) -> None:
    value = b'{"id":1,"' + name.encode() + b'":' + text.encode() + b"}"
    if name == "id":
        value = b'{"id":' + text.encode() + b"}"

    assert find_sure(value) == ([0] if (name, text) in STILL_SURE else [])


@pytest.mark.parametrize("value", [*WHOLE, BIG])
def test_a_value_that_is_odd_as_a_whole_is_left_to_spark(value: bytes | None) -> None:
    assert find_sure(value) == ([0] if value in SURE_AS_A_WHOLE else [])


def test_two_halves_of_a_record_are_never_one_row() -> None:
    halves = (b'{"id":1,"deep":{}', b'{"in":{}}}', b'{"id":2}{"id":3}')

    assert find_sure(*halves) == []
    assert find_sure(b'{"id":0}', *halves, b'{"id":4}') == [0, 4]


def test_rows_keep_their_places_between_records_at_fault() -> None:
    values = [b"x", b'{"id":1}', None, b'{"id":2.5}', b'{"id":4,"small":7}', b'{"text":"no id"}']

    sure = make_reader().read(pa.array(values, pa.binary()))

    assert sure.indexes.to_pylist() == [1, 4]
    assert sure.columns[0].to_pylist() == [1, 4]
    assert sure.columns[1].to_pylist() == [None, 7]


def test_a_slice_of_a_batch_is_read_by_its_own_offsets() -> None:
    values = pa.array([b'{"id":1,"x":NaN}', b'{"id":2}', b'{"id":3,"x":NaN}'], pa.binary())

    assert make_reader().read(values.slice(1, 1)).columns[0].to_pylist() == [2]
    assert make_reader().read(values.slice(2, 1)).indexes.to_pylist() == []


def test_a_batch_full_of_faults_is_not_split_without_end() -> None:
    values = [b'{"id":1}', b'{"id":1.5}'] * 500

    found = find_sure(*values)

    assert len(found) <= MAX_SPLITS


def test_the_order_of_odd_records_does_not_matter() -> None:
    values = make_records(5, 300)

    together = set(find_sure(*values))
    alone = {place for place, value in enumerate(values) if find_sure(value)}

    assert together <= alone


def test_a_record_without_timestamp_gets_null_in_kafka() -> None:
    struct = make_schema().field("_kafka").type
    columns = {
        "topic": pa.array(["t"] * 4),
        "partition": pa.array([0] * 4, pa.int32()),
        "offset": pa.array([4, 5, 6, 7], pa.int64()),
        "timestamp": pa.array(
            [-1000, 1000, 253_402_300_800_000_000, -12_219_292_800_000_001],
            pa.timestamp("us", "UTC"),
        ),
        "timestampType": pa.array([0] * 4, pa.int32()),
        "key": pa.array([None, b"k", b"", b"\xff"], pa.binary()),
        "headers": pa.array(
            [None, [{"key": "h", "value": b"v"}], [], [{"key": "", "value": None}]],
            struct.field("headers").type,
        ),
    }

    kafka = build_kafka(pa.RecordBatch.from_pydict(columns), struct).to_pylist()

    times = [k["timestamp"] and k["timestamp"].timestamp() for k in kafka]
    assert times == [None, 0.001, None, None]
    assert [k["key"] for k in kafka] == [None, b"k", b"", b"\xff"]
    assert kafka[1]["headers"] == [{"key": "h", "value": b"v"}]


def test_of_sure_rows_hardly_a_byte_of_their_values_goes_back_to_spark(tmp_path: Path) -> None:
    count = 2500
    values = [b'{"id":%d,"note":"%s"}' % (n, b"x" * 400) for n in range(count)]
    values[1] = b'{"id":"no number"}'
    records = pa.RecordBatch.from_pydict(
        {
            "key": pa.nulls(count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["orders"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(np.arange(count)),
            "timestamp": pa.array([0] * count, pa.timestamp("us", "UTC")),
            "timestampType": pa.array([0] * count, pa.int32()),
            "headers": pa.nulls(count, make_schema().field("_kafka").type.field("headers").type),
            TOO_BIG: pa.array([False] * count),
        }
    )
    order = FileSpec(
        ValueSpec("json"), make_schema(), str(tmp_path), "batch", 2**30, {}, (), sample_step=1000
    )

    rest, sent = write_fast_path_rows(order, iter([records]))

    sampled = np.flatnonzero(find_sampled(np.arange(count), 1000)).tolist()
    told = zip(sent["offset"].to_pylist(), sent["value"].to_pylist(), strict=True)
    assert [(n, value) for n, value in told if value] == [(n, values[n]) for n in sampled]
    assert rest["value"].to_pylist() == [values[1]]
    assert pa.ipc.get_record_batch_size(sent.select(["value"])) < 20_000
