"""What Protobuf offers beyond plain fields: each kind is right, or its record is a dead letter."""

import pyarrow as pa
import pytest

from frazil.kafka.schema_registry import Registered
from frazil.schemas.protobuf import ProtobufSchema, read_protobuf, replace_enums
from frazil.schemas.source_types import derive_columns, to_arrow_type
from frazil.streams.column_types import format_type
from frazil_spark.decode.protobuf import MessageReader, MessageSpec

KNOWN = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
IMPORTS = "".join(f'import "google/protobuf/{name}.proto"; ' for name in KNOWN)
PROTO3 = f"""syntax = "proto3"; {IMPORTS}
message M {{
  google.protobuf.Any any = 1;
  google.protobuf.StringValue text = 2;
  repeated google.protobuf.Int64Value longs = 3;
  map<string, google.protobuf.BoolValue> flags = 4;
  google.protobuf.Duration took = 5;
  google.protobuf.Timestamp at = 6;
  google.protobuf.Empty empty = 7;
  google.protobuf.FieldMask mask = 8;
  google.protobuf.Struct free = 9;
  oneof either {{ int32 a = 10; string b = 11; google.protobuf.Timestamp c = 12; M again = 15; }}
  map<int32, E> kinds = 13;
  map<bool, M> by_flag = 14;
  map<string, google.protobuf.Timestamp> times = 17;
  map<uint64, bytes> blobs = 18;
  enum E {{ option allow_alias = true; Z = 0; A = 1; B = 1; }}
}}"""
PROTO2 = """syntax = "proto2";
message M {
  optional group G = 1 { optional int32 a = 1; repeated group H = 2 { optional string s = 1; } }
  oneof either { group P = 3 { optional int32 x = 1; } int32 y = 4; }
  optional bytes b = 6 [default = "x"];
  optional Set set = 7;
  extensions 100 to max;
  message Set { option message_set_wire_format = true; extensions 4 to max; }
}"""
EDITION = """edition = "2023";
message M {
  int64 id = 1 [features.field_presence = LEGACY_REQUIRED];
  string s = 2 [features.field_presence = IMPLICIT];
  G g = 3 [features.message_encoding = DELIMITED];
  repeated int32 r = 4 [features.repeated_field_encoding = EXPANDED];
  E e = 5 [default = B];
  map<string, E> me = 6;
  repeated G gs = 7 [features.message_encoding = DELIMITED];
  oneof o { G p = 8 [features.message_encoding = DELIMITED]; int32 y = 9; }
  extensions 100 to 200;
  message G { int32 a = 1; }
  enum E { option features.enum_type = CLOSED; A = 0; B = 2; }
}
extend M { string more = 100; }"""


def read(text: str) -> ProtobufSchema:
    return read_protobuf(Registered(1, "PROTOBUF", text), None)


def decode(text: str, payload: str) -> object:
    """Decode a payload in hex; give the fields that are set, or why there are none."""
    schema = read(text)
    wire = to_arrow_type(schema.root)
    spec = MessageSpec(replace_enums(schema.descriptor_set), schema.message, b"", (), wire)
    found = MessageReader(spec).read(pa.array([bytes.fromhex(payload)], pa.binary()))
    (fault,), (value,) = found.field("fault").to_pylist(), found.field("value").to_pylist()
    return fault or {name: each for name, each in value.items() if each not in (None, [], "", 0)}


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        pytest.param(
            PROTO3,
            "any:struct<type_url:string,value:binary> text:string longs:list<long> "
            "flags:map<string,boolean> took:struct<seconds:long,nanos:int> at:timestamptz "
            "empty:binary mask:struct<paths:list<string>> free:binary a:int b:string c:timestamptz "
            "again:binary kinds:map<string,string> by_flag:map<string,binary> "
            "times:map<string,timestamptz> blobs:map<string,binary>",
            id="proto3",
        ),
        pytest.param(
            PROTO2,
            "g:struct<a:int,h:list<struct<s:string>>> p:struct<x:int> y:int b:binary set:binary",
            id="proto2",
        ),
        pytest.param(
            EDITION,
            "id:long s:string g:struct<a:int> r:list<int> e:string me:map<string,string> "
            "gs:list<struct<a:int>> p:struct<a:int> y:int",
            id="edition 2023",
        ),
        pytest.param('edition = "2024"; message M { int64 id = 1; }', "id:long", id="edition 2024"),
        pytest.param("message M { optional int32 a = 1; }", "a:int", id="no syntax is proto2"),
    ],
)
def test_the_columns_of_every_kind(text: str, columns: str) -> None:
    found = derive_columns(read(text).root, is_flat=True, single_column="value")

    assert " ".join(f"{each.name}:{format_type(each.type)}" for each in found) == columns


