"""Change events in Avro: the text and the schema are those of Kafka Connect's JSON converter."""

import base64
import json
import math
import struct
from collections.abc import Mapping

import pytest
from support.avro_bytes import encode
from support.change_events import SOURCE, avro_envelope, avro_value

from frazil.kafka.schema_registry import Registered
from frazil.schemas.avro import parse_avro
from frazil.streams.column_types import parse_column
from frazil_spark.decode.avro_events import MOST_EMPTY_ITEMS, AvroReader, MalformedAvroError
from frazil_spark.decode.change_events import PLACEHOLDER, Flat, FlatSpec, flatten_event
from frazil_spark.decode.flat_values import describe_columns

CONNECT = "org.apache.kafka.connect.data"
TIME = "io.debezium.time"
HEADER = b"\0\0\0\0\7"
KEY_HEADER = b"\0\0\0\0\x08"
KEY = avro_value("Key", {"id": "long"})


def make_reader(*schemas: object) -> AvroReader:
    *references, root = (json.dumps(each) for each in schemas)
    pairs = tuple((f"r{index}", text) for index, text in enumerate(references))
    return AvroReader(parse_avro(Registered(7, "AVRO", root, pairs)))


def strip(schema: object) -> dict[str, object]:
    """Leave out logical types: the bytes are those of the base type, also of an invalid one."""

    def leave_out(node: dict[str, object]) -> dict[str, object]:
        return {name: part for name, part in node.items() if name != "logicalType"}

    stripped: dict[str, object] = json.loads(json.dumps(schema), object_hook=leave_out)
    return stripped


def flatten(columns: Mapping[str, str], after: Mapping[str, object], **values: object) -> Flat:
    """Flatten an event of Avro, whose row has fields of these types."""
    envelope = avro_envelope(after)
    row = {**dict.fromkeys(after), **values} if values else None
    event = {"before": None, "after": row, "source": SOURCE, "op": "c" if values else "d"}
    parsed = [parse_column(name, text) for name, text in columns.items()]
    spec = FlatSpec(
        targets=describe_columns(parsed),
        has_events=True,
        has_rest=False,
        applies_truncate=False,
        has_text_decimals=False,
        prefix="_frazil",
        has_registry=True,
        values={HEADER: make_reader(envelope)},
        keys={KEY_HEADER: make_reader(KEY)},
    )
    key = KEY_HEADER + encode(KEY, {"id": 5})
    return flatten_event(spec, key, HEADER + encode(strip(envelope), event))


def named(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "connect.version": 1, "connect.name": name, **more}


def decimal(precision: int, scale: int) -> dict[str, object]:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    more = {"precision": precision, "scale": scale, "connect.parameters": parameters}
    return named("bytes", f"{CONNECT}.Decimal", **more, logicalType="decimal")


