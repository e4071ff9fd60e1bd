"""Decimals that Avro ignores, and those that no column asks for, are the bytes that they are."""

import io
import json

import fastavro
import pytest
from support.avro_bytes import encode, record

from frazil.kafka.schema_registry import Registered
from frazil.schemas.avro import MARK, AvroSchema, read_avro
from frazil.schemas.source_types import Primitive, Record, Scalar, Source
from frazil.streams.column_types import StructType, parse_column

FIXED = {"type": "fixed", "name": "F", "logicalType": "decimal", "scale": 0}


def read(schema: object, **columns: str) -> AvroSchema:
    """Read a schema as for a stream of these columns."""
    wanted = StructType(tuple(parse_column(*each) for each in columns.items()))
    return read_avro(Registered(1, "AVRO", json.dumps(schema)), wanted)


def find(avro: AvroSchema, name: str) -> Source | None:
    """Return the type of a field at the top."""
    assert isinstance(avro.root, Record)
    return avro.root.find(name)[0]


@pytest.mark.parametrize(
    ("node", "column"),
    [
        ({**FIXED, "size": 4, "precision": 10}, "fixed(4)"),
        ({**FIXED, "size": 16, "precision": 40}, "fixed(16)"),
        ({**FIXED, "size": 4}, "fixed(4)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": "4"}, "binary"),
        ({"type": "int", "logicalType": "decimal", "precision": 4}, "int"),
    ],
    ids=str,
)
def test_a_decimal_that_avro_calls_invalid_is_its_own_type(node: object, column: str) -> None:
    expected = parse_column("x", column).type
    assert isinstance(expected, Primitive)

    for place in (node, ["null", node], {"type": "array", "items": node}):
        found = find(read(record(("x", place)), x=column), "x")
        assert getattr(found, "element", found) == Scalar(expected)


def test_each_use_of_a_type_is_read_as_its_column_asks_for() -> None:
    price = {**FIXED, "size": 4, "precision": 9}
    inner = {**record(("n", price), ("m", "shop.v1.F")), "name": "In"}
    schema = record(("a", inner), ("b", "shop.v1.In"), ("c", "shop.v1.In"), ("d", "shop.v1.F"))
    value = {"n": b"\0\0\0\1", "m": b"\x7f\xff\xff\xff"}
    plain = json.loads(json.dumps(schema).replace('"logicalType": "decimal", ', ""))
    payload = encode(plain, {"a": value, "b": value, "c": value, "d": value["m"]})

    avro = read(schema, a="struct<n: decimal(9,0)>", c="struct<n: decimal(9,0)>")

    reader = fastavro.parse_schema(json.loads(avro.reader))
    found = fastavro.schemaless_reader(io.BytesIO(payload + MARK), reader)
    assert isinstance(found, dict)
    asked = {"n": 1, "m": value["m"]}
    assert found["value"] == {"a": asked, "b": value, "c": asked, "d": value["m"]}


def test_types_that_no_column_asks_for_are_written_once() -> None:
    fields = [record(("id", "long"), ("x0", {**FIXED, "size": 4, "precision": 9}))]
    for number in range(1, 40):
        inner = {**fields[-1], "name": f"N{number}"}
        fields.append(record(("a", inner), ("b", f"shop.v1.N{number}"), ("id", "long")))

    assert len(read(fields[-1], id="long").reader) < 20_000