MALFORMED = "malformed_protobuf"


@pytest.mark.parametrize(
    ("text", "payload", "expected"),
    [
        (PROTO3, "5001 5a0178", {"b": "x"}),
        (PROTO3, "5a0178 5001", {"a": 1}),
        (PROTO3, "6204 08011002 5a0178 6202 0805", {"c": {"seconds": 5, "nanos": 0}}),
        (PROTO3, "5a00", {}),
        (PROTO3, "1200", {"text": {"value": ""}}),
        (PROTO3, "1a00 1a020805", {"longs": [{"value": 0}, {"value": 5}]}),
        (PROTO3, "2203 0a0161", {"flags": [("a", {"value": False})]}),
        (PROTO3, "6a04 08011005", {"kinds": [(1, 5)]}),
        (PROTO3, "6a00", {"kinds": [(0, 0)]}),
        (PROTO3, "8a0107 0a016112020801", {"times": [("a", {"seconds": 1, "nanos": 0})]}),
        (PROTO3, "0a0a 0a03782f79 1203616263", {"any": {"type_url": "x/y", "value": b"abc"}}),
        (PROTO3, "2a0c 08ffffffffffffffff7f 1001", {"took": {"seconds": 2**63 - 1, "nanos": 1}}),
        (PROTO3, "3a00", {"empty": b""}),
        (PROTO3, "7a025001", {"again": b"\x50\x01"}),
        (PROTO3, "3202 0801 3202 1005", {"at": {"seconds": 1, "nanos": 5}}),
        (PROTO3, "a80601 0b0c", {}),
        (PROTO3, "0f", MALFORMED),
        (PROTO3, "0b", MALFORMED),
        (PROTO3, "5202", MALFORMED),
        (PROTO3, "ffffffffffffffffffff01", MALFORMED),
        (PROTO3, "7a" * 9 + "00", MALFORMED),
        (PROTO2, "0b0805 130a016114 1314 0c", {"g": {"a": 5, "h": [{"s": "a"}, {"s": None}]}}),
        (PROTO2, "1b08051c 2001", {"y": 1}),
        (PROTO2, "1b08051c", {"p": {"x": 5}}),
        (PROTO2, "1b0805", MALFORMED),
        (PROTO2, "0b08050c a2060178", {"g": {"a": 5, "h": []}}),
        (EDITION, "", MALFORMED),
        (EDITION, "0801", {"id": 1}),
        (EDITION, "0801 1b08051c", {"id": 1, "g": {"a": 5}}),
        (EDITION, "0801 1a020805", {"id": 1}),
        (EDITION, "0801 2801", {"id": 1, "e": 1}),
        (EDITION, "0801 3b08051c", MALFORMED),
        (EDITION, "0801 3b08053c 3b3c", {"id": 1, "gs": [{"a": 5}, {"a": None}]}),
        (EDITION, "0801 43080544 4805", {"id": 1, "y": 5}),
        (EDITION, "0801 4805 43080544", {"id": 1, "p": {"a": 5}}),
        (EDITION, "0801 22020102 2003", {"id": 1, "r": [1, 2, 3]}),
        (EDITION, "0801 a2060178", {"id": 1}),
    ],
)
def test_a_payload_of_every_kind(text: str, payload: str, expected: object) -> None:
    assert decode(text, payload) == expected


def test_messages_in_more_than_a_hundred_others_are_malformed() -> None:
    nested, deep = b"", b""
    for level in range(200):
        size = len(nested)
        length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
        nested = b"\x7a" + length + nested
        deep = nested if level == 90 else deep

    assert decode(PROTO3, nested.hex()) == MALFORMED
    assert decode(PROTO3, deep.hex()) == {"again": deep[3:]}
