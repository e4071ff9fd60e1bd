"""Read JSON Schemas: the types of their values.

A schema is a set of rules that all apply to a value: its own keywords, `allOf`, and references.
Each rule becomes a shape. `_Shape.meet` intersects shapes that must all hold; `_Shape.join` unites
shapes of which one must hold, as in `anyOf`. Rules beyond types, such as a pattern or a minimum,
are ignored: expectations check those.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol
from urllib.parse import urljoin, urlsplit

from referencing import Registry, Resource, Specification
from referencing.exceptions import Unresolvable
from referencing.jsonschema import (
    DRAFT3,
    DRAFT4,
    DRAFT6,
    DRAFT7,
    DRAFT202012,
    specification_with,
)

from frazil.kafka.schema_registry import Registered
from frazil.schemas.source_types import (
    MAX_FIELDS,
    Dictionary,
    Json,
    NotConvertibleError,
    Record,
    Scalar,
    Sequence,
    Source,
    UnreadableSchemaError,
    Unsupported,
    refusing_deep_schemas,
)
from frazil.streams.column_types import Primitive

_FORMATS = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}
_FRACTION = "fraction"
"""A number that is no integer; `number` allows both."""
_NUMBER = frozenset({"integer", _FRACTION})
_TYPES: Mapping[str, frozenset[str]] = {
    **{each: frozenset({each}) for each in ("null", "boolean", "integer", "string")},
    **{each: frozenset({each}) for each in ("array", "object")},
    "number": _NUMBER,
}
_OF_VALUES: Mapping[type, str] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: _FRACTION,
    str: "string",
    list: "array",
    dict: "object",
}
_LEGACY = (DRAFT3, DRAFT4, DRAFT6, DRAFT7)
"""The drafts in which keywords beside `$ref` are ignored."""

_MAX_DEPTH = 100
"""Schemas inside schemas, references counted; a column has fewer levels."""


class ResolvedReference(Protocol):
    """The target of a reference."""

    @property
    def contents(self) -> Json:
        """The schema."""
        ...

    @property
    def resolver(self) -> "Resolver":
        """The resolver for the schema's own references."""
        ...


class Resolver(Protocol):
    """A base URI and all documents; `referencing` publishes no type for it."""

    def lookup(self, ref: str) -> ResolvedReference:
        """Resolve a reference."""
        ...

    def in_subresource(self, subresource: Resource[Json]) -> "Resolver":
        """Return a resolver whose base is the URI of a schema inside a document."""
        ...


