"""Change events as flat objects: texts stay as sent, values with a schema are written by types."""

import base64
import json
import sys
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
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

from frazil_spark.decode.change_events import (
    PLACEHOLDER,
    TRUNCATE,
    Flat,
    flatten_event,
    flatten_object,
    read_values,
)
from frazil_spark.decode.json_parts import split_object

JAVA_UUID = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"


def flatten(columns: Mapping[str, str], after: str) -> dict[str, str]:
    """Flatten a created row; give the text of each field."""
    flat = flatten_event(make_spec(columns), *event("c", after))
    assert flat.payload is not None, flat
    return {name: part.text for name, part in split_object(flat.payload.decode())}


@pytest.mark.parametrize("field", ["_frazil_x", "_frazilian"])
def test_a_column_may_read_a_field_with_the_internal_prefix(field: str) -> None:
    columns = {"id": "int", "x": f'string from "{field}"'}
    value = f'{{"id":1,"{field}":"kept"}}'

    assert flatten(columns, value)[field] == '"kept"'
    assert keep_rest(columns, value) is None
    flat = flatten_object(make_spec(columns, events=False, rest=True), None, value.encode())
    assert json.loads(flat.payload or b"")[field] == "kept"


def test_numbers_and_texts_are_copied_as_they_were_sent() -> None:
    after = '{"a":1.10,"b":123456789012345678901234567890.5, "c":"\\u00e9\\ud83d\\ude00","d":1e400}'

    found = flatten({"a": "double"}, after)

    assert found["a"] == "1.10"
    assert found["b"] == "123456789012345678901234567890.5"
    assert (found["c"], found["d"]) == (r'"\u00e9\ud83d\ude00"', "1e400")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("string", PLACEHOLDER),
        ("binary", base64.b64encode(PLACEHOLDER.encode()).decode()),
        ("list<string>", [PLACEHOLDER]),
        ("list<binary>", [base64.b64encode(PLACEHOLDER.encode()).decode()]),
        ("list<long>", list(PLACEHOLDER.encode())),
        ("list<uuid>", [JAVA_UUID]),
        ("map<string,string>", {PLACEHOLDER: PLACEHOLDER}),
        ("string", f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}'),
        ("string", f' {{ "{PLACEHOLDER}" :\n"{PLACEHOLDER}"\t}}\n'),
        ("list<string>", [f'{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}']),
        ("list<map<string,string>>", [{PLACEHOLDER: PLACEHOLDER}]),
        ("list<string>", [PLACEHOLDER.encode().hex()]),
    ],
    ids=[
        *("text", "bytes", "texts", "arrays of bytes", "numbers", "uuids", "hstore"),
        *("hstore as json", "spaced json", "hstores as json", "hstores", "hexadecimal bytes"),
    ],
)
def test_a_value_that_was_not_sent_is_absent_and_named(kind: str, value: object) -> None:
    found = flatten({"doc": f"{kind} from x", "other": "string"}, json.dumps({"x": value}))

    assert "x" not in found
    assert found["_frazil_unavailable"] == '["doc"]'


@pytest.mark.parametrize(
    "value",
    [
        f"see {PLACEHOLDER}",
        f'{{"{PLACEHOLDER}":"{PLACEHOLDER}","a":"1"}}',
        f'{{"a":"{PLACEHOLDER}"}}',
        f'[{{"{PLACEHOLDER}":"{PLACEHOLDER}"}}]',
    ],
)
def test_a_text_that_only_contains_the_placeholder_is_a_value(value: str) -> None:
    found = flatten({"doc": "string from x"}, json.dumps({"x": value}))

    assert found["x"] == json.dumps(value)
    assert found["_frazil_unavailable"] == "[]"


