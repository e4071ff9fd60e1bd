"""Random schemas of each format, with random values and what a table holds of them.

Official libraries write the values: fastavro, which Confluent's serializer uses, Google's Protobuf,
and the json module; jsonschema says whether a JSON value is valid.
"""

import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import count

import fastavro
import jsonschema
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

from frazil.kafka.schema_registry import Registered
from frazil.schemas.protobuf import read_protobuf

Json = dict[str, object]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6)
DOUBLES = st.floats(allow_nan=False)
INSTANTS = st.integers(-62135596800000000, 253402300799999999)
NAMES = st.sampled_from(["a", "b", "order-id", "größe", "_c", "x1", "from", "Line"])
"""Names that columns have, and others, which are read by `from`."""


@dataclass(frozen=True)
class Kind:
    """A type: its node in a schema, its column, and pairs of value and what a table holds."""

    node: object
    column: str
    values: st.SearchStrategy[tuple[object, object]]


@dataclass(frozen=True)
class Case:
    """A schema, its columns, encoded records, and the rows that they become."""

    text: str
    columns: Mapping[str, str]
    payloads: tuple[bytes, ...]
    rows: tuple[Json, ...]


def same(values: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, object]]:
    return values.map(lambda value: (value, value))


def logical(kind: str, name: str, **more: object) -> Json:
    return {"type": kind, "logicalType": name, **more}


def unscale(number: Decimal) -> bytes:
    unscaled = int(number.scaleb(2))
    return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)


