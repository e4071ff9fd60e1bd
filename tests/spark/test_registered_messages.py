"""Every kind of Protobuf field, to the table and back: exact, or a typed refusal."""

from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from faults.judges import assert_audited
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from support.registry_lab import RegistryLab, frame, read_table

from frazil.kafka.schema_registry import Registered
from frazil.schemas.protobuf import read_protobuf

pytestmark = [pytest.mark.spark, pytest.mark.stack]

FIRST = b"\x00"
"""The header's path to the first message of a file."""
_IMPORTS = "".join(
    f'import "google/protobuf/{name}.proto";\n'
    for name in ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
)
_WELL_KNOWN = "google.protobuf"
INSTANT = datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
ONE_AS_STRUCT = b"\n\x0e\n\x01k\x12\t\x11\x00\x00\x00\x00\x00\x00\xf0\x3f"
SECOND = {"@type": "type.googleapis.com/google.protobuf.Duration", "value": "1s"}
MODERN: tuple[tuple[str, str, object, object], ...] = (
    ("a_double", "double", -1e308, -1e308),
    ("a_float", "float", 1.5, 1.5),
    ("an_int32", "int32", -(2**31), -(2**31)),
    ("a_sint32", "sint32", -1, -1),
    ("an_sfixed32", "sfixed32", 2**31 - 1, 2**31 - 1),
    ("an_int64", "int64", -(2**63), -(2**63)),
    ("a_sint64", "sint64", 2**63 - 1, 2**63 - 1),
    ("an_sfixed64", "sfixed64", -5, -5),
    ("a_uint32", "uint32", 2**32 - 1, 2**32 - 1),
    ("a_fixed32", "fixed32", 2**32 - 1, 2**32 - 1),
    ("a_uint64", "uint64", 2**64 - 1, Decimal(2**64 - 1)),
    ("a_fixed64", "fixed64", 2**64 - 1, Decimal(2**64 - 1)),
    ("a_bool", "bool", True, True),
    ("text", "string", "né\u0000\U0001f600", "né\u0000\U0001f600"),
    ("some_bytes", "bytes", "AP8=", b"\x00\xff"),
    ("unset_number", "int32", None, 0),
    ("unset_text", "string", None, ""),
    ("unset_presence", "optional int32", None, None),
    ("zero_with_presence", "optional int32", 0, 0),
    ("colour", "Colour", "GREEN", "GREEN"),
    ("at", f"{_WELL_KNOWN}.Timestamp", "1969-12-31T23:59:59.999999Z", INSTANT),
    ("no_time", f"{_WELL_KNOWN}.Timestamp", None, None),
    ("lasts", f"{_WELL_KNOWN}.Duration", "-1.5s", {"seconds": -1, "nanos": -500_000_000}),
    ("a_struct", f"{_WELL_KNOWN}.Struct", {"k": 1.0}, ONE_AS_STRUCT),
    ("a_value", f"{_WELL_KNOWN}.Value", "v", b"\x1a\x01v"),
    ("a_list_value", f"{_WELL_KNOWN}.ListValue", ["v"], b"\n\x03\x1a\x01v"),
    ("nothing", f"{_WELL_KNOWN}.Empty", {}, b""),
    ("paths", f"{_WELL_KNOWN}.FieldMask", "a,b.c", {"paths": ["a", "b.c"]}),
    ("any", f"{_WELL_KNOWN}.Any", SECOND, {"type_url": SECOND["@type"], "value": b"\x08\x01"}),
    ("w_bool", f"{_WELL_KNOWN}.BoolValue", False, False),
    ("w_int32", f"{_WELL_KNOWN}.Int32Value", -7, -7),
    ("w_int64", f"{_WELL_KNOWN}.Int64Value", 2**40, 2**40),
    ("w_uint32", f"{_WELL_KNOWN}.UInt32Value", 2**32 - 1, 2**32 - 1),
    ("w_uint64", f"{_WELL_KNOWN}.UInt64Value", 2**64 - 1, Decimal(2**64 - 1)),
    ("w_float", f"{_WELL_KNOWN}.FloatValue", 0.5, 0.5),
    ("w_double", f"{_WELL_KNOWN}.DoubleValue", 0.25, 0.25),
    ("w_text", f"{_WELL_KNOWN}.StringValue", "", ""),
    ("w_bytes", f"{_WELL_KNOWN}.BytesValue", "", b""),
    ("w_unset", f"{_WELL_KNOWN}.Int64Value", None, None),
    ("many", "repeated int64", [1, -2, 2**40], [1, -2, 2**40]),
    ("none_of_them", "repeated int64", None, []),
    ("lines", "repeated Line", [{"qty": 1}, {}], [{"sku": "", "qty": 1}, {"sku": "", "qty": None}]),
    ("by_text", "map<string, Line>", {"k": {"sku": "b"}}, [("k", {"sku": "b", "qty": None})]),
    ("by_number", "map<int64, string>", {"-5": "x"}, [("-5", "x")]),
    ("by_truth", "map<bool, int32>", {"true": 3}, [("true", 3)]),
    ("deep", "Line", {"sku": "d", "qty": 2}, {"sku": "d", "qty": 2}),
)
"""Name, type, the value as Protobuf's JSON, and what the table must hold."""

