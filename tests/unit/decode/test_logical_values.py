"""Values of logical types: each has its form, and what has another one is a dead letter."""

import json

import pytest
from support.change_events import event
from support.flat_events import (
    CONNECT,
    DEBEZIUM,
    flatten_by_schema,
    flatten_text,
    make_spec,
    read_text,
)

from frazil_spark.decode.change_events import Flat, flatten_event

TIME = f"{DEBEZIUM}.time"
DECIMAL: dict[str, object] = {"name": f"{CONNECT}.Decimal", "parameters": {"scale": "2"}}
VARIABLE: dict[str, object] = {"name": f"{DEBEZIUM}.data.VariableScaleDecimal"}
NO_NUMBERS = ['"1_9"', '"1_000"', '" 5 "', '"٣"', '"5"', '""', "true", "1.5", "1e3", "[5]", "{}"]
MISFIT = Flat(None, fault="type_mismatch", detail="x has a wrong form")


@pytest.mark.parametrize("kind", ["decimal(38,2)", "double", "string"])
@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        (DECIMAL, '""'),
        (DECIMAL, "true"),
        (DECIMAL, "[1]"),
        (DECIMAL, '"123"'),
        (DECIMAL, '"12 34"'),
        (DECIMAL, '"12.34"'),
        (DECIMAL, '"٣٣٣٣"'),
        ({**DECIMAL, "type": "string"}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": "٣"}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": "1_0"}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": " 2"}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": "2.0"}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": None}}, '"1234"'),
        ({**DECIMAL, "parameters": {"scale": "16384"}}, '"1234"'),
        (VARIABLE, '{"scale": 2, "value": ""}'),
        (VARIABLE, '{"scale": 2, "value": 1234}'),
        (VARIABLE, '{"scale": 2, "value": true}'),
        (VARIABLE, '{"scale": 2, "value": null}'),
        (VARIABLE, '{"scale": 2}'),
        (VARIABLE, '{"scale": "٣", "value": "1234"}'),
        (VARIABLE, '{"scale": true, "value": "1234"}'),
        (VARIABLE, '{"scale": 1.0, "value": "1234"}'),
        (VARIABLE, '{"scale": -131073, "value": "1234"}'),
        (VARIABLE, '{"scale": 2147483647, "value": "1234"}'),
    ],
    ids=str,
)
def test_what_is_no_decimal_is_never_one(schema: dict[str, object], sent: str, kind: str) -> None:
    assert flatten_text(kind, schema, sent) == MISFIT


@pytest.mark.parametrize(
    "sent", ['"1_9"', '" 5 "', '"٣"', '"5"', "true", "1.5", "1e3", "[5]", "{}"]
)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("date", f"{TIME}.Date"),
        ("date", f"{CONNECT}.Date"),
        ("int", f"{TIME}.Date"),
        ("string", f"{TIME}.Date"),
        ("timestamp", f"{TIME}.Timestamp"),
        ("timestamp", f"{TIME}.MicroTimestamp"),
        ("long", f"{TIME}.MicroTimestamp"),
        ("string", f"{TIME}.NanoTimestamp"),
        ("long", f"{TIME}.Time"),
        ("string", f"{TIME}.MicroTime"),
        ("string", f"{TIME}.NanoTime"),
    ],
)
def test_a_date_or_time_is_a_whole_number(kind: str, name: str, sent: str) -> None:
    assert flatten_text(kind, {"name": name}, sent) == MISFIT


@pytest.mark.parametrize("name", [f"{TIME}.Date", f"{TIME}.MicroTimestamp", f"{TIME}.MicroTime"])
def test_a_number_of_many_digits_is_no_time(name: str) -> None:
    assert flatten_text("string", {"name": name}, "9" * 5000) == MISFIT