@dataclass(frozen=True)
class _Shape:
    """The types that a value may have.

    `types` is None if any is allowed; `fields` are those of an object, `values` the type of all its
    fields, `items` that of an array's items. `fault`: why no column holds such values.
    """

    types: frozenset[str] | None = None
    format: str = ""
    fields: Mapping[str, "_Shape"] = field(default_factory=dict)
    values: "_Shape | None" = None
    items: "_Shape | None" = None
    fault: str = ""

    @property
    def likely_types(self) -> frozenset[str] | None:
        """Return the types; if none are stated, those that the other keywords imply."""
        if self.types is not None:
            return self.types
        about = {"object"} if self.fields or self.values else set()
        return frozenset(about | ({"array"} if self.items else set())) or None

    def meet(self, other: "_Shape") -> "_Shape":
        """Return the shape of values that have both shapes."""
        both = [each for each in (self.types, other.types) if each is not None]
        return _Shape(
            frozenset.intersection(*both) if both else None,
            self.format or other.format,
            _combine(self.fields, other.fields, _Shape.meet),
            _either(self.values, other.values, _Shape.meet),
            _either(self.items, other.items, _Shape.meet),
            self.fault or other.fault or _find_contradiction(both),
        )

    def join(self, other: "_Shape") -> "_Shape":
        """Return the shape of values that have either shape."""
        both = [each.likely_types for each in (self, other)]
        known = [each for each in both if each is not None]
        formats = {s.format for s in (self, other) if s.likely_types is None or s.is_text}
        return _Shape(
            frozenset.union(*known) if len(known) == len(both) else None,
            formats.pop() if len(formats) == 1 else "",
            _combine(self.fields, other.fields, _Shape.join),
            _either(self.values, other.values, _Shape.join),
            _either(self.items, other.items, _Shape.join),
            self.fault or other.fault,
        )

    @property
    def is_text(self) -> bool:
        """Return whether a value may be a text."""
        return "string" in (self.likely_types or ())

    def to_source(self) -> Source:
        """Return the type of the values."""
        types = self.likely_types
        kinds = frozenset(types or ()) - {"null"}
        if self.fault or types is None:
            return Unsupported(self.fault or "has no type")
        if not kinds:
            return Unsupported("is always null")
        if kinds <= _NUMBER:
            return Scalar(Primitive("double" if _FRACTION in kinds else "long"))
        return self._to_single(next(iter(kinds))) if len(kinds) == 1 else _SEVERAL

    def _to_single(self, kind: str) -> Source:
        match kind:
            case "array":
                element = (self.items or _ANY).to_source()
                return element if isinstance(element, Unsupported) else Sequence(element)
            case "object":
                return self._to_object()
            case "string":
                return Scalar(Primitive(_FORMATS.get(self.format, "string")))
        return Scalar(Primitive(kind))

    def _to_object(self) -> Source:
        possible = {n: each for n, each in self.fields.items() if each.fault != _NOTHING.fault}
        if possible:
            return Record(tuple((name, each.to_source()) for name, each in possible.items()))
        value = (self.values or _ANY).to_source()
        if self.values is None or value == Unsupported("has no type"):
            return Unsupported("is an object without properties")
        if isinstance(value, Unsupported):
            return value
        return Dictionary(Scalar(Primitive("string")), value)


_SEVERAL = Unsupported("has several types")
_ANY = _Shape()
_NOTHING = _Shape(frozenset(), fault="can have no value")


def _find_contradiction(types: list[frozenset[str]]) -> str:
    return "" if not types or frozenset.intersection(*types) else "has schemas that contradict"


def _combine(
    left: Mapping[str, _Shape],
    right: Mapping[str, _Shape],
    both: Callable[[_Shape, _Shape], _Shape],
) -> dict[str, _Shape]:
    """Return the fields of two objects."""
    shared = {name: both(each, right[name]) for name, each in left.items() if name in right}
    return {**left, **right, **shared}


def _either(
    left: _Shape | None, right: _Shape | None, both: Callable[[_Shape, _Shape], _Shape]
) -> _Shape | None:
    return both(left, right) if left and right else left or right


@refusing_deep_schemas()
def read_json_schema(registered: Registered) -> Source:
    """Read a registered schema.

    Raises:
        NotConvertibleError: it is no schema of JSON objects.
        UnreadableSchemaError: it is not valid.
    """
    try:
        source = _read_shape(registered).to_source()
    except NotConvertibleError:
        raise
    except (TypeError, AttributeError) as error:
        message = (
            "is not a valid JSON Schema: it is not an object, or one of its keywords that name or "
            "hold schemas ($id, $ref, $defs, properties, items, allOf, then …) has a wrong type; a "
            "list of `items` needs a `$schema` such as http://json-schema.org/draft-07/schema#"
        )
        raise UnreadableSchemaError(message) from error
    except ValueError as error:
        message = f"is not a valid JSON Schema: {error}"
        raise UnreadableSchemaError(message) from error
    if not isinstance(source, Record):
        message = "does not describe JSON objects by their properties"
        raise NotConvertibleError(message)
    return source


def _read_shape(registered: Registered) -> _Shape:
    root = _load(registered.text)
    others = {name: _load(text) for name, text in registered.references}
    registry, uri = _register(root, others)
    drafts = dict(each for document in (root, *others.values()) for each in _list_drafts(document))
    # A keyword that its draft does not know was not looked into until here.
    return _Reader(registry.resolver(), drafts).read(root, registry.resolver(uri), ())


