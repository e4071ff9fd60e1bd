"""Protobuf schemas import what registries know without a reference, as text and as descriptors."""

import base64
import json

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from frazil.kafka.schema_registry import Registered
from frazil.schemas.fast_path_layouts import lay_out_protobuf
from frazil.schemas.protobuf import read_protobuf, replace_enums
from frazil.schemas.source_types import NotConvertibleError, derive_columns
from frazil.streams.column_types import format_type, parse_column

KNOWN = """\
confluent/meta.proto confluent/type/decimal.proto confluent/type/variant.proto
confluent/types/decimal.proto google/protobuf/any.proto google/protobuf/api.proto
google/protobuf/descriptor.proto google/protobuf/duration.proto google/protobuf/empty.proto
google/protobuf/field_mask.proto google/protobuf/source_context.proto google/protobuf/struct.proto
google/protobuf/timestamp.proto google/protobuf/type.proto google/protobuf/wrappers.proto
google/type/calendar_period.proto google/type/color.proto google/type/date.proto
google/type/datetime.proto google/type/dayofweek.proto google/type/decimal.proto
google/type/expr.proto google/type/fraction.proto google/type/interval.proto
google/type/latlng.proto google/type/localized_text.proto google/type/money.proto
google/type/month.proto google/type/phone_number.proto google/type/postal_address.proto
google/type/quaternion.proto google/type/timeofday.proto
"""
"""The files that Confluent's registry knows without a reference."""

SCHEMA = """\
syntax = "proto3";
import "confluent/meta.proto";
import public 'google/type/money.proto';
import "confluent/type/decimal.proto";
import "google/type/dayofweek.proto";
import "google/protobuf/timestamp.proto";
message Order {
  option (confluent.message_meta).doc = "an order";
  int64 id = 1 [(confluent.field_meta) = { tags: "PII" }];
  google.type.Money total = 2;
  confluent.type.Decimal price = 3;
  google.type.DayOfWeek day = 4;
  google.protobuf.Timestamp at = 5;
}
"""
COLUMNS = {
    "id": "long",
    "total": "struct<currency_code:string,units:long,nanos:int>",
    "price": "struct<value:binary,precision:long,scale:int>",
    "day": "string",
    "at": "timestamptz",
}


def as_descriptor(text: str) -> str:
    """Return a schema as a registry returns descriptors: the file alone, without its imports."""
    whole = FileDescriptorSet.FromString(
        read_protobuf(Registered(1, "PROTOBUF", text), None).descriptor_set
    )
    return base64.b64encode(whole.file[-1].SerializeToString()).decode()


@pytest.mark.parametrize("name", KNOWN.split())
def test_every_file_that_registries_know_can_be_imported(name: str) -> None:
    text = f'syntax = "proto3"; import "{name}"; message M {{ int64 id = 1; }}'

    for given in (text, as_descriptor(text)):
        found = read_protobuf(Registered(1, "PROTOBUF", given), None)

        assert found.message == "M"
        assert lay_out_protobuf(found, (parse_column("id", "long"),))


@pytest.mark.parametrize("is_text", [True, False], ids=["text", "descriptor"])
def test_imported_types_and_options_are_read(is_text: bool) -> None:  # noqa: FBT001
    given = SCHEMA if is_text else as_descriptor(SCHEMA)

    found = read_protobuf(Registered(1, "PROTOBUF", given), None)

    derived = derive_columns(found.root, is_flat=True, single_column="value")
    types = {column.name: format_type(column.type) for column in derived}
    assert types == COLUMNS
    assert "fields" in json.loads(lay_out_protobuf(found, derived[:1]))
    pool = DescriptorPool()
    for each in FileDescriptorSet.FromString(replace_enums(found.descriptor_set)).file:
        pool.AddSerializedFile(each.SerializeToString())
    order = GetMessageClass(pool.FindMessageTypeByName("Order"))
    assert order.FromString(b"\x08\x07\x20\x01").day == 1


@pytest.mark.parametrize(
    "name", ["shop/absent.proto", "google/type/absent.proto", "google/../os.proto", "os.proto"]
)
def test_a_file_that_is_missing_is_named(name: str) -> None:
    text = f'syntax = "proto3"; import "{name}"; message M {{ int64 id = 1; }}'

    with pytest.raises(NotConvertibleError, match="not a valid Protobuf schema"):
        read_protobuf(Registered(1, "PROTOBUF", text), None)


def test_a_missing_import_of_a_descriptor_is_named() -> None:
    other = 'syntax = "proto3"; message Other { int64 id = 1; }'
    text = 'syntax = "proto3"; import "shop/other.proto"; message M { Other o = 1; }'
    both = Registered(1, "PROTOBUF", text, (("shop/other.proto", other),))
    files = FileDescriptorSet.FromString(read_protobuf(both, None).descriptor_set)
    alone = base64.b64encode(files.file[-1].SerializeToString()).decode()

    with pytest.raises(NotConvertibleError, match=r"imports shop/other\.proto, which is neither"):
        read_protobuf(Registered(1, "PROTOBUF", alone), None)


def test_a_reference_wins_over_a_file_of_the_same_name() -> None:
    own = 'syntax = "proto3"; package google.type; message Date { string text = 1; }'
    text = (
        'syntax = "proto3"; import "google/type/date.proto"; message M { google.type.Date d = 1; }'
    )
    given = Registered(1, "PROTOBUF", text, (("google/type/date.proto", own),))

    derived = derive_columns(read_protobuf(given, None).root, is_flat=True, single_column="value")

    assert [format_type(column.type) for column in derived] == ["struct<text:string>"]
