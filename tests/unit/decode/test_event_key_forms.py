"""A key has one form in the rows and deletes of change events, wherever its schema is."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import pytest
from support.avro_bytes import encode
from support.change_events import SOURCE, avro_envelope, avro_value
from support.flat_events import CONNECT, DEBEZIUM, make_spec

from frazil.kafka.schema_registry import Registered
from frazil.schemas.avro import parse_avro
from frazil_spark.decode.avro_events import AvroReader
from frazil_spark.decode.change_events import Flat, FlatSpec, flatten_event
from frazil_spark.decode.json_parts import split_object

KEY_HEADER, VALUE_HEADER = b"\0\0\0\0\1", b"\0\0\0\0\2"
UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
UNKNOWN = "unknown_encoding"


class Kind(NamedTuple):
    """A column, the type of its field in Kafka Connect and Avro, one value, and its two forms.

    `bare` is what is read without any schema: a text, or the reason of a dead letter.
    """

    column: str
    connect: Mapping[str, object]
    avro: object
    sent: object
    raw: object
    text: str
    bare: str


def plain(column: str, connect: str, avro: str, value: object, name: str = "") -> Kind:
    """Make a type whose values need no schema."""
    named = {"name": name} if name else {}
    text = json.dumps(value)
    of_avro = {"type": avro, "connect.name": name} if name else avro
    return Kind(column, {"type": connect, **named}, of_avro, value, value, text, text)


def temporal(column: str, name: str, number: int, text: str, bare: str | None = None) -> Kind:
    """Make a type of Debezium whose values are numbers."""
    full, is_day = f"{DEBEZIUM}.time.{name}", name == "Date"
    avro = {"type": "int" if is_day else "long", "connect.name": full}
    connect = {"type": "int32" if is_day else "int64", "name": full}
    return Kind(column, connect, avro, number, number, text, bare or str(number))


def iso(column: str, name: str, sent: str, text: str, bare: str) -> Kind:
    """Make a type of `time.precision.mode=isostring`."""
    full = f"{DEBEZIUM}.time.{name}"
    avro = {"type": "string", "connect.name": full}
    return Kind(column, {"type": "string", "name": full}, avro, sent, sent, text, bare)


def number(column: str, scale: int, text: str, bare: str) -> Kind:
    """Make a decimal of the bytes 04 D2."""
    words: dict[str, object] = {"name": f"{CONNECT}.Decimal", "parameters": {"scale": str(scale)}}
    avro = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": scale}
    return Kind(column, {"type": "bytes", **words}, avro, "BNI=", b"\x04\xd2", text, bare)


_NAME = f"{DEBEZIUM}.data.VariableScaleDecimal"
_PARTS = {"scale": "int", "value": "bytes"}
VARIABLE = Kind(
    "string",
    {"type": "struct", "name": _NAME, "fields": [{"field": each} for each in _PARTS]},
    {
        "type": "record",
        "name": "Variable",
        "connect.name": _NAME,
        "fields": [{"name": name, "type": kind} for name, kind in _PARTS.items()],
    },
    {"scale": 1, "value": "BNI="},
    {"scale": 1, "value": b"\x04\xd2"},
    '"123.4"',
    '{"scale": 1, "value": "BNI="}',
)
KINDS = {
    "int": plain("int", "int32", "int", 7),
    "long": plain("long", "int64", "long", 2**60),
    "long as text": plain("string", "int64", "long", 7),
    "text": plain("string", "string", "string", "BNI="),
    "boolean": plain("boolean", "boolean", "boolean", value=True),
    "uuid": plain("uuid", "string", "string", UUID, f"{DEBEZIUM}.data.Uuid"),
    "uuid as text": plain("string", "string", "string", UUID, f"{DEBEZIUM}.data.Uuid"),
    "enum": plain("string", "string", "string", "blue", f"{DEBEZIUM}.data.Enum"),
    "zoned time": plain(
        *("timestamptz", "string", "string", "2024-01-01T00:00:00Z"),
        f"{DEBEZIUM}.time.ZonedTimestamp",
    ),
    "decimal as text": number("string", 0, '"1234"', '"BNI="'),
    "decimal": number("decimal(9,2)", 2, '"12.34"', UNKNOWN),
    "decimal of any scale": VARIABLE,
    "day": temporal("date", "Date", 19723, '"2024-01-01"', UNKNOWN),
    "day as text": temporal("string", "Date", 19723, '"2024-01-01"'),
    "day as number": temporal("int", "Date", 19723, "19723"),
    "time": temporal("long", "Time", 3_600_000, "3600000000"),
    "time as text": temporal("string", "MicroTime", 1, '"00:00:00.000001"'),
    "timestamp": temporal(
        "timestamp", "MicroTimestamp", 1, '"1970-01-01T00:00:00.000001"', UNKNOWN
    ),
    "timestamp as text": temporal("string", "Timestamp", 1, '"1970-01-01T00:00:00.001000"'),
    "timestamp as number": temporal("long", "NanoTimestamp", 1, "1"),
    "day in UTC": iso("string", "IsoDate", "2024-01-01Z", '"2024-01-01"', '"2024-01-01Z"'),
    "time in UTC": iso("long", "IsoTime", "00:00:01Z", "1000000", '"00:00:01Z"'),
}
PLAIN = [*KINDS][:9]
FORMATS = [("json", "bare"), ("bare", "json"), ("json", "json"), ("bare", "bare")]
AVRO_FORMATS = [("bare", "avro"), ("json", "avro"), ("avro", "avro")]


def write_json(schema: object, payload: object) -> bytes:
    message = payload if schema is None else {"schema": schema, "payload": payload}
    return json.dumps(message).encode()


def write_key(kind: Kind, form: str) -> bytes:
    if form == "avro":
        return KEY_HEADER + encode(
            unlogical(avro_value("Key", {"id": kind.avro})), {"id": kind.raw}
        )
    schema = {"type": "struct", "fields": [{**kind.connect, "field": "id"}]}
    return write_json(schema if form == "json" else None, {"id": kind.sent})


def write_value(kind: Kind, op: str, form: str) -> bytes:
    row = {"id": kind.raw if form == "avro" else kind.sent, "v": "x"}
    event = {"before": None, "after": None if op == "d" else row, "source": SOURCE, "op": op}
    if form == "avro":
        return VALUE_HEADER + encode(unlogical(make_avro(kind)), event)
    fields = [{**kind.connect, "field": "id"}, {"type": "string", "field": "v"}]
    parts = [{"field": name, "type": "struct", "fields": fields} for name in ("before", "after")]
    return write_json({"type": "struct", "fields": parts} if form == "json" else None, event)


def make_avro(kind: Kind) -> dict[str, object]:
    return avro_envelope({"id": kind.avro, "v": "string"})


def unlogical(schema: object) -> dict[str, object]:
    """Leave out logical types, so that bytes and numbers are written as they are."""
    text = json.dumps(schema).replace("logicalType", "other")
    found: dict[str, object] = json.loads(text)
    return found


def make_reader(schema: object) -> AvroReader:
    return AvroReader(parse_avro(Registered(1, "AVRO", json.dumps(schema), ())))


def describe(kind: Kind, *, avro: bool, named: bool = False) -> FlatSpec:
    spec = make_spec({"id": kind.column, "v": "string"})
    spec = replace(spec, key_fields=frozenset({"id"} if named else ()))
    if not avro:
        return spec
    keys = {KEY_HEADER: make_reader(avro_value("Key", {"id": kind.avro}))}
    values = {VALUE_HEADER: make_reader(make_avro(kind))}
    return replace(spec, has_registry=True, keys=keys, values=values)


def read_id(flat: Flat) -> str:
    """Return the text of the key's column, or the reason of a dead letter."""
    if flat.payload is None:
        return str(flat.fault)
    return dict(split_object(flat.payload.decode()))["id"].text


