"""Read Avro schemas: the types of their values, and the schema with which Spark decodes them.

Spark's `from_avro` returns null for bytes that it cannot decode and ignores bytes after the value.
Each value is therefore decoded as the first field of a record whose second field is a fixed mark,
which is appended to the bytes: if the mark is read, the value was complete and nothing followed it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, count

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
from frazil.streams.column_types import (
    MAX_DECIMAL_PRECISION,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
)

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


def read_avro(registered: Registered, wanted: ColumnType | None = None) -> AvroSchema:
    """Read a registered schema; decimals outside the `wanted` type are read as their bytes.

    Raises:
        NotConvertibleError: it is not a valid Avro schema, or Spark cannot read it.
    """
    try:
        named: dict[str, dict[str, Json]] = {}
        for _, text in registered.references:
            _parse(text, named)
        parsed = _parse(registered.text, named)
    except (ValueError, TypeError, KeyError, SchemaParseException, UnknownType) as error:
        message = f"is not a valid Avro schema: {type(error).__name__}: {error}"
        raise NotConvertibleError(message) from error
    root, node = _Reader(named).read(parsed, wanted)
    mark: Json = {"type": "fixed", "name": _MARK_NAME, "size": len(MARK)}
    fields: list[Json] = [
        {"name": VALUE_FIELD, "type": node},
        {"name": MARK_FIELD, "type": mark},
    ]
    return AvroSchema(root, json.dumps({"type": "record", "name": _RECORD_NAME, "fields": fields}))


def _parse(text: str, named: dict[str, dict[str, Json]]) -> Json:
    """Parse a schema without the decimals that Avro ignores: fastavro refuses them."""
    schema = _ignore_invalid_decimals(json.loads(text))
    if not isinstance(schema, dict | list | str):
        message = "is no object, array or name"
        raise TypeError(message)
    parsed: Json = parse_schema(schema, named_schemas=named)
    return parsed


def _ignore_invalid_decimals(node: Json) -> Json:
    """Return a schema in which invalid decimals have no logical type."""
    if isinstance(node, list):
        return [_ignore_invalid_decimals(each) for each in node]
    if not isinstance(node, dict):
        return node
    left_out = (
        {"logicalType"} if node.get("logicalType") == "decimal" and _is_invalid(node) else set()
    )
    inside = ("type", "items", "values", "fields")
    return {
        name: _ignore_invalid_decimals(each) if name in inside else each
        for name, each in node.items()
        if name not in left_out
    }


def _is_invalid(node: dict[str, Json]) -> bool:
    """Return whether Avro ignores a decimal: of no bytes, or of more digits than they hold."""
    digits, size = _read_digits(node), node.get("size")
    if node.get("type") == "fixed" and isinstance(size, int) and size > 0:
        return digits is None or digits[0] > _count_digits(size)
    return node.get("type") != "bytes" or digits is None


@dataclass
class _Reader:
    """Walk a schema once and write it for Spark, where each named type has a name of its own.

    A type that a column asks for is written again each time, since columns differ in what they ask
    for; otherwise the first occurrence defines it. `_open` has those being read, `_written` those
    that are complete, `_taken` the names in Spark's schema in lower case.
    """

    named: Mapping[str, dict[str, Json]]
    _written: dict[str, tuple[Source, str]] = field(default_factory=dict)
    _open: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=lambda: {_RECORD_NAME, _MARK_NAME})

    def read(  # noqa: PLR0911 - one return for each kind
        self, node: Json, wanted: ColumnType | None
    ) -> tuple[Source, Json]:
        """Return a node's type, and the node for Spark's schema."""
        match node:
            case str(kind) if kind in _PRIMITIVES:
                return Scalar(Primitive(_PRIMITIVES[kind])), kind
            case "null":
                return Unsupported("is always null"), "null"
            case str(name):
                return self._read_named(name, self.named[name], wanted)
            case list(branches):
                return self._read_union(branches, wanted)
            case {"type": "array", "items": items}:
                element = wanted.element if isinstance(wanted, ListType) else None
                source, inner = self.read(items, element)
                return Sequence(source), {"type": "array", "items": inner}
            case {"type": "map", "values": values}:
                value = wanted.value if isinstance(wanted, MapType) else None
                source, inner = self.read(values, value)
                key = Scalar(Primitive("string"))
                return Dictionary(key, source), {"type": "map", "values": inner}
            case dict():
                return self._read_typed(node, wanted)
        message = f"has an invalid part: {json.dumps(node)[:100]}"
        raise NotConvertibleError(message)

    def _read_typed(self, node: dict[str, Json], wanted: ColumnType | None) -> tuple[Source, Json]:
        kind = node.get("type")
        if kind in ("record", "error", "enum", "fixed"):
            return self._read_named(str(node["name"]), node, wanted)
        if isinstance(kind, str) and kind in _PRIMITIVES:
            return _read_logical(kind, node, is_wanted=wanted is not None)
        return self.read(kind, wanted)

    def _read_named(
        self, name: str, node: dict[str, Json], wanted: ColumnType | None
    ) -> tuple[Source, Json]:
        if name in self._open:
            return Unsupported("is recursive"), self._open[name]
        if wanted is None and name in self._written:
            return self._written[name]
        return self._write(name, node, wanted)

    def _write(
        self, name: str, node: dict[str, Json], wanted: ColumnType | None
    ) -> tuple[Source, Json]:
        """Return a named type, with its namespace in the name: Spark's schema has none."""
        flat = _flatten_name(name)
        numbered = (f"{flat}_{number}" for number in count(2))
        own = next(each for each in chain([flat], numbered) if each.lower() not in self._taken)
        self._taken.add(own.lower())
        self._open[name] = own
        match node["type"]:
            case "enum":
                source, written = _read_enum(node)
            case "fixed":
                source, written = _read_fixed(node, is_wanted=wanted is not None)
            case _:
                source, written = self._read_record(node, wanted)
        del self._open[name]
        if wanted is None:
            self._written[name] = (source, own)
        return source, {**written, "name": own}

    def _read_record(
        self, node: dict[str, Json], wanted: ColumnType | None
    ) -> tuple[Source, dict[str, Json]]:
        children = _children(node["fields"])
        names = [str(each["name"]) for each in children]
        read = [
            self.read(each["type"], _find_wanted(wanted, name))
            for name, each in zip(names, children, strict=True)
        ]
        source = Record(tuple((name, inner) for name, (inner, _) in zip(names, read, strict=True)))
        written: list[Json] = [
            {"name": name, "type": inner}
            for name, (_, inner) in zip(source.decoded_names, read, strict=True)
        ]
        return source, {"type": "record", "fields": written}

    def _read_union(self, branches: list[Json], wanted: ColumnType | None) -> tuple[Source, Json]:
        """Read a union of null and one type, of two widths of a number, or of several types.

        Several types become a record with one field per type, of which one is set, as in Spark.
        """
        names = [_member(branch) for branch in branches if branch != "null"]
        asked = [wanted] if len(names) == 1 else [_find_wanted(wanted, name) for name in names]
        each_asked = iter(asked)
        read = [self.read(b, None if b == "null" else next(each_asked)) for b in branches]
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
        if len({*names}) < len(names):
            reason = "has a union of types whose names differ only in case or dots"
            return Unsupported(reason), written
        sources = [source for source, _ in members]
        decoded = tuple(_member(inner) for _, inner in members)
        return Record(tuple(zip(names, sources, strict=True)), decoded), written


