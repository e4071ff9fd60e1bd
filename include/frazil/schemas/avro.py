"""Read Avro schemas: the types of their values, and the schema with which Spark decodes them.

Spark's `from_avro` returns null for bytes that it cannot decode and ignores bytes after the value.
Each value is therefore decoded as the first field of a record whose second field is a fixed mark,
which is appended to the bytes: if the mark is read, the value was complete and nothing followed it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import chain, count
from types import MappingProxyType

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

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
from frazil.streams.column_types import MAX_DECIMAL_PRECISION, Primitive

MARK = b"\xf5frazil\xf5"
VALUE_FIELD = "value"
MARK_FIELD = "mark"
_RECORD_NAME = "_frazil_frame"
_MARK_NAME = "_frazil_mark"
MILLIS = "millis"
"""Milliseconds since 1970 are decoded as a number: Spark's reader fails at those that it cannot
hold in microseconds, also in fields without a column."""
_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
}
_LOGICAL: Mapping[tuple[str, str], tuple[Scalar, bool]] = {
    ("int", "date"): (Scalar(Primitive("date")), True),
    ("int", "time-millis"): (Scalar(Primitive("long"), "time-millis"), False),
    ("long", "time-micros"): (Scalar(Primitive("long")), False),
    ("long", "timestamp-millis"): (Scalar(Primitive("timestamptz"), MILLIS), False),
    ("long", "timestamp-micros"): (Scalar(Primitive("timestamptz")), True),
    ("long", "timestamp-nanos"): (Scalar(Primitive("long"), "nanos-utc"), False),
    ("long", "local-timestamp-millis"): (Scalar(Primitive("timestamp"), MILLIS), False),
    ("long", "local-timestamp-micros"): (Scalar(Primitive("timestamp")), True),
    ("long", "local-timestamp-nanos"): (Scalar(Primitive("long"), "nanos-local"), False),
    ("string", "uuid"): (Scalar(Primitive("uuid")), False),
}
"""(Type, logical type) to a scalar, and whether Spark's schema has the logical type."""

_UUID_BYTES = 16


@dataclass(frozen=True)
class AvroSchema:
    """The type of a schema's values, and the JSON of Spark's schema with the mark."""

    root: Source
    reader: str


def read_avro(registered: Registered) -> AvroSchema:
    """Read a registered schema.

    Raises:
        NotConvertibleError: it is not a valid Avro schema, or Spark cannot read it.
    """
    try:
        named: dict[str, dict[str, Json]] = {}
        for _, text in registered.references:
            parse_schema(json.loads(text), named_schemas=named)
        parsed: Json = parse_schema(json.loads(registered.text), named_schemas=named)
    except (ValueError, TypeError, KeyError, SchemaParseException, UnknownType) as error:
        message = f"is not a valid Avro schema: {type(error).__name__}: {error}"
        raise NotConvertibleError(message) from error
    root, node = _Reader(named).read(parsed)
    mark: Json = {"type": "fixed", "name": _MARK_NAME, "size": len(MARK)}
    fields: list[Json] = [
        {"name": VALUE_FIELD, "type": node},
        {"name": MARK_FIELD, "type": mark},
    ]
    return AvroSchema(root, json.dumps({"type": "record", "name": _RECORD_NAME, "fields": fields}))