@pytest.mark.parametrize("named", [False, True], ids=["listed key", "key of the events"])
@pytest.mark.parametrize(("of_key", "of_value"), [*FORMATS, *AVRO_FORMATS])
@pytest.mark.parametrize("name", KINDS)
def test_a_key_has_one_form_in_its_rows_and_its_delete(
    name: str, of_key: str, of_value: str, *, named: bool
) -> None:
    kind = KINDS[name]
    spec = describe(kind, avro=of_value == "avro", named=named)
    key = write_key(kind, of_key)

    found = {op: flatten_event(spec, key, write_value(kind, op, of_value)) for op in "crud"}

    told = kind.bare if (of_key, of_value) == ("bare", "bare") else kind.text
    assert {op: json_text(read_id(flat)) for op, flat in found.items()} == dict.fromkeys(
        "crud", json_text(told)
    )
    # SQL skips a tombstone: the delete before it had the key
    assert flatten_event(spec, key, None) == Flat(None)


def json_text(text: str) -> str:
    """Leave out blanks that Avro's values lack."""
    return text if text == UNKNOWN else json.dumps(json.loads(text))


@pytest.mark.parametrize("name", PLAIN)
def test_a_plain_key_is_the_same_with_and_without_a_schema(name: str) -> None:
    assert KINDS[name].text == KINDS[name].bare


@pytest.mark.parametrize("named", ["before", "after"])
def test_the_schema_of_either_row_tells_how_a_key_is_read(named: str) -> None:
    kind = KINDS["day"]
    value = json.loads(write_value(kind, "d", "json"))
    parts = value["schema"]["fields"]
    value["schema"]["fields"] = [each for each in parts if each["field"] == named]

    flat = flatten_event(
        describe(kind, avro=False), write_key(kind, "bare"), write_json(None, value)
    )

    assert read_id(flat) == kind.text


def test_a_key_has_the_schema_of_its_own_before_that_of_the_value() -> None:
    kind, other = KINDS["day as text"], KINDS["day as number"]
    value = write_value(other._replace(connect={"type": "int32"}), "d", "json")

    flat = flatten_event(describe(kind, avro=False), write_key(kind, "json"), value)

    assert read_id(flat) == kind.text


@pytest.mark.parametrize(
    "key",
    [b"", b'"schema"', b'{"schema":{},"payload":{"id":7}}', b'{"schema":1,"payload":"x"}'],
)
def test_a_row_without_a_schema_is_read_whatever_its_key_is(key: bytes) -> None:
    kind = KINDS["int"]

    flat = flatten_event(describe(kind, avro=False), key, write_value(kind, "c", "bare"))

    assert read_id(flat) == "7"
