"""Read JSON Schemas: the types of their values.

Constraints beyond types, such as a pattern or a minimum, are ignored: expectations check those.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from frazil.kafka.schema_registry import Registered
from frazil.schemas.source_types import (
    Dictionary,
    Json,
    NotConvertibleError,
    Record,
    Scalar,
    Sequence,
    Source,
    Unsupported,
)
from frazil.streams.column_types import Primitive

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_FORMATS = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}
_TYPES = {"integer": "long", "number": "double", "boolean": "boolean"}


def read_json_schema(registered: Registered) -> Source:
    """Read a registered schema.

    Raises:
        NotConvertibleError: it is not a valid schema of JSON objects.
    """
    try:
        others = {name: json.loads(text) for name, text in registered.references}
        root = json.loads(registered.text)
    except ValueError as error:
        message = f"is not valid JSON: {error}"
        raise NotConvertibleError(message) from error
    source = _Reader(root, others).read(root, frozenset())
    if not isinstance(source, Record):
        message = "does not describe JSON objects by their properties"
        raise NotConvertibleError(message)
    return source


@dataclass(frozen=True)
class _Reader:
    """Walk a schema; `others` are the schemas that it references, by name."""

    root: Json
    others: Mapping[str, Json]

    def read(self, node: Json, above: frozenset[str]) -> Source:
        """Return a node's type; `above` are the references that lead to it."""
        if not isinstance(node, dict):
            return Unsupported("has no type")
        reference = node.get("$ref")
        if isinstance(reference, str):
            if reference in above:
                return Unsupported("is recursive")
            return self.read(self._resolve(reference), above | {reference})
        for keyword in ("oneOf", "anyOf", "allOf"):
            if keyword in node:
                return self._read_single(node[keyword], above)
        return self._read_typed(node, above)

    def _read_single(self, branches: Json, above: frozenset[str]) -> Source:
        """Read a choice of null and one type."""
        types = [b for b in _list(branches) if b != {"type": "null"}]
        return self.read(types[0], above) if len(types) == 1 else Unsupported("has several types")

    def _read_typed(self, node: dict[str, Json], above: frozenset[str]) -> Source:
        kinds = [kind for kind in _list(node.get("type")) if kind != "null"]
        if not kinds and "properties" in node:
            kinds = ["object"]
        if len(kinds) != 1:
            return Unsupported("has several types" if kinds else "has no type")
        kind = str(kinds[0])
        if kind == "array":
            element = self.read(node.get("items"), above)
            return Sequence(element) if not isinstance(element, Unsupported) else element
        if kind == "object":
            return self._read_object(node, above)
        if kind == "string":
            return Scalar(Primitive(_FORMATS.get(str(node.get("format")), "string")))
        if kind in _TYPES:
            return Scalar(Primitive(_TYPES[kind]))
        return Unsupported(f"is of type {kind}")

    def _read_object(self, node: dict[str, Json], above: frozenset[str]) -> Source:
        properties = node.get("properties")
        if isinstance(properties, dict) and properties:
            for name in properties:
                if not _NAME.match(name):
                    message = f"has a property {name!r}, which is not a valid column name"
                    raise NotConvertibleError(message)
            return Record(tuple((n, self.read(s, above)) for n, s in properties.items()))
        value = self.read(node.get("additionalProperties"), above)
        if isinstance(value, Unsupported):
            return Unsupported("is an object without properties")
        return Dictionary(Scalar(Primitive("string")), value)

    def _resolve(self, reference: str) -> Json:
        """Resolve a reference: a document's name, a pointer into it, or both."""
        document, _, pointer = reference.partition("#")
        node = self.root if not document else self.others.get(document)
        for part in filter(None, pointer.split("/")):
            key = part.replace("~1", "/").replace("~0", "~")
            node = node.get(key) if isinstance(node, dict) else None
        if node is None:
            message = f"refers to {reference}, which does not exist"
            raise NotConvertibleError(message)
        return node


def _list(node: Json) -> list[Json]:
    if node is None:
        return []
    return node if isinstance(node, list) else [node]
