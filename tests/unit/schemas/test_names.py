"""Names in registered schemas that Spark confuses, or that no column can have."""

import io
import json
from collections.abc import Mapping

import fastavro
import pyarrow as pa
import pytest
from support.avro_bytes import encode, record
from support.lake import make_stream

from frazil.errors import SchemaMisfitError
from frazil.kafka.schema_registry import Registered, SchemaType
from frazil.schemas.avro import MARK, AvroSchema, read_avro
from frazil.schemas.column_conversion import convert_columns
from frazil.schemas.fast_path_layouts import lay_out_avro, lay_out_protobuf
from frazil.schemas.json_schema import read_json_schema
from frazil.schemas.payloads import Payload, derive_payload_columns, describe_schema
from frazil.schemas.protobuf import read_protobuf, replace_enums
from frazil.schemas.source_types import (
    NotConvertibleError,
    Record,
    Source,
    choose_decoded_names,
    derive_columns,
    to_arrow_type,
)
from frazil.streams.column_types import Column, parse_column
from frazil_spark.decode.protobuf import MessageReader, MessageSpec
from frazil_spark.fast_path.json_reader import JsonReader
from frazil_spark.fast_path.readers import SchemaSpec, ValueSpec, open_reader

Json = dict[str, object]


def named(name: str, *fields: tuple[str, object]) -> Json:
    return {**record(*fields), "name": name}


def read(schema: Json) -> AvroSchema:
    return read_avro(Registered(1, "AVRO", json.dumps(schema)))


def decode(avro: AvroSchema, payload: bytes) -> Json:
    """Decode a payload by the schema for Spark, as another reader of Avro does."""
    reader = fastavro.parse_schema(json.loads(avro.reader))
    found = fastavro.schemaless_reader(io.BytesIO(payload + MARK), reader)
    assert isinstance(found, dict)
    value: Json = found["value"]
    return value


DOTS = record(
    ("one", named("a.b.C", ("x", "int"))),
    ("two", named("a_b.C", ("y", "string"))),
    ("three", named("a_b_C", ("z", {"type": "fixed", "name": "A_B.c", "size": 1}))),
    ("again", "a_b.C"),
    ("mark", {"type": "fixed", "name": "_frazil_mark", "size": 2}),
)


def test_type_names_that_differ_only_in_dots_stay_different_types() -> None:
    value = {"one": {"x": 1}, "two": {"y": "t"}, "three": {"z": b"f"}, "again": {"y": "u"}}
    avro = read(DOTS)

    assert decode(avro, encode(DOTS, {**value, "mark": b"mm"})) == {**value, "mark": b"mm"}
    layout = lay_out_avro(avro, columns(two="struct<y: string>", mark="fixed(2)"))
    assert json.loads(layout)["fields"][1] == ["two", {"fields": [["y", "string"]]}]


def test_a_union_s_member_has_the_name_of_its_own_type_whatever_other_types_there_are() -> None:
    alone = named("a.b.C", ("x", "int"))
    union = ["null", alone, "string"]
    beside = record(("first", named("a_b.C", ("y", "int"))), ("u", union))

    for schema in (record(("u", union)), beside):
        root = read(schema).root
        assert isinstance(root, Record)
        member, _ = root.find("u")
        assert isinstance(member, Record)
        assert [name for name, _ in member.fields] == ["member_a_b_c", "member_string"]
    assert member.decoded_names == ("member_a_b_C_2", "member_string")
    twice = record(("u", [alone, named("a_b.C", ("y", "int"))]), ("id", "int"))
    with pytest.raises(NotConvertibleError, match="u has a union of types whose names differ only"):
        derive_columns(read(twice).root, is_flat=True, single_column="value")
    assert convert(read(twice).root, id="int")


CASES = record(("id", "long"), ("ID", "string"), ("Id", "int"), ("id_2", "int"), ("x", "int"))


def columns(**texts: str) -> tuple[Column, ...]:
    return tuple(parse_column(*pair) for pair in texts.items())


