"""What a registered schema cannot be as columns is refused with the field's name."""

import json
from typing import cast

import pytest
from support.lake import make_stream

from frazil.errors import SchemaMisfitError
from frazil.kafka.schema_registry import Registered, SchemaRegistry, SchemaType
from frazil.schemas import source_types
from frazil.schemas.avro import read_avro
from frazil.schemas.column_conversion import convert_columns
from frazil.schemas.json_schema import read_json_schema
from frazil.schemas.payloads import Payload, add_schemas, describe_schema
from frazil.schemas.protobuf import read_protobuf
from frazil.schemas.source_types import NotConvertibleError, Source, derive_columns
from frazil.schemas.wire_format import WireFormat
from frazil.streams.column_types import Column, format_type, parse_column

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}, {"name": "id", "type": "long"}],
}
NEXT = {"name": "next", "type": ["null", "A"]}


def read(kind: SchemaType, text: str) -> Source:
    schema = Registered(1, kind, text)
    if kind == "PROTOBUF":
        return read_protobuf(schema, None).root
    return read_avro(schema).root if kind == "AVRO" else read_json_schema(schema)


def avro(field: object) -> str:
    fields = [{"name": "x", "type": field}]
    return json.dumps({"type": "record", "name": "R", "fields": fields})


def derive(kind: SchemaType, text: str) -> tuple[Column, ...]:
    return derive_columns(read(kind, text), is_flat=True, single_column="value")


DIGITS = {"type": "bytes", "logicalType": "decimal", "precision": 39, "scale": 0}
DAY = {"type": "int", "logicalType": "date"}
PROTO = 'syntax = "proto2"; message M { optional group G = 1 { optional int32 a = 2; } }'


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        pytest.param("AVRO", avro(DIGITS), "x has 39 digits", id="too many digits"),
        pytest.param("AVRO", avro("null"), "x is always null", id="a null type"),
        pytest.param("AVRO", json.dumps(NODE), "next is recursive", id="recursion"),
        pytest.param("AVRO", avro([DAY, "long"]), "x mixes logical types", id="a mixed union"),
        pytest.param("AVRO", "{}", "not a valid Avro schema", id="no schema"),
        pytest.param("AVRO", avro({"type": "record", "name": "E", "fields": []}),
                     "x is a record without fields", id="an empty record"),
        pytest.param("PROTOBUF", "message {", "not a valid Protobuf schema", id="no proto"),
        pytest.param("JSON", '{"type": "string"}', "does not describe", id="no object"),
        pytest.param("JSON", '{"properties": {"a b": {"type": "string"}}}', "'a b'", id="a name"),
        pytest.param("JSON", '{"properties": {"x": {"type": ["string", "integer"]}}}',
                     "x has several types", id="two types"),
        pytest.param("JSON", '{"properties": {"x": {"$ref": "#/x"}}}', "not exist", id="a gap"),
    ],
)  # fmt: skip
def test_what_has_no_exact_column_is_refused_by_name(
    kind: SchemaType, text: str, reason: str
) -> None:
    with pytest.raises(NotConvertibleError, match=reason):
        derive(kind, text)


MICROS = {"type": "long", "logicalType": "timestamp-micros"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
MILLIS_OF_DAY = {"type": "int", "logicalType": "time-millis"}
INTS = {"type": "array", "items": "int"}


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("int", "long"),
        ("int", "decimal(10,0)"),
        ("float", "double"),
        ("bytes", "fixed(4)"),
        ("string", "uuid"),
        (NANOS, "timestamptz"),
        (INTS, "list<long>"),
    ],
)
def test_a_column_takes_a_field_that_it_holds_exactly(field: object, column: str) -> None:
    source, wanted = read("AVRO", avro(field)), (parse_column("x", column),)

    converted = convert_columns(source, wanted, "d.value", is_flat=True, single_column="value")

    assert "d.value.`x`" in converted["x"].value


@pytest.mark.parametrize(
    ("field", "column"),
    [
        ("long", "int"),
        ("long", "double"),
        ("int", "decimal(9,0)"),
        ("string", "long"),
        (MICROS, "timestamp"),
        (NANOS, "timestamp"),
        (MILLIS_OF_DAY, "int"),
        (INTS, "list<string>"),
        ({"type": "map", "values": "int"}, "struct<a: int>"),
    ],
)
def test_a_column_refuses_a_field_that_it_does_not_hold_exactly(field: object, column: str) -> None:
    source, wanted = read("AVRO", avro(field)), (parse_column("x", column),)

    with pytest.raises(NotConvertibleError, match="cannot hold exactly"):
        convert_columns(source, wanted, "d.value", is_flat=True, single_column="value")


