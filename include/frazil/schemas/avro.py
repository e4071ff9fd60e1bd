"""Avro schemas: the values that they describe, and the schema that Spark decodes them with.

Spark's reader answers what it cannot decode with null and does not look behind the value. So each
value is decoded as the first field of a record whose second is a mark, which is put behind the
bytes: where the mark is found, the value was whole, and nothing followed it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fastavro.schema import SchemaParseException, UnknownType, parse_schema

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
from frazil.streams.column_types import MAX_DECIMAL_PRECISION, Primitive

MARK = b"\xf5frazil\xf5"
VALUE_FIELD = "value"
MARK_FIELD = "mark"
_FRAME = "_frazil_frame"

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Node: TypeAlias = "dict[str, Json] | list[Json] | str"

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
    ("long", "timestamp-millis"): (Scalar(Primitive("timestamptz")), True),
    ("long", "timestamp-micros"): (Scalar(Primitive("timestamptz")), True),
    ("long", "timestamp-nanos"): (Scalar(Primitive("long"), "nanos-utc"), False),
    ("long", "local-timestamp-millis"): (Scalar(Primitive("timestamp")), True),
    ("long", "local-timestamp-micros"): (Scalar(Primitive("timestamp")), True),
    ("long", "local-timestamp-nanos"): (Scalar(Primitive("long"), "nanos-local"), False),
    ("string", "uuid"): (Scalar(Primitive("uuid")), False),
}
"""Type and logical type → what it is, and whether Spark is told of the logical type."""

_UUID_BYTES = 16


@dataclass(frozen=True)
class AvroSchema:
    """A schema as a tree of values, and as Spark reads it, with the mark behind."""

    root: Source
    reader: str


def read_avro(registered: Registered) -> AvroSchema:
    """Read a registered schema.

    Raises:
        NoExactFormError: it is no Avro schema, or one that Spark cannot read.
    """
    try:
        named: dict[str, dict[str, Json]] = {}
        for _, text in registered.references:
            parse_schema(json.loads(text), named_schemas=named)
        parsed: Node = parse_schema(json.loads(registered.text), named_schemas=named)
    except (ValueError, TypeError, KeyError, SchemaParseException, UnknownType) as error:
        message = f"is no Avro schema: {type(error).__name__}: {error}"
        raise NoExactFormError(message) from error
    reading = _Reading(named)
    root, node = reading.read(parsed)
    mark: Json = {"type": "fixed", "name": "_frazil_mark", "size": len(MARK)}
    fields: list[Json] = [
        {"name": VALUE_FIELD, "type": node},
        {"name": MARK_FIELD, "type": mark},
    ]
    return AvroSchema(root, json.dumps({"type": "record", "name": _FRAME, "fields": fields}))


@dataclass
class _Reading:
    """Walk a schema once; every named type is written out where it is met first."""

    named: Mapping[str, dict[str, Json]]
    _written: dict[str, Source] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)

    def read(self, node: Json) -> tuple[Source, Json]:  # noqa: PLR0911 - one answer for each kind
        """Give what a node describes, and the node as Spark shall read it."""
        match node:
            case str(word) if word in _PRIMITIVES:
                return Scalar(Primitive(_PRIMITIVES[word])), word
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
        message = f"has a part that is no Avro: {json.dumps(node)[:100]}"
        raise NoExactFormError(message)

    def _read_typed(self, node: dict[str, Json]) -> tuple[Source, Json]:
        kind = node.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._write(str(node["name"]), node)
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return _read_logical(kind, node)
        return self.read(kind)

    def _read_named(self, name: str) -> tuple[Source, Json]:
        if name in self._open:
            return Unsupported("is recursive"), _mangle(name)
        if name in self._written:
            return self._written[name], _mangle(name)
        return self._write(name, self.named[name])

    def _write(self, name: str, node: dict[str, Json]) -> tuple[Source, Json]:
        """Write a named type out; names are made plain, so that no namespace reaches into it."""
        kinds: Mapping[str, Callable[[dict[str, Json]], tuple[Source, dict[str, Json]]]] = {
            "enum": _read_enum,
            "fixed": _read_fixed,
        }
        self._open.add(name)
        source, written = kinds.get(str(node["type"]), self._read_record)(node)
        self._open.discard(name)
        self._written[name] = source
        return source, {**written, "name": _mangle(name)}

    def _read_record(self, node: dict[str, Json]) -> tuple[Source, dict[str, Json]]:
        fields: list[tuple[str, Source]] = []
        written: list[Json] = []
        seen: set[str] = set()
        for each in _children(node["fields"]):
            name = str(each["name"])
            if name.lower() in seen:
                message = f"has fields {name!r} that differ only in case"
                raise NoExactFormError(message)
            seen.add(name.lower())
            source, inner = self.read(each["type"])
            fields.append((name, source))
            written.append({"name": name, "type": inner})
        return Record(tuple(fields)), {"type": "record", "fields": written}

    def _read_union(self, branches: list[Json]) -> tuple[Source, Json]:
        """Read a union: of null and one type, of two widths of a number, or of several types.

        The last becomes a record with one field per type, as Spark reads it; one of them is set.
        """
        read = [self.read(branch) for branch in branches]
        written: Json = [inner for _, inner in read]
        held = [(s, i) for s, i in read if i != "null"]
        if len(held) == 1:
            return held[0][0], written
        kinds = [str(i["type"] if isinstance(i, dict) else i) for _, i in held]
        for narrow, wide in (("int", "long"), ("float", "double")):
            if sorted(kinds) == sorted((narrow, wide)):
                if any(
                    source != Scalar(Primitive(kind))
                    for (source, _), kind in zip(held, kinds, strict=True)
                ):
                    return Unsupported("mixes logical types in a union"), written
                return Scalar(Primitive(wide)), written
        if not held:
            return Unsupported("is always null"), written
        return Record(tuple((_member(inner), source) for source, inner in held)), written


def _member(node: Json) -> str:
    """Name the field of a union's type as Spark does with stable names."""
    kind = node
    if isinstance(node, dict):
        kind = node["name"] if "name" in node else node["type"]
    return f"member_{str(kind).lower()}"


