"""Read Avro schemas: the types of their values, and the schema with which Spark decodes them.

Spark's `from_avro` returns null for bytes that it cannot decode and ignores bytes after the value.
Each value is therefore decoded as the first field of a record whose second field is a fixed mark,
which is appended to the bytes: if the mark is read, the value was complete and nothing followed it.
"""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, count

from frazil.kafka.schema_registry import Registered
from frazil.schemas.source_types import (
    MAX_FIELDS,
    Dictionary,
    Json,
    Record,
    Scalar,
    Sequence,
    Source,
    UnreadableSchemaError,
    Unsupported,
    choose_decoded_names,
    count_fields,
    refusing_deep_schemas,
)
from frazil.streams.change_events import DECIMAL, find_row_type
from frazil.streams.column_types import (
    MAX_DECIMAL_PRECISION,
    MAX_LEVELS,
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
SYMBOLS = "symbols"
"""An enum with symbols that Spark's reader refuses is decoded to others, in the same order."""
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
_NAMED = ("record", "error", "enum", "fixed")
_MEANING = ("type", "fields", "symbols", "size", "logicalType", "precision", "scale")
"""Attributes in which two definitions of one type must agree."""
_MAX_DEPTH = 2 * MAX_LEVELS
_MAX_FIELDS = 10 * MAX_FIELDS
"""Spark expands the whole schema, also what no column asks for."""


@dataclass(frozen=True)
class AvroSchema:
    """The type of a schema's values, and the JSON of Spark's schema with the mark."""

    root: Source
    reader: str


@refusing_deep_schemas()
def read_avro(registered: Registered, wanted: ColumnType | None = None) -> AvroSchema:
    """Read a registered schema; decimals outside the `wanted` type are read as their bytes.

    Raises:
        UnreadableSchemaError: it is not a valid Avro schema, or Spark cannot read it.
    """
    root, node = _read(registered, wanted)
    mark: Json = {"type": "fixed", "name": _MARK_NAME, "size": len(MARK)}
    fields: list[Json] = [
        {"name": VALUE_FIELD, "type": node},
        {"name": MARK_FIELD, "type": mark},
    ]
    return AvroSchema(root, json.dumps({"type": "record", "name": _RECORD_NAME, "fields": fields}))


@refusing_deep_schemas()
def read_event_row(registered: Registered) -> Record | None:
    """Return the type of `after` in a schema of change events; None if it has no such record.

    The names of Kafka Connect decide, as where `frazil_spark.decode.change_events` reads values.

    Raises:
        UnreadableSchemaError: it is not a valid Avro schema.
    """
    root, _ = _read(registered, for_events=True)
    after = root.find("after")[0] if isinstance(root, Record) else None
    return after if isinstance(after, Record) else None


@refusing_deep_schemas()
def parse_avro(registered: Registered) -> str:
    """Return a JSON list of the schemas that a registered one refers to, and of it as the last.

    Raises:
        UnreadableSchemaError: it is not a valid Avro schema.
    """
    with _refusing_invalid():
        return json.dumps(_Names().resolve_all(registered))


def _read(
    registered: Registered, wanted: ColumnType | None = None, *, for_events: bool = False
) -> tuple[Source, Json]:
    """Return a schema's type, and its node for Spark's schema."""
    with _refusing_invalid():
        names = _Names()
        parsed = names.resolve_all(registered)[-1]
        root, node = _Reader(names.named, for_events).read(parsed, wanted)
    if count_fields(root, {}) > _MAX_FIELDS:
        message = f"has more than {_MAX_FIELDS} fields, each use of a type counted"
        raise UnreadableSchemaError(message)
    return root, node


@contextmanager
def _refusing_invalid() -> Iterator[None]:
    """Raise `UnreadableSchemaError` for a schema that is not valid."""
    try:
        yield
    except UnreadableSchemaError:
        raise
    except (ValueError, TypeError, KeyError) as error:
        message = f"is not a valid Avro schema: {error}"
        raise UnreadableSchemaError(message) from error


@dataclass
class _Names:
    """Replace the name of each named type by its full name, wherever it is defined or used.

    Names may contain any character, since some Java writers do not validate them. Attributes that
    only schema resolution needs are left out: defaults (which may be invalid), aliases and order.
    """

    named: dict[str, dict[str, Json]] = field(default_factory=dict)

    def resolve_all(self, registered: Registered) -> list[Json]:
        """Return the schemas that a registered one refers to, and it as the last."""
        texts = [*(text for _, text in registered.references), registered.text]
        return [self.resolve(json.loads(text), "") for text in texts]

    def resolve(self, node: Json, space: str) -> Json:
        """Return a schema in a namespace with full names.

        Raises:
            ValueError, TypeError, KeyError: it is not valid.
        """
        match node:
            case str(name) if name in _PRIMITIVES or name == "null":
                return name
            case str(name):
                return self._find(name, space)
            case list(branches):
                return [self.resolve(each, space) for each in branches]
            case {"type": "array", "items": items}:
                return {"type": "array", "items": self.resolve(items, space)}
            case {"type": "map", "values": values}:
                return {"type": "map", "values": self.resolve(values, space)}
            case dict():
                return self._resolve_typed(node, space)
        message = f"it has an invalid part: {json.dumps(node)[:100]}"
        raise ValueError(message)

    def _resolve_typed(self, node: dict[str, Json], space: str) -> Json:
        kind, name = node["type"], node.get("name")
        if kind in _NAMED:
            return self._define(_require_text(name), node, space)
        return node if isinstance(kind, str) and kind in _PRIMITIVES else self.resolve(kind, space)

    def _find(self, name: str, space: str) -> str:
        """Return the full name of a type, looked up in the namespace first, then outside of it."""
        found = next((n for n in (_qualify(name, space), name) if n in self.named), None)
        if found is None:
            message = f"it refers to the type {name}, which does not exist"
            raise ValueError(message)
        return found

    def _define(self, name: str, node: dict[str, Json], space: str) -> Json:
        """Resolve the definition of a type; a second one must be equal."""
        stated = node.get("namespace")
        full = _qualify(name, stated if isinstance(stated, str) else space)
        made: dict[str, Json] = {**node, "name": full}
        first = self.named.setdefault(full, made)
        if node["type"] in ("record", "error"):
            inner = full.rpartition(".")[0]
            made["fields"] = [
                {"name": _require_text(each["name"]), "type": self.resolve(each["type"], inner)}
                for each in _children(node["fields"])
            ]
        if {k: first.get(k) for k in _MEANING} != {k: made.get(k) for k in _MEANING}:
            message = f"it defines the type {full} twice"
            raise ValueError(message)
        return made


def _qualify(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"


def _require_text(name: Json) -> str:
    if not isinstance(name, str) or not name:
        message = "it has a field or a type without a name"
        raise ValueError(message)
    return name


@dataclass
class _Reader:
    """Walk a schema once and write it for Spark, where each named type has a name of its own.

    A type that a column asks for is written again each time, since columns differ in what they ask
    for; otherwise the first occurrence defines it. `_open` has those being read, `_written` those
    that are complete, `_taken` the names in Spark's schema in lower case.
    """

    named: Mapping[str, dict[str, Json]]
    for_events: bool = False
    """Whether values are read by the names of Kafka Connect, as those of change events are."""
    _written: dict[str, tuple[Source, str]] = field(default_factory=dict)
    _open: dict[str, str] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=lambda: {_RECORD_NAME, _MARK_NAME})
    _level: int = 0

    def read(self, node: Json, wanted: ColumnType | None) -> tuple[Source, Json]:
        """Return a node's type, and the node for Spark's schema."""
        self._level += 1
        if self._level > _MAX_DEPTH:
            message = f"is nested deeper than {_MAX_DEPTH} levels"
            raise UnreadableSchemaError(message)
        own = self.named.get(node) if isinstance(node, str) else node
        scalar = _read_event_scalar(own) if self.for_events and isinstance(own, dict) else None
        found = (scalar, node) if scalar else self._read_node(node, wanted)
        self._level -= 1
        return found

    def _read_node(  # noqa: PLR0911 - one return for each kind
        self, node: Json, wanted: ColumnType | None
    ) -> tuple[Source, Json]:
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
            case dict() if node["type"] in _NAMED:
                return self._read_named(str(node["name"]), node, wanted)
            case dict():
                return _read_logical(str(node["type"]), node, is_wanted=wanted is not None)
        message = f"it has an invalid part: {json.dumps(node)[:100]}"
        raise ValueError(message)

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
        if len({*names}) < len(names):
            message = f"the record {node['name']} has two fields of one name"
            raise ValueError(message)
        source = Record(
            tuple((name, inner) for name, (inner, _) in zip(names, read, strict=True)),
            choose_decoded_names(map(_flatten_name, names)),
        )
        written: list[Json] = [
            {"name": name, "type": inner}
            for name, (_, inner) in zip(source.decoded_names, read, strict=True)
        ]
        return source, {"type": "record", "fields": written}

    def _read_union(self, branches: list[Json], wanted: ColumnType | None) -> tuple[Source, Json]:
        """Read a union of null and one type, of two widths of a number, or of several types.

        Several types become a record with one field per type, of which one is set, as in Spark.
        """
        names = [_member(branch).lower() for branch in branches if branch != "null"]
        kinds_of = [b["type"] if isinstance(b, dict) and "name" not in b else b for b in branches]
        if any(isinstance(each, list) or kinds_of.count(each) > 1 for each in kinds_of):
            message = "it has a union in a union, or one type twice in a union"
            raise ValueError(message)
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
        if not members or self.for_events:
            reason = "has a union of several types" if members else "is always null"
            return Unsupported(reason), written
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
    """Return the name of a union's field in the value that Spark decodes; it keeps the case."""
    kind = node
    while isinstance(kind, dict):
        kind = kind["name"] if "name" in kind else kind["type"]
    return f"member_{_flatten_name(str(kind))}"


def _read_logical(kind: str, node: dict[str, Json], *, is_wanted: bool) -> tuple[Source, Json]:
    logical = str(node.get("logicalType", ""))
    if (kind, logical) in _LOGICAL:
        scalar, is_kept = _LOGICAL[kind, logical]
        return scalar, ({"type": kind, "logicalType": logical} if is_kept else kind)
    if (kind, logical) == ("bytes", "decimal") and (digits := _read_digits(node)):
        source, written = _read_decimal(digits, {"type": kind}, MAX_DECIMAL_PRECISION)
        return source, written if is_wanted else kind
    return Scalar(Primitive(_PRIMITIVES[kind])), kind


def _read_event_scalar(node: dict[str, Json]) -> Scalar | None:
    """Return the type of a value by its name in Kafka Connect; None if its parts decide."""
    kind, logical, name = str(node["type"]), node.get("logicalType"), node.get("connect.name")
    if not name:
        name = DECIMAL if logical == "decimal" and _read_digits(node) else f"{kind}/{logical}"
    given = node.get("connect.parameters")
    found = find_row_type(str(name), {**node, **(given if isinstance(given, dict) else {})})
    if kind == "fixed" and node["size"]:
        found = found or Primitive("fixed", (int(str(node["size"])),))
    if kind in _PRIMITIVES:
        found = found or Primitive(_PRIMITIVES[kind])
    return Scalar(found) if found else None


def _read_enum(node: dict[str, Json]) -> tuple[Source, dict[str, Json]]:
    """Read an enum; symbols that Spark's reader refuses have others in its schema."""
    symbols = [str(each) for each in _list(node["symbols"])]
    if len({*symbols}) < len(symbols):
        message = f"the enum {node['name']} has a symbol twice"
        raise ValueError(message)
    if all(each == _flatten_name(each) for each in symbols):
        return Scalar(Primitive("string")), {"type": "enum", "symbols": [*symbols]}
    numbered = [f"s{number}" for number in range(len(symbols))]
    source = Scalar(Primitive("string"), SYMBOLS, tuple(enumerate(symbols)))
    return source, {"type": "enum", "symbols": [*numbered]}


def _read_fixed(node: dict[str, Json], *, is_wanted: bool) -> tuple[Source, dict[str, Json]]:
    size, logical = node["size"], node.get("logicalType")
    written: dict[str, Json] = {"type": "fixed", "size": size}
    if not isinstance(size, int) or size < 0:
        message = f"the fixed type {node['name']} has the size {size}"
        raise ValueError(message)
    if size == 0:
        return Unsupported("has no bytes"), written
    if logical == "uuid" and size == _UUID_BYTES:
        return Scalar(Primitive("uuid"), "uuid-bytes"), written
    digits = _read_digits(node) if logical == "decimal" else None
    if digits and digits[0] <= _count_digits(size):
        most = min(_count_digits(size), MAX_DECIMAL_PRECISION)
        source, as_decimal = _read_decimal(digits, written, most)
        return source, as_decimal if is_wanted else written
    return Scalar(Primitive("fixed", (size,))), written


def _count_digits(size: int) -> int:
    """Return how many decimal digits always fit into this number of bytes, as Avro computes it."""
    return int((8 * size - 1) * math.log10(2))


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
    return [each for each in _list(node) if isinstance(each, dict)]


def _list(node: Json) -> list[Json]:
    if not isinstance(node, list):
        message = f"it has an invalid part: {json.dumps(node)[:100]}"
        raise TypeError(message)
    return node


def _flatten_name(name: str) -> str:
    """Return a name with the characters that Spark's reader of Avro allows."""
    plain = "".join(each if _is_allowed(each) else "_" for each in name)
    return f"_{plain}" if not plain or plain[0].isdecimal() else plain


def _is_allowed(letter: str) -> bool:
    """Return whether a character is `_`, or a letter or digit for Java in one UTF-16 unit."""
    return letter == "_" or (letter <= "\uffff" and (letter.isalpha() or letter.isdecimal()))