def convert(root: Source, **texts: str) -> Mapping[str, str]:
    found = convert_columns(root, columns(**texts), "v", is_flat=True, single_column="value")
    return {name: conversion.value for name, conversion in found.items()}


def test_fields_that_differ_in_case_are_read_where_columns_name_them() -> None:
    avro = read(CASES)
    value = {"id": 1, "ID": "b", "Id": 3, "id_2": 4, "x": 5}

    decoded = decode(avro, encode(CASES, value))

    assert list(decoded.values()) == list(value.values())
    assert len({name.lower() for name in decoded}) == len(value)
    found = convert(avro.root, x="int", id="long", other="string from ID", third="int from 'Id'")
    names = {column: sql.removeprefix("v.`").removesuffix("`") for column, sql in found.items()}
    assert {column: decoded[name] for column, name in names.items()} == {
        "x": 5, "id": 1, "other": "b", "third": 3,
    }  # fmt: skip
    with pytest.raises(NotConvertibleError, match="'id' and 'ID' differ only in case"):
        derive_columns(avro.root, is_flat=True, single_column="value")


@pytest.mark.parametrize("names", [["a", "A", "A_2"], ["a", "A", "a_2", "A_2"], ["a", "b"]])
def test_decoded_names_are_distinct_and_only_the_later_ones_change(names: list[str]) -> None:
    chosen = choose_decoded_names(names)

    assert len({name.lower() for name in chosen}) == len(names)
    assert chosen[0] == names[0]


def test_two_columns_that_exchange_their_fields_are_no_identity() -> None:
    inner = named("I", ("a", "int"), ("b", "int"))
    found = convert(read(record(("i", inner))).root, i="struct<a: int from b, b: int from a>")

    assert (
        found["i"]
        == "CASE WHEN v.`i` IS NOT NULL THEN named_struct('a', v.`i`.`b`, 'b', v.`i`.`a`) END"
    )


def test_workers_read_avro_by_the_columns_fields() -> None:
    inner = named("I", ("a", "int"), ("A", "int"), ("b", "int"))
    schema = record(("_file", "string"), ("i", inner), ("name", "int"))
    wanted = columns(name="string from _file", i="struct<b: int from A, a: int from b>", n="int")
    layout = lay_out_avro(read(schema), wanted)
    payload = encode(schema, {"_file": "f", "i": {"a": 1, "A": 2, "b": 3}, "name": 9})

    assert read_row("avro", layout, wanted, payload) == {
        "name": "f", "i": {"b": 2, "a": 3}, "n": None,
    }  # fmt: skip


def read_row(form: str, layout: str, wanted: tuple[Column, ...], payload: bytes) -> Json:
    inner = pa.struct([("b", pa.int32()), ("a", pa.int32())])
    kinds = {"name": pa.string(), "i": inner, "n": pa.int32()}
    table = pa.schema([(column.name, kinds[column.name]) for column in wanted])
    spec = ValueSpec("avro" if form == "avro" else "protobuf", (SchemaSpec(1, (b"",), layout),))
    found = open_reader(spec, table).read(pa.array([payload], pa.binary()))
    assert found.indexes.to_pylist() == [0]
    return dict(zip(table.names, (c.to_pylist()[0] for c in found.columns), strict=True))


PROTO = """\
syntax = "proto3";
message M { string _file = 1; I i = 2; int32 name = 3; }
message I { int32 a = 1; int32 A = 2; int32 b = 3; }
"""


def test_workers_and_the_library_read_protobuf_by_the_columns_fields() -> None:
    wanted = columns(name="string from _file", i="struct<b: int from A, a: int from b>", n="int")
    payload = b"\x0a\x01f\x12\x06\x08\x01\x10\x02\x18\x03\x18\x09"
    schema = read_protobuf(Registered(1, "PROTOBUF", PROTO), None)
    wire = to_arrow_type(schema.root)
    spec = MessageSpec(replace_enums(schema.descriptor_set), schema.message, b"", (), wire)

    by_library = MessageReader(spec).read(pa.array([payload], pa.binary())).to_pylist()[0]

    assert by_library["value"] == {"_file": "f", "i": {"a": 1, "A_2": 2, "b": 3}, "name": 9}
    assert read_row("protobuf", lay_out_protobuf(schema, wanted), wanted, payload) == {
        "name": "f", "i": {"b": 2, "a": 3}, "n": None,
    }  # fmt: skip
    assert "v.`i`.`A_2`" in convert(schema.root, i="struct<b: int from A>")["i"]