OLD_FASHIONED = """\
syntax = "proto2";
message Order {
  required int64 id = 1;
  optional int32 tries = 2 [default = 5];
  optional string word = 3 [default = "none"];
  optional Mood mood = 4 [default = GOOD];
  repeated int32 packed = 5 [packed = true];
  enum Mood { BAD = 0; GOOD = 1; }
}
"""


def write_schema() -> str:
    fields = [f"  {kind} {name} = {n};" for n, (name, kind, _, _) in enumerate(MODERN, 1)]
    return (
        f'syntax = "proto3";\n{_IMPORTS}message Corpus {{\n'
        + "\n".join(fields)
        + "\n  oneof one_of { string card = 1001; uint64 cash = 1002; }\n"
        "  enum Colour { RED = 0; GREEN = 1; }\n"
        "  message Line { string sku = 1; optional int32 qty = 2; }\n}\n"
    )


def write_message(text: str, content: Mapping[str, object]) -> bytes:
    """Serialize the first message of a schema by Google's own library."""
    found = read_protobuf(Registered(1, "PROTOBUF", text), None)
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(found.descriptor_set).file:
        pool.AddSerializedFile(each.SerializeToString())
    made = GetMessageClass(pool.FindMessageTypeByName(found.message))()
    written: bytes = ParseDict(dict(content), made, descriptor_pool=pool).SerializeToString()
    return written


def test_every_kind_of_field_arrives_exactly(registry: RegistryLab) -> None:
    text = write_schema()
    known = registry.register(text, "PROTOBUF")
    content = {name: given for name, _, given, _ in MODERN if given is not None} | {"cash": 0}
    registry.send([frame(known, write_message(text, content), FIRST)])

    registry.lab.drain()

    (row,) = read_table(registry.lab)
    expected = {name: value for name, _, _, value in MODERN}
    assert {name: row[name] for name in expected} == expected
    assert (row["card"], row["cash"]) == (None, Decimal(0))
    assert_audited(registry.lab)


def test_defaults_of_the_older_language_are_not_filled_in(registry: RegistryLab) -> None:
    known = registry.register(OLD_FASHIONED, "PROTOBUF")
    given = {"id": 1, "tries": 5, "word": "none", "mood": "GOOD", "packed": [1, 2]}
    for content in ({"id": 0}, given):
        registry.send([frame(known, write_message(OLD_FASHIONED, content), FIRST)])

    registry.lab.drain()

    unset, filled = (
        {name: row[name] for name in given}
        for row in sorted(read_table(registry.lab), key=lambda row: str(row["id"]))
    )
    assert unset == {"id": 0, "tries": None, "word": None, "mood": None, "packed": []}
    assert filled == given
    assert_audited(registry.lab)
