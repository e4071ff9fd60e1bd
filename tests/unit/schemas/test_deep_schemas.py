"""Schemas that are nested deep, refer in a chain or a circle, or grow with each reference."""

import base64
import json
from collections.abc import Mapping

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from support.avro_bytes import record
from support.served_registry import NO_SCHEMAS, make_payload, serve

from frazil.errors import SchemaMisfitError
from frazil.kafka.schema_registry import Registered, SchemaType
from frazil.schemas.payloads import (
    add_schemas,
    describe_schema,
    find_latest_schema,
    select_schemas,
)
from frazil.schemas.protobuf import read_protobuf
from frazil.schemas.source_types import NotConvertibleError, derive_columns
from frazil.streams.column_types import parse_column

SUBJECT = "orders-value"
LEVELS = 1_500


def refer(number: int) -> dict[str, object]:
    return {"name": f"r{number}", "subject": f"r{number}", "version": 1}


def write_link(kind: SchemaType, number: int, *, is_last: bool) -> str:
    """Write a schema that has an id and refers to the next one."""
    if kind == "AVRO":
        inner = [] if is_last else [("next", f"shop.v1.R{number + 1}")]
        return json.dumps(record(("id", "long"), *inner, name=f"R{number}"))
    if kind == "JSON":
        inner_json = {} if is_last else {"next": {"$ref": f"r{number + 1}"}}
        return json.dumps({"properties": {"id": {"type": "integer"}, **inner_json}})
    begin = f'syntax = "proto3"; import "r{number + 1}"; ' if not is_last else 'syntax = "proto3"; '
    field = f"R{number + 1} next = 2; " if not is_last else ""
    return f"{begin}message R{number} {{ int64 id = 1; {field}}}"


def make_chain(kind: SchemaType, levels: int) -> dict[str, Mapping[str, object]]:
    """Make the subjects of a chain of references; the first one is the stream's own."""
    found: dict[str, Mapping[str, object]] = {}
    for number in range(levels + 1):
        text = write_link(kind, number, is_last=number == levels)
        references = [] if number == levels else [refer(number + 1)]
        subject = f"r{number}" if number else SUBJECT
        found[subject] = {
            "id": number + 1,
            "schemaType": kind,
            "schema": text,
            "references": references,
        }
    return found


@pytest.mark.parametrize(
    ("kind", "levels"),
    [("AVRO", 110), pytest.param("AVRO", LEVELS, marks=pytest.mark.slow), ("PROTOBUF", 2)],
)
def test_a_record_of_a_schema_that_is_too_deep_is_a_letter_beside_the_records_of_others(
    kind: SchemaType, levels: int
) -> None:
    chain = make_chain(kind, levels)
    payload = make_payload(SUBJECT, {"id": "long"})
    good = {"id": 9_000, "schemaType": kind, "schema": write_link(kind, 0, is_last=True)}
    bad = {**chain[SUBJECT], "id": 9_001}
    if kind == "PROTOBUF":
        bad["schema"] = "message {"
    with serve({**chain, SUBJECT: good, "other-value": bad}) as registry:
        wire = add_schemas(registry, payload, NO_SCHEMAS, [9_000, 9_001], "found in a batch")

    assert wire.schemas[0].refusal is None
    assert wire.schemas[1].refusal is not None
    reason, detail = wire.schemas[1].refusal
    assert reason == "unreadable_schema"
    expected = "is nested" if kind == "AVRO" else "is not a valid Protobuf schema"
    assert detail.startswith(f"schema 9001 {expected}")


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF", "JSON"])
def test_a_deep_newest_schema_is_refused_with_subject_id_and_next_step(kind: SchemaType) -> None:
    payload = make_payload(SUBJECT, {"id": "long", "next": "struct<id: long>"})
    with serve(make_chain(kind, 110)) as registry:
        schema = find_latest_schema(registry, payload)
        wire = select_schemas(registry, payload, None, ())

    if kind == "AVRO":
        with pytest.raises(SchemaMisfitError) as told:
            describe_schema(payload, schema)
        assert "schema 1 of its values (subject orders-value): is nested" in told.value.facts
        assert "register a schema that can be read under orders-value" in told.value.next_step
        assert wire.schemas == ()
    else:
        assert wire.schemas[0].refusal is None  # the columns are not deep


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_references_in_a_circle_come_to_an_end(kind: SchemaType) -> None:
    chain = make_chain(kind, 3)
    chain["r3"] = {**chain["r3"], "references": [refer(1)]}
    with serve(chain) as registry:
        found = registry.find_schema(1, SUBJECT)

    assert found is not None
    assert {name for name, _ in found.references} == {"r1", "r2", "r3"}


def test_what_two_schemas_refer_to_is_read_once_and_before_them() -> None:
    subjects: dict[str, Mapping[str, object]] = make_chain("JSON", 3)
    subjects[SUBJECT] = {**subjects[SUBJECT], "references": [refer(3), refer(1), refer(2)]}
    with serve(subjects) as registry:
        found = registry.find_schema(1, SUBJECT)

    assert found is not None
    assert [name for name, _ in found.references] == ["r3", "r2", "r1"]


def read_chain_of_messages(levels: int, uses: int = 1) -> Registered:
    """Make one file of messages that each contain the next one, as a registry's descriptor."""
    file = FileDescriptorProto(name="m.proto", syntax="proto3")
    for number in range(levels + 1):
        message = file.message_type.add(name=f"M{number}")
        message.field.add(name="id", number=1, type="TYPE_INT64", label="LABEL_OPTIONAL")
        for use in range(uses if number < levels else 0):
            inner = message.field.add(name=f"next{use}", number=2 + use, type="TYPE_MESSAGE")
            inner.type_name, inner.label = f".M{number + 1}", "LABEL_OPTIONAL"
    return Registered(1, "PROTOBUF", base64.b64encode(file.SerializeToString()).decode())


@pytest.mark.parametrize(
    ("levels", "uses", "reason"),
    [
        (40, 1, ""),
        (60, 1, "is nested deeper than 50 levels"),
        (LEVELS, 1, "is nested deeper than 50 levels"),
        (40, 2, "has more than 10000 fields"),
        (LEVELS, 2, "has more than 10000 fields|deeper than 50 levels"),
    ],
)
def test_messages_in_messages_are_read_to_a_limit(levels: int, uses: int, reason: str) -> None:
    schema = read_chain_of_messages(levels, uses)
    payload = make_payload(SUBJECT, {"id": "long"})

    assert "v.`id`" not in describe_schema(payload, schema).values["id"]
    root = read_protobuf(schema, None).root
    if not reason:
        assert derive_columns(root, is_flat=True, single_column="value")
        return
    with pytest.raises(NotConvertibleError, match=reason):
        derive_columns(root, is_flat=True, single_column="value")


@pytest.mark.parametrize("levels", [51, LEVELS, 20_000])
def test_a_column_has_at_most_fifty_levels(levels: int) -> None:
    assert parse_column("x", "list<" * 49 + "int" + ">" * 49)

    with pytest.raises(ValueError, match="at most 50 levels"):
        parse_column("x", "list<" * levels + "int" + ">" * levels)