FIXED = {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 2}
"""Two digits by its schema; other Avro records with three are dead letters."""
VARIABLE = {
    "type": "record",
    "name": "VariableScaleDecimal",
    "namespace": "io.debezium.data",
    "fields": [{"name": "scale", "type": "int"}, {"name": "value", "type": "bytes"}],
    "connect.version": 1,
    "connect.name": "io.debezium.data.VariableScaleDecimal",
}
OTHER_BASES: dict[str, tuple[dict[str, object], object, str, str]] = {
    "decimal of a text": (
        {"type": "string", "logicalType": "decimal", "precision": 9},
        "1234",
        "string",
        '"1234"',
    ),
    "date of a text": ({"type": "string", "logicalType": "date"}, "12", "string", '"12"'),
    "date of a long": ({"type": "long", "logicalType": "date"}, 12, "string", "12"),
    "time of a long": ({"type": "long", "logicalType": "time-millis"}, 12, "long", "12"),
    "timestamp of an int": ({"type": "int", "logicalType": "timestamp-millis"}, 12, "string", "12"),
    "decimal without a precision": (
        {"type": "bytes", "logicalType": "decimal"},
        b"\x04\xd2",
        "binary",
        '"BNI="',
    ),
    "decimal with more digits behind the point than it has": (
        {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 3},
        b"\x04\xd2",
        "binary",
        '"BNI="',
    ),
    "decimal of a negative scale": (
        {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": -1},
        b"\x04\xd2",
        "string",
        '"BNI="',
    ),
    "decimal with more digits than its bytes hold": (
        {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 3},
        b"\x83",
        "binary",
        '"gw=="',
    ),
}
PLACEHOLDERS = [PLACEHOLDER.encode(), [*PLACEHOLDER.encode()], [PLACEHOLDER]]


@pytest.mark.parametrize(
    ("schema", "value", "kind", "text"),
    [
        ("long", 2**63 - 1, "long", "9223372036854775807"),
        ("int", -(2**31), "int", "-2147483648"),
        ("boolean", True, "boolean", "true"),
        ("double", 0.1, "double", "0.1"),
        ("float", struct.unpack("<f", struct.pack("<f", 0.1))[0], "double", "0.1"),
        ("float", struct.unpack("<f", struct.pack("<f", 16777217.0))[0], "float", "16777216"),
        ("double", math.nan, "double", '"NaN"'),
        ("double", -math.inf, "double", '"-Infinity"'),
        ("string", 'č"\n', "string", r'"\u010d\"\n"'),
        ("bytes", b"\0\xff", "binary", f'"{base64.b64encode(bytes([0, 255])).decode()}"'),
        (decimal(10, 2), b"\x04\xd2", "decimal(10,2)", '"12.34"'),
        (decimal(10, 2), b"\xff", "string", '"-0.01"'),
        ({**decimal(10, 2), "connect.name": ""}, b"\x04\xd2", "decimal(10,2)", '"12.34"'),
        ({**decimal(10, 2), "connect.parameters": {"a": "b"}}, b"\x04\xd2", "string", '"12.34"'),
        (FIXED, b"\x83", "decimal(10,0)", '"-125"'),
        (VARIABLE, {"scale": 3, "value": b"\x04\xd2"}, "decimal(10,3)", '"1.234"'),
        (named("int", f"{TIME}.Date"), 20454, "date", '"2026-01-01"'),
        ({"type": "int", "logicalType": "date"}, 20454, "date", '"2026-01-01"'),
        (
            named("long", f"{TIME}.MicroTimestamp"),
            1,
            "timestamp",
            '"1970-01-01T00:00:00.000001"',
        ),
        (
            named("long", f"{CONNECT}.Timestamp", logicalType="timestamp-millis"),
            1,
            "timestamp",
            '"1970-01-01T00:00:00.001000"',
        ),
        (named("long", f"{TIME}.MicroTime"), 61_000_001, "string", '"00:01:01.000001"'),
        (
            named("string", f"{TIME}.ZonedTimestamp"),
            "2026-01-01T00:00:00Z",
            "timestamptz",
            '"2026-01-01T00:00:00Z"',
        ),
        ({"type": "array", "items": ["null", "int"]}, [1, None, 3], "list<int>", "[1,null,3]"),
        (
            {"type": "array", "items": ["null", decimal(4, 1)]},
            [b"\x0f", None],
            "list<decimal(4,1)>",
            '["1.5",null]',
        ),
        ({"type": "map", "values": "string"}, {"a": "b"}, "map<string,string>", '{"a":"b"}'),
        (
            {"type": "map", "values": ["null", decimal(4, 1)]},
            {"a": b"\x0f", "b": None},
            "map<string,decimal(4,1)>",
            '{"a":"1.5","b":null}',
        ),
        (
            {"type": "record", "name": "P", "fields": [{"name": "p", "type": decimal(4, 1)}]},
            {"p": b"\x0f"},
            "struct<p:decimal(4,1)>",
            '{"p":"1.5"}',
        ),
        ({"type": "array", "items": "int"}, [], "list<int>", "[]"),
    ],
    ids=str,
)
def test_a_value_of_avro_has_the_text_of_json(
    schema: object, value: object, kind: str, text: str
) -> None:
    flat = flatten({"x": kind}, {"x": ["null", schema]}, x=value)

    assert flat.payload is not None, flat
    assert flat.payload.startswith(f'{{"x":{text},"_frazil_op":"c"'.encode())


@pytest.mark.parametrize("name", OTHER_BASES)
def test_a_logical_type_that_avro_calls_invalid_is_none(name: str) -> None:
    schema, value, kind, text = OTHER_BASES[name]

    flat = flatten({"x": kind}, {"x": ["null", schema]}, x=value)

    assert (flat.payload or b"").startswith(f'{{"x":{text},'.encode()), flat


@pytest.mark.parametrize("value", PLACEHOLDERS, ids=["bytes", "numbers", "texts"])
def test_a_value_that_was_not_sent_is_absent_and_named(value: object) -> None:
    array = {"type": "array", "items": ["string", "int"]}
    kind = array if isinstance(value, list) else "bytes"

    flat = flatten({"x": "binary"}, {"x": ["null", kind]}, x=value)

    assert b'"_frazil_unavailable":["x"]' in (flat.payload or b"")


def test_the_row_of_a_delete_is_its_key() -> None:
    flat = flatten({"id": "long!", "x": "string"}, {"id": "long", "x": ["null", "string"]})

    assert (flat.payload or b"").startswith(b'{"id":5,"_frazil_op":"d"')


def test_a_named_type_is_read_again_where_it_is_only_named() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": "int"}]}
    outer = {
        "type": "record",
        "name": "Outer",
        "fields": [{"name": "a", "type": "Inner"}, {"name": "b", "type": ["null", "Inner"]}],
    }
    whole = {**outer, "fields": [{"name": "a", "type": inner}, outer["fields"][1]]}
    value = {"a": {"n": 1}, "b": {"n": 2}}
    sent = encode(whole, value)

    assert make_reader(inner, outer).read(sent) == make_reader(whole).read(sent)
    assert make_reader(whole).read(sent) == '{"a":{"n":1},"b":{"n":2}}'


@pytest.mark.parametrize(
    "broken",
    [b"", b"\x02", b"\x06abc", b"\x02\x08abc", b"\x02\x01", b"\xff" * 12, b"\x00\x00", b"\x04"],
)
def test_a_payload_of_another_form_is_told(broken: bytes) -> None:
    reader = make_reader(["null", "string"])

    with pytest.raises(MalformedAvroError):
        reader.read(broken)


NINE = b"\xff" * 9
WIDTHS = {
    "int of 33 bits": ("int", b"\xfe\xff\xff\xff\x1f"),
    "negative int of 33 bits": ("int", b"\xff\xff\xff\xff\x1f"),
    "int of six bytes": ("int", b"\x80\x80\x80\x80\x80\x00"),
    "long of 65 bits": ("long", NINE + b"\x02"),
    "long of 70 bits": ("long", NINE + b"\x7f"),
    "long of eleven bytes": ("long", NINE + b"\x80\x00"),
    "length of 65 bits": ("string", b"\x80" * 9 + b"\x02"),
    "branch of six bytes": (["null", "int"], b"\x80\x80\x80\x80\x80\x00"),
    "symbol of six bytes": (
        {"type": "enum", "name": "E", "symbols": ["A"]},
        b"\x80\x80\x80\x80\x80\x00",
    ),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_a_number_beyond_its_type_is_malformed(name: str) -> None:
    schema, payload = WIDTHS[name]

    with pytest.raises(MalformedAvroError):
        make_reader(schema).read(payload)


@pytest.mark.parametrize(
    ("kind", "payload", "number"),
    [
        ("int", b"\xfe\xff\xff\xff\x0f", 2**31 - 1),
        ("int", b"\xff\xff\xff\xff\x0f", -(2**31)),
        ("int", b"\x82\x80\x80\x80\x00", 1),
        ("long", b"\xfe" + NINE[1:] + b"\x01", 2**63 - 1),
        ("long", NINE + b"\x01", -(2**63)),
        ("long", b"\x82" + b"\x80" * 8 + b"\x00", 1),
    ],
)
def test_a_number_has_the_whole_range_of_its_type(kind: str, payload: bytes, number: int) -> None:
    assert make_reader(kind).read(payload) == str(number)


EMPTY: dict[str, object] = {"type": "record", "name": "Empty", "fields": []}
PAIR = {
    "type": "record",
    "name": "Pair",
    "fields": [{"name": "a", "type": "null"}, {"name": "b", "type": EMPTY}],
}
WITHOUT_BYTES: dict[str, tuple[object, str]] = {
    "nulls": ("null", "null"),
    "records without fields": (EMPTY, "{}"),
    "records of them": (PAIR, '{"a":null,"b":{}}'),
    "no bytes": ({"type": "fixed", "name": "F", "size": 0}, '""'),
}


@pytest.mark.parametrize("name", WITHOUT_BYTES)
def test_an_array_has_items_of_no_bytes(name: str) -> None:
    items, text = WITHOUT_BYTES[name]
    reader = make_reader({"type": "array", "items": items})

    assert reader.read(b"\x06\x00") == f"[{text},{text},{text}]"
    assert reader.read(b"\x05\x00\x00") == f"[{text},{text},{text}]"


@pytest.mark.parametrize("name", WITHOUT_BYTES)
@pytest.mark.parametrize("blocks", [1, 2])
def test_an_array_of_more_items_of_no_bytes_than_any_is_malformed(name: str, blocks: int) -> None:
    reader = make_reader({"type": "array", "items": WITHOUT_BYTES[name][0]})
    most = encode("long", MOST_EMPTY_ITEMS // blocks) * blocks
    more = encode("long", MOST_EMPTY_ITEMS // blocks + 1) * blocks

    assert reader.read(most + b"\0").startswith("[")
    with pytest.raises(MalformedAvroError):
        reader.read(more + b"\0")


def test_an_array_has_no_more_items_than_bytes_where_each_has_some() -> None:
    reader = make_reader({"type": "array", "items": ["null", "int"]})

    with pytest.raises(MalformedAvroError):
        reader.read(encode("long", 2**40) + b"\0" * 100)


def test_an_error_is_a_record() -> None:
    error = {"type": "error", "name": "E", "fields": [{"name": "n", "type": "int"}]}
    reader = make_reader(error)

    assert reader.read(b"\x02") == '{"n":1}'
    assert reader.node == make_reader({**error, "type": "record"}).node


def test_a_record_that_holds_itself_is_read() -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [{"name": "of", "type": {"type": "array", "items": "Tree"}}],
    }

    assert make_reader(tree).read(b"\x04\0\0\0") == '{"of":[{"of":[]},{"of":[]}]}'


def test_a_broken_value_is_a_dead_letter_and_one_without_a_known_schema_is_left_to_sql() -> None:
    parsed = describe_columns([parse_column("id", "long!")])
    spec = FlatSpec(
        parsed,
        has_events=True,
        has_rest=False,
        applies_truncate=False,
        has_text_decimals=False,
        prefix="_frazil",
        has_registry=True,
        values={HEADER: make_reader(avro_envelope({"id": "long"}))},
    )

    assert flatten_event(spec, None, HEADER + b"\x05").fault == "malformed_avro"
    assert flatten_event(spec, None, b"\0\0\0\0\x09\0") == Flat(None)
    assert flatten_event(spec, None, b"{}") == Flat(None)
