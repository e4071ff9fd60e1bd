"""What Avro ignores in a schema, and what Java's writers allow in one."""

import io
import json

import fastavro
import pytest
from support.avro_bytes import encode, record

from frazil.kafka.schema_registry import Registered
from frazil.schemas.avro import MARK, AvroSchema, read_avro
from frazil.schemas.column_conversion import convert_columns
from frazil.schemas.source_types import (
    NotConvertibleError,
    Primitive,
    Record,
    Scalar,
    Source,
    UnreadableSchemaError,
    derive_columns,
)
from frazil.streams.column_types import StructType, format_type, parse_column

FIXED = {"type": "fixed", "name": "F", "logicalType": "decimal", "scale": 0}


def read(schema: object, **columns: str) -> AvroSchema:
    """Read a schema as for a stream of these columns."""
    wanted = StructType(tuple(parse_column(*each) for each in columns.items()))
    return read_avro(Registered(1, "AVRO", json.dumps(schema)), wanted)


def find(avro: AvroSchema, name: str) -> Source | None:
    """Return the type of a field at the top."""
    assert isinstance(avro.root, Record)
    return avro.root.find(name)[0]


@pytest.mark.parametrize(
    ("node", "column"),
    [
        ({**FIXED, "size": 4, "precision": 10}, "fixed(4)"),
        ({**FIXED, "size": 16, "precision": 40}, "fixed(16)"),
        ({**FIXED, "size": 4}, "fixed(4)"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 5}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": -1}, "binary"),
        ({"type": "bytes", "logicalType": "decimal", "precision": "4"}, "binary"),
        ({"type": "int", "logicalType": "decimal", "precision": 4}, "int"),
    ],
    ids=str,
)
def test_a_decimal_that_avro_calls_invalid_is_its_own_type(node: object, column: str) -> None:
    expected = parse_column("x", column).type
    assert isinstance(expected, Primitive)

    for place in (node, ["null", node], {"type": "array", "items": node}):
        found = find(read(record(("x", place)), x=column), "x")
        assert getattr(found, "element", found) == Scalar(expected)


@pytest.mark.parametrize("size", [2000, 2**31 - 1])
def test_a_decimal_in_many_bytes_is_read_at_once(size: int) -> None:
    node = {**FIXED, "size": size, "precision": 10}

    assert find(read(record(("x", node)), x="decimal(10,0)"), "x") is not None


def test_each_use_of_a_type_is_read_as_its_column_asks_for() -> None:
    price = {**FIXED, "size": 4, "precision": 9}
    inner = {**record(("n", price), ("m", "shop.v1.F")), "name": "In"}
    schema = record(("a", inner), ("b", "shop.v1.In"), ("c", "shop.v1.In"), ("d", "shop.v1.F"))
    value = {"n": b"\0\0\0\1", "m": b"\x7f\xff\xff\xff"}
    plain = json.loads(json.dumps(schema).replace('"logicalType": "decimal", ', ""))
    payload = encode(plain, {"a": value, "b": value, "c": value, "d": value["m"]})

    avro = read(schema, a="struct<n: decimal(9,0)>", c="struct<n: decimal(9,0)>")

    reader = fastavro.parse_schema(json.loads(avro.reader))
    found = fastavro.schemaless_reader(io.BytesIO(payload + MARK), reader)
    assert isinstance(found, dict)
    asked = {"n": 1, "m": value["m"]}
    assert found["value"] == {"a": asked, "b": value, "c": asked, "d": value["m"]}


def test_types_that_no_column_asks_for_are_written_once() -> None:
    fields = [record(("id", "long"), ("x0", {**FIXED, "size": 4, "precision": 9}))]
    for number in range(1, 12):
        inner = {**fields[-1], "name": f"N{number}"}
        fields.append(record(("a", inner), ("b", f"shop.v1.N{number}"), ("id", "long")))

    assert len(read(fields[-1], id="long").reader) < 5_000


def derive(schema: object, *references: object) -> str:
    """Return the columns of a schema as the fields of a struct."""
    others = tuple((str(n), json.dumps(each)) for n, each in enumerate(references))
    root = read_avro(Registered(1, "AVRO", json.dumps(schema), others)).root
    columns = derive_columns(root, is_flat=True, single_column="value")
    return ",".join(f"{column.name}:{format_type(column.type)}" for column in columns)


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}


