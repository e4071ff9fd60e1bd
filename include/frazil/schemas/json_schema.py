"""JSON Schemas: the values that they describe, from which columns can be derived.

What a schema demands beyond types, a pattern or a minimum, is not looked at: that is what
expectations are for.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from frazil.kafka.schema_registry import Registered
from frazil.schemas.source_types import (
    Dictionary,
    NoExactFormError,
    Record,
    Scalar,
    Sequence,
    Source,
    Unsupported,
)
from frazil.streams.column_types import Primitive

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FORMATS = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}
_TYPES = {"integer": "long", "number": "double", "boolean": "boolean"}


def read_json_schema(registered: Registered) -> Source:
    """Read a registered schema.

    Raises:
        NoExactFormError: it is no schema of JSON objects.
    """
    try:
        others = {name: json.loads(text) for name, text in registered.references}
        root = json.loads(registered.text)
    except ValueError as error:
        message = f"is no JSON Schema: {error}"
        raise NoExactFormError(message) from error
    source = _Reading(root, others).read(root, frozenset())
    if not isinstance(source, Record):
        message = "does not describe JSON objects by their properties"
        raise NoExactFormError(message)
    return source


@dataclass(frozen=True)
class _Reading:
    """Walk a schema; references lead into the root or into a schema that it refers to."""

    root: Json
    others: Mapping[str, Json]

    def read(self, node: Json, above: frozenset[str]) -> Source:
        """Give what a node describes."""
        if not isinstance(node, dict):
            return Unsupported("says nothing about its type")
        reference = node.get("$ref")
        if isinstance(reference, str):
            if reference in above:
                return Unsupported("is recursive")
            return self.read(self._resolve(reference), above | {reference})
        for word in ("oneOf", "anyOf", "allOf"):
            if word in node:
                return self._read_only(node[word], above)
        return self._read_typed(node, above)

    def _read_only(self, branches: Json, above: frozenset[str]) -> Source:
        """Read a choice that leaves one type beside null."""
        kept = [b for b in _list(branches) if b != {"type": "null"}]
        return self.read(kept[0], above) if len(kept) == 1 else Unsupported("has several types")

    def _read_typed(self, node: dict[str, Json], above: frozenset[str]) -> Source:
        words = [word for word in _list(node.get("type")) if word != "null"]
        if not words and "properties" in node:
            words = ["object"]
        if len(words) != 1:
            return Unsupported("has several types" if words else "says nothing about its type")
        word = str(words[0])
        if word == "array":
            element = self.read(node.get("items"), above)
            return Sequence(element) if not isinstance(element, Unsupported) else element
        if word == "object":
            return self._read_object(node, above)
        if word == "string":
            return Scalar(Primitive(_FORMATS.get(str(node.get("format")), "string")))
        return (
            Scalar(Primitive(_TYPES[word])) if word in _TYPES else Unsupported(f"is of type {word}")
        )

    def _read_object(self, node: dict[str, Json], above: frozenset[str]) -> Source:
        properties = node.get("properties")
        if isinstance(properties, dict) and properties:
            for name in properties:
                if not _NAME.match(name):
                    message = f"has a property {name!r}, which can be no column"
                    raise NoExactFormError(message)
            return Record(tuple((n, self.read(s, above)) for n, s in properties.items()))
        value = self.read(node.get("additionalProperties"), above)
        if isinstance(value, Unsupported):
            return Unsupported("is an object without properties")
        return Dictionary(Scalar(Primitive("string")), value)

    def _resolve(self, reference: str) -> Json:
        """Follow a reference: a document's name, a pointer into it, or both."""
        document, _, pointer = reference.partition("#")
        node = self.root if not document else self.others.get(document)
        for part in filter(None, pointer.split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            node = node.get(key) if isinstance(node, dict) else None
        if node is None:
            message = f"refers to {reference}, which is not there"
            raise NoExactFormError(message)
        return node


def _list(node: Json) -> list[Json]:
    if node is None:
        return []
    return node if isinstance(node, list) else [node]