@pytest.mark.parametrize(
    ("kind", "name", "sent"),
    [
        ("date", f"{TIME}.Date", -719163),
        ("date", f"{TIME}.Date", 2932897),
        ("decimal(9,0)", f"{TIME}.Date", 2932897),
        ("timestamp", f"{TIME}.MicroTimestamp", 2**63 - 1),
        ("timestamp", f"{TIME}.Timestamp", -(2**63)),
    ],
)
def test_a_time_outside_the_years_of_its_column_is_a_dead_letter(
    kind: str, name: str, sent: int
) -> None:
    assert flatten_text(kind, {"name": name}, str(sent)) == MISFIT


def test_a_misfit_inside_a_value_is_one_too() -> None:
    schema = {"type": "array", "items": {"name": f"{TIME}.Date"}}

    assert flatten_text("list<date>", schema, '[1, "1_9"]') == MISFIT


ISO = [
    ("date", "IsoDate", "2017-09-15Z", "2017-09-15"),
    ("string", "IsoDate", "2017-09-15Z", "2017-09-15"),
    ("date", "IsoDate", "2017-09-15", "2017-09-15"),
    ("string", "IsoDate", "+10000-01-01Z", "+10000-01-01"),
    ("string", "IsoDate", "-0043-03-15Z", "-0043-03-15"),
    ("string", "IsoDate", "+5881610-07-11Z", "infinity"),
    ("string", "IsoDate", "-5877611-06-22Z", "-infinity"),
    ("timestamp", "IsoTimestamp", "2017-09-15T10:00:00Z", "2017-09-15T10:00:00.000000"),
    ("timestamp", "IsoTimestamp", "2017-09-15T10:00:00.123456Z", "2017-09-15T10:00:00.123456"),
    ("timestamp", "IsoTimestamp", "2017-09-15T10:00:00.1Z", "2017-09-15T10:00:00.100000"),
    ("timestamptz", "IsoTimestamp", "2017-09-15T10:00:00.1Z", "2017-09-15T10:00:00.1Z"),
    ("string", "IsoTimestamp", "2017-09-15T10:00:00.123Z", "2017-09-15T10:00:00.123000"),
    ("string", "IsoTimestamp", "2017-09-15T10:00:00.1234567Z", "2017-09-15T10:00:00.123456700"),
    ("string", "IsoTimestamp", "-0043-03-15T10:00:00Z", "-0043-03-15T10:00:00.000000"),
    ("string", "IsoTimestamp", "+294247-01-10T04:00:25.2Z", "infinity"),
    ("string", "IsoTimestamp", "-290308-12-21T19:59:27.6Z", "-infinity"),
    ("string", "IsoTimestamp", "2017-09-15T10:00:00", "2017-09-15T10:00:00.000000"),
    ("string", "IsoTime", "10:00:00", "10:00:00.000000"),
    ("string", "IsoTime", "10:00:00Z", "10:00:00.000000"),
    ("string", "IsoTime", "10:00:00.123456Z", "10:00:00.123456"),
    ("string", "IsoTime", "23:59:59.123456789Z", "23:59:59.123456789"),
]
"""Column, type, the text of Debezium's `time.precision.mode=isostring`, and the stored text."""


@pytest.mark.parametrize(("kind", "name", "sent", "told"), ISO)
def test_a_day_or_time_in_utc_has_the_form_of_other_types(
    kind: str, name: str, sent: str, told: str
) -> None:
    schema = {"type": "string", "name": f"{TIME}.{name}"}

    assert flatten_by_schema(kind, schema, sent) == f'"{told}"'


@pytest.mark.parametrize(
    ("sent", "micros"),
    [("10:00:00Z", "36000000000"), ("00:00:00.5Z", "500000"), ("00:00:01.0000001Z", "1000000.100")],
)
def test_a_time_in_utc_is_microseconds_in_a_long(sent: str, micros: str) -> None:
    assert flatten_by_schema("long", {"name": f"{TIME}.IsoTime"}, sent) == micros


