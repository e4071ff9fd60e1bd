"""Python workers read a Protobuf message as Google's library does, or leave it to that."""

import random
import secrets
import sys

import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from support.avro_corpus import damage
from support.proto_corpus import COLUMNS, make_odd, make_payload, message_class, read_schema

from frazil.iceberg.table_schema import build_table_schema
from frazil.ingest.fast_path import narrow_schema
from frazil.kafka.schema_registry import Registered
from frazil.schemas.fast_path_layouts import lay_out_protobuf
from frazil.schemas.protobuf import read_protobuf
from frazil.streams.column_types import parse_column
from frazil_spark.decode.protobuf import MessageReader, MessageSpec
from frazil_spark.fast_path.json_reader import FastPathRows
from frazil_spark.fast_path.readers import SchemaSpec, ValueSpec, open_reader

from pyiceberg.io.pyarrow import schema_to_pyarrow  # isort: skip

HEADER = b"\x00\x00\x00\x00\x08\x00"


def read(*payloads: bytes) -> FastPathRows:
    """Read payloads as a worker does, with a header in front."""
    parsed = tuple(parse_column(*pair) for pair in COLUMNS.items())
    layout = lay_out_protobuf(read_schema(), parsed)
    assert layout
    arrow = schema_to_pyarrow(build_table_schema(parsed), include_field_ids=True)
    table = pa.schema([f for f in narrow_schema(arrow) if f.name != "_kafka"])
    reader = open_reader(ValueSpec("protobuf", (SchemaSpec(8, (HEADER,), layout),)), table)
    sure = reader.read(pa.array([HEADER + p for p in payloads], pa.binary()))
    pa.RecordBatch.from_arrays(list(sure.columns), schema=table).validate(full=True)
    return sure


def rows_of(sure: FastPathRows) -> list[dict[str, object]]:
    columns = [column.to_pylist() for column in sure.columns]
    return [dict(zip(COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)]


def read_by_library(payload: bytes) -> dict[str, object] | None:
    """Return the values that the columns ask for; None where the library refuses the message."""
    try:
        m = message_class().FromString(payload)
    except DecodeError:
        return None

    def optional(name: str) -> object:
        return getattr(m, name) if m.HasField(name) else None

    deep, at, wrapped = optional("deep"), optional("at"), optional("wrapped")
    plain = ("id", "zigzag", "unsigned", "flag", "real", "single", "four", "eight")
    return {
        **{name: getattr(m, name) for name in (*plain, "text", "some_bytes")},
        "small": optional("small"),
        "at": at and (at.seconds, at.nanos),
        "colour": {0: "RED", 1: "GREEN"}.get(m.colour),
        "deep": deep and {"b": deep.b if deep.HasField("b") else None, "a": deep.a},
        "reals": list(m.reals),
        "lines": [{"sku": line.sku, "qty": line.qty} for line in m.lines],
        "wrapped": wrapped and wrapped.value,
        "steps": list(m.steps),
        "absent": None,
    }


def split_instant(row: dict[str, object]) -> dict[str, object]:
    """Return an instant as the library does."""
    at = row["at"]
    if at is None:
        return row
    micros = pa.scalar(at, pa.timestamp("us", "UTC")).cast(pa.int64()).as_py()
    return {**row, "at": (micros // 10**6, micros % 10**6 * 1000)}


def test_plain_messages_are_read_as_the_library_reads_them() -> None:
    rnd = random.Random(5)
    payloads = [make_payload(rnd, number) for number in range(500)]

    sure = read(*payloads)

    assert sure.indexes.to_pylist() == list(range(500))
    assert [split_instant(row) for row in rows_of(sure)] == list(map(read_by_library, payloads))


def test_an_odd_message_is_left_to_the_library_and_its_neighbours_are_not() -> None:
    rnd = random.Random(6)
    good, odd = make_payload(rnd, 1), make_odd(rnd, 2)

    for payload in odd:
        assert read(good, payload, good).indexes.to_pylist() == [0, 2], payload


def test_a_damaged_message_is_read_as_the_library_reads_it_or_not_sure() -> None:
    seed = secrets.randbelow(10**6)
    sys.stdout.write(f"seed {seed}\n")
    rnd = random.Random(seed)
    payloads = [damage(rnd, make_payload(rnd, number)) for number in range(3000)]

    sure = read(*payloads)

    assert 100 < len(sure.indexes) < 2900
    for place, row in zip(sure.indexes.to_pylist(), rows_of(sure), strict=True):
        assert split_instant(row) == read_by_library(payloads[place])


@pytest.mark.parametrize(
    ("text", "column"),
    [
        pytest.param("map<string, int32> x = 1;", "map<string, int>", id="a map"),
        pytest.param("oneof o { int32 x = 1; int32 y = 2; }", "int", id="one of two"),
        pytest.param("uint64 x = 1;", "decimal(20,0)", id="64 bits without a sign"),
        pytest.param("M x = 1;", "binary", id="a message in itself"),
        pytest.param("E x = 1; enum E { A = 0; }", "int", id="the number of a name"),
        pytest.param("int32 x = 1; map<string, int32> m = 2;", "int", id="a map beside"),
    ],
)
def test_a_message_with_several_readings_has_no_layout(text: str, column: str) -> None:
    found = read_protobuf(
        Registered(1, "PROTOBUF", f'syntax = "proto3"; message M {{ {text} }}'), None
    )

    assert lay_out_protobuf(found, (parse_column("x", column),)) == ""


def test_an_older_syntax_has_no_layout() -> None:
    text = 'syntax = "proto2"; message M { optional int32 x = 1; }'

    assert (
        lay_out_protobuf(
            read_protobuf(Registered(1, "PROTOBUF", text), None), (parse_column("x", "int"),)
        )
        == ""
    )


def test_a_batch_whose_messages_are_all_sure_is_not_read_again() -> None:
    wire = pa.struct([("id", pa.int64())])
    found = read_schema()
    reader = MessageReader(
        MessageSpec(found.descriptor_set, found.message, HEADER[:5], (b"\x00",), wire)
    )

    nothing = reader.read(pa.nulls(3, pa.binary()))
    mixed = reader.read(pa.array([None, HEADER + b"\x08\x05"], pa.binary()))

    assert nothing.type == mixed.type
    assert nothing.null_count == 3
    assert mixed.to_pylist()[1] == {"value": {"id": 5}, "fault": None}
