"""JSON Schema: the column of each combination of keywords, by draft, as the standard defines it."""

import json

import pytest

from frazil.kafka.schema_registry import Registered
from frazil.schemas.json_schema import read_json_schema
from frazil.schemas.source_types import NotConvertibleError, derive_columns
from frazil.streams.column_types import format_type

Json = dict[str, object]

URIS = {
    "4": "http://json-schema.org/draft-04/schema#",
    "6": "http://json-schema.org/draft-06/schema#",
    "7": "http://json-schema.org/draft-07/schema#",
    "2019": "https://json-schema.org/draft/2019-09/schema",
    "2020": "https://json-schema.org/draft/2020-12/schema",
}
LEGACY, NEW = ("4", "6", "7"), ("2019", "2020")
EVERY = (*LEGACY, *NEW, "none")
INTEGER, TEXT, NULL = {"type": "integer"}, {"type": "string"}, {"type": "null"}
A, B = {"properties": {"a": INTEGER}}, {"properties": {"b": TEXT}}


def derive(root: Json, draft: str = "none", **others: Json) -> str:
    """Return the columns of a schema as the fields of a struct."""
    stated = {"$schema": URIS[draft]} if draft in URIS else {}
    texts = tuple((f"{name}.json", json.dumps(each)) for name, each in others.items())
    registered = Registered(1, "JSON", json.dumps({**stated, **root}), texts)
    columns = derive_columns(read_json_schema(registered), is_flat=True, single_column="value")
    return ",".join(f"{column.name}:{format_type(column.type)}" for column in columns)


