"""Python workers read an Avro payload as it was written, to its last byte, or leave it to Spark."""

import io
import json
import random
import secrets
import sys

import fastavro
import pyarrow as pa
import pytest
from support.avro_bytes import encode, record
from support.avro_corpus import COLUMNS, SCHEMA, damage, make_odd, make_payload

from frazil.iceberg.table_schema import build_table_schema
from frazil.ingest.fast_path import narrow_schema
from frazil.kafka.schema_registry import Registered
from frazil.schemas.avro import read_avro
from frazil.schemas.fast_path_layouts import lay_out_avro
from frazil.streams.column_types import StructType, parse_column
from frazil_spark.fast_path.json_reader import FastPathRows
from frazil_spark.fast_path.readers import SchemaSpec, ValueSpec, open_reader

from pyiceberg.io.pyarrow import schema_to_pyarrow  # isort: skip

HEADER = b"\x00\x00\x00\x00\x07"


def lay_out(schema: object, columns: dict[str, str]) -> str:
    parsed = tuple(parse_column(*pair) for pair in columns.items())
    registered = Registered(7, "AVRO", json.dumps(schema))
    return lay_out_avro(read_avro(registered, StructType(parsed)), parsed)


def read(schema: object, columns: dict[str, str], *payloads: bytes | None) -> FastPathRows:
    """Read payloads as a worker does, with a header in front."""
    layout = lay_out(schema, columns)
    assert layout
    parsed = tuple(parse_column(*pair) for pair in columns.items())
    arrow = schema_to_pyarrow(build_table_schema(parsed), include_field_ids=True)
    table = pa.schema([f for f in narrow_schema(arrow) if f.name != "_kafka"])
    reader = open_reader(ValueSpec("avro", (SchemaSpec(7, (HEADER,), layout),)), table)
    sure = reader.read(pa.array([p if p is None else HEADER + p for p in payloads], pa.binary()))
    pa.RecordBatch.from_arrays(list(sure.columns), schema=table).validate(full=True)
    return sure


def rows_of(sure: FastPathRows) -> list[dict[str, object]]:
    names = list(COLUMNS)
    columns = [column.to_pylist() for column in sure.columns]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def read_by_fastavro(payload: bytes) -> dict[str, object] | None:
    """Read a whole payload; None if it is broken or goes on.

    Text that is none is replaced: nobody looks into a text that no column takes.
    """
    stream, schema = io.BytesIO(payload), fastavro.parse_schema(SCHEMA)
    try:
        value = fastavro.schemaless_reader(stream, schema, handle_unicode_errors="replace")
    except Exception:  # noqa: BLE001 - its reader raises whatever comes
        return None
    assert isinstance(value, dict)
    return value if stream.tell() == len(payload) else None


def plain(value: object, like: object) -> object:
    """Keep the fields that are asked for."""
    if isinstance(value, dict) and isinstance(like, dict):
        return {name: plain(value.get(name), like[name]) for name in like}
    if isinstance(value, list) and isinstance(like, list) and len(value) == len(like):
        return [plain(*pair) for pair in zip(value, like, strict=True)]
    return value


def test_plain_payloads_are_read_as_another_reader_reads_them() -> None:
    rnd = random.Random(5)
    payloads = [make_payload(rnd, number) for number in range(500)]

    sure = read(SCHEMA, COLUMNS, *payloads)

    assert sure.indexes.to_pylist() == list(range(500))
    assert set(sure.schema_ids.to_pylist() if sure.schema_ids else []) == {7}
    rows = rows_of(sure)
    assert rows == [plain(read_by_fastavro(p), row) for p, row in zip(payloads, rows, strict=True)]


def test_an_odd_value_is_left_to_spark_and_its_neighbours_are_not() -> None:
    rnd = random.Random(6)
    good, odd = make_payload(rnd, 1), make_odd(rnd, 2)

    for payload in odd:
        assert read(SCHEMA, COLUMNS, good, payload, good).indexes.to_pylist() == [0, 2]


def test_a_damaged_payload_is_whole_by_another_reader_or_not_sure() -> None:
    seed = secrets.randbelow(10**6)
    sys.stdout.write(f"seed {seed}\n")
    rnd = random.Random(seed)
    payloads = [damage(rnd, make_payload(rnd, number)) for number in range(3000)]

    sure = read(SCHEMA, COLUMNS, *payloads)

    assert 100 < len(sure.indexes) < 2900
    for place, row in zip(sure.indexes.to_pylist(), rows_of(sure), strict=True):
        assert row == plain(read_by_fastavro(payloads[place]), row)


