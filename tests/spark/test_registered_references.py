"""Schemas that refer to other subjects, framed and bare, in each format of the registry."""

import json

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference
from faults.judges import assert_audited
from support.avro_bytes import encode, record
from support.registry_lab import RegistryLab, frame, read_table

pytestmark = [pytest.mark.spark, pytest.mark.stack]

ADDRESS = {**record(("city", "string"), name="Address"), "namespace": "shop"}
ORDER = record(("id", "int"), ("to", ["null", "shop.Address"]))
WHOLE = record(("id", "int"), ("to", ["null", ADDRESS]))
ADDRESS_PROTO = 'syntax = "proto3"; package shop; message Address { string city = 1; }'
ORDER_PROTO = """
syntax = "proto3";
import "address.proto";
message Order { int32 id = 1; shop.Address to = 2; }
"""
BERN = b"\x08\x01\x12\x06\x0a\x04Bern"
ADDRESS_JSON = {"type": "object", "properties": {"city": {"type": "string"}}}
ORDER_JSON = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "to": {"$ref": "address.json"}},
}
ROWS = [(1, {"city": "Bern"}), (2, None)]


def register(registry: RegistryLab, kind: str, name: str, texts: tuple[str, str]) -> int:
    """Register a schema under the topic's subject, and what it refers to under one of its own."""
    subject = f"{registry.lab.topic}-address"
    registry.client.register_schema(subject, Schema(texts[0], kind))
    whole = Schema(texts[1], kind, [SchemaReference(name, subject, 1)])
    return int(registry.client.register_schema(f"{registry.lab.topic}-value", whole))


@pytest.mark.parametrize(
    ("kind", "convert"),
    [
        ("AVRO", "by_schema_id"),
        ("PROTOBUF", "by_schema_id"),
        ("PROTOBUF", "by_latest_schema"),
        ("JSON", "by_latest_schema"),
    ],
)
def test_a_schema_is_read_with_what_it_refers_to(
    registry: RegistryLab, kind: str, convert: str
) -> None:
    name, texts, indexes, payloads = {
        "AVRO": (
            "shop.Address",
            (json.dumps(ADDRESS), json.dumps(ORDER)),
            b"",
            [encode(WHOLE, {"id": number, "to": to}) for number, to in ROWS],
        ),
        "PROTOBUF": ("address.proto", (ADDRESS_PROTO, ORDER_PROTO), b"\x00", [BERN, b"\x08\x02"]),
        "JSON": (
            "address.json",
            (json.dumps(ADDRESS_JSON), json.dumps(ORDER_JSON)),
            b"",
            [b'{"id": 1, "to": {"city": "Bern"}}', b'{"id": 2, "to": null}'],
        ),
    }[kind]
    number = register(registry, kind, name, texts)
    registry.write_stream(convert)
    is_framed = convert == "by_schema_id"

    registry.send([frame(number, p, indexes) if is_framed else p for p in payloads])
    registry.lab.drain()

    assert [(row["id"], row["to"]) for row in read_table(registry.lab)] == ROWS
    assert_audited(registry.lab)