def _load(text: str) -> Json:
    """Parse a document; `dependencies` with lists and schemas without the lists.

    Lists name required fields only; `referencing` reads those of both kinds as schemas.
    """

    def keep_schemas(node: dict[str, Json]) -> dict[str, Json]:
        found = node.get("dependencies")
        if isinstance(found, dict) and {*map(type, found.values())} == {list, dict}:
            node["dependencies"] = {n: each for n, each in found.items() if isinstance(each, dict)}
        return node

    document: Json = json.loads(text, object_hook=keep_schemas)
    return document


def _register(root: Json, others: Mapping[str, Json]) -> tuple[Registry[Json], str]:
    """Register all documents by their own URI and by the name under which others refer to them.

    Names are relative to the root's URI, which is returned too; it may be empty.
    """
    resource = _find_draft(root).create_resource(root)
    uri = resource.id() or ""
    pairs = [(uri, resource)]
    for name, content in others.items():
        resource = _find_draft(content).create_resource(content)
        names = {name, urljoin(uri, name), resource.id() or name}
        pairs += [(each, resource) for each in names]
    return Registry[Json]().with_resources(pairs).crawl(), uri


def _find_draft(node: Json, default: Specification[Json] = DRAFT202012) -> Specification[Json]:
    """Return the draft that a schema states; else the default, the newest for documents."""
    stated = node.get("$schema") if isinstance(node, dict) else None
    return specification_with(stated, default=default) if isinstance(stated, str) else default


def _list_drafts(document: Json) -> Iterator[tuple[int, Specification[Json]]]:
    """Yield the draft of each object in a document, by its id."""
    waiting = [(document, _find_draft(document))]
    while waiting:
        node, above = waiting.pop()
        if isinstance(node, dict):
            draft = _find_draft(node, above)
            yield id(node), draft
            waiting += [(each, draft) for each in node.values()]
        elif isinstance(node, list):
            waiting += [(each, above) for each in node]