@pytest.mark.parametrize(
    ("kind", "name", "value", "text"),
    [
        ("date", f"{DEBEZIUM}.time.Date", 20454, '"2026-01-01"'),
        ("date", f"{CONNECT}.Date", -719162, '"0001-01-01"'),
        ("int", f"{DEBEZIUM}.time.Date", 20454, "20454"),
        ("timestamp", f"{DEBEZIUM}.time.Timestamp", -1, '"1969-12-31T23:59:59.999000"'),
        ("timestamp", f"{DEBEZIUM}.time.MicroTimestamp", 1, '"1970-01-01T00:00:00.000001"'),
        ("timestamp", f"{DEBEZIUM}.time.NanoTimestamp", 1001, '"1970-01-01T00:00:00.000001001"'),
        ("long", f"{DEBEZIUM}.time.MicroTimestamp", 1, "1"),
        ("long", f"{DEBEZIUM}.time.Time", 1500, "1500000"),
        ("long", f"{DEBEZIUM}.time.NanoTime", 1001, "1.001"),
        ("long", f"{DEBEZIUM}.time.NanoTime", -1001, "-1.001"),
        ("string", f"{DEBEZIUM}.time.MicroTime", 61_000_001, '"00:01:01.000001"'),
        ("string", f"{DEBEZIUM}.time.MicroTime", 0, '"00:00:00.000000"'),
        ("string", f"{DEBEZIUM}.time.MicroTime", 86_400_000_000, '"24:00:00.000000"'),
        ("string", f"{DEBEZIUM}.time.MicroTime", -3_600_000_000, '"-01:00:00.000000"'),
        ("string", f"{DEBEZIUM}.time.MicroTime", -1, '"-00:00:00.000001"'),
        ("string", f"{DEBEZIUM}.time.MicroTime", 93_600_000_000, '"26:00:00.000000"'),
        ("string", f"{DEBEZIUM}.time.MicroTime", 3_020_399_000_000, '"838:59:59.000000"'),
        ("string", f"{DEBEZIUM}.time.Time", 86_400_000, '"24:00:00.000000"'),
        ("string", f"{CONNECT}.Time", -1_500, '"-00:00:01.500000"'),
        ("string", f"{DEBEZIUM}.time.NanoTime", -86_400_000_000_001, '"-24:00:00.000000001"'),
        ("string", f"{DEBEZIUM}.time.ZonedTime", "24:00:00Z", None),
        ("string", f"{DEBEZIUM}.time.Date", 20454, '"2026-01-01"'),
        ("string", f"{DEBEZIUM}.time.Date", 2932896, '"9999-12-31"'),
        ("string", f"{DEBEZIUM}.time.Date", 2932897, '"+10000-01-01"'),
        ("string", f"{DEBEZIUM}.time.Date", -719163, '"0000-12-31"'),
        ("string", f"{DEBEZIUM}.time.Date", -735160, '"-0043-03-15"'),
        ("string", f"{DEBEZIUM}.time.Date", -2147472692, '"infinity"'),
        ("string", f"{DEBEZIUM}.time.Date", -2147472691, '"-infinity"'),
        ("string", f"{DEBEZIUM}.time.Timestamp", -1, '"1969-12-31T23:59:59.999000"'),
        ("string", f"{DEBEZIUM}.time.NanoTimestamp", -1, '"1969-12-31T23:59:59.999999999"'),
        (
            "string",
            f"{DEBEZIUM}.time.MicroTimestamp",
            253_402_300_800_000_001,
            '"+10000-01-01T00:00:00.000001"',
        ),
        ("string", f"{DEBEZIUM}.time.MicroTimestamp", 9223372036825200000, '"infinity"'),
        ("string", f"{DEBEZIUM}.time.MicroTimestamp", -9223372036832400000, '"-infinity"'),
        ("string", f"{CONNECT}.Timestamp", 9223372036825200, '"infinity"'),
        ("string", f"{DEBEZIUM}.time.NanoTimestamp", -(2**63), '"-infinity"'),
        ("timestamptz", f"{DEBEZIUM}.time.ZonedTimestamp", "2026-01-01T00:00:00Z", None),
        ("uuid", f"{DEBEZIUM}.data.Uuid", JAVA_UUID, None),
        ("string", f"{DEBEZIUM}.data.Json", '{"a": 1.10}', None),
        ("string", f"{DEBEZIUM}.data.Enum", "blue", None),
    ],
)
def test_a_value_with_a_schema_has_the_form_of_its_column(
    kind: str, name: str, value: object, text: str | None
) -> None:
    expected = json.dumps(value) if text is None else text

    assert flatten_by_schema(kind, {"name": name}, value) == expected


