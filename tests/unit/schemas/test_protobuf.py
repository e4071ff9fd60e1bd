"""proto2 and editions: what Google's library hides or accepts is seen by the columns' checks."""

import base64

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from frazil.kafka.schema_registry import Registered
from frazil.schemas.protobuf import ProtobufSchema, read_protobuf, replace_enums
from frazil.schemas.source_types import derive_columns, to_arrow_type
from frazil.streams.column_types import format_type
from frazil_spark.decode.protobuf import MessageReader, MessageSpec

PROTO2 = """\
syntax = "proto2";
message M {
  required int64 id = 1;
  optional E one = 2 [default = B];
  repeated E many = 3;
  repeated E packed = 4 [packed = true];
  map<string, E> named = 5;
  optional Inner inner = 6;
  oneof either { E left = 7; int32 right = 8; }
  optional string text = 9;
  repeated string texts = 10;
  map<string, string> words = 11;
  optional group Pair = 12 { optional int32 a = 1; optional E b = 2; }
  optional M again = 13;
  repeated Inner all = 14;
  extensions 100 to 200;
  message Inner { optional E e = 1; optional string s = 2; required int32 must = 3; }
  enum E { Z = 0; B = 7; }
}
extend M { optional string note = 100; optional M.E other = 101; }
"""
PROTO3 = 'syntax = "proto3"; import "old.proto"; message N { M m = 1; int64 id = 2; }'
EDITION = """\
edition = "2023";
option features.enum_type = CLOSED;
option features.utf8_validation = NONE;
message M { int64 id = 1; E one = 2; repeated E many = 3; string text = 4; enum E { B = 7; } }
"""
ID = b"\x08\x01"


def read_schema(text: str = PROTO2, **imports: str) -> ProtobufSchema:
    references = tuple((f"{name}.proto", content) for name, content in imports.items())
    return read_protobuf(Registered(1, "PROTOBUF", text, references), None)


def decode(schema: ProtobufSchema, payload: bytes) -> tuple[pa.StructArray, str | None]:
    """Decode a payload as a Spark worker does; return its value and fault."""
    wire = to_arrow_type(schema.root)
    spec = MessageSpec(replace_enums(schema.descriptor_set), schema.message, b"", (), wire)
    found = MessageReader(spec).read(pa.array([payload], pa.binary()))
    return found.field("value"), found.field("fault")[0].as_py()


@pytest.mark.parametrize(
    ("payload", "field", "value"),
    [
        pytest.param(b"\x10\x09", "one", 9, id="a field"),
        pytest.param(b"\x10\x07\x10\x09", "one", 9, id="a field twice"),
        pytest.param(b"", "one", None, id="no default"),
        pytest.param(b"\x10" + b"\xff" * 9 + b"\x01", "one", -1, id="a negative number"),
        pytest.param(b"\x18\x07\x18\x09", "many", [7, 9], id="a list"),
        pytest.param(b"\x22\x02\x07\x09", "packed", [7, 9], id="a packed list"),
        pytest.param(b"\x2a\x05\x0a\x01a\x10\x09", "named", [("a", 9)], id="a map"),
        pytest.param(b"\x40\x01\x38\x09", "left", 9, id="one of two"),
        pytest.param(b"\x63\x08\x05\x10\x09\x64", "pair", {"a": 5, "b": 9}, id="a group"),
        pytest.param(b"\x32\x04\x08\x09\x18\x01", "inner", {"e": 9, "s": None, "must": 1},
                     id="a struct"),
        pytest.param(b"\x72\x04\x08\x09\x18\x01", "all", [{"e": 9, "s": None, "must": 1}],
                     id="a list of structs"),
        pytest.param(b"\xa2\x06\x01x\xa8\x06\x09", "one", None, id="extensions are not columns"),
    ],
)  # fmt: skip
def test_a_closed_enumeration_keeps_numbers_without_a_name(
    payload: bytes, field: str, value: object
) -> None:
    found, fault = decode(read_schema(), ID + payload)

    assert fault is None
    assert found.field(field).to_pylist() == [value]


