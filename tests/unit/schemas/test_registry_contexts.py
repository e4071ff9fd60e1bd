"""Each context of a registry numbers its schemas from 1: an id is looked up with its subject."""

import json

import pytest
from support.served_registry import NO_SCHEMAS, make_payload, serve

from frazil.kafka.schema_registry import SchemaType
from frazil.schemas.payloads import add_schemas, find_latest_schema, select_schemas

SHOP = ":.shop:orders-value"


def write_schema(kind: SchemaType, field: str) -> str:
    """Write a schema of one text field."""
    if kind == "PROTOBUF":
        return f'syntax = "proto3"; message M {{ string {field} = 1; }}'
    if kind == "JSON":
        return json.dumps({"type": "object", "properties": {field: {"type": "string"}}})
    fields = [{"name": field, "type": "string"}]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def register(kind: SchemaType, field: str, number: int = 1) -> dict[str, object]:
    return {"id": number, "schemaType": kind, "schema": write_schema(kind, field)}


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF", "JSON"])
def test_an_id_names_the_schema_of_its_subjects_context(kind: SchemaType) -> None:
    subjects = {
        "orders-value": register(kind, "other"),
        SHOP: register(kind, "id"),
        ":.shop:returns-value": register(kind, "id", 2),
    }
    payload = make_payload(SHOP, {"id": "string"})
    with serve(subjects) as registry:
        latest = find_latest_schema(registry, payload)
        asked = registry.find_schema(1, SHOP)
        chosen = select_schemas(registry, payload, None, remembered=(2,))
        planned = select_schemas(registry, payload, 1, ())
        found = add_schemas(registry, payload, NO_SCHEMAS, [1], "found in a batch")
        elsewhere = registry.find_schema(1, "orders-value")

    assert asked is not None
    assert asked == latest
    assert asked.text == write_schema(kind, "id")
    assert [schema.schema_id for schema in chosen.schemas] == [1, 2]
    for wire in (chosen, planned, found):
        assert wire.schemas[0].refusal is None
        if kind != "JSON":
            assert "`id`" in wire.schemas[0].values["id"]
    assert elsewhere is not None
    assert elsewhere.text == write_schema(kind, "other")


def test_an_id_that_the_context_lacks_is_unknown_even_if_the_default_context_has_it() -> None:
    with serve({"orders-value": register("AVRO", "other")}) as registry:
        assert registry.find_schema(1, SHOP) is None
        assert registry.find_schema(1, "payments-value") is not None


def test_a_registry_that_finds_only_a_subjects_own_ids_is_asked_by_the_id_alone_too() -> None:
    subjects = {
        "orders-value": register("AVRO", "id", 1),
        "lines-value": register("AVRO", "id", 2),
    }
    with serve(subjects, by_subject=True) as registry:
        found = registry.find_schema(2, "orders-value")

    assert found is not None
    assert found.id == 2


@pytest.mark.parametrize("subject", ["common", ":.shop:common", ":.base:common"])
def test_a_reference_without_a_context_is_in_that_of_its_referrer(subject: str) -> None:
    reference = {"name": "Common", "subject": subject, "version": 1}
    subjects = {
        SHOP: {**register("JSON", "id"), "references": [reference]},
        ":.shop:common": register("JSON", "shop", 2),
        ":.base:common": register("JSON", "base", 2),
        "common": register("JSON", "default", 2),
    }
    with serve(subjects) as registry:
        found = registry.find_schema(1, SHOP)

    assert found is not None
    expected = "base" if subject == ":.base:common" else "shop"
    assert found.references == (("Common", write_schema("JSON", expected)),)


def test_the_ids_of_keys_do_not_decide_the_format_of_values() -> None:
    subjects = {
        "orders-value": register("PROTOBUF", "id", 1),
        "orders-key": register("AVRO", "id", 2),
    }
    payload = make_payload("orders-value", {"id": "string"})
    with serve(subjects) as registry:
        wire = select_schemas(registry, payload, None, remembered=(1, 2))

    assert wire.format == "protobuf"
    assert [schema.schema_id for schema in wire.schemas] == [1]