@pytest.mark.parametrize("kind", ["date", "timestamp", "string"])
@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("IsoDate", "20170915"),
        ("IsoDate", '"2017-09-15+02:00"'),
        ("IsoDate", '"2017-09-15Z\\n"'),
        ("IsoDate", '"٢٠١٧-09-15Z"'),
        ("IsoDate", "true"),
        ("IsoTimestamp", '"2017-09-15T10:00:00+02:00"'),
        ("IsoTimestamp", '"2017-09-15Z"'),
        ("IsoTimestamp", "1"),
        ("IsoTime", '"10:00:00+01:00"'),
        ("IsoTime", "36000"),
    ],
)
def test_a_day_or_time_of_another_zone_or_form_is_a_dead_letter(
    name: str, sent: str, kind: str
) -> None:
    assert flatten_text(kind, {"name": f"{TIME}.{name}"}, sent) == MISFIT


@pytest.mark.parametrize(
    ("kind", "sent", "told"),
    [
        ("date", '"2017-09-15Z"', '"2017-09-15"'),
        ("date", '"2017-09-15"', '"2017-09-15"'),
        ("date", '"2017-09-15T10:00:00Z"', '"2017-09-15T10:00:00Z"'),
        ("date", '"2017-09-15+02:00"', '"2017-09-15+02:00"'),
        ("timestamp", '"2017-09-15T10:00:00.1Z"', '"2017-09-15T10:00:00.1"'),
        ("timestamp", '"2017-09-15T10:00:00Z"', '"2017-09-15T10:00:00"'),
        ("timestamp", '"2017-09-15 10:00"', '"2017-09-15 10:00"'),
        ("timestamp", '"2017-09-15T10:00:00+01:00"', '"2017-09-15T10:00:00+01:00"'),
        ("timestamptz", '"2017-09-15T10:00:00Z"', '"2017-09-15T10:00:00Z"'),
        ("string", '"2017-09-15Z"', '"2017-09-15Z"'),
        ("list<date>", '["2017-09-15Z", null]', '["2017-09-15",null]'),
        ("map<string, date>", '{"a": "2017-09-15Z"}', '{"a":"2017-09-15"}'),
        ("struct<d: date>", '{"d": "2017-09-15Z", "e": 1.10}', '{"d":"2017-09-15","e":1.10}'),
        ("struct<n: int>", '{"n": 1, "e": [ 1 ]}', '{"n": 1, "e": [ 1 ]}'),
    ],
)
def test_without_a_schema_a_day_or_time_in_utc_fits_a_column_without_a_zone(
    kind: str, sent: str, told: str
) -> None:
    flat = flatten_event(make_spec({"x": kind}), *event("c", f'{{"x": {sent}}}'))

    assert read_text(flat) == told


PRICE = {**DECIMAL, "type": "bytes"}
DAY: dict[str, object] = {"type": "int32", "name": f"{TIME}.Date"}
VALUES_IN_TEXT: dict[str, tuple[dict[str, object], str, str]] = {
    "decimals": ({"type": "array", "items": PRICE}, '["AAAE4g==", null]', "[12.50,null]"),
    "days": ({"type": "array", "items": DAY}, "[18000, 0]", '["2019-04-14","1970-01-01"]'),
    "decimals of any scale": (
        {"type": "array", "items": {"type": "struct", **VARIABLE}},
        '[{"scale": 3, "value": "BNI="}]',
        "[1.234]",
    ),
    "days in UTC": (
        {"type": "array", "items": {"type": "string", "name": f"{TIME}.IsoDate"}},
        '["2019-04-14Z"]',
        '["2019-04-14"]',
    ),
    "arrays of arrays": (
        {"type": "array", "items": {"type": "array", "items": DAY}},
        "[[18000], [ ]]",
        '[["2019-04-14"],[ ]]',
    ),
    "a map": (
        {"type": "map", "keys": {"type": "string"}, "values": PRICE},
        '{"\\u00e9": "AAAE4g=="}',
        '{"\\u00e9":12.50}',
    ),
    "a struct": (
        {"type": "struct", "fields": [{"field": "p", **PRICE}, {"field": "n", "type": "int64"}]},
        '{"p": "AAAE4g==", "n": 12345678901234567890, "other": "x"}',
        '{"p":12.50,"n":12345678901234567890,"other":"x"}',
    ),
    "a record": (
        {"type": "record", "fields": [{"field": "at", "type": "long", "name": f"{TIME}.Time"}]},
        '{"at": 1500}',
        '{"at":"00:00:01.500000"}',
    ),
}