VALUES = {
    "type": (INTEGER, "long"),
    "type and null": ({"type": ["string", "null"]}, "string"),
    "null and type": ({"type": ["null", "number"]}, "double"),
    "a list of one type": ({"type": ["boolean"]}, "boolean"),
    "integer and number": ({"type": ["integer", "number"]}, "double"),
    "format": ({"type": "string", "format": "date"}, "date"),
    "format and null": ({"type": ["null", "string"], "format": "uuid"}, "uuid"),
    "format of another type": ({"type": "integer", "format": "date"}, "long"),
    "an unknown format": ({"type": "string", "format": "email"}, "string"),
    "enum of texts": ({"enum": ["a", "b"]}, "string"),
    "enum with null": ({"enum": ["a", None]}, "string"),
    "enum of integers": ({"enum": [1, 2]}, "long"),
    "enum of numbers": ({"enum": [1, 2.5]}, "double"),
    "enum and type number": ({"type": "number", "enum": [1, 2]}, "double"),
    "enum that narrows types": ({"type": ["string", "integer"], "enum": ["a"]}, "string"),
    "enum of booleans": ({"enum": [True, False, None]}, "boolean"),
    "enum of two types": ({"enum": ["a", 1]}, "refused: has several types"),
    "const": ({"const": "x"}, "string"),
    "const that is false": ({"const": False}, "boolean"),
    "const null": ({"const": None}, "refused: is always null"),
    "no type": ({}, "refused: has no type"),
    "true": (True, "refused: has no type"),
    "null alone": (NULL, "refused: is always null"),
    "rules without a type": ({"minLength": 1, "pattern": "x"}, "refused: has no type"),
    "two types": ({"type": ["string", "integer"]}, "refused: has several types"),
    "an unknown type": ({"type": "money"}, "refused: is of type money"),
    "oneOf with null": ({"oneOf": [NULL, INTEGER]}, "long"),
    "oneOf with a named null": (
        {"oneOf": [{"type": "null", "title": "Not included"}, {**TEXT, "title": "S"}]},
        "string",
    ),
    "oneOf with a list of null": ({"oneOf": [{"type": ["null"]}, TEXT]}, "string"),
    "anyOf with null as const": ({"anyOf": [{"const": None}, TEXT]}, "string"),
    "anyOf with null as enum": ({"anyOf": [TEXT, {"enum": [None]}]}, "string"),
    "anyOf of one type": ({"anyOf": [{**TEXT, "maxLength": 1}, TEXT]}, "string"),
    "anyOf of a format and null": (
        {"anyOf": [{"type": "string", "format": "date-time"}, NULL]},
        "timestamptz",
    ),
    "anyOf of two formats": (
        {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "uuid"}]},
        "string",
    ),
    "anyOf of a format and any text": (
        {"anyOf": [{"type": "string", "format": "date"}, TEXT]},
        "string",
    ),
    "anyOf of numbers": ({"anyOf": [INTEGER, {"type": "number"}, NULL]}, "double"),
    "anyOf of types": ({"anyOf": [INTEGER, TEXT]}, "refused: has several types"),
    "anyOf with anything": ({"anyOf": [INTEGER, {}]}, "refused: has no type"),
    "anyOf of rules beside type": ({**TEXT, "anyOf": [{"minLength": 1}, {}]}, "string"),
    "anyOf that narrows types": (
        {"type": ["string", "integer", "null"], "anyOf": [TEXT, NULL]},
        "string",
    ),
    "allOf of one": ({"allOf": [TEXT]}, "string"),
    "allOf beside a format": ({"format": "date", "allOf": [TEXT]}, "date"),
    "allOf that narrows": ({"allOf": [{"type": ["string", "null"]}, {"enum": ["a"]}]}, "string"),
    "allOf of number and integer": ({"allOf": [{"type": "number"}, INTEGER]}, "long"),
    "allOf that contradicts": ({"allOf": [TEXT, INTEGER]}, "refused: has schemas that contradict"),
    "an array": ({"type": "array", "items": TEXT}, "list<string>"),
    "items without type": ({"items": TEXT}, "list<string>"),
    "items of anything": ({"type": "array"}, "refused: has no type"),
    "items from allOf": ({"type": "array", "allOf": [{"items": TEXT}]}, "list<string>"),
    "items that may be null": ({"items": {"oneOf": [NULL, A]}}, "list<struct<a:long>>"),
    "a map": ({"type": "object", "additionalProperties": INTEGER}, "map<string,long>"),
    "a map without type": ({"additionalProperties": INTEGER}, "map<string,long>"),
    "a map beside a rule": (
        {"type": "object", "additionalProperties": {"oneOf": [NULL, TEXT]}, "minProperties": 1},
        "map<string,string>",
    ),
    "an object of anything": ({"type": "object"}, "refused: is an object without properties"),
    "an object of any values": (
        {"type": "object", "additionalProperties": True},
        "refused: is an object without properties",
    ),
    "properties beside more of them": ({**A, "additionalProperties": TEXT}, "struct<a:long>"),
    "properties beside a closed object": ({**A, "additionalProperties": False}, "struct<a:long>"),
    "an object and null": ({"type": ["object", "null"], **A}, "struct<a:long>"),
    "a property that must not be there": (
        {"properties": {"a": INTEGER, "c": False}},
        "struct<a:long>",
    ),
    "allOf of objects": ({"allOf": [A, B]}, "struct<a:long,b:string>"),
    "allOf beside properties": ({**A, "allOf": [B, {"required": []}]}, "struct<a:long,b:string>"),
    "anyOf beside properties": (
        {**A, "type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "struct<a:long>",
    ),
    "oneOf of objects beside properties": ({**A, "oneOf": [B, NULL]}, "struct<a:long,b:string>"),
    "oneOf of objects": ({"oneOf": [A, B]}, "struct<a:long,b:string>"),
    "oneOf of objects with one field of two types": (
        {"oneOf": [A, {"properties": {"a": TEXT}}]},
        "refused: .a has several types",
    ),
    "oneOf of objects with one field of two widths": (
        {"oneOf": [A, {"properties": {"a": {"type": "number"}}}]},
        "struct<a:double>",
    ),
    "allOf that narrows a property": (
        {"properties": {"a": {"type": ["integer", "string"]}}, "allOf": [A]},
        "struct<a:long>",
    ),
    "an object or a text": ({"anyOf": [A, TEXT]}, "refused: has several types"),
    "if, then and else": (
        {**A, "if": {"required": ["a"]}, "then": B, "else": {"properties": {"c": TEXT}}},
        "struct<a:long,b:string,c:string>",
    ),
    "then without if": ({**A, "then": B}, "struct<a:long>"),
    "not": ({**A, "not": B}, "struct<a:long>"),
    "dependencies": ({**A, "dependencies": {"a": B, "c": ["a"]}}, "struct<a:long,b:string>"),
}  # fmt: skip
"""Name → schema of a field, and its column; the same in every draft."""

SINCE_6 = {"true", "a property that must not be there"}
"""Draft 4 has no schemas that are `true` or `false`, except in two keywords."""