def test_workers_read_json_by_the_columns_fields() -> None:
    table = pa.schema([("order_id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
    reader = JsonReader(table, {"order_id": "order-id", "a": "b", "b": "a.b"})

    found = reader.read(pa.array([b'{"order-id": 1, "b": "x", "a": "y", "a.b": "z"}'], pa.binary()))

    assert [column.to_pylist() for column in found.columns] == [[1], ["x"], ["z"]]


ODD = {"order-id": {"type": "integer"}, "name": {"type": "string"}, "_file": {"type": "string"},
       "inner": {"properties": {"a b": {"type": "string"}, "c": {"type": "string"}}}}  # fmt: skip


def test_an_odd_name_is_refused_for_a_new_stream_and_left_out_later() -> None:
    payload = Payload(make_stream(value={"convert": "by_schema_id"}), "value")
    schema = Registered(1, "JSON", json.dumps({"properties": ODD}))

    with pytest.raises(SchemaMisfitError, match=r'write `a_b: \{type: …, from: "a b"\}`'):
        derive_payload_columns(payload, schema, is_new=True)

    later = derive_payload_columns(payload, schema)
    assert later == columns(name="string", inner="struct<c: string>")


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF", "JSON"])
def test_a_reserved_name_is_refused_with_the_way_to_read_it(kind: SchemaType) -> None:
    texts = {
        "AVRO": json.dumps(record(("_File", "int"))),
        "PROTOBUF": 'syntax = "proto3"; message M { int32 _File = 1; }',
        "JSON": json.dumps({"properties": {"_File": {"type": "integer"}}}),
    }
    schema = Registered(1, kind, texts[kind])
    read_root = {
        "AVRO": lambda: read_avro(schema).root,
        "PROTOBUF": lambda: read_protobuf(schema, None).root,
        "JSON": lambda: read_json_schema(schema),
    }

    with pytest.raises(NotConvertibleError, match=r'`File: \{type: …, from: "_File"\}`'):
        derive_columns(read_root[kind](), is_flat=True, single_column="value")


LATER: dict[SchemaType, str] = {
    "AVRO": json.dumps(
        record(("id", "int"), ("_deleted", "int"), ("ID", "int"),
               ("m", named("M", ("_file", "int"))),
               ("l", {"type": "array", "items": named("L", ("x", "int"), ("X", "int"))}))
    ),
    "PROTOBUF": """syntax = "proto3";
        message A { int32 id = 1; int32 _deleted = 2; int32 ID = 3; M m = 4; repeated L l = 5; }
        message M { int32 _file = 1; } message L { int32 x = 1; int32 X = 2; }""",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_of_a_followed_schema_each_field_has_a_column_or_is_named(kind: SchemaType) -> None:
    value = {"convert": "by_schema_id", "columns": {"id": "int"}}
    payload = Payload(make_stream(value=value), "value", follows_schemas=True)
    schema = Registered(1, kind, LATER[kind])

    later = derive_payload_columns(payload, schema)

    assert later == columns(id="int", m="struct<_file: int>", l="list<struct<x: int>>")
    decode = describe_schema(payload, schema)
    assert decode.unnamed_fields == ("`_deleted`", "`ID`", "l.element.`X`")


def test_one_column_of_a_whole_value_has_reserved_names_as_fields() -> None:
    value = {"convert": "by_schema_id"}
    payload = Payload(make_stream(key=value, value=value), "key", follows_schemas=True)
    schema = Registered(1, "AVRO", json.dumps(record(("_deleted", "int"))))

    assert derive_payload_columns(payload, schema) == columns(key="struct<_deleted: int>")
