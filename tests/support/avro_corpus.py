"""Avro payloads for differential tests: plain values, values at the edge, bytes that are odd."""

import random
from collections.abc import Mapping

from support.avro_bytes import encode, record


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


COLUMNS = {
    "id": "long!",
    "small": "int",
    "wider": "long",
    "flag": "boolean",
    "real": "double",
    "single": "float",
    "price": "decimal(9,2)",
    "fixed_price": "decimal(18,4)",
    "day": "date",
    "local": "timestamp",
    "instant": "timestamptz",
    "at_ms": "timestamptz",
    "nanos": "long",
    "text": "string",
    "some_bytes": "binary",
    "code": "fixed(3)",
    "colour": "string",
    "deep": "struct<b: string, a: int, c: struct<d: decimal(5,1), at: timestamp>>",
    "reals": "list<double>",
    "lines": "list<struct<sku: string, qty: int>>",
    "absent": "list<int>",
}
SKU = {"type": "record", "name": "Line", "fields": [
    {"name": "sku", "type": ["null", "string"]},
    {"name": "other", "type": "double"},
    {"name": "qty", "type": "int"},
]}  # fmt: skip
TENTHS = logical("bytes", "decimal", precision=5, scale=1)
WALL = logical("long", "local-timestamp-millis")
SCHEMA = record(
    ("small", ["null", "int"]),
    ("id", "long"),
    ("wider", "int"),
    ("flag", ["boolean", "null"]),
    ("real", ["null", "double"]),
    ("single", "float"),
    ("price", ["null", logical("bytes", "decimal", precision=12, scale=2)]),
    ("fixed_price", {"type": "fixed", "name": "F8", "size": 8, "logicalType": "decimal",
                     "precision": 18, "scale": 4}),
    ("unasked", {"type": "array", "items": ["null", "string"]}),
    ("day", ["null", logical("int", "date")]),
    ("local", logical("long", "local-timestamp-micros")),
    ("instant", ["null", logical("long", "timestamp-micros")]),
    ("at_ms", logical("long", "timestamp-millis")),
    ("nanos", logical("long", "timestamp-nanos")),
    ("text", ["null", "string"]),
    ("some_bytes", "bytes"),
    ("code", {"type": "fixed", "name": "C", "size": 3}),
    ("colour", ["null", {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}]),
    ("deep", ["null", {"type": "record", "name": "Deep", "fields": [
        {"name": "a", "type": "int"},
        {"name": "unasked", "type": ["null", "Colour"]},
        {"name": "b", "type": ["null", "string"]},
        {"name": "c", "type": ["null", {"type": "record", "name": "Deeper", "fields": [
            {"name": "d", "type": TENTHS}, {"name": "at", "type": ["null", WALL]},
        ]}]},
    ]}]),
    ("reals", ["null", {"type": "array", "items": ["null", "double"]}]),
    ("lines", {"type": "array", "items": ["null", SKU]}),
    name="Event",
)  # fmt: skip


def on_the_wire(schema: object) -> object:
    """Take logical types out, so that raw values are written as they are."""
    if isinstance(schema, dict):
        return {k: on_the_wire(v) for k, v in schema.items() if k != "logicalType"}
    return [on_the_wire(each) for each in schema] if isinstance(schema, list) else schema


def unscaled(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


PLAIN: Mapping[str, tuple[object, ...]] = {
    "small": (None, 0, -1, 2**31 - 1, -(2**31)),
    "wider": (7, -(2**31)),
    "flag": (True, False, None),
    "real": (0.0, 1.5, -1e308, 5e-324, None),
    "single": (0.0, -0.5, 3e38),
    "price": (None, unscaled(0), unscaled(-1), unscaled(10**9 - 1), b"\x00\x00\x00\x05"),
    "fixed_price": tuple(n.to_bytes(8, "big", signed=True) for n in (0, -1, 10**18 - 1)),
    "unasked": ([], ["x", None]),
    "day": (0, -25_567, 2_932_896, None),
    "local": (0, -1, 1_700_000_000_123_456),
    "instant": (0, 253_402_300_799_999_999, None),
    "at_ms": (0, -1, 253_402_300_799_999),
    "nanos": (-(2**63), 2**63 - 1, 7),
    "text": ("", "plain", "n\u00e9\u0000\U0001f600", None, "x" * 300),
    "some_bytes": (b"", b"\x00\xff", b"y" * 200),
    "code": (b"abc", b"\x00\x00\x00"),
    "colour": ("RED", "GREEN", None),
    "deep": (
        {"a": 1, "unasked": "RED", "b": "x", "c": {"d": unscaled(-15), "at": 5}},
        {"a": -1, "unasked": None, "b": None, "c": {"d": unscaled(0), "at": None}},
        {"a": 0, "unasked": None, "b": "", "c": None},
        None,
    ),
    "reals": ([1.0, None, -2.5], [], None, [0.25] * 90),
    "lines": (
        [{"sku": "a", "other": 1.0, "qty": 1}, None, {"sku": None, "other": 2.0, "qty": -3}],
        [],
        [{"sku": "b" * 80, "other": 0.0, "qty": 2}],
    ),
}
ODD: Mapping[str, tuple[object, ...]] = {
    "real": (float("nan"), float("inf"), -0.0),
    "single": (float("-inf"), -0.0),
    "price": (unscaled(10**9), unscaled(10**12), unscaled(10**30), b""),
    "fixed_price": ((10**18).to_bytes(8, "big"), (2**63 - 1).to_bytes(8, "big")),
    "day": (-25_568, 2_932_897, -(2**31), 2**31 - 1),
    "local": (-(2**63), 253_402_300_800_000_000, -4_000_000_000_000_000),
    "instant": (2**63 - 1, -62_135_596_800_000_001),
    "at_ms": (2**63 - 1, 253_402_300_800_000),
    "reals": ([float("nan")], [1.0] * 101),
}
"""Values that workers leave to Spark."""


def make_value(rnd: random.Random, number: int, **odd: object) -> dict[str, object]:
    """Choose a plain value of each field; keyword arguments replace some."""
    return {"id": number, **{name: rnd.choice(values) for name, values in PLAIN.items()}, **odd}


def make_payload(rnd: random.Random, number: int, **odd: object) -> bytes:
    """Write a record; logical types are left to the reader."""
    wire = on_the_wire(SCHEMA)
    assert isinstance(wire, dict)
    return encode(wire, make_value(rnd, number, **odd))


def make_odd(rnd: random.Random, number: int) -> list[bytes]:
    """Write one record for each odd value."""
    pairs = [(name, value) for name, values in ODD.items() for value in values]
    return [make_payload(rnd, number, **{name: value}) for name, value in pairs]


def damage(rnd: random.Random, payload: bytes) -> bytes:
    """Cut, lengthen or change a payload somewhere."""
    place, byte = rnd.randrange(len(payload)), rnd.randbytes(1)
    return rnd.choice(
        (
            payload[:place],
            payload + rnd.randbytes(rnd.randrange(1, 20)),
            payload[:place] + byte + payload[place + 1 :],
            payload[:place] + byte + payload[place:],
            payload[:place] + payload[place + 1 :],
        )
    )
