"""Protobuf by a schema registry: message indexes, presence, and what is no such message."""

import pytest
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from faults.judges import assert_audited
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from support.registry_lab import RegistryLab, frame, read_table

from frazil.kafka.schema_registry import Registered
from frazil.schemas.protobuf import read_protobuf

pytestmark = [pytest.mark.spark, pytest.mark.stack]

SCHEMA = """\
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1;
  optional string name = 2;
  string note = 3;
  Kind kind = 4;
  google.protobuf.Timestamp at = 5;
  google.protobuf.StringValue city = 6;
  repeated Item items = 7;
  map<string, int32> counts = 8;
  oneof paid { string card = 9; uint64 cash = 10; }
  enum Kind { NONE = 0; RUSH = 1; }
  message Item { string sku = 1; Order inside = 2; }
}
message Other { int64 id = 1; }
"""
ORDER, OTHER = b"\x00", b"\x02\x02"


def message_class(name: str) -> type[Message]:
    """Load a message's class from the schema's own descriptors."""
    found = read_protobuf(Registered(1, "PROTOBUF", SCHEMA), None)
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(found.descriptor_set).file:
        pool.AddSerializedFile(each.SerializeToString())
    loaded: type[Message] = GetMessageClass(pool.FindMessageTypeByName(name))
    return loaded


@pytest.mark.core
def test_messages_become_rows_and_everything_else_a_letter(registry: RegistryLab) -> None:
    lab, order = registry.lab, message_class("shop.Order")
    known = registry.register(SCHEMA, "PROTOBUF")
    full = order(id=1, name="", note="n", kind=1, cash=2**64 - 1, counts={"a": 1})
    full.at.seconds, full.at.nanos, full.city.value = 1, 5000, ""
    full.items.add(sku="s").inside.id = 9
    odd_kind, odd_time = order(id=2, kind=7), order(id=3)
    odd_time.at.nanos = 1
    bad = {
        "malformed_protobuf": frame(known, b"\x0a\xff", ORDER),
        "other_message": frame(known, b"", OTHER),
        "type_mismatch": frame(known, odd_kind.SerializeToString(), ORDER),
        "type_mismatch ": frame(known, odd_time.SerializeToString(), ORDER),
    }
    registry.send(
        [frame(known, full.SerializeToString(), ORDER), frame(known, b"", b"\x02\x00")] * 4
        + list(bad.values())
    )

    lab.drain()

    first, empty = read_table(lab)[:2]
    assert (first["id"], first["name"], first["kind"], first["cash"]) == (1, "", "RUSH", 2**64 - 1)
    assert (first["at"].timestamp(), first["city"], first["card"]) == (1.000005, "", None)
    assert (first["items"], first["counts"]) == ([{"sku": "s", "inside": b"\x08\x09"}], [("a", 1)])
    assert (empty["id"], empty["name"], empty["note"], empty["city"]) == (0, None, "", None)
    letters = read_table(lab, f"{lab.table}__dead_letters")
    found = {(r["value"], r["reason"]) for r in letters}
    assert found == {(value, reason.strip()) for reason, value in bad.items()}
    assert_audited(lab)


PROTO2 = """\
syntax = "proto2";
import "confluent/meta.proto";
import "google/type/date.proto";
message Old {
  required int64 id = 1 [(confluent.field_meta).doc = "an import by the registry's own name"];
  repeated E kinds = 2;
  map<string, E> named = 3;
  repeated string texts = 4;
  map<string, string> words = 5;
  optional group Pair = 6 { optional E kind = 1; }
  optional google.type.Date day = 7;
  enum E { NONE = 0; RUSH = 7; }
}
"""


def test_what_proto2_hides_or_accepts_is_a_dead_letter(registry: RegistryLab) -> None:
    lab, known = registry.lab, registry.register(PROTO2, "PROTOBUF")
    good = b"\x08\x01\x10\x07\x1a\x05\x0a\x01a\x10\x07\x22\x01x\x33\x08\x07\x34\x3a\x02\x18\x07"
    bad = {
        b"\x08\x01\x10\x07\x10\x09": "type_mismatch",  # a list's number without a name
        b"\x08\x01\x1a\x05\x0a\x01a\x10\x09": "type_mismatch",  # a map's
        b"\x08\x01\x33\x08\x09\x34": "type_mismatch",  # a group's
        b"\x08\x01\x22\x01x\x22\x01\xff": "type_mismatch",  # not UTF-8 in a list
        b"\x08\x01\x2a\x06\x0a\x01\xff\x12\x01b": "type_mismatch",  # in a map's key
        b"\x10\x07": "malformed_protobuf",  # without the required field
    }
    registry.send([frame(known, value, ORDER) for value in [good] * 6 + list(bad)])

    lab.drain()

    rows = read_table(lab)
    letters = read_table(lab, f"{lab.table}__dead_letters")
    assert [(r["id"], r["kinds"], r["named"], r["texts"], r["pair"]) for r in rows] == [
        (1, ["RUSH"], [("a", "RUSH")], ["x"], {"kind": "RUSH"})
    ] * 6
    assert {str(r["day"]) for r in rows} == {"{'year': 0, 'month': 0, 'day': 7}"}
    assert {(r["value"], r["reason"]) for r in letters} == {
        (frame(known, value, ORDER), reason) for value, reason in bad.items()
    }
    assert_audited(lab)


def test_what_the_registry_s_own_serializer_writes_is_read(registry: RegistryLab) -> None:
    lab, other = registry.lab, message_class("shop.Other")
    options = {"use.deprecated.format": False}
    serialize = ProtobufSerializer(other, registry.client, options)
    context = SerializationContext(lab.topic, MessageField.VALUE)
    registry.write_stream(message="Other")
    registry.send([serialize(other(id=7), context)])

    lab.drain()

    assert [row["id"] for row in read_table(lab)] == [7]