def test_a_schema_without_any_of_the_columns_is_refused() -> None:
    source, wanted = read("AVRO", avro("int")), (parse_column("y", "int"),)

    with pytest.raises(NotConvertibleError, match="has none of the columns y"):
        convert_columns(source, wanted, "d.value", is_flat=True, single_column="value")


def by_id(columns: dict[str, str], *, follows: bool = False) -> Payload:
    stream = make_stream(value={"convert": "by_schema_id", "columns": columns})
    return Payload(stream, "value", follows_schemas=follows)


def test_a_field_that_no_column_can_hold_hides_no_other_new_field() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "email", "type": "string"}]
    text = json.dumps({"type": "record", "name": "A", "fields": [*fields, NEXT]})
    schema = Registered(9, "AVRO", text)

    assert describe_schema(by_id({"id": "long"}), schema).refusal is None
    with pytest.raises(SchemaMisfitError, match="next is recursive"):
        describe_schema(by_id({"id": "long"}, follows=True), schema)
    by_latest = make_stream(value={"convert": "by_latest_schema", "columns": {"id": "long"}})
    with pytest.raises(SchemaMisfitError, match="next is recursive") as caught:
        describe_schema(Payload(by_latest, "value", follows_schemas=True), schema)
    assert "quarantine" not in caught.value.next_step  # such records have no schema of their own


@pytest.mark.parametrize(
    ("columns", "field", "names"),
    [
        ({"userId": "long"}, {"name": "UserId", "type": "long"}, "'userId' and 'UserId'"),
        ({"at": "struct<zip:long>"}, {"name": "at", "type": {
            "type": "record", "name": "At", "fields": [{"name": "ZIP", "type": "long"}]}},
         "'zip' and 'ZIP'"),
    ],
    ids=["a column", "a field of a struct"],
)  # fmt: skip
def test_a_new_name_that_differs_only_in_case_is_refused_by_name(
    columns: dict[str, str], field: object, names: str
) -> None:
    text = json.dumps({"type": "record", "name": "A", "fields": [field]})
    payload, schema = by_id(columns, follows=True), Registered(9, "AVRO", text)

    with pytest.raises(SchemaMisfitError, match=f"{names} differ only in case") as caught:
        describe_schema(payload, schema)

    assert "schema 9" in caught.value.facts
    assert "quarantine" in caught.value.next_step


def test_a_schema_of_a_type_that_frazil_does_not_read_makes_dead_letters() -> None:
    schema = Registered(7, cast("SchemaType", "XML"), "<x/>")

    class Registry:
        def find_schema(self, *_: object) -> Registered:
            return schema

    registry = cast("SchemaRegistry", Registry())
    payload = by_id({"id": "long"})
    found = add_schemas(
        registry,
        payload,
        WireFormat(format="avro", has_schema_id=True, schemas=()),
        [7],
        "first at orders:0:5",
    )

    assert [each.refusal for each in found.schemas] == [
        ("unreadable_schema", "schema 7 is of the type XML")
    ]


def test_a_protobuf_schema_may_have_letters_of_any_script() -> None:
    text = 'syntax = "proto3"; // Größe\nmessage A { int32 a = 1; }'
    assert [column.name for column in derive("PROTOBUF", text)] == ["a"]


def test_the_names_of_a_wide_schema_are_chosen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = source_types.choose_decoded_names
    monkeypatch.setattr(
        source_types, "choose_decoded_names", lambda names: calls.append(1) or real(names)
    )
    columns = {f"f_{n}": "int" for n in range(50)}
    fields = "".join(f"int32 f_{n} = {n + 1};" for n in range(50))
    schema = Registered(1, "PROTOBUF", f'syntax = "proto3"; message A {{ {fields} }}')

    assert len(describe_schema(by_id(columns), schema).values) == len(columns)
    assert len(calls) <= 2


