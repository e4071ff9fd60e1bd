"""A malformed JSON Schema is refused as such, in whichever keyword of whichever draft it stands."""

import json

import pytest
from support.served_registry import make_payload

from frazil.errors import SchemaMisfitError
from frazil.kafka.schema_registry import Registered
from frazil.schemas.json_schema import read_json_schema
from frazil.schemas.payloads import derive_payload_columns
from frazil.schemas.source_types import NotConvertibleError, UnreadableSchemaError

DRAFTS = [
    *(f"http://json-schema.org/draft-0{number}/schema#" for number in (3, 4, 6, 7)),
    *(f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12")),
]
READ = ("dependentSchemas", "dependencies", "properties")
"""Keywords with schemas by name whose schemas are read in each draft."""
BAD_URIS = ("http://[", "http://[::1", "//[x", "http://[1.2.3.4]x/")
ODD = (*BAD_URIS, 5, 1.5, True, None, [], {}, [5], {"a": 5}, "", "#", "#/nowhere", "\x00")
KEYWORDS = (
    *("$id", "id", "$ref", "$schema", "$anchor", "$dynamicRef", "$dynamicAnchor", "$recursiveRef"),
    *("$defs", "definitions", "properties", "patternProperties", "additionalProperties"),
    *("dependencies", "dependentSchemas", "dependentRequired", "items", "prefixItems"),
    *("additionalItems", "contains", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    *("type", "enum", "const", "format", "required", "extends", "unevaluatedProperties"),
)
PLACES = (
    *("dependentSchemas", "dependencies", "properties", "$defs", "definitions"),
    *("additionalProperties", "items", "allOf", "anyOf", "not", "if", "prefixItems", "unknown"),
)


def place(inner: object, keyword: str) -> dict[str, object]:
    """Return a schema of objects with another one in a keyword."""
    by_name = keyword in READ or keyword in {"$defs", "definitions", "unknown"}
    listed = keyword in {"allOf", "anyOf", "prefixItems"}
    value = {"b": inner} if by_name else [inner] if listed else inner
    found: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return found | {"$id": "http://x/y", "id": "http://x/y", keyword: value}


@pytest.mark.parametrize("uri", BAD_URIS[:3])
@pytest.mark.parametrize("keyword", READ)
@pytest.mark.parametrize("draft", DRAFTS)
def test_an_address_that_is_none_is_told_with_subject_and_id(
    draft: str, keyword: str, uri: str
) -> None:
    name = "id" if draft in DRAFTS[:2] else "$id"
    text = json.dumps(place({name: uri, "type": "string"}, keyword) | {"$schema": draft})

    with pytest.raises(UnreadableSchemaError, match="is not a valid JSON Schema: "):
        read_json_schema(Registered(7, "JSON", text))
    with pytest.raises(SchemaMisfitError, match=r"schema 7 of its values .subject orders-value"):
        derive_payload_columns(
            make_payload("orders-value", {"a": "long"}), Registered(7, "JSON", text)
        )


@pytest.mark.parametrize("keyword", KEYWORDS)
@pytest.mark.parametrize("draft", [DRAFTS[1], DRAFTS[3], DRAFTS[5], "http://["])
def test_an_odd_value_of_a_keyword_is_read_or_refused(draft: str, keyword: str) -> None:
    for value in ODD:
        for where in PLACES:
            text = json.dumps(place({keyword: value}, where) | {"$schema": draft})
            try:
                read_json_schema(Registered(7, "JSON", text))
            except NotConvertibleError as error:
                assert str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize("text", ["5", "[]", "null", '"x"', "true", "", "{", "[" * 5000])
def test_a_document_that_is_no_schema_is_refused(text: str) -> None:
    good = json.dumps(place({"$ref": "other"}, "properties"))

    with pytest.raises(NotConvertibleError):
        read_json_schema(Registered(7, "JSON", text))
    try:
        read_json_schema(Registered(7, "JSON", good, (("other", text),)))
    except NotConvertibleError as error:
        assert str(error)  # noqa: PT017 - either outcome is right
