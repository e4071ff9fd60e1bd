"""Protobuf messages for differential tests: plain ones, values at the edge, bytes that are odd."""

import random
from collections.abc import Mapping
from functools import cache

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from frazil.kafka.schema_registry import Registered
from frazil.schemas.protobuf import ProtobufSchema, read_protobuf

TEXT = """\
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Event {
  int64 id = 1;
  optional int32 small = 2;
  sint32 zigzag = 3;
  uint32 unsigned = 4;
  bool flag = 5;
  double real = 6;
  float single = 7;
  fixed32 four = 8;
  sfixed64 eight = 9;
  google.protobuf.Timestamp at = 10;
  string text = 11;
  bytes some_bytes = 12;
  Colour colour = 13;
  Deep deep = 14;
  repeated double reals = 15;
  repeated Line lines = 1600;
  google.protobuf.Int64Value wrapped = 1700;
  repeated string unasked = 1800;
  repeated sint64 steps = 1900 [packed = false];
  message Deep { int32 a = 1; optional string b = 2; Colour unasked = 3; }
  message Line { string sku = 1; double other = 2; int32 qty = 3; }
  enum Colour { RED = 0; GREEN = 1; }
}
"""
COLUMNS = {
    "id": "long!",
    "small": "int",
    "zigzag": "long",
    "unsigned": "long",
    "flag": "boolean",
    "real": "double",
    "single": "float",
    "four": "long",
    "eight": "long",
    "at": "timestamptz",
    "text": "string",
    "some_bytes": "binary",
    "colour": "string",
    "deep": "struct<b: string, a: int>",
    "reals": "list<double>",
    "lines": "list<struct<sku: string, qty: int>>",
    "wrapped": "long",
    "steps": "list<long>",
    "absent": "string",
}
PLAIN: Mapping[str, tuple[object, ...]] = {
    "small": (None, 0, -1, 2**31 - 1, -(2**31)),
    "zigzag": (0, -(2**31), 5),
    "unsigned": (0, 2**32 - 1),
    "flag": (True, False),
    "real": (0.0, 1.5, -1e308),
    "single": (0.0, -0.5),
    "four": (0, 2**32 - 1),
    "eight": (0, -(2**63), 2**63 - 1),
    "at": (None, {}, {"seconds": 1_700_000_000, "nanos": 123_456_000}, {"seconds": -1}),
    "text": ("", "plain", "n\u00e9\u0000\U0001f600", "x" * 300),
    "some_bytes": (b"", b"\x00\xff"),
    "colour": (0, 1),
    "deep": (None, {}, {"a": -1, "b": ""}, {"a": 2, "b": "x", "unasked": 1}),
    "reals": ([], [1.0, 0.0, -2.5], [0.25] * 90),
    "lines": ([], [{"sku": "a", "other": 1.0, "qty": 1}, {}], [{"qty": -3}]),
    "wrapped": (None, {}, {"value": -7}),
    "unasked": ([], ["x", ""]),
    "steps": ([], [1, -1, 2**62]),
}
ODD: Mapping[str, tuple[object, ...]] = {
    "real": (float("nan"), float("inf"), -0.0),
    "at": ({"nanos": 1}, {"nanos": -1}, {"seconds": 253_402_300_800}, {"seconds": -(2**40)}),
    "colour": (2, -1),
    "reals": ([1.0] * 101, [float("nan")]),
    "deep": ({"unasked": 7},),
}
"""Values that workers leave to Google's library."""


@cache
def read_schema() -> ProtobufSchema:
    """Read the schema as the registry's."""
    return read_protobuf(Registered(8, "PROTOBUF", TEXT), None)


@cache
def message_class() -> type[Message]:
    """Make the class of the messages."""
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(read_schema().descriptor_set).file:
        pool.AddSerializedFile(each.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("Event"))


def make_payload(rnd: random.Random, number: int, **odd: object) -> bytes:
    """Write a message of plain values; keyword arguments replace some."""
    chosen = {name: rnd.choice(values) for name, values in PLAIN.items()} | {"id": number} | odd
    given = {name: value for name, value in chosen.items() if value is not None}
    written: bytes = message_class()(**given).SerializeToString()
    return written


def make_odd(rnd: random.Random, number: int) -> list[bytes]:
    """Write one message for each odd value, and some that no serializer writes."""
    pairs = [(name, value) for name, values in ODD.items() for value in values]
    good = make_payload(rnd, number)
    whole = (
        good + b"\x08\x01",  # the first field once more
        good + b"\x98\x7d\x01",  # a field that nobody knows
        b"\x10\x07\x08\x05",  # the second before the first
        b"\x08\x05\x28\x02",  # a truth of two
        b"\x08\x05\x10\xff\xff\xff\xff\x0f",  # -1 in 32 bits
        b"\x08\x85\x00\x5a\x02\xff\xff",  # no UTF-8
        b"\x08\x05\xc2\x70\x01\xff",  # the same where no column takes it
        b"\x08\x05\x79" + b"\x00" * 8,  # a packed list that is not
        b"\x08\x05\x72\x02\x08",  # a message that ends nowhere
        b"\x08\x05\x5b\x5c",  # a group
    )
    return [*(make_payload(rnd, number, **{name: value}) for name, value in pairs), *whole]