@pytest.mark.parametrize("name", VALUES_IN_TEXT)
def test_json_in_a_text_column_has_values_that_can_be_read(name: str) -> None:
    schema, sent, told = VALUES_IN_TEXT[name]

    assert json.loads(read_text(flatten_text("string", schema, sent))) == told
    inner = flatten_text("list<string>", {"type": "array", "items": schema}, f"[{sent}]")
    assert json.loads(read_text(inner)) == [told]


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({"type": "array", "items": {"type": "string"}}, '["a", "b" ]'),
        ({"type": "array", "items": {"type": "int32"}}, "[1, 2.50]"),
        ({"type": "struct", "fields": [{"field": "n", "type": "int32"}]}, '{"n": 1, "other": 2}'),
        ({"type": "array", "items": PRICE}, "[null]"),
        ({"type": "array", "items": DAY}, "7"),
        ({"type": "array"}, "[7]"),
    ],
    ids=str,
)
def test_json_in_a_text_column_stays_as_it_was_sent_where_all_of_it_can_be_read(
    schema: dict[str, object], sent: str
) -> None:
    assert read_text(flatten_text("string", schema, sent)) == sent


def test_a_misfit_in_a_text_column_is_a_dead_letter() -> None:
    assert flatten_text("string", {"type": "array", "items": PRICE}, '[""]') == MISFIT


@pytest.mark.parametrize("sent", ['"cafebabe"', '"CAFEBABE"', '"yv66vg=="', '"x"'])
@pytest.mark.parametrize("kind", ["binary", "fixed(6)"])
def test_a_text_by_its_schema_is_no_bytes(kind: str, sent: str) -> None:
    text = {"type": "string"}
    inner = {"type": "struct", "fields": [{"field": "b", **text}]}
    detail = "x is text by its schema: set binary.handling.mode=bytes at the connector"

    flats = [
        flatten_text(kind, text, sent),
        flatten_text(f"list<{kind}>", {"type": "array", "items": text}, f"[{sent}]"),
        flatten_text(f"map<string, {kind}>", {"type": "map", "values": text}, f'{{"a": {sent}}}'),
        flatten_text(f"struct<b: {kind}>", inner, f'{{"b": {sent}}}'),
    ]

    assert {*flats} == {Flat(None, fault="unknown_encoding", detail=detail)}


@pytest.mark.parametrize("name", [None, f"{DEBEZIUM}.data.Bits"])
def test_bytes_are_bytes_or_their_text(name: str | None) -> None:
    schema = {"type": "bytes", **({"name": name} if name else {})}

    assert flatten_by_schema("binary", schema, "cafebabe") == '"cafebabe"'
    assert flatten_by_schema("string", schema, "cafebabe") == '"cafebabe"'
    assert flatten_text("decimal(9,2)", schema, '"1234"') == MISFIT
    in_a_list = flatten_text("list<decimal(9,2)>", {"type": "array", "items": schema}, '["1234"]')
    assert in_a_list == MISFIT


def test_bytes_without_a_schema_are_base64() -> None:
    flat = flatten_event(make_spec({"x": "binary"}), *event("c", '{"x": "cafebabe"}'))

    assert read_text(flat) == '"cafebabe"'