@dataclass
class _Reader:
    """Walk a schema.

    `by_name` finds the registered documents by their names alone; `drafts` has the draft of each
    object in them.
    """

    by_name: Resolver
    drafts: Mapping[int, Specification[Json]]
    count: int = 0

    def read(self, node: Json, resolver: Resolver, above: tuple[int, ...]) -> _Shape:
        """Return a schema's shape.

        `resolver` has the URI to which references in the schema are relative; `above` are the ids
        of the schemas around it, and of those that refer to it.
        """
        self.count += 1
        if len(above) > _MAX_DEPTH:
            return _Shape(fault=f"is nested deeper than {_MAX_DEPTH} schemas")
        if self.count > MAX_FIELDS:
            return _Shape(fault=f"has more than {MAX_FIELDS} fields")
        if not isinstance(node, dict):
            return _NOTHING if node is False else _ANY
        is_alone = self.drafts[id(node)] in _LEGACY and "$ref" in node
        keywords = ["$ref"] if is_alone else [*node]
        place = (resolver, (*above, id(node)))
        shapes = (self._read_keyword(keyword, node, *place) for keyword in keywords)
        return reduce(_Shape.meet, shapes, _ANY)

    def _read_inner(self, node: Json, resolver: Resolver, above: tuple[int, ...]) -> _Shape:
        """Return the shape of a schema inside another one, which may have its own URI."""
        if isinstance(node, dict):
            resolver = resolver.in_subresource(self.drafts[id(node)].create_resource(node))
        return self.read(node, resolver, above)

    def _read_keyword(  # noqa: PLR0911 - one return for each kind
        self, keyword: str, node: dict[str, Json], resolver: Resolver, above: tuple[int, ...]
    ) -> _Shape:
        """Return the shape that one keyword of a schema describes."""
        match keyword, node[keyword]:
            case "type", value:
                return _read_types(value)
            case "const", value:
                return _read_values([value], node)
            case "enum", list(values):
                return _read_values(values, node)
            case "format", str(name):
                return _Shape(format=name)
            case "if", _:
                branches = [node.get("then", True), node.get("else", True)]
                return self._join(branches, resolver, above)
            case "items" | "prefixItems", dict() | list():
                items = [*_list(node.get("prefixItems", [])), *_list(node.get("items", []))]
                items += _list(node.get("additionalItems", []))
                return _Shape(items=self._join(items, resolver, above))
        return self._read_inside(keyword, node[keyword], resolver, above)

    def _read_inside(  # noqa: PLR0911 - one return for each kind
        self, keyword: str, value: Json, resolver: Resolver, above: tuple[int, ...]
    ) -> _Shape:
        """Return the shape that a keyword with nested schemas describes."""
        match keyword, value:
            case "$ref" | "$dynamicRef" | "$recursiveRef", str():
                return self._read_target(value, resolver, above)
            case "properties", dict():
                fields = {n: self._read_inner(each, resolver, above) for n, each in value.items()}
                return _Shape(fields=fields)
            case "additionalProperties" | "unevaluatedProperties", dict():
                return _Shape(values=self._read_inner(value, resolver, above))
            case "allOf", list():
                shapes = (self._read_inner(each, resolver, above) for each in value)
                return reduce(_Shape.meet, shapes, _ANY)
            case "anyOf" | "oneOf", list():
                return self._join(value, resolver, above)
            case "dependentSchemas" | "dependencies", dict():
                schemas = [each for each in value.values() if isinstance(each, dict)]
                joined = [self._join([each, True], resolver, above) for each in schemas]
                return reduce(_Shape.meet, joined, _ANY)
        return _ANY

    def _join(self, nodes: Iterable[Json], resolver: Resolver, above: tuple[int, ...]) -> _Shape:
        """Return the shape of values that have one of several schemas."""
        shapes = [self._read_inner(each, resolver, above) for each in nodes]
        possible = [each for each in shapes if each.fault != _NOTHING.fault]
        return reduce(_Shape.join, possible) if possible else _NOTHING

    def _read_target(self, reference: str, resolver: Resolver, above: tuple[int, ...]) -> _Shape:
        found = self._resolve(reference, resolver)
        if id(found.contents) in above:
            return _Shape(fault="is recursive")
        return self.read(found.contents, found.resolver, above)

    def _resolve(self, reference: str, resolver: Resolver) -> ResolvedReference:
        """Resolve a reference by JSON Schema's rules, or else by a document's registered name."""
        for each in (resolver, self.by_name):
            try:
                return self._look_up(reference, each)
            except (Unresolvable, ValueError, TypeError):
                if reference.startswith("#"):
                    break
        message = f"refers to {reference}, which does not exist"
        raise NotConvertibleError(message)

    def _look_up(self, reference: str, resolver: Resolver) -> ResolvedReference:
        """Resolve a reference, in another document with that one's own URI as the base.

        The library takes the URI of a schema inside a document, but the name by which it found a
        document.
        """
        name, _, fragment = reference.partition("#")
        document = resolver.lookup(name) if name else None
        if document is None or not isinstance(document.contents, dict):
            return resolver.lookup(reference)
        draft = self.drafts[id(document.contents)]
        resource = draft.create_resource(document.contents)
        own = resource.id() or ""
        # Two documents may have copied one URI.
        if not urlsplit(own).scheme or resolver.lookup(own).contents is not document.contents:
            return resolver.lookup(reference)
        return document.resolver.in_subresource(resource).lookup(f"#{fragment}")


def _read_types(node: Json) -> _Shape:
    names = _list(node)
    unknown = [each for each in names if not isinstance(each, str) or each not in _TYPES]
    if unknown:
        return _Shape(fault=f"is of type {unknown[0]}")
    return _Shape(frozenset[str]().union(*(_TYPES[str(each)] for each in names)))


def _read_values(values: list[Json], node: dict[str, Json]) -> _Shape:
    """Read the types of the values that are allowed; 1 and 1.0 are one, if they are numbers."""
    types = frozenset(_OF_VALUES[type(each)] for each in values)
    if types & _NUMBER and "number" in _list(node.get("type")):
        types |= _NUMBER
    return _Shape(types)


def _list(node: Json) -> list[Json]:
    return node if isinstance(node, list) else [node]