def test_columns_of_a_json_schema() -> None:
    text = json.dumps(
        {
            "properties": {
                "n": {"type": "number"},
                "day": {"type": ["null", "string"], "format": "date"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "counts": {"type": "object", "additionalProperties": {"type": "integer"}},
            }
        }
    )

    found = {column.name: format_type(column.type) for column in derive("JSON", text)}

    assert found == {
        "n": "double",
        "day": "date",
        "tags": "list<string>",
        "counts": "map<string,long>",
    }


INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
COUNT = {
    "properties": {"count": {"$ref": "#/definitions/count"}},
    "definitions": {"count": INTEGER},
}
OTHER_COUNT = {"definitions": {"count": NUMBER}}


@pytest.mark.parametrize(
    ("root", "references"),
    [
        pytest.param(
            {**OTHER_COUNT, "properties": {"line": {"$ref": "line.json"}}},
            {"line.json": COUNT},
            id="a local reference in a referenced document",
        ),
        pytest.param(
            {**OTHER_COUNT, "properties": {"line": {"$ref": "line.json#/definitions/line"}}},
            {"line.json": {"definitions": {**COUNT["definitions"], "line": COUNT}}},
            id="a part of a referenced document",
        ),
        pytest.param(
            {**OTHER_COUNT, "properties": {"line": {"$ref": "a/line.json"}}},
            {
                "a/line.json": {"properties": {"count": {"$ref": "count.json#/definitions/count"}}},
                "a/count.json": COUNT,
                "count.json": OTHER_COUNT,
            },
            id="a reference relative to the referenced document",
        ),
        pytest.param(
            {
                **OTHER_COUNT,
                "$id": "https://shop.example/schemas/order.json",
                "properties": {"line": {"$ref": "line.json"}},
            },
            {"line.json": COUNT},
            id="a name relative to the root's URI",
        ),
        pytest.param(
            {**OTHER_COUNT, "properties": {"line": {"$ref": "https://shop.example/line.json"}}},
            {"line": {"$id": "https://shop.example/line.json", **COUNT}},
            id="a document's own URI",
        ),
        pytest.param(
            {
                **OTHER_COUNT,
                "$id": "https://shop.example/order.json",
                "properties": {"line": {"$ref": "/types/line.json"}},
            },
            {"/types/line.json": {"$id": "urn:shop:line", **COUNT}},
            id="a name that is no URI of the document",
        ),
        pytest.param(
            {
                **OTHER_COUNT,
                "$defs": {"line": {"$id": "line.json", **COUNT}},
                "properties": {"line": {"$ref": "line.json"}},
            },
            {},
            id="a document inside the document",
        ),
        pytest.param(
            {**OTHER_COUNT, "properties": {"line": {"$id": "line.json", **COUNT}}},
            {},
            id="a document in place",
        ),
        pytest.param(
            {**OTHER_COUNT, "properties": {"line": {"$ref": "line.json#line"}}},
            {"line.json": {"$defs": {"x": {"$anchor": "line", **COUNT}}, **COUNT}},
            id="an anchor",
        ),
        pytest.param(
            {
                **OTHER_COUNT,
                "$schema": "http://json-schema.org/draft-07/schema#",
                "properties": {"line": {"$ref": "line.json#line"}},
            },
            {
                "line.json": {
                    "$schema": "http://json-schema.org/draft-07/schema#",
                    "definitions": {**COUNT["definitions"], "x": {"$id": "#line", **COUNT}},
                }
            },
            id="an anchor of draft 7",
        ),
        pytest.param(
            {
                **OTHER_COUNT,
                "$schema": "http://json-schema.org/draft-04/schema#",
                "id": "https://shop.example/order.json#",
                "properties": {"line": {"$ref": "line.json"}},
            },
            {"line.json": {"id": "https://shop.example/line.json", **COUNT}},
            id="draft 4",
        ),
        pytest.param(
            {**OTHER_COUNT, "properties": {"line": {"$ref": "line.json"}}},
            {
                "line.json": {"properties": {"count": {"$ref": "mid.json#/definitions/count"}}},
                "mid.json": {"definitions": {"count": {"$ref": "count.json"}, "x": NUMBER}},
                "count.json": {"$ref": "#/definitions/x", "definitions": {"x": INTEGER}},
            },
            id="three documents",
        ),
    ],
)
def test_a_reference_is_resolved_in_the_document_that_contains_it(
    root: dict[str, object], references: dict[str, object]
) -> None:
    texts = tuple((name, json.dumps(content)) for name, content in references.items())
    source = read_json_schema(Registered(1, "JSON", json.dumps(root), texts))

    (column,) = derive_columns(source, is_flat=True, single_column="value")

    assert format_type(column.type) == "struct<count:long>"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"properties": {"x": {"$ref": "#"}}}', "x is recursive"),
        ('{"properties": {"x": {"$ref": "#/properties/x"}}}', "x is recursive"),
        ('{"properties": {"x": {"$ref": "#/examples/y"}}, "examples": [1]}', "does not exist"),
        ('{"properties": {"x": {"$ref": "absent.json"}}}', "refers to absent.json"),
        ('{"$defs": 5, "properties": {"x": {"type": "string"}}}', "not a valid JSON Schema"),
        ("[]", "not a valid JSON Schema"),
        ("true", "does not describe"),
    ],
)
def test_a_json_schema_without_an_end_or_a_target_is_refused(text: str, reason: str) -> None:
    with pytest.raises(NotConvertibleError, match=reason):
        derive("JSON", text)