@dataclass
class _Reader:
    """Walk a schema once; the first occurrence of a named type defines it, later ones refer to it.

    `_written` has the types that are complete, `_open` the names of those being read, `_names` the
    name of each in Spark's schema.
    """

    named: Mapping[str, dict[str, Json]]
    _written: dict[str, Source] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _names: dict[str, str] = field(default_factory=dict)

    def read(self, node: Json) -> tuple[Source, Json]:  # noqa: PLR0911 - one return for each kind
        """Return a node's type, and the node for Spark's schema."""
        match node:
            case str(kind) if kind in _PRIMITIVES:
                return Scalar(Primitive(_PRIMITIVES[kind])), kind
            case "null":
                return Unsupported("is always null"), "null"
            case str(name):
                return self._read_named(name)
            case list(branches):
                return self._read_union(branches)
            case {"type": "array", "items": items}:
                source, inner = self.read(items)
                return Sequence(source), {"type": "array", "items": inner}
            case {"type": "map", "values": values}:
                source, inner = self.read(values)
                key = Scalar(Primitive("string"))
                return Dictionary(key, source), {"type": "map", "values": inner}
            case dict():
                return self._read_typed(node)
        message = f"has an invalid part: {json.dumps(node)[:100]}"
        raise NotConvertibleError(message)

    def _read_typed(self, node: dict[str, Json]) -> tuple[Source, Json]:
        kind = node.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._write(str(node["name"]), node)
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return _read_logical(kind, node)
        return self.read(kind)

    def _read_named(self, name: str) -> tuple[Source, Json]:
        if name in self._open:
            return Unsupported("is recursive"), self._names[name]
        if name in self._written:
            return self._written[name], self._names[name]
        return self._write(name, self.named[name])

    def _write(self, name: str, node: dict[str, Json]) -> tuple[Source, Json]:
        """Return a named type, with its namespace in the name: Spark's schema has none."""
        kinds: Mapping[str, Callable[[dict[str, Json]], tuple[Source, dict[str, Json]]]] = {
            "enum": _read_enum,
            "fixed": _read_fixed,
        }
        taken = {_RECORD_NAME, _MARK_NAME, *map(str.lower, self._names.values())}
        flat = _flatten_name(name)
        numbered = (f"{flat}_{number}" for number in count(2))
        candidates = (each for each in chain([flat], numbered) if each.lower() not in taken)
        self._names[name] = next(candidates)
        self._open.add(name)
        source, written = kinds.get(str(node["type"]), self._read_record)(node)
        self._open.discard(name)
        self._written[name] = source
        return source, {**written, "name": self._names[name]}

    def _read_record(self, node: dict[str, Json]) -> tuple[Source, dict[str, Json]]:
        children = _children(node["fields"])
        read = [(str(each["name"]), *self.read(each["type"])) for each in children]
        source = Record(tuple((name, inner) for name, inner, _ in read))
        written: list[Json] = [
            {"name": name, "type": inner}
            for name, (_, _, inner) in zip(source.decoded_names, read, strict=True)
        ]
        return source, {"type": "record", "fields": written}

    def _read_union(self, branches: list[Json]) -> tuple[Source, Json]:
        """Read a union of null and one type, of two widths of a number, or of several types.

        Several types become a record with one field per type, of which one is set, as in Spark.
        """
        read = [self.read(branch) for branch in branches]
        written: Json = [inner for _, inner in read]
        members = [(s, i) for s, i in read if i != "null"]
        if len(members) == 1:
            return members[0][0], written
        kinds = [str(i["type"] if isinstance(i, dict) else i) for _, i in members]
        for narrow, wide in (("int", "long"), ("float", "double")):
            if sorted(kinds) == sorted((narrow, wide)):
                if any(
                    source != Scalar(Primitive(kind))
                    for (source, _), kind in zip(members, kinds, strict=True)
                ):
                    return Unsupported("mixes logical types in a union"), written
                return Scalar(Primitive(wide)), written
        if not members:
            return Unsupported("is always null"), written
        decoded = tuple(_member(inner) for _, inner in members)
        full_names = {written: name for name, written in self._names.items()}
        names = [_member(inner, full_names) for _, inner in members]
        if len({*names}) < len(names):
            reason = "has a union of types whose names differ only in case or dots"
            return Unsupported(reason), written
        sources = [source for source, _ in members]
        return Record(tuple(zip(names, sources, strict=True)), decoded), written


def _member(node: Json, full_names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the field name of a union's type, as Spark's option for stable names forms it.

    With `full_names` it follows from the schema's own name, whatever other names there are.
    """
    kind = node
    if isinstance(node, dict):
        kind = node["name"] if "name" in node else node["type"]
    return f"member_{_flatten_name(full_names.get(str(kind), str(kind))).lower()}"


def _read_logical(kind: str, node: dict[str, Json]) -> tuple[Source, Json]:
    logical = str(node.get("logicalType", ""))
    if (kind, logical) in _LOGICAL:
        scalar, is_kept = _LOGICAL[kind, logical]
        return scalar, ({"type": kind, "logicalType": logical} if is_kept else kind)
    if (kind, logical) == ("bytes", "decimal") and (digits := _read_digits(node)):
        return _read_decimal(digits, {"type": kind}, MAX_DECIMAL_PRECISION)
    return Scalar(Primitive(_PRIMITIVES[kind])), kind


def _read_enum(node: dict[str, Json]) -> tuple[Source, dict[str, Json]]:
    return Scalar(Primitive("string")), {"type": "enum", "symbols": node["symbols"]}


def _read_fixed(node: dict[str, Json]) -> tuple[Source, dict[str, Json]]:
    size, logical = int(str(node["size"])), node.get("logicalType")
    written: dict[str, Json] = {"type": "fixed", "size": size}
    if logical == "uuid" and size == _UUID_BYTES:
        return Scalar(Primitive("uuid"), "uuid-bytes"), written
    if logical == "decimal" and (digits := _read_digits(node)):
        most = min(len(str(2 ** (8 * size - 1) - 1)) - 1, MAX_DECIMAL_PRECISION)
        # Avro ignores a decimal with more digits than its bytes can hold.
        if digits[0] <= most or digits[0] > MAX_DECIMAL_PRECISION:
            return _read_decimal(digits, written, most)
    return Scalar(Primitive("fixed", (size,))), written


def _read_digits(node: dict[str, Json]) -> tuple[int, int] | None:
    """Read precision and scale; None if Avro ignores them."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    return (precision, scale) if precision > 0 and 0 <= scale <= precision else None


def _read_decimal(
    digits: tuple[int, int], node: dict[str, Json], most: int
) -> tuple[Source, dict[str, Json]]:
    """Read a decimal; Spark decodes it with all digits the bytes can hold, `most`.

    With 18 digits or fewer Spark would truncate the value to 64 bits.
    """
    if digits[0] > MAX_DECIMAL_PRECISION:
        return Unsupported(f"has {digits[0]} digits, more than {MAX_DECIMAL_PRECISION}"), node
    written = {**node, "logicalType": "decimal", "precision": most, "scale": digits[1]}
    return Scalar(Primitive("decimal", digits), "decimal"), written


def _children(node: Json) -> list[dict[str, Json]]:
    return [each for each in node if isinstance(each, dict)] if isinstance(node, list) else []


def _flatten_name(name: str) -> str:
    return name.replace(".", "_")