def find(schema: object, draft: str) -> str:
    """Return the type of a field's column, or why it has none."""
    try:
        return derive({"type": "object", "properties": {"x": schema}}, draft).removeprefix("x:")
    except NotConvertibleError as error:
        return f"refused: {str(error).removeprefix('x').strip()}"


@pytest.mark.parametrize("name", VALUES)
def test_the_column_of_a_schema_in_every_draft(name: str) -> None:
    schema, expected = VALUES[name]
    drafts = [draft for draft in EVERY if draft != "4" or name not in SINCE_6]

    assert {draft: find(schema, draft) for draft in drafts} == dict.fromkeys(drafts, expected)


DEFINED = {"definitions": {"a": {"type": "object", **A}}}
TARGET: Json = {"$ref": "#/definitions/a"}


@pytest.mark.parametrize("draft", EVERY)
@pytest.mark.parametrize(
    ("beside", "merged"),
    [
        (B, "struct<a:long,b:string>"),
        ({"allOf": [B]}, "struct<a:long,b:string>"),
        ({"anyOf": [B, {"required": ["a"]}]}, "struct<a:long,b:string>"),
        ({"title": "A", "description": "an a"}, "struct<a:long>"),
        ({"type": "string"}, ""),
    ],
    ids=["properties", "allOf", "anyOf", "words", "another type"],
)
def test_keywords_beside_a_reference_are_ignored_up_to_draft_7(
    beside: Json, merged: str, draft: str
) -> None:
    root = {**DEFINED, "properties": {"x": {**TARGET, **beside}}}

    if draft in LEGACY:
        assert derive(root, draft) == "x:struct<a:long>"
    elif merged:
        assert derive(root, draft) == f"x:{merged}"
    else:
        with pytest.raises(NotConvertibleError, match="x has schemas that contradict"):
            derive(root, draft)


@pytest.mark.parametrize("levels", [10, 60, 150, 1_500, 100_000])
@pytest.mark.parametrize("way", ["properties", "items", "allOf", "$ref"])
def test_a_deep_schema_is_read_or_refused_with_a_sentence(way: str, levels: int) -> None:
    opened = {
        "properties": '{"properties":{"a":',
        "items": '{"type":"array","items":',
        "allOf": '{"allOf":[',
        "$ref": "",
    }[way]
    closed = {"properties": "}}", "items": "}", "allOf": "]}", "$ref": ""}[way]
    inner = opened * levels + '{"type":"integer"}' + closed * levels
    others: tuple[tuple[str, str], ...] = ()
    if way == "$ref":
        levels = min(levels, 1_500)
        others = tuple((f"r{n}", json.dumps({"$ref": f"r{n + 1}"})) for n in range(levels))
        others += ((f"r{levels}", '{"type":"integer"}'),)
        inner = '{"$ref":"r0"}'
    schema = Registered(1, "JSON", f'{{"properties":{{"x":{inner}}}}}', others)

    if levels > 10 + 50 * (way in {"allOf", "$ref"}):
        with pytest.raises(NotConvertibleError, match="nested"):
            derive_columns(read_json_schema(schema), is_flat=True, single_column="value")
    else:
        assert derive_columns(read_json_schema(schema), is_flat=True, single_column="value")


def test_a_schema_that_grows_with_each_reference_is_refused() -> None:
    defined: Json = {"r40": {"properties": {"a": INTEGER}}}
    for number in reversed(range(40)):
        target = {"$ref": f"#/definitions/r{number + 1}"}
        defined[f"r{number}"] = {"properties": {"a": target, "b": target}}

    with pytest.raises(NotConvertibleError, match=r"has more than 10000 fields"):
        derive({"definitions": defined, "properties": {"x": {"$ref": "#/definitions/r0"}}})


@pytest.mark.parametrize("draft", EVERY)
def test_properties_of_the_root_are_merged_with_those_that_all_of_and_references_add(
    draft: str,
) -> None:
    base = {"$ref": "#/definitions/a"}
    root = {**DEFINED, "properties": {"id": TEXT}, "allOf": [base, B]}

    assert derive(root, draft) == "id:string,a:long,b:string"


def id_of(draft: str) -> str:
    return "id" if draft == "4" else "$id"