@pytest.mark.parametrize(
    ("unscaled", "scale", "kind", "text"),
    [
        (110, 2, "decimal(9,2)", '"1.10"'),
        (-1, 2, "decimal(9,2)", '"-0.01"'),
        (0, 0, "decimal(9,2)", '"0"'),
        (5, -3, "decimal(9,2)", '"5000"'),
        (10**37 + 1, 10, "decimal(38,10)", '"1000000000000000000000000000.0000000001"'),
        (110, 2, "string", '"1.10"'),
        (110, 2, "double", "1.10"),
    ],
)
@pytest.mark.parametrize("is_variable", [False, True], ids=["fixed", "variable"])
def test_a_decimal_has_all_its_digits(
    unscaled: int, scale: int, kind: str, text: str, *, is_variable: bool
) -> None:
    sent = unscaled.to_bytes((unscaled.bit_length() + 8) // 8, "big", signed=True)
    encoded = base64.b64encode(sent).decode()
    if is_variable:
        schema: dict[str, object] = {"name": f"{DEBEZIUM}.data.VariableScaleDecimal"}
        assert flatten_by_schema(kind, schema, {"scale": scale, "value": encoded}) == text
        return
    schema = {"name": f"{CONNECT}.Decimal", "parameters": {"scale": str(scale)}}
    assert flatten_by_schema(kind, schema, encoded) == text
    assert (
        flatten_by_schema(f"list<{kind}>", {"items": schema}, [encoded, None]) == f"[{text},null]"
    )


@pytest.mark.parametrize("scale", [0, 5000])
def test_a_decimal_has_more_digits_than_a_number_of_python_may(scale: int) -> None:
    encoded = base64.b64encode((10**9000).to_bytes(4000, "big")).decode()
    schema = {"name": f"{DEBEZIUM}.data.VariableScaleDecimal"}

    text = flatten_by_schema("string", schema, {"scale": scale, "value": encoded})

    assert text == (f'"1{"0" * 4000}.{"0" * 5000}"' if scale else f'"1{"0" * 9000}"')


@pytest.mark.parametrize("number", ["1234", "12", "-7.50", "1e10"])
def test_a_decimal_that_is_sent_as_a_number_is_that_number(number: str) -> None:
    schema = {"name": f"{CONNECT}.Decimal", "parameters": {"scale": "2"}}

    assert read_text(flatten_text("decimal(20,2)", schema, number)) == f'"{number}"'
    assert read_text(flatten_text("double", schema, number)) == number


def test_a_decimal_without_a_scale_is_told_by_name() -> None:
    flat = flatten_text("decimal(20,2)", {"name": f"{CONNECT}.Decimal"}, '"1234"')

    assert (flat.payload, flat.fault) == (None, "unknown_encoding")
    assert flat.detail == "x cannot be read without a schema"


def test_a_key_with_other_names_is_told_without_letters_that_no_text_has() -> None:
    spec = replace(make_spec({"id": "long"}), key_fields=frozenset({"id"}))
    long = ",".join(f'"f{number}":1' for number in range(500))
    for key in ('{"\\ud800":1}', f"{{{long}}}"):
        keys = pa.array([key.encode()])
        _, value = event("c", '{"id": 1}')

        [rows] = read_values(spec, iter([(keys, pa.array([value]))]))

        [row] = rows.to_pylist()
        assert row["fault"] == "other_key"
        assert row["detail"].startswith("its key has ")
        assert row["detail"].endswith(", not id")
        assert len(row["detail"]) < 250


PRICE = {"type": "bytes", "name": f"{CONNECT}.Decimal", "parameters": {"scale": "2"}}
NESTED: dict[str, tuple[dict[str, object], str, str]] = {
    "struct<p: decimal(9,2), n: int>": (
        {"type": "struct", "fields": [{"field": "p", **PRICE}, {"field": "n", "type": "int32"}]},
        '{"p": "1234", "n": 1, "other": 2}',
        '{"p":"-26588.24","n":1}',
    ),
    "list<struct<p: decimal(9,2)>>": (
        {"type": "array", "items": {"type": "struct", "fields": [{"field": "p", **PRICE}]}},
        '[{"p": "1234"}, null, {"p": null}]',
        '[{"p":"-26588.24"},null,{"p":null}]',
    ),
    "list<list<decimal(9,2)>>": (
        {"type": "array", "items": {"type": "array", "items": PRICE}},
        '[["1234"], []]',
        '[["-26588.24"],[]]',
    ),
    "map<string, decimal(9,2)>": (
        {"type": "map", "keys": {"type": "string"}, "values": PRICE},
        '{"a": "1234", "a": "1234"}',
        '{"a":"-26588.24","a":"-26588.24"}',
    ),
    "map<string, long>": (
        {"type": "map", "keys": {"type": "string"}, "values": {"type": "int64"}},
        '{"a": 1, "a": 1}',
        '{"a": 1, "a": 1}',
    ),
}


@pytest.mark.parametrize("kind", NESTED)
def test_a_value_inside_a_value_has_the_form_of_its_type(kind: str) -> None:
    schema, sent, told = NESTED[kind]

    assert read_text(flatten_text(kind, schema, sent)) == told


@pytest.mark.parametrize("kind", [*NESTED][:4])
def test_a_decimal_inside_a_value_needs_a_schema(kind: str) -> None:
    _, sent, _ = NESTED[kind]

    flat = flatten_event(make_spec({"x": kind}), *event("c", f'{{"x": {sent}}}'))

    assert (flat.payload, flat.fault) == (None, "unknown_encoding")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "{}}", "{} {}", "[1]", "1", '{"a"}', '{"a":}', '{"a":1,}', "{1:2}", "{a:1}"),
        *('{"a":NaN}', '{"a":1 "b":2}', '{"a":01}', '{"a":"\n"}', "\ufeff{}"),
    ],
)
def test_what_is_no_object_is_left_to_sql(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        split_object(text)

    assert flatten_event(make_spec({"a": "int"}), b"{}", text.encode()).payload == text.encode()


def test_too_deep_an_object_is_left_to_sql() -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000

    assert flatten_event(make_spec({"a": "int"}), b"{}", deep).payload == deep


@pytest.mark.parametrize("has_events", [True, False])
def test_an_object_as_deep_as_spark_reads_is_flattened(*, has_events: bool) -> None:
    deep = "[" * 990 + "1.50" + "]" * 990
    given = f'{{"id":1,"x":{deep}}}'
    value = event("c", given)[1] if has_events else given.encode()
    spec = make_spec({"id": "int"}, events=has_events, rest=True)
    limit = sys.getrecursionlimit()
    try:
        (found,) = read_values(spec, iter([(pa.array([b"{}"]), pa.array([value]))]))
    finally:
        sys.setrecursionlimit(limit)

    fields = dict(split_object(found[0]["payload"].as_py().decode()))
    assert fields["_frazil_rest"].value == f'{{"x":{deep}}}'


@pytest.mark.parametrize("op", ["c", "r", "u"])
@pytest.mark.parametrize(
    ("after", "before", "detail"),
    [
        (None, None, "op {} without after"),
        (None, {"id": 4711}, "op {} without after"),
        ('{"_id": 4711}', None, "MongoDB"),
        (None, '{"_id": 4711}', "MongoDB"),
        ("", None, "MongoDB"),
    ],
)
def test_a_document_as_text_is_told_from_a_change_without_after(
    op: str, after: object, before: object, detail: str
) -> None:
    value = {"before": before, "after": after, "op": op, "source": {"db": "shop", "ts_ms": 1}}

    flat = flatten_event(make_spec({"id": "long"}), b'{"id": "4711"}', json.dumps(value).encode())

    assert (flat.payload, flat.fault) == (None, "not_an_envelope")
    assert detail.format(op) in (flat.detail or "")
    assert "4711" not in (flat.detail or "")


MARKERS = [
    {"status": "BEGIN", "id": "571:9", "event_count": None, "data_collections": None},
    {
        "status": "END",
        "id": "571:9",
        "event_count": 1,
        "data_collections": [{"data_collection": "public.t", "event_count": 1}],
    },
]


def flatten_record(record: object, *, has_schema: bool) -> Flat:
    schema = {"type": "struct", "fields": []}
    message = {"schema": schema, "payload": record} if has_schema else record
    return flatten_event(make_spec({"id": "long"}), b'{"id": 1}', json.dumps(message).encode())


@pytest.mark.parametrize("has_schema", [False, True])
@pytest.mark.parametrize("time", [{}, {"ts_ms": 1}], ids=["of Debezium 1", "with a time"])
@pytest.mark.parametrize("marker", MARKERS, ids=["begin", "end"])
def test_a_marker_of_a_transaction_is_skipped(
    marker: Mapping[str, object], time: Mapping[str, object], *, has_schema: bool
) -> None:
    flat = flatten_record({**marker, **time}, has_schema=has_schema)

    assert flat == Flat(None, skip="transaction")


@pytest.mark.parametrize("has_schema", [False, True])
@pytest.mark.parametrize(
    "record",
    [
        {"id": 1, "status": "END"},
        {"id": "1", "status": "BEGIN"},
        {**MARKERS[1], "id": 1},
        {**MARKERS[0], "event_count": 1},
        {**MARKERS[1], "event_count": None},
        {**MARKERS[1], "event_count": "1"},
        {**MARKERS[1], "data_collections": "t"},
        {**MARKERS[1], "status": "DONE"},
        {**MARKERS[1], "customer": 7},
        {**MARKERS[1], "ts_ms": 1, "customer": 7},
    ],
)
def test_a_record_with_a_status_is_no_marker(
    record: Mapping[str, object], *, has_schema: bool
) -> None:
    flat = flatten_record(record, has_schema=has_schema)

    assert (flat.payload, flat.skip, flat.fault) == (None, None, "not_an_envelope")


def test_a_truncate_is_a_row_without_a_key_where_the_stream_says_so() -> None:
    spec = replace(make_spec({"id": "long"}), applies_truncate=True)

    flat = flatten_event(spec, *event("t", key=None))

    assert json.loads(flat.payload or b"")["_frazil_op"] == "t"
    assert flatten_event(make_spec({"id": "long"}), *event("t", key=None)).fault == TRUNCATE


def test_fields_of_the_record_cannot_take_the_place_of_ours() -> None:
    found = flatten({"a": "int"}, '{"a":1,"_frazil_op":"d","_op":"x"}')

    assert (found["_frazil_op"], found["_op"]) == ('"c"', '"x"')


def test_the_key_of_a_registry_has_a_header() -> None:
    flat = flatten_event(make_spec({"id": "int"}), b'\0\0\0\0\1{"id":7}', event("d")[1])

    assert flat.payload is not None
    assert flat.payload.startswith(b'{"id":7,')


def keep_rest(columns: Mapping[str, str], value: str) -> str | None:
    """Flatten an object; give the text that its rest becomes."""
    flat = flatten_object(make_spec(columns, events=False, rest=True), None, value.encode())
    assert flat.payload is not None
    rest = json.loads(flat.payload).get("_frazil_rest")
    assert rest is None or isinstance(rest, str)
    return rest


@pytest.mark.parametrize(
    ("value", "rest"),
    [
        ('{"a": 1}', None),
        ("{}", None),
        (
            '{"b":1.10,"a":1,"c":123456789012345678901234567890}',
            '{"b":1.10,"c":123456789012345678901234567890}',
        ),
        ('{ "b" : [1, 2e400] , "a":1}', '{"b":[1, 2e400]}'),
        ('{"b":1,"b":2}', '{"b":1,"b":2}'),
        (r'{"b":"\u00e9\ud800\"","é":"ü"}', r'{"b":"\u00e9\ud800\"","\u00e9":"ü"}'),
        ('{"s":{"x":1,"y":{"z":2.50}}}', '{"s":{"y":{"z":2.50}}}'),
        ('{"s":7,"b":null}', '{"b":null}'),
        ('{"_frazil_rest":"x"}', '{"_frazil_rest":"x"}'),
    ],
)
def test_the_rest_has_the_fields_without_a_column_as_they_were_sent(
    value: str, rest: str | None
) -> None:
    assert keep_rest({"a": "int", "s": "struct<x: int>"}, value) == rest


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("decimal(9,2)", '"12.50"'),
        ("date", "20454"),
        ("timestamp", "1767229323456789"),
        ("timestamptz", "1.5"),
        ("list<decimal(9,2)>", '["12.50"]'),
        ("struct<at: timestamp>", '{"at": 1}'),
        ("map<string, date>", '{"a": 1}'),
    ],
)
def test_a_record_that_is_no_event_keeps_each_value_beside_its_rest(kind: str, sent: str) -> None:
    spec = make_spec({"x": kind}, events=False, rest=True)

    flat = flatten_object(spec, None, f'{{"x":{sent},"y":1}}'.encode())

    assert read_text(flat) == sent


def test_the_rest_of_a_change_event_is_that_of_its_after() -> None:
    spec = make_spec({"id": "int"}, rest=True)

    flat = flatten_event(spec, *event("c", '{"id":1,"n":1.10,"t":"__debezium_unavailable_value"}'))

    assert flat.payload is not None
    assert json.loads(flat.payload)["_frazil_rest"] == (
        '{"n":1.10,"t":"__debezium_unavailable_value"}'
    )