@pytest.mark.parametrize(
    "field",
    [
        {"type": "int", "default": "x"},
        {"type": "int", "default": None},
        {"type": ["null", "int"], "default": 1},
        {"type": {"type": "array", "items": "int"}, "default": {}},
        {"type": {**ENUM, "default": "C"}, "default": "D"},
        {"type": "int", "aliases": ["not a name", 5]},
        {"type": "int", "order": "sideways", "doc": 5, "logicalType": "date"},
    ],
    ids=str,
)
def test_what_only_another_readers_schema_needs_may_be_wrong(field: dict[str, object]) -> None:
    schema = record(("id", "long"))
    schema["fields"] = [{"name": "x", **field}, {"name": "id", "type": "long"}]
    schema["aliases"] = "no list"

    kinds = {"int": "int", "array": "list<int>", "enum": "string"}
    kind = field["type"][-1] if isinstance(field["type"], list) else field["type"]
    expected = kinds[kind["type"] if isinstance(kind, dict) else kind]
    assert derive(schema) == f"x:{expected},id:long"
    avro = read(schema, x=expected)
    fastavro.parse_schema(json.loads(avro.reader))


@pytest.mark.parametrize(
    ("node", "column"),
    [
        ({"type": "string", "logicalType": "date"}, "string"),
        ({"type": "string", "logicalType": "timestamp-millis"}, "string"),
        ({"type": "int", "logicalType": "timestamp-millis"}, "int"),
        ({"type": "long", "logicalType": "date"}, "long"),
        ({"type": "long", "logicalType": "time-millis"}, "long"),
        ({"type": "long", "logicalType": "uuid"}, "long"),
        ({"type": "double", "logicalType": "decimal", "precision": 4}, "double"),
        ({"type": "bytes", "logicalType": "big-decimal"}, "binary"),
        ({"type": "bytes", "logicalType": ["decimal"]}, "binary"),
        ({"type": "fixed", "name": "F", "size": 11, "logicalType": "duration"}, "fixed(11)"),
        ({"type": "fixed", "name": "F", "size": 15, "logicalType": "uuid"}, "fixed(15)"),
        ({**ENUM, "logicalType": "date"}, "string"),
        ({"type": "array", "items": "int", "logicalType": "date"}, "list<int>"),
        ({"type": "map", "values": "int", "logicalType": "decimal"}, "map<string,int>"),
        ({"type": ["null", {"type": "int", "logicalType": "uuid"}]}, "int"),
    ],
    ids=str,
)
def test_a_logical_type_of_another_type_is_ignored(node: object, column: str) -> None:
    assert derive(record(("x", node))) == f"x:{column}"


def test_a_table_from_odd_names_is_refused_with_the_way_to_read_them() -> None:
    with pytest.raises(NotConvertibleError, match=r"order_id: {type: …, from:"):
        derive(record(("order-id", "int")))


ODD = {
    "type": "record",
    "name": "Order-Line",
    "namespace": "my-shop.2024",
    "fields": [
        {"name": "order-id", "type": "long"},
        {"name": "order id", "type": "long"},
        {"name": "1st", "type": {**ENUM, "name": "S", "symbols": ["new-order", "o'k\\", "2"]}},
        {"name": "größe", "type": "int"},
        {"name": "next", "type": ["null", "my-shop.2024.Order-Line"]},
        {"name": "again", "type": ["null", "S", {"type": "map", "values": "S"}]},
    ],
}  # fmt: skip


def test_names_as_writers_that_do_not_validate_have_them_are_read_by_from() -> None:
    columns = {
        "id": 'long from "order-id"', "other": 'long from "order id"', "first": 'string from "1st"',
        "size": 'int from "größe"', "again": "struct<s: string from member_my_shop_2024_s>",
    }  # fmt: skip
    avro = read(ODD, **columns)

    found = convert_columns(
        avro.root,
        tuple(parse_column(*each) for each in columns.items()),
        "v",
        is_flat=True,
        single_column="value",
    )

    assert found["id"].value == "v.`order_id`"
    assert found["other"].value == "v.`order_id_2`"
    assert found["size"].value == "v.`größe`"
    odd = "CAST(X'6f276b5c' AS STRING)"
    cases = f"WHEN 's0' THEN 'new-order' WHEN 's1' THEN {odd} WHEN 's2' THEN '2' END"
    assert found["first"].value == f"CASE v.`_1st` {cases}"
    assert cases in found["again"].value
    names = [each["name"] for each in json.loads(avro.reader)["fields"][0]["type"]["fields"]]
    assert names == ["order_id", "order_id_2", "_1st", "größe", "next", "again"]


