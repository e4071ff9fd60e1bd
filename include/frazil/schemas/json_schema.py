"""Read JSON Schemas: the types of their values.

Constraints beyond types, such as a pattern or a minimum, are ignored: expectations check those.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urljoin

from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012, specification_with

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

_FORMATS = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}
_TYPES = {"integer": "long", "number": "double", "boolean": "boolean"}


class Resolved(Protocol):
    """What a reference leads to."""

    @property
    def contents(self) -> Json:
        """The schema."""
        ...

    @property
    def resolver(self) -> "Resolver":
        """What the schema's own references are relative to."""
        ...


class Resolver(Protocol):
    """A base URI and all documents; `referencing` publishes no type for it."""

    def lookup(self, ref: str) -> Resolved:
        """Resolve a reference."""
        ...

    def in_subresource(self, subresource: Resource[Json]) -> "Resolver":
        """Take the URI of a schema inside a document as the base."""
        ...


def read_json_schema(registered: Registered) -> Source:
    """Read a registered schema.

    Raises:
        NotConvertibleError: it is not a valid schema of JSON objects.
    """
    try:
        root = json.loads(registered.text)
        others = {name: json.loads(text) for name, text in registered.references}
        registry, uri = _register(root, others)
    except (TypeError, AttributeError) as error:
        message = "is not a valid JSON Schema: $id, $ref, $anchor or $defs has a wrong type"
        raise NotConvertibleError(message) from error
    except ValueError as error:
        message = f"is not a valid JSON Schema: {error}"
        raise NotConvertibleError(message) from error
    reader = _Reader(registry.resolver())
    source = reader.read(root, registry.resolver(uri), frozenset({id(root)}))
    if not isinstance(source, Record):
        message = "does not describe JSON objects by their properties"
        raise NotConvertibleError(message)
    return source


def _register(root: Json, others: Mapping[str, Json]) -> tuple[Registry[Json], str]:
    """Register all documents by their own URI and by the name under which others refer to them.

    Names are relative to the root's URI, which is returned too; it may be empty.
    """
    resource = _as_resource(root)
    uri = resource.id() or ""
    pairs = [(uri, resource)]
    for name, content in others.items():
        resource = _as_resource(content)
        names = {name, urljoin(uri, name), resource.id() or name}
        pairs += [(each, resource) for each in names]
    return Registry[Json]().with_resources(pairs).crawl(), uri


def _as_resource(content: Json) -> Resource[Json]:
    """Return a document with the draft that it states; else the newest, which reads older ones."""
    stated = content.get("$schema") if isinstance(content, dict) else None
    return specification_with(str(stated), default=DRAFT202012).create_resource(content)


@dataclass(frozen=True)
class _Reader:
    """Walk a schema; `by_name` finds the registered documents by their names alone."""

    by_name: Resolver

    def read(self, node: Json, resolver: Resolver, above: frozenset[int]) -> Source:
        """Return a node's type.

        `resolver` has the URI to which the node's references are relative; `above` are the ids of
        the nodes that refer to this one.
        """
        if not isinstance(node, dict):
            return Unsupported("has no type")
        own = node.get("$id")
        if isinstance(own, str) and not own.startswith("#"):
            resolver = resolver.in_subresource(_as_resource({"$id": own}))
        reference = node.get("$ref")
        if isinstance(reference, str):
            found = self._resolve(reference, resolver)
            if id(found.contents) in above:
                return Unsupported("is recursive")
            return self.read(found.contents, found.resolver, above | {id(found.contents)})
        for keyword in ("oneOf", "anyOf", "allOf"):
            if keyword in node:
                return self._read_single(node[keyword], resolver, above)
        return self._read_typed(node, resolver, above)

    def _resolve(self, reference: str, resolver: Resolver) -> Resolved:
        """Resolve a reference by JSON Schema's rules, or else by a document's registered name."""
        for each in (resolver, self.by_name):
            try:
                return each.lookup(reference)
            except (Unresolvable, ValueError, TypeError):
                if reference.startswith("#"):
                    break
        message = f"refers to {reference}, which does not exist"
        raise NotConvertibleError(message)

    def _read_single(self, branches: Json, resolver: Resolver, above: frozenset[int]) -> Source:
        """Read a choice of null and one type."""
        types = [b for b in _list(branches) if b != {"type": "null"}]
        return (
            self.read(types[0], resolver, above)
            if len(types) == 1
            else Unsupported("has several types")
        )

    def _read_typed(
        self, node: dict[str, Json], resolver: Resolver, above: frozenset[int]
    ) -> Source:
        kinds = [kind for kind in _list(node.get("type")) if kind != "null"]
        if not kinds and "properties" in node:
            kinds = ["object"]
        if len(kinds) != 1:
            return Unsupported("has several types" if kinds else "has no type")
        kind = str(kinds[0])
        if kind == "array":
            element = self.read(node.get("items"), resolver, above)
            return Sequence(element) if not isinstance(element, Unsupported) else element
        if kind == "object":
            return self._read_object(node, resolver, above)
        if kind == "string":
            return Scalar(Primitive(_FORMATS.get(str(node.get("format")), "string")))
        if kind in _TYPES:
            return Scalar(Primitive(_TYPES[kind]))
        return Unsupported(f"is of type {kind}")

    def _read_object(
        self, node: dict[str, Json], resolver: Resolver, above: frozenset[int]
    ) -> Source:
        properties = node.get("properties")
        if isinstance(properties, dict) and properties:
            return Record(tuple((n, self.read(s, resolver, above)) for n, s in properties.items()))
        value = self.read(node.get("additionalProperties"), resolver, above)
        if isinstance(value, Unsupported):
            return Unsupported("is an object without properties")
        return Dictionary(Scalar(Primitive("string")), value)


def _list(node: Json) -> list[Json]:
    if node is None:
        return []
    return node if isinstance(node, list) else [node]
