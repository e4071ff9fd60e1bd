"""Values of PostgreSQL and of a table become the same texts if, and only if, they are equal."""

import json
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import IncompatibleTableError
from frazil.state_tables.source_values import (
    Pairing,
    SourceColumn,
    digest,
    may_be_in_source,
    pair_columns,
    read_source,
    read_state,
    show_key,
    write_decimal,
)
from frazil.streams.column_types import parse_column


def pair(column: str, source: str, *, is_array: bool = False) -> Pairing:
    """Pair a column of each type."""
    given = SourceColumn("c", source, source, source == "mood", is_array)
    found = pair_columns([parse_column("c", column)], ["c"], ["c"], [given])
    return found.keys[0]


LONG = "123456789012345678901234567890"
CASES: list[tuple[str, str, str, pa.Array, bool]] = [
    ("string", "jsonb", '{"a": 1, "b": [1.50, null]}', '{"b":[1.5,null],"a":1}', True),
    ("string", "jsonb", '{"a": 1}', '{"a": "1"}', False),
    ("string", "jsonb", "12345678901234567890.1", "12345678901234567890.10", True),
    ("string", "jsonb", "12345678901234567890.1", "12345678901234567890.2", False),
    ("string", "jsonb", f'{{"a": {LONG}123}}', f'{{"a": {LONG}999}}', False),
    ("string", "jsonb", f"[{LONG}.5, {LONG}]", f"[{LONG}.50,{LONG}.0]", True),
    ("string", "jsonb", f"[0.{LONG}1]", f"[0.{LONG}2]", False),
    ("string", "jsonb", "[100, 0.01, -1.5, 0, 0]", "[1E+2,1e-2,-150e-2,-0,0.0e9]", True),
    ("string", "jsonb", "[-1]", "[1]", False),
    ("string", "jsonb", "[10]", "[1]", False),
    ("string", "json", '{"a":{"\\u0000number":"1"}}', '{"a":1}', False),
    ("string", "json", '["1", 0]', "[1,0]", False),
    ("string", "json", '{"a":1e9999999999999999999}', '{"a":1e9999999999999999999}', True),
    ("string", "json", '{"a":1e9999999999999999999}', '{"a":1e9999999999999999998}', False),
    ("string", "json", '{"a":1e-9999999999999999999}', '{ "a": 1.0e-9999999999999999999 }', True),
    ("string", "json", f"[1e{'9' * 5000}]", f"[1e{'9' * 5000}]", True),
    ("string", "json", f"[1e{'9' * 5000}]", f"[1e{'9' * 5001}]", False),
    ("string", "json", "[" * 9000 + "]" * 9000, "[" * 9000 + "]" * 9000, True),
    ("string", "numeric", "1.5", "1.50", True),
    ("string", "numeric", "1.5", "1e999999999999", False),
    ("string", "numeric", "0", "0e-999999999999", True),
    ("string", "numeric", "9" * 5000, "9" * 5000 + ".0", True),
    ("string", "numeric", "NaN", "NaN", True),
    ("string", "numeric", "-Infinity", "-Infinity", True),
    ("string", "numeric", "1000", "1_000", False),
    ("string", "numeric", "12", " 12", False),
    ("string", "numeric", "12", "\u0661\u0662", False),
    ("string", "numeric", "1000", "1E+3", True),
    ("string", "numeric", "0.5", ".5", True),
    ("string", "date", "20454", "2026-01-01", True),
    ("string", "date", "2932897", "+10000-01-01", True),
    ("string", "date", "-719163", "0000-12-31", True),
    ("string", "date", "-735160", "-0043-03-15", True),
    ("string", "date", "20454", "2026-01-01Z", True),
    ("string", "date", "20454", "2026-01-01+01:00", False),
    ("string", "timestamp", "1767229323456789", "2026-01-01T01:02:03.456789Z", True),
    ("string", "date", "infinity", "infinity", True),
    ("string", "date", "18262", "20200101", False),
    ("string", "date", "20200101", "20200101", True),
    ("string", "date", "18260", "2020-W01-1", False),
    ("string", "timestamp", "253402300800000001", "+10000-01-01T00:00:00.000001", True),
    ("string", "timestamp", "-62135596800000001", "0000-12-31T23:59:59.999999", True),
    ("string", "timestamp", "-1", "1969-12-31T23:59:59.999999", True),
    ("string", "timestamp", "1767229323456789", "2026-01-01T01:02:03.456789001", False),
    ("string", "timestamp", "1767229323456789", "2026-01-01T01:02:03.456789000", True),
    ("string", "timestamp", "1582934400000000", "2020-02-30T00:00:00", False),
    ("string", "timestamp", "-infinity", "-infinity", True),
    ("string", "timestamptz", "253402300800000000", "+10000-01-01T00:00:00Z", True),
    ("string", "timestamptz", "-62135600400000000", "0001-01-01T00:00:00+01:00", True),
    ("string", "timestamptz", "1767225723000000", "2026-01-01 02:02:03+02", True),
    ("string", "timestamptz", "1767225723000000", "2025-12-31T22:32:03-0130", True),
    ("string", "timestamp", "1767229323456789", "2026-01-01T01:02:03.456789", True),
    ("string", "timestamptz", "1767225723400000", "2026-01-01T00:02:03.4Z", True),
    ("string", "time", "3723000000", "01:02:03", True),
    ("string", "time", "3723000000", "01:02:03.000000", True),
    ("string", "time", "3723000000", "01:02:03Z", True),
    ("string", "time", "3720000000", "01:02", True),
    ("string", "time", "86400000000", "24:00:00.000000", True),
    ("string", "time", "86400000000", "24:00:00", True),
    ("string", "time", "86400000000", "00:00:00.000000", False),
    ("string", "time", "0", "24:00:00.000000", False),
    ("string", "time", "0", "00:00:00", True),
    ("string", "time", "3723456789", "01:02:03.456789", True),
    ("string", "time", "3723456789", "01:02:03.456789000", True),
    ("string", "time", "3723456789", "01:02:03.456789001", False),
    ("string", "time", "82800000000", "-01:00:00.000000", False),
    ("string", "time", "43200000000", "12:00:00+02", False),
    ("string", "text", "1.5", "1.50", False),
    ("string", "bool", "true", "true", True),
    ("double", "float8", "0.1", 0.1, True),
    ("double", "numeric", "0.30000000000000004", 0.1 + 0.2, True),
    ("double", "float8", "NaN", float("nan"), True),
    ("double", "float8", "-0", 0.0, True),
    ("double", "float8", "Infinity", float("inf"), True),
    ("decimal(12,2)", "numeric", "1.5", Decimal("1.50"), True),
    ("decimal(12,2)", "numeric", "0", Decimal("0.00"), True),
    ("decimal(12,2)", "numeric", "1.505", Decimal("1.50"), False),
    ("decimal(38,10)", "numeric", "0.0000000001", Decimal("1E-10"), True),
]