def _read_logical(word: str, node: dict[str, Json]) -> tuple[Source, Json]:
    logical = str(node.get("logicalType", ""))
    if (word, logical) in _LOGICAL:
        scalar, is_told = _LOGICAL[word, logical]
        return scalar, ({"type": word, "logicalType": logical} if is_told else word)
    if (word, logical) == ("bytes", "decimal") and (digits := _digits(node)):
        if digits[0] > MAX_DECIMAL_PRECISION:
            return Unsupported(f"has {digits[0]} digits, more than {MAX_DECIMAL_PRECISION}"), word
        return _decimal(digits), _tell_decimal({"type": word}, MAX_DECIMAL_PRECISION, digits[1])
    return Scalar(Primitive(_PRIMITIVES[word])), word


def _read_enum(node: dict[str, Json]) -> tuple[Source, dict[str, Json]]:
    return Scalar(Primitive("string")), {"type": "enum", "symbols": node["symbols"]}


def _read_fixed(node: dict[str, Json]) -> tuple[Source, dict[str, Json]]:
    size, logical = int(str(node["size"])), node.get("logicalType")
    written: dict[str, Json] = {"type": "fixed", "size": size}
    if logical == "uuid" and size == _UUID_BYTES:
        return Scalar(Primitive("uuid"), "uuid-bytes"), written
    if logical == "decimal" and (digits := _digits(node)):
        # As many digits as the bytes can hold: Avro ignores a decimal that claims more.
        most = min(len(str(2 ** (8 * size - 1) - 1)) - 1, MAX_DECIMAL_PRECISION)
        if digits[0] <= most:
            return _decimal(digits), _tell_decimal(written, most, digits[1])
        if digits[0] > MAX_DECIMAL_PRECISION:
            return Unsupported(
                f"has {digits[0]} digits, more than {MAX_DECIMAL_PRECISION}"
            ), written
    return Scalar(Primitive("fixed", (size,))), written


def _digits(node: dict[str, Json]) -> tuple[int, int] | None:
    """Read precision and scale; None where Avro would ignore them."""
    precision, scale = node.get("precision"), node.get("scale", 0)
    if not isinstance(precision, int) or not isinstance(scale, int):
        return None
    return (precision, scale) if precision > 0 and 0 <= scale <= precision else None


def _decimal(digits: tuple[int, int]) -> Scalar:
    return Scalar(Primitive("decimal", digits), "decimal")


def _tell_decimal(node: dict[str, Json], precision: int, scale: int) -> dict[str, Json]:
    """Ask for every digit that the bytes may hold: Spark cuts a decimal of 18 digits or fewer."""
    return {**node, "logicalType": "decimal", "precision": precision, "scale": scale}


def _children(node: Json) -> list[dict[str, Json]]:
    return [each for each in node if isinstance(each, dict)] if isinstance(node, list) else []


def _mangle(name: str) -> str:
    return name.replace(".", "_")
