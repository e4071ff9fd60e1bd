"""Every logical type of Avro, to the table and back: exact, or a typed refusal."""

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from faults.judges import assert_audited
from support.avro_bytes import encode, record
from support.avro_corpus import on_the_wire
from support.registry_lab import RegistryLab, frame, read_table

pytestmark = [pytest.mark.spark, pytest.mark.stack]


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


def fixed(name: str, size: int, **more: object) -> dict[str, object]:
    return {"type": "fixed", "name": name, "size": size, **more}


MONEY = logical("bytes", "decimal", precision=5, scale=2)
WIDE = logical("bytes", "decimal", precision=38, scale=10)
ID = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
INSTANT = datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
FORTY_TWO = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
FORTY_TWO_MS = int(FORTY_TWO.timestamp() * 1000)
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "cents", "type": MONEY}]}


def unscaled(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True)


CORPUS: tuple[tuple[str, object, object, object], ...] = (
    ("a_boolean", "boolean", True, True),
    ("an_int", "int", -(2**31), -(2**31)),
    ("a_long", "long", 2**63 - 1, 2**63 - 1),
    ("a_float", "float", 1.5, 1.5),
    ("a_double", "double", -1e308, -1e308),
    ("some_bytes", "bytes", b"\x00\xff", b"\x00\xff"),
    ("no_bytes", "bytes", b"", b""),
    ("text", "string", "né\u0000\U0001f600", "né\u0000\U0001f600"),
    ("an_enum", {"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ("a_fixed", fixed("F", 3), b"abc", b"abc"),
    ("money", MONEY, unscaled(-12345), Decimal("-123.45")),
    ("wide", WIDE, unscaled(10**38 - 1), Decimal("9" * 28 + "." + "9" * 10)),
    (
        "fixed_money",
        fixed("FM", 8, logicalType="decimal", precision=18, scale=4),
        (15).to_bytes(8, "big"),
        Decimal("0.0015"),
    ),
    ("a_date", logical("int", "date"), -1, date(1969, 12, 31)),
    ("time_ms", logical("int", "time-millis"), 86_399_999, 86_399_999_000),
    ("time_us", logical("long", "time-micros"), 86_399_999_999, 86_399_999_999),
    ("at_ms", logical("long", "timestamp-millis"), FORTY_TWO_MS, FORTY_TWO),
    ("at_us", logical("long", "timestamp-micros"), -1, INSTANT),
    ("at_ns", logical("long", "timestamp-nanos"), 1, 1),
    (
        "local_ms",
        logical("long", "local-timestamp-millis"),
        FORTY_TWO_MS,
        FORTY_TWO.replace(tzinfo=None),
    ),
    ("local_us", logical("long", "local-timestamp-micros"), -1, INSTANT.replace(tzinfo=None)),
    ("local_ns", logical("long", "local-timestamp-nanos"), -1, -1),
    ("id_text", logical("string", "uuid"), str(ID), str(ID)),
    ("id_bytes", fixed("U", 16, logicalType="uuid"), ID.bytes, str(ID)),
    (
        "a_duration",
        fixed("D", 12, logicalType="duration"),
        b"\x01" + b"\x00" * 11,
        b"\x01" + b"\x00" * 11,
    ),
    ("nothing", ["null", "string"], None, None),
    ("something", ["string", "null"], "", ""),
    ("two_widths", ["int", "long"], 2**40, 2**40),
    ("two_types", ["null", "int", "string"], "x", {"member_int": None, "member_string": "x"}),
    ("some", {"type": "array", "items": ["null", "long"]}, [1, None], [1, None]),
    ("none_of_them", {"type": "array", "items": "long"}, [], []),
    ("by_name", {"type": "map", "values": WIDE}, {"k": unscaled(5)}, [("k", Decimal("5e-10"))]),
    ("inner", INNER, {"cents": unscaled(5)}, {"cents": Decimal("0.05")}),
    (
        "inners",
        {"type": "array", "items": "Inner"},
        [{"cents": unscaled(-5)}],
        [{"cents": Decimal("-0.05")}],
    ),
)
"""Name, type, the value on the wire, and what the table must hold."""

ASKED = {
    "ts": "timestamptz",
    "wall": "timestamp",
    "price": "decimal(4,1)",
    "code": "fixed(2)",
    "id": "uuid",
    "many": "double",
}
NARROW = record(
    ("ts", logical("long", "timestamp-nanos")),
    ("wall", logical("long", "local-timestamp-nanos")),
    ("price", logical("bytes", "decimal", precision=9, scale=3)),
    ("code", "bytes"),
    ("id", "string"),
    ("many", "int"),
    name="Narrow",
)
FITTING: Mapping[str, object] = {
    "ts": 1_000,
    "wall": -1_000,
    "price": unscaled(999_900),
    "code": b"ab",
    "id": str(ID).upper(),
    "many": 7,
}
ODD = {"ts": 1, "wall": -1, "price": unscaled(1_250), "code": b"abc", "id": "x"}


def plain(value: object) -> object:
    return str(value) if isinstance(value, uuid.UUID) else value


def test_every_type_arrives_exactly(registry: RegistryLab) -> None:
    lab = registry.lab
    schema = record(*[(name, kind) for name, kind, _, _ in CORPUS])
    known = registry.register(json.dumps(schema))
    value = {name: raw for name, _, raw, _ in CORPUS}
    registry.send([frame(known, encode(on_the_wire(schema), value))])  # type: ignore[arg-type]

    lab.drain()

    (row,) = read_table(lab)
    assert {name: plain(row[name]) for name, *_ in CORPUS} == {
        name: expected for name, _, _, expected in CORPUS
    }
    assert_audited(lab)


def test_a_value_that_its_column_cannot_hold_is_a_letter_and_its_column_is_named(
    registry: RegistryLab,
) -> None:
    lab, known = registry.lab, registry.register(json.dumps(NARROW))
    wire = on_the_wire(NARROW)
    registry.write_stream(columns=ASKED)
    odd = [{**FITTING, name: value} for name, value in ODD.items()]
    values = [encode(wire, each) for each in [FITTING, *odd]]  # type: ignore[arg-type]
    too_wide = {**FITTING, "price": unscaled(10**15)}
    values.append(encode(wire, too_wide))  # type: ignore[arg-type]
    lab.write_stream(errors={"max_bad_ratio": 1.0})
    registry.send([frame(known, value) for value in values])

    lab.drain()

    (row,) = read_table(lab)
    assert (row["ts"].microsecond, row["wall"].microsecond) == (1, 999_999)
    assert (row["price"], row["code"], row["many"]) == (Decimal("999.9"), b"ab", 7.0)
    letters = read_table(lab, f"{lab.table}__dead_letters")
    named = [(r["reason"], r["detail"]) for r in letters]
    expected = [*ODD, "price"]
    assert sorted(named) == sorted(
        ("type_mismatch", f"schema {known}: {name} has a wrong form") for name in expected
    )
    assert_audited(lab)