def test_names_of_types_are_found_as_java_finds_them() -> None:
    inner = {"type": "record", "name": "a.In", "fields": [{"name": "f", "type": "Here"}]}
    here = {"type": "fixed", "name": "a.Here", "size": 2}
    bare = {"type": "fixed", "name": "Bare", "size": 3, "namespace": ""}
    fields = [("h", here), ("i", inner), ("b", bare), ("j", "a.In"), ("k", "Bare"), ("l", "Own")]
    own = {"type": "fixed", "name": "shop.v1.Own", "size": 4}

    assert derive(record(*fields), own) == (
        "h:fixed(2),i:struct<f:fixed(2)>,b:fixed(3),j:struct<f:fixed(2)>,k:fixed(3),l:fixed(4)"
    )
    assert derive(record(("l", own), ("m", "Own")), own) == "l:fixed(4),m:fixed(4)"


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ("Absent", "refers to the type Absent, which does not exist"),
        ({"type": "record", "name": "R"}, "'fields'"),
        ({"type": "record", "name": "R", "fields": {}}, "invalid part: {}"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "'name'"),
        ({"type": "record", "name": "R", "fields": [{"name": 5, "type": "int"}]}, "without a name"),
        ({"type": "record", "name": "R", "fields": [{"name": "a"}]}, "'type'"),
        (record(("a", "int"), ("a", "int"), name="R"), "R has two fields of one name"),
        ({"type": "fixed", "name": "F"}, "'size'"),
        ({"type": "fixed", "name": "F", "size": "4"}, "the size 4"),
        ({"type": "fixed", "name": "F", "size": -1}, "the size -1"),
        ({"type": "enum", "name": "E"}, "'symbols'"),
        ({"type": "enum", "name": "E", "symbols": "A"}, "invalid part"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "a symbol twice"),
        ({"type": "enum", "symbols": ["A"]}, "without a name"),
        ({"type": "array"}, "invalid part|'items'|array"),
        ({"type": "map"}, "invalid part|'values'|map"),
        (["int", "null", "int"], "one type twice"),
        (["int", ["null"]], "a union in a union"),
        ([{"type": "array", "items": "int"}, {"type": "array", "items": "long"}], "one type twice"),
        (5, "invalid part: 5"),
        ({}, "'type'"),
        ({"type": 5}, "invalid part: 5"),
        (None, "invalid part: null"),
    ],
    ids=str,
)
def test_an_invalid_schema_is_refused_by_its_part(node: object, reason: str) -> None:
    with pytest.raises(UnreadableSchemaError, match=reason):
        derive(record(("x", node)))


def test_two_definitions_of_a_type_are_refused() -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}

    with pytest.raises(UnreadableSchemaError, match=r"defines the type shop.v1.F twice"):
        derive(record(("a", fixed), ("b", {**fixed, "size": 3})))
    with pytest.raises(NotConvertibleError, match="a has no bytes"):
        derive(record(("a", {**fixed, "size": 0})))


def chain(levels: int) -> tuple[object, list[dict[str, object]]]:
    """Write a record that refers to a record, and so on, and all it refers to."""
    others = [record(("id", "long"), name="R0")]
    names = [(f"shop.v1.R{number - 1}", f"R{number}") for number in range(1, levels)]
    others += [record(("a", inner), name=name) for inner, name in names]
    return record(("id", "long"), ("x", f"shop.v1.R{levels - 1}")), others


@pytest.mark.parametrize("levels", [101, 300, 1_500])
def test_a_deep_schema_is_refused_with_a_sentence(levels: int) -> None:
    nested = '{"type":"array","items":' * levels + '"int"' + "}" * levels

    with pytest.raises(UnreadableSchemaError, match=r"is nested (deeper than 100 levels|too deep)"):
        read_avro(Registered(1, "AVRO", nested))
    root, others = chain(levels)
    with pytest.raises(UnreadableSchemaError, match=r"is nested (deeper than 100 levels|too deep)"):
        derive(root, *others)


def test_a_schema_with_more_levels_than_columns_have_is_read_without_them() -> None:
    root, others = chain(60)
    registered = Registered(
        1, "AVRO", json.dumps(root), tuple((str(n), json.dumps(o)) for n, o in enumerate(others))
    )

    assert read_avro(registered, StructType((parse_column("id", "long"),)))
    with pytest.raises(NotConvertibleError, match=r"x.a.a.*is nested deeper than 50 levels"):
        derive(root, *others)


def test_a_schema_that_grows_with_each_use_of_a_type_is_refused() -> None:
    others = [record(("id", "long"), name="R0")]
    for number in range(1, 40):
        inner = f"shop.v1.R{number - 1}"
        others.append(record(("a", inner), ("b", inner), name=f"R{number}"))

    with pytest.raises(UnreadableSchemaError, match="more than 100000 fields"):
        derive(record(("x", "shop.v1.R39")), *others)