def _find_wanted(wanted: ColumnType | None, name: str) -> ColumnType | None:
    """Return the type that a column asks for in a field of a record."""
    fields = wanted.fields if isinstance(wanted, StructType) else ()
    return next((each.type for each in fields if each.field == name), None)


def _member(node: Json) -> str:
    """Return the field name of a union's type, as Spark's option for stable names forms it."""
    kind = node
    while isinstance(kind, dict):
        kind = kind["name"] if "name" in kind else kind["type"]
    return f"member_{_flatten_name(str(kind)).lower()}"


def _read_logical(kind: str, node: dict[str, Json], *, is_wanted: bool) -> tuple[Source, Json]:
    logical = str(node.get("logicalType", ""))
    if (kind, logical) in _LOGICAL:
        scalar, is_kept = _LOGICAL[kind, logical]
        return scalar, ({"type": kind, "logicalType": logical} if is_kept else kind)
    if (kind, logical) == ("bytes", "decimal") and (digits := _read_digits(node)):
        source, written = _read_decimal(digits, {"type": kind}, MAX_DECIMAL_PRECISION)
        return source, written if is_wanted else kind
    return Scalar(Primitive(_PRIMITIVES[kind])), kind


def _read_enum(node: dict[str, Json]) -> tuple[Source, dict[str, Json]]:
    return Scalar(Primitive("string")), {"type": "enum", "symbols": node["symbols"]}


def _read_fixed(node: dict[str, Json], *, is_wanted: bool) -> tuple[Source, dict[str, Json]]:
    size, logical = int(str(node["size"])), node.get("logicalType")
    written: dict[str, Json] = {"type": "fixed", "size": size}
    if logical == "uuid" and size == _UUID_BYTES:
        return Scalar(Primitive("uuid"), "uuid-bytes"), written
    if logical == "decimal" and (digits := _read_digits(node)):
        most = min(_count_digits(size), MAX_DECIMAL_PRECISION)
        source, as_decimal = _read_decimal(digits, written, most)
        return source, as_decimal if is_wanted else written
    return Scalar(Primitive("fixed", (size,))), written


def _count_digits(size: int) -> int:
    """Return the number of digits of which bytes hold every number."""
    return len(str(2 ** (8 * size - 1) - 1)) - 1


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

    With 18 digits or fewer Spark would truncate the value to 64 bits. Where it has more digits than
    `most`, Spark reads nothing of the record, so that only what a column asks for is decoded.
    """
    if digits[0] > MAX_DECIMAL_PRECISION:
        return Unsupported(f"has {digits[0]} digits, more than {MAX_DECIMAL_PRECISION}"), node
    written = {**node, "logicalType": "decimal", "precision": most, "scale": digits[1]}
    return Scalar(Primitive("decimal", digits), "decimal"), written


def _children(node: Json) -> list[dict[str, Json]]:
    return [each for each in node if isinstance(each, dict)] if isinstance(node, list) else []


def _flatten_name(name: str) -> str:
    return name.replace(".", "_")