@pytest.mark.parametrize(
    ("size", "kind", "is_read"),
    [
        *((1, "decimal(1,0)", True), (1, "decimal(2,0)", True), (1, "decimal(4,0)", False)),
        *((4, "decimal(9,0)", True), (4, "decimal(10,0)", False), (8, "decimal(18,0)", True)),
    ],
)
def test_a_fixed_decimal_is_left_to_spark_where_a_column_has_more_digits_than_its_bytes(
    size: int,
    kind: str,
    is_read: bool,  # noqa: FBT001
) -> None:
    fixed = {"type": "fixed", "name": "F", "size": size, "logicalType": "decimal", "precision": 1}
    for schema in (fixed, ["null", fixed]):
        record = {"type": "record", "name": "R", "fields": [{"name": "n", "type": schema}]}
        assert bool(lay_out(record, {"n": kind})) is is_read


def test_what_has_no_value_or_another_header_is_left_to_spark() -> None:
    good = make_payload(random.Random(7), 1)

    assert read(SCHEMA, COLUMNS, None, b"", good).indexes.to_pylist() == [2]


TEXT = record(("x", "string"), ("y", "int"))
NUMBER = record(("x", "int"))
LIST = record(("x", {"type": "array", "items": "int"}))


@pytest.mark.parametrize(
    ("schema", "column", "payload"),
    [
        pytest.param(TEXT, "string", b"\x02\xff\x00", id="no UTF-8"),
        pytest.param(TEXT, "string", b"\x03\x00", id="a length below zero"),
        pytest.param(TEXT, "string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01a", id="too long"),
        pytest.param(NUMBER, "int", b"\x80\x80\x80\x80\x10", id="33 bits"),
        pytest.param(NUMBER, "int", b"\x80\x80\x80\x80\x80\x00", id="six bytes"),
        pytest.param(NUMBER, "int", b"", id="nothing"),
        pytest.param(record(("x", "long")), "long", b"\xff" * 9 + b"\x02", id="65 bits"),
        pytest.param(record(("x", "boolean")), "boolean", b"\x02", id="neither"),
        pytest.param(record(("x", ["null", "int"])), "int", b"\x04\x02", id="no such branch"),
        pytest.param(LIST, "list<int>", b"\x01\x02\x02\x00", id="a block with its size"),
        pytest.param(LIST, "list<int>", b"\x02\x02\x02\x04\x00", id="two blocks"),
        pytest.param(LIST, "list<int>", b"\x02\x02", id="a list that ends nowhere"),
    ],
)
def test_bytes_that_readers_may_judge_apart_are_left_to_spark(
    schema: object, column: str, payload: bytes
) -> None:
    assert read(schema, {"x": column}, payload).indexes.to_pylist() == []


def test_a_text_that_no_column_takes_is_not_looked_into() -> None:
    assert read(TEXT, {"y": "int"}, b"\x02\xff\x00").columns[0].to_pylist() == [0]


def test_a_required_column_that_is_null_is_left_to_spark() -> None:
    schema = record(("x", ["null", "int"]))

    assert read(schema, {"x": "int!"}, b"\x00", b"\x02\x04").indexes.to_pylist() == [1]


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ({"type": "map", "values": "int"}, "map<string, int>"),
        (["int", "string"], "struct<member_int: int, member_string: string>"),
        (["null", "int", "long"], "long"),
        ({"type": "int", "logicalType": "time-millis"}, "long"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, "timestamptz"),
        ({"type": "string", "logicalType": "uuid"}, "uuid"),
        ({"type": "fixed", "name": "U", "size": 16, "logicalType": "uuid"}, "string"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 2}, "decimal(19,2)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3}, "decimal(9,2)"),
        ("int", "decimal(10,0)"),
        ("bytes", "fixed(2)"),
        ("string", "uuid"),
    ],
)
def test_a_type_whose_value_spark_has_to_look_at_has_no_layout(field: object, column: str) -> None:
    assert lay_out(record(("x", field)), {"x": column}) == ""


def test_a_schema_with_a_map_that_no_column_takes_has_no_layout() -> None:
    schema = record(("x", "int"), ("m", {"type": "map", "values": "int"}))

    assert lay_out(schema, {"x": "int"}) == ""


def test_rows_of_several_schemas_keep_the_order_of_the_batch() -> None:
    schema = record(("x", "int"))
    layout = lay_out(schema, {"x": "int"})
    orders = tuple(SchemaSpec(i, (b"\x00" * 4 + bytes([i]),), layout) for i in (1, 2))
    reader = open_reader(ValueSpec("avro", orders), pa.schema([("x", pa.int32())]))
    ids = [2, 1, 9, 1, 2]
    values = [b"\x00" * 4 + bytes([i]) + encode(schema, {"x": n}) for n, i in enumerate(ids)]

    sure = reader.read(pa.array(values, pa.binary()))

    assert sure.indexes.to_pylist() == [0, 1, 3, 4]
    assert sure.columns[0].to_pylist() == [0, 1, 3, 4]
    assert sure.schema_ids is not None
    assert sure.schema_ids.to_pylist() == [2, 1, 1, 2]