def test_closed_enumerations_of_imports_and_of_editions_keep_their_numbers() -> None:
    old = ID + b"\x10\x09"
    importing, _ = decode(read_schema(PROTO3, old=PROTO2), b"\x0a" + bytes([len(old)]) + old)
    edition, _ = decode(read_schema(EDITION), b"\x08\x01\x10\x09\x1a\x02\x07\x09")

    assert importing.to_pylist()[0]["m"]["one"] == 9
    assert edition.to_pylist()[0] == {"id": 1, "one": 9, "many": [7, 9], "text": None}


def test_a_descriptor_that_leaves_a_fields_type_to_its_name_is_read_alike() -> None:
    file = FileDescriptorProto()
    file.CopyFrom(FileDescriptorSet.FromString(read_schema().descriptor_set).file[-1])
    one = file.message_type[0].field[1]
    one.ClearField("type")
    one.type_name = "M.E"
    schema = read_schema(base64.b64encode(file.SerializeToString()).decode())

    assert decode(schema, ID + b"\x10\x09")[0].field("one").to_pylist() == [9]


TWINS = """\
syntax = "proto2";
message M {
  optional int32 order_id = 1; optional int32 orderId = 2; optional Inner inner = 3;
  map<string, int32> counts = 4;
  message Inner { optional E a_b = 1; optional E aB = 2; }
  enum E { B = 7; }
}
"""


@pytest.mark.parametrize("is_text", [True, False], ids=["text", "descriptor"])
def test_fields_with_one_name_in_json_are_two_columns(is_text: bool) -> None:  # noqa: FBT001
    compiled = read_schema(TWINS)
    file = FileDescriptorSet.FromString(compiled.descriptor_set).file[-1]
    for name, field in ((f.name, f) for m in file.message_type for f in m.field):
        field.json_name = "orderId" if name.lower().startswith("order") else name
    descriptor = base64.b64encode(file.SerializeToString()).decode()
    schema = compiled if is_text else read_schema(descriptor)

    found, _ = decode(schema, bytes.fromhex("080110021a0408071008"))

    assert found.to_pylist() == [
        {"order_id": 1, "orderId": 2, "inner": {"a_b": 7, "aB": 8}, "counts": []}
    ]


@pytest.mark.parametrize(
    ("text", "payload", "field", "values"),
    [
        pytest.param(PROTO2, b"\x4a\x01\xff", "text", [b"\xff"], id="a field"),
        pytest.param(PROTO2, b"\x52\x01\xff\x52\x02\xc3\xa4", "texts", [b"\xff", b"\xc3\xa4"],
                     id="a list"),
        pytest.param(PROTO2, b"\x5a\x06\x0a\x01a\x12\x01\xfe", "words", [b"a", b"\xfe"],
                     id="a value of a map"),
        pytest.param(PROTO2, b"\x5a\x06\x0a\x01\xff\x12\x01b", "words", [b"\xff", None],
                     id="a key of a map"),
        pytest.param(PROTO2, b"\x32\x05\x12\x01\xff\x18\x01", "inner.s", [b"\xff"],
                     id="a struct"),
        pytest.param(EDITION, b"\x22\x01\xff", "text", [b"\xff"], id="an edition"),
    ],
)  # fmt: skip
def test_text_that_is_not_utf8_reaches_the_check_of_its_column(
    text: str, payload: bytes, field: str, values: list[bytes | None]
) -> None:
    found, fault = decode(read_schema(text), ID + payload)

    for name in field.split("."):
        found = found.field(name)
    arrays = [found]
    if pa.types.is_map(found.type):
        arrays = [found.keys, found.items]
    elif pa.types.is_list(found.type):
        arrays = [found.flatten()]
    assert fault is None
    assert [v for array in arrays for v in array.cast(pa.binary()).to_pylist()] == values


@pytest.mark.parametrize(
    "payload",
    [b"", ID + b"\x32\x02\x08\x07", ID + b"\x6a\x02\x10\x07", ID + b"\x72\x02\x08\x07"],
    ids=["at the top", "in a struct", "in a message of its own kind", "in a list"],
)
def test_a_message_without_a_required_field_is_malformed(payload: bytes) -> None:
    assert decode(read_schema(), payload)[1] == "malformed_protobuf"


def test_a_group_is_a_struct() -> None:
    columns = derive_columns(read_schema().root, is_flat=True, single_column="value")

    types = {column.name: format_type(column.type) for column in columns}
    assert types["pair"] == "struct<a:int,b:string>"
    assert "note" not in types
