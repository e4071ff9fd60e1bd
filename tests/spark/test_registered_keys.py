"""JSON Schema, keys of every kind, bare payloads, and values that stay in one column."""

import json

import pytest
from faults.judges import assert_audited
from support.avro_bytes import encode, record
from support.registry_lab import RegistryLab, frame, read_table

pytestmark = [pytest.mark.spark, pytest.mark.stack]

ORDER = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"oneOf": [{"type": "null"}, {"type": "string", "format": "date-time"}]},
        "item": {"$ref": "#/definitions/item"},
    },
    "definitions": {"item": {"type": "object", "properties": {"sku": {"type": "string"}}}},
}
KEY = record(("id", "long"), ("region", ["null", "string"]), name="Key")
VALUE = record(("amount", "double"))


def test_json_by_schema_id_with_an_avro_key(registry: RegistryLab) -> None:
    lab = registry.lab
    value_id = registry.register(json.dumps(ORDER), "JSON")
    key_id = registry.register(json.dumps(KEY), part="key")
    registry.write_stream()
    lab.write_stream(key={"convert": "by_schema_id", "column": "order_key"})
    text = json.dumps({"id": 1, "at": "2026-01-02T03:04:05Z", "item": {"sku": "s"}}).encode()
    good_key = frame(key_id, encode(KEY, {"id": 5, "region": ""}))
    bad = {
        "missing_schema_id": (text, good_key),
        "malformed_json": (frame(value_id, text[:-1]), good_key),
        "type_mismatch": (frame(value_id, b'{"id": "x"}'), good_key),
        "bad_key": (frame(value_id, text), good_key[:-1]),
    }
    pairs = [(frame(value_id, text), good_key), (frame(value_id, b"{}"), None)] * 4
    pairs += list(bad.values())
    registry.send([value for value, _ in pairs], [key for _, key in pairs])

    lab.drain()

    full, bare = read_table(lab)[:2]
    assert (full["id"], full["at"].year, full["item"]) == (1, 2026, {"sku": "s"})
    assert full["order_key"] == {"id": 5, "region": ""}
    assert full["_kafka"]["key"] == good_key
    assert (bare["id"], bare["order_key"], bare["_kafka"]["schema_id"]) == (None, None, value_id)
    letters = read_table(lab, f"{lab.table}__dead_letters")
    assert {r["value"]: r["reason"] for r in letters if r["reason"] != "bad_key"} == {
        value: reason for reason, (value, _) in bad.items() if reason != "bad_key"
    }
    assert [r["detail"] for r in letters if r["reason"] == "bad_key"] == ["key: malformed_avro"]
    assert_audited(lab)


def test_bare_avro_in_one_column_with_a_key_of_text(registry: RegistryLab) -> None:
    lab = registry.lab
    schema_id = registry.register(json.dumps(VALUE), part="own")
    subject = f"{lab.topic}-own"
    registry.write_stream("by_latest_schema", subject=subject, transform="none")
    lab.write_stream(key={"convert": "string"})
    registry.send([encode(VALUE, {"amount": 1.5}), encode(VALUE, {"amount": -0.0})], [b"", None])

    lab.drain()

    got = [(r["value"], r["key"], r["_kafka"]["schema_id"]) for r in read_table(lab)]
    assert got == [({"amount": 1.5}, "", schema_id), ({"amount": -0.0}, None, schema_id)]
    assert_audited(lab)


def test_json_in_one_column_with_a_key_of_json(registry: RegistryLab) -> None:
    lab = registry.lab
    lab.write_stream(
        value={
            "convert": "json",
            "transform": "none",
            "columns": {"value": "struct<id: long!, price: decimal(9,2)>"},
        },
        key={"convert": "json", "type": "struct<day: date>"},
        table={"name": lab.table},
    )
    good, bad = b'{"id": 1, "price": 2.50}', b'{"price": 2.505}'
    registry.send([good, good, bad], [b'{"day": "2026-01-02"}', None, None])

    lab.drain()

    first, second = read_table(lab)
    assert (first["value"]["id"], str(first["value"]["price"])) == (1, "2.50")
    assert (str(first["key"]["day"]), second["key"]) == ("2026-01-02", None)
    letters = read_table(lab, f"{lab.table}__dead_letters")
    assert [r["reason"] for r in letters] == ["type_mismatch"]
    assert_audited(lab)