def instant(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


CENTS = st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2))
_NUMBERS = count()
AVRO = [
    Kind("boolean", "boolean", same(st.booleans())),
    Kind("int", "int", same(INTS)),
    Kind("long", "long", same(LONGS)),
    Kind("double", "double", same(DOUBLES)),
    Kind("string", "string", same(TEXTS)),
    Kind("bytes", "binary", same(st.binary(max_size=4))),
    Kind(logical("int", "date"), "date", st.integers(-719162, 2932896).map(
        lambda n: (n, date(1970, 1, 1) + timedelta(n)))),
    Kind(logical("long", "timestamp-micros"), "timestamptz", INSTANTS.map(
        lambda n: (n, instant(n)))),
    Kind(logical("long", "timestamp-millis"), "timestamptz", INSTANTS.map(
        lambda n: (n // 1000, instant(n // 1000 * 1000)))),
    Kind(logical("bytes", "decimal", precision=9, scale=2), "decimal(9,2)", CENTS.map(
        lambda n: (unscale(n), n))),
    Kind(logical("string", "date"), "string", same(TEXTS)),
    Kind(logical("long", "time-millis"), "long", same(LONGS)),
]  # fmt: skip


def plain_avro(node: object) -> object:
    """Return a schema as fastavro writes raw values by it: without logical types and defaults."""
    if isinstance(node, dict):
        left_out = {"logicalType", "default"}
        kept = {key: plain_avro(each) for key, each in node.items() if key not in left_out}
        symbols = node.get("symbols")
        return {**kept, "symbols": number(symbols)} if isinstance(symbols, list) else kept
    return [plain_avro(each) for each in node] if isinstance(node, list) else node


def name_columns(names: list[str]) -> dict[str, str]:
    """Return a column's name and `from` for each field."""
    return {f"c{number}": f' from "{name}"' for number, name in enumerate(names)}


def make_struct(names: list[str], kinds: list[Kind]) -> Kind:
    """Make a record of fields; its node is left to the format."""
    columns = name_columns(names)
    parts = [f"{c}: {k.column}{s}" for (c, s), k in zip(columns.items(), kinds, strict=True)]
    values = st.tuples(*(each.values for each in kinds)).map(
        lambda pairs: (
            dict(zip(names, (raw for raw, _ in pairs), strict=True)),
            dict(zip(columns, (told for _, told in pairs), strict=True)),
        )
    )
    return Kind(None, f"struct<{', '.join(parts)}>", values)


def avro_record(names: list[str], kinds: list[Kind]) -> Kind:
    made = make_struct(names, kinds)
    fields = [
        {"name": n, "type": k.node, **({"default": {"wrong": 1}} if i % 2 else {})}
        for i, (n, k) in enumerate(zip(names, kinds, strict=True))
    ]
    node = {"type": "record", "name": f"my-shop.R{next(_NUMBERS)}", "fields": fields}
    return Kind(node, made.column, made.values)


def number(symbols: list[str]) -> list[str]:
    return [f"s{index}" for index in range(len(symbols))]


def make_enum(symbols: list[str]) -> Kind:
    node = {"type": "enum", "name": f"E{next(_NUMBERS)}", "symbols": symbols}
    pairs = [*zip(number(symbols), symbols, strict=True)]
    return Kind(node, "string", st.sampled_from(pairs))


def make_list(kind: Kind) -> Kind:
    pairs = st.lists(kind.values, max_size=3)
    values = pairs.map(lambda each: ([raw for raw, _ in each], [told for _, told in each]))
    return Kind({"type": "array", "items": kind.node}, f"list<{kind.column}>", values)


def make_map(kind: Kind) -> Kind:
    pairs = st.dictionaries(TEXTS, kind.values, max_size=3)
    values = pairs.map(
        lambda each: ({k: raw for k, (raw, _) in each.items()},
                      [(k, told) for k, (_, told) in each.items()])
    )  # fmt: skip
    return Kind({"type": "map", "values": kind.node}, f"map<string, {kind.column}>", values)


def make_optional(kind: Kind) -> Kind:
    if isinstance(kind.node, list):
        return kind
    return Kind(["null", kind.node], kind.column, st.just((None, None)) | kind.values)


def structs(
    kinds: st.SearchStrategy[Kind], build: Callable[[list[str], list[Kind]], Kind]
) -> st.SearchStrategy[Kind]:
    named = st.lists(st.tuples(NAMES, kinds), min_size=1, max_size=4, unique_by=lambda p: p[0])
    return named.map(lambda pairs: build([n for n, _ in pairs], [k for _, k in pairs]))


SYMBOLS = st.lists(st.sampled_from(["A", "new-order", "it's", "ß", "1"]), min_size=1, unique=True)
AVRO_KINDS = st.recursive(
    st.sampled_from(AVRO) | SYMBOLS.map(make_enum),
    lambda inner: (
        inner.map(make_list)
        | inner.map(make_map)
        | inner.map(make_optional)
        | structs(inner, avro_record)
    ),
    max_leaves=5,
)


def draw_fields(
    draw: st.DrawFn, kinds: st.SearchStrategy[Kind], names: st.SearchStrategy[str]
) -> tuple[list[str], list[Kind]]:
    drawn = st.lists(st.tuples(names, kinds), min_size=1, max_size=5, unique_by=lambda p: p[0])
    named = draw(drawn)
    return [name for name, _ in named], [kind for _, kind in named]


def list_columns(names: list[str], kinds: list[Kind]) -> dict[str, str]:
    pairs = zip(name_columns(names).items(), kinds, strict=True)
    return {column: kind.column + source for (column, source), kind in pairs}


@st.composite
def avro_cases(draw: st.DrawFn) -> Case:
    """Draw an Avro schema and records as fastavro writes them."""
    names, kinds = draw_fields(draw, AVRO_KINDS, NAMES)
    root = avro_record(names, kinds)
    pairs = draw(st.lists(root.values, min_size=1, max_size=5))
    writer = fastavro.parse_schema(plain_avro(root.node))

    def encode(value: object) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, writer, value)
        return buffer.getvalue()

    return Case(
        json.dumps(root.node),
        list_columns(names, kinds),
        tuple(encode(raw) for raw, _ in pairs),
        tuple(told for _, told in pairs),
    )


PROTO_TYPES = [
    ("bool", "boolean", same(st.booleans())),
    ("int32", "int", same(INTS)),
    ("sint64", "long", same(LONGS)),
    ("fixed32", "long", same(st.integers(0, 2**32 - 1))),
    ("uint64", "decimal(20,0)", st.integers(0, 2**64 - 1).map(lambda n: (n, Decimal(n)))),
    ("double", "double", same(DOUBLES)),
    ("string", "string", same(TEXTS)),
    ("bytes", "binary", same(st.binary(max_size=4))),
    ("E", "string", st.sampled_from([(0, "Z"), (-7, "A"), (9, "B")])),
    ("google.protobuf.Timestamp", "timestamptz", INSTANTS.map(
        lambda n: ({"seconds": n // 10**6, "nanos": n % 10**6 * 1000}, instant(n)))),
    ("google.protobuf.StringValue", "string", TEXTS.map(lambda t: ({"value": t}, t))),
    ("In", "struct<n: long, t: string>", st.tuples(LONGS, TEXTS).map(
        lambda p: ({"n": p[0], "t": p[1]}, {"n": p[0], "t": p[1]}))),
]  # fmt: skip
ZEROS = {"bool": False, "int32": 0, "sint64": 0, "fixed32": 0, "uint64": Decimal(0), "double": 0.0,
         "string": "", "bytes": b"", "E": "Z"}  # fmt: skip
OUTER = """
message In { int64 n = 1; string t = 2; }
enum E { Z = 0; A = -7; B = 9; }
"""
HEADS = {
    "proto2": 'syntax = "proto2";',
    "proto3": 'syntax = "proto3";',
    "edition": 'edition = "2023";',
}
IMPORTS = 'import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto";'


@st.composite
def proto_kinds(draw: st.DrawFn, head: str) -> Kind:
    """Draw a field; its node is its declaration without name and number."""
    name, column, values = draw(st.sampled_from(PROTO_TYPES))
    form = draw(st.sampled_from(["single", "optional", "repeated", "map", "oneof"]))
    if form == "repeated":
        kind = make_list(Kind(None, column, values))
        return Kind(f"repeated {name}", kind.column, kind.values)
    if form == "map":
        kind = make_map(Kind(None, column, values))
        return Kind(f"map<string, {name}>", kind.column, kind.values)
    if form == "oneof":
        return Kind(f"oneof {name}", column, st.just((None, None)) | values)
    has_presence = form == "optional" or name not in ZEROS or head != "proto3"
    absent = None if has_presence else ZEROS[name]
    label = "" if head == "edition" or (head == "proto3" and form == "single") else "optional "
    return Kind(f"{label}{name}", column, st.just((None, absent)) | values)


def declare(names: list[str], kinds: list[Kind]) -> str:
    parts = []
    for number_of, (name, kind) in enumerate(zip(names, kinds, strict=True), 1):
        own = str(kind.node)
        if own.startswith("oneof "):
            parts.append(
                f"oneof o{number_of} {{ {own.removeprefix('oneof ')} {name} = {number_of}; }}"
            )
        else:
            parts.append(f"{own} {name} = {number_of};")
    return " ".join(parts)


@st.composite
def proto_cases(draw: st.DrawFn) -> Case:
    """Draw a Protobuf schema and messages as Google's library writes them."""
    head = draw(st.sampled_from([*HEADS]))
    names, kinds = draw_fields(
        draw, proto_kinds(head), st.sampled_from(["a", "b", "c", "x1", "Line"])
    )
    outer = (
        OUTER
        if head != "proto2"
        else OUTER.replace("int64", "optional int64").replace("string", "optional string")
    )
    text = f"{HEADS[head]} {IMPORTS} message M {{ {declare(names, kinds)} }} {outer}"
    pairs = draw(st.lists(make_struct(names, kinds).values, min_size=1, max_size=5))
    schema = read_protobuf(Registered(1, "PROTOBUF", text), None)
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(schema.descriptor_set).file:
        pool.AddSerializedFile(each.SerializeToString())
    message = GetMessageClass(pool.FindMessageTypeByName("M"))

    def encode(value: dict[str, object]) -> bytes:
        set_fields = {name: each for name, each in value.items() if each is not None}
        written: bytes = message(**set_fields).SerializeToString()
        return written

    rows = tuple(told for _, told in pairs)
    return Case(text, list_columns(names, kinds), tuple(encode(raw) for raw, _ in pairs), rows)


JSON_KINDS = [
    Kind({"type": "integer"}, "long", same(LONGS)),
    Kind({"type": "number"}, "double", same(DOUBLES.filter(math.isfinite))),
    Kind({"type": "boolean"}, "boolean", same(st.booleans())),
    Kind({"type": "string"}, "string", same(TEXTS)),
    Kind({"enum": ["a", "b"]}, "string", same(st.sampled_from(["a", "b"]))),
    Kind({"const": 5}, "long", same(st.just(5))),
    Kind({"type": "string", "format": "date"}, "date", same(st.dates().map(str))),
]
NULL = {"type": "null", "title": "none", "description": "no value"}
WRAPPERS: list[Callable[[Json], Json]] = [
    lambda s: {"allOf": [s]},
    lambda s: {"allOf": [s, {"description": "more"}], "title": "T"},
    lambda s: {"anyOf": [NULL, s]},
    lambda s: {"oneOf": [s, NULL]},
    lambda s: {"oneOf": [s, {"const": None}]},
    lambda s: {"anyOf": [s, s], "minLength": 0},
    lambda s: {"definitions": {"t": s}, "$id": f"urn:frazil:{next(_NUMBERS)}",
               "allOf": [{"$ref": "#/definitions/t"}]},
    lambda s: {"if": {"type": "string"}, "then": s, "else": s},
    lambda s: {**s, "type": [s["type"], "null"]} if isinstance(s.get("type"), str) else s,
]  # fmt: skip


def json_object(names: list[str], kinds: list[Kind]) -> Kind:
    made = make_struct(names, kinds)
    properties = {n: k.node for n, k in zip(names, kinds, strict=True)}
    half = len(names) // 2
    first, second = dict([*properties.items()][:half]), dict([*properties.items()][half:])
    node = {"type": "object", "allOf": [{"properties": first}, {"required": []}]}
    return Kind({**node, "properties": second}, made.column, made.values)


def json_list(kind: Kind) -> Kind:
    made = make_list(kind)
    return Kind({"type": "array", "items": kind.node}, made.column, made.values)


def json_map(kind: Kind) -> Kind:
    made = make_map(kind)
    return Kind({"type": "object", "additionalProperties": kind.node}, made.column, made.values)


JSON_SCHEMAS = st.recursive(
    st.sampled_from(JSON_KINDS),
    lambda inner: (
        inner.map(json_list)
        | inner.map(json_map)
        | structs(inner, json_object)
        | st.tuples(inner, st.sampled_from(WRAPPERS)).map(
            lambda pair: Kind(pair[1](pair[0].node), pair[0].column, pair[0].values)
        )
    ),
    max_leaves=5,
)


@st.composite
def json_cases(draw: st.DrawFn) -> Case:
    """Draw a JSON Schema and records that are valid by it."""
    names, kinds = draw_fields(draw, JSON_SCHEMAS, NAMES)
    root = json_object(names, kinds)
    pairs = draw(st.lists(root.values, min_size=1, max_size=5))
    draft = draw(
        st.sampled_from(
            [
                "http://json-schema.org/draft-07/schema#",
                "https://json-schema.org/draft/2020-12/schema",
            ]
        )
    )
    node = {"$schema": draft, **root.node}
    payloads = tuple(json.dumps(raw).encode() for raw, _ in pairs)
    for payload in payloads:
        jsonschema.validate(json.loads(payload), node)
    rows = tuple(told for _, told in pairs)
    return Case(json.dumps(node), list_columns(names, kinds), payloads, rows)


def is_same(found: object, told: object) -> bool:
    """Return whether a decoded value is the one that was written; maps have no order."""
    match found, told:
        case dict(), dict():
            return {*found} == {*told} and all(is_same(found[k], told[k]) for k in told)
        case [tuple(), *_], [tuple(), *_]:  # the entries of a map
            return is_same(dict(found), dict(told))
        case list(), list():
            return len(found) == len(told) and all(map(is_same, found, told))
        case _, str() if isinstance(found, date):
            return str(found) == told
        case datetime(), datetime():
            return found == told
    return type(found) is type(told) and (found == told or str(found) == str(told))