@pytest.mark.parametrize("draft", EVERY)
@pytest.mark.parametrize("place", ["definitions", "properties"])
def test_an_id_inside_a_schema_is_the_base_of_the_references_in_it(place: str, draft: str) -> None:
    inner = {
        id_of(draft): "types/line.json",
        "definitions": {"n": INTEGER},
        "properties": {"n": {"$ref": "#/definitions/n"}, "m": {"$ref": "count.json"}},
    }
    others = {"definitions": {"n": TEXT, "count": {id_of(draft): "types/count.json", **INTEGER}}}
    root: Json = {id_of(draft): "https://shop.example/order.json", **others}
    if place == "definitions":
        others["definitions"]["line"] = inner
        root["properties"] = {"x": {"$ref": "types/line.json"}}
    else:
        root["properties"] = {"x": inner}

    assert derive(root, draft) == "x:struct<n:long,m:long>"


@pytest.mark.parametrize("draft", EVERY)
def test_an_id_beside_a_reference_is_its_base_only_since_2019(draft: str) -> None:
    root = {
        id_of(draft): "https://shop.example/order.json",
        "properties": {"x": {id_of(draft): "inner/", "$ref": "n.json"}},
        "definitions": {
            "outer": {id_of(draft): "https://shop.example/n.json", **TEXT},
            "inner": {id_of(draft): "https://shop.example/inner/n.json", **INTEGER},
        },
    }

    assert derive(root, draft) == ("x:string" if draft in LEGACY else "x:long")


@pytest.mark.parametrize("draft", EVERY)
@pytest.mark.parametrize("fragment", ["", "#/definitions/own"])
def test_a_reference_in_another_document_is_relative_to_its_uri(fragment: str, draft: str) -> None:
    own = {"properties": {"c": {"$ref": "country.json"}}}
    uri = {id_of(draft): "http://x/s/address.json"}
    uri |= {"$schema": URIS[draft]} if draft in URIS else {}
    address = {**uri, **own, "definitions": {"own": own}}
    documents = {
        "address": address,
        "http://x/s/country": INTEGER,
        "copied": {**uri, "properties": {"n": TEXT}, "definitions": {"own": own}},
    }
    root = {"properties": {"a": {"$ref": f"address.json{fragment}"}}}
    copied = {"properties": {"a": {"$ref": "copied.json"}}}

    first = {name: documents[name] for name in [*documents][:2]}
    assert derive(root, draft, **first) == "a:struct<c:long>"
    assert derive(copied, draft, **documents) == "a:struct<n:string>"


@pytest.mark.parametrize("draft", LEGACY)
def test_a_document_has_its_own_draft(draft: str) -> None:
    old = {"$schema": URIS[draft], **DEFINED, "properties": {"y": {**TARGET, **B}}}
    new = {"$schema": URIS["2020"], **DEFINED, "properties": {"y": {**TARGET, **B}}}

    for outer in (draft, "2020"):
        found = derive(
            {"properties": {"o": {"$ref": "old.json"}, "n": {"$ref": "new.json"}}},
            outer,
            old=old,
            new=new,
        )
        old_type, new_type = "struct<a:long>", "struct<a:long,b:string>"
        assert found == f"o:struct<y:{old_type}>,n:struct<y:{new_type}>"


@pytest.mark.parametrize(
    ("draft", "schema", "expected"),
    [
        ("7", {"items": [INTEGER, {"type": "number"}]}, "list<double>"),
        ("7", {"items": [INTEGER], "additionalItems": {"type": "number"}}, "list<double>"),
        ("7", {"items": [INTEGER], "additionalItems": False}, "list<long>"),
        ("7", {"items": [INTEGER, TEXT]}, "refused: has several types"),
        ("2020", {"prefixItems": [INTEGER], "items": {"type": "number"}}, "list<double>"),
        ("2020", {"prefixItems": [INTEGER], "items": False}, "list<long>"),
        ("2019", {**A, "dependentSchemas": {"a": B}}, "struct<a:long,b:string>"),
        ("2019", {"type": "object", "unevaluatedProperties": INTEGER}, "map<string,long>"),
        ("2020", {"$dynamicRef": "#t", "$defs": {"t": {"$dynamicAnchor": "t", **TEXT}}}, "string"),
        ("2019", {"$defs": {"t": {"$anchor": "t", **TEXT}}, "$ref": "#t"}, "string"),
        ("6", {"$ref": "#t", "definitions": {"t": {"$id": "#t", **TEXT}}}, "string"),
    ],
    ids=str,
)
def test_keywords_of_one_draft(draft: str, schema: Json, expected: str) -> None:
    assert find(schema, draft) == expected