@pytest.mark.parametrize(("column", "source", "ours", "theirs", "is_equal"), CASES)
def test_values_are_equal_by_the_rules_of_their_types(
    column: str, source: str, ours: str, theirs: object, *, is_equal: bool
) -> None:
    pairing = pair(f"{column}!", source)

    assert (read_source(pairing, [ours]) == read_state(pairing, pa.array([theirs]))) == is_equal


def test_a_float_is_read_with_the_precision_of_its_column() -> None:
    pairing = pair("float!", "float8")

    assert read_source(pairing, ["0.1"]) == read_state(pairing, pa.array([0.1], pa.float32()))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4))
def test_a_decimal_is_written_without_zeros_at_its_end(number: Decimal) -> None:
    text = write_decimal(number)

    assert Decimal(text) == number
    assert text == write_decimal(Decimal(f"{number:f}00" if "." in f"{number:f}" else number))
    assert not ("." in text and text.endswith("0"))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=8))
def test_json_is_equal_to_itself_in_another_layout(value: object) -> None:
    pairing = pair("string!", "jsonb")
    document = {"a": value, "b": 1}

    ours = read_source(pairing, [json.dumps(document, indent=2)])
    theirs = read_state(pairing, pa.array([json.dumps({"b": 1, "a": value})]))

    assert ours == theirs


def test_elements_of_lists_keep_their_places_and_nulls() -> None:
    pairing = pair("list<int>!", "int4", is_array=True)
    values = pa.array([[1, None, 3], None, [], [4]], pa.list_(pa.int32()))

    assert read_state(pairing, values) == [["1", None, "3"], None, [], ["4"]]
    assert read_state(pairing, values[2:]) == [[], ["4"]]


def test_digests_tell_null_from_a_text_and_one_column_from_two() -> None:
    texts = [[None], [""], ["null"], [None, None], ["a", "b"], ["a,b"], [["a", "b"]], [[None]]]

    assert len({digest(each) for each in texts}) == len(texts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("column", "source", "is_array"),
    [
        ("long", "timestamp", False),
        ("decimal(9,2)", "money", False),
        ("string", "interval", False),
        ("string", "text", True),
        ("list<string>", "text", False),
        ("list<list<int>>", "int4", True),
        ("struct<a: int>", "jsonb", False),
        ("timestamptz", "timestamp", False),
        ("string", "hstore", False),
    ],
)
def test_columns_that_cannot_be_compared_are_named(
    column: str, source: str, *, is_array: bool
) -> None:
    columns = [parse_column("id", "long!"), parse_column("c", column)]
    have = [
        SourceColumn("id", "int8", "bigint"),
        SourceColumn("c", source, "shown", is_array=is_array),
    ]

    pairings = pair_columns(columns, ["id"], ["id", "c"], have)

    assert [each.name for each in pairings.all] == ["id"]
    assert pairings.skipped.keys() == {"c"}
    assert "shown of the source" in pairings.skipped["c"]


def test_a_column_that_one_side_lacks_is_named() -> None:
    columns = [
        parse_column("id", 'long! from "Id"'),
        parse_column("new", "string"),
        parse_column("gone", "string"),
    ]
    have = [
        SourceColumn("Id", "int8", "bigint"),
        SourceColumn("new", "text", "text"),
        SourceColumn("price", "numeric", "numeric(9,2)"),
        SourceColumn("id", "text", "text"),
    ]

    pairings = pair_columns(columns, ["id"], ["id", "gone"], have)

    assert pairings.keys[0].source.name == "Id"
    assert pairings.skipped == {
        "new": "the state table has no such column yet",
        "gone": "the source table has no column gone",
        "price": "only the source table has it: numeric(9,2)",
        "id of the source": "only the source table has it: text",
    }


def test_a_key_that_cannot_be_compared_is_refused() -> None:
    with pytest.raises(IncompatibleTableError, match="column id of the key cannot be compared"):
        pair_columns([parse_column("id", "long!")], ["id"], ["id"], [])


@pytest.mark.parametrize(
    ("column", "source", "text", "shown"),
    [
        ("long!", "int8", "7", "7"),
        ("uuid!", "uuid", "0" * 31 + "a", "00000000-0000-0000-0000-00000000000a"),
        ("date!", "date", "20454", "2026-01-01"),
        ("timestamptz!", "timestamptz", "1767225723400000", "2026-01-01T00:02:03.400000Z"),
        ("date!", "date", "infinity", "infinity"),
        ("string!", "date", "²", "²"),
        ("string!", "timestamp", "9" * 19, "9" * 19),
    ],
)
def test_a_key_is_shown_as_a_person_writes_it(
    column: str, source: str, text: str, shown: str
) -> None:
    assert show_key([pair(column, source)], [text]) == {"c": shown}


@pytest.mark.parametrize(
    ("column", "source", "held", "refused"),
    [
        ("long!", "int4", ["2147483647", "-2147483648", "0"], ["2147483648", "-2147483649"]),
        ("string!", "int2", ["32767", "-1"], ["32768", "x", "", "٣", "1.0", "9" * 5000]),
        ("string!", "int8", [str(2**63 - 1), str(-(2**63))], [str(2**63), "9" * 19]),
        ("string!", "numeric", ["1.5", "NaN", "-0.01", "9" * 40], ["x", "1e5", "", "9" * 200_000]),
        ("string!", "uuid", [str(UUID(int=7))], ["x", UUID(int=7).hex[:-1], "\0"]),
        ("uuid!", "uuid", [UUID(int=7).hex], []),
        ("boolean!", "bool", ["true", "false"], ["yes"]),
        ("string!", "text", ["", "é\n", "x" * 5000], ["a\0b"]),
        ("string!", "date", ["infinity", "20454"], ["a\0b"]),
    ],
)
def test_a_key_that_the_source_cannot_hold_is_not_asked_for(
    column: str, source: str, held: list[str], refused: list[str]
) -> None:
    pairing = pair(column, source)

    assert [text for text in [*held, *refused] if may_be_in_source([pairing], [text])] == held
