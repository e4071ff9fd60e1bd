"""The column language reads every Iceberg type, and says what is wrong with the rest."""

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.iceberg.table_schema import build_table_schema
from frazil.streams.column_types import (
    PRIMITIVES,
    Column,
    ColumnType,
    ListType,
    MapType,
    Primitive,
    StructType,
    format_type,
    parse_column,
    require_column,
    to_spark_ddl,
    validate_distinct_names,
)

EVERY_PRIMITIVE = [*PRIMITIVES, "decimal(9,2)", "decimal(38,38)", "fixed(16)"]
LEAVES = st.sampled_from([*PRIMITIVES]).map(Primitive) | st.builds(
    lambda scale, more: Primitive("decimal", (scale + more, scale)),
    st.integers(0, 19),
    st.integers(1, 19),
)


def _nest(inner: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[ColumnType]:
    columns = st.lists(st.tuples(inner, st.booleans()), min_size=1, max_size=3).map(
        lambda found: tuple(Column(f"c{i}", t, r) for i, (t, r) in enumerate(found))
    )
    return (
        st.builds(ListType, inner, st.booleans())
        | st.builds(MapType, st.just(Primitive("string")), inner, st.booleans())
        | st.builds(StructType, columns)
    )


@pytest.mark.parametrize("text", EVERY_PRIMITIVE)
def test_every_primitive_of_iceberg_version_2_can_be_a_column(text: str) -> None:
    column = parse_column("c", text)

    field = build_table_schema((column,)).find_field("c")
    plain = str(field.field_type).replace(" ", "").replace("[", "(").replace("]", ")")
    assert plain == text
    assert not field.required


@given(st.recursive(LEAVES, _nest, max_leaves=8), st.booleans())
def test_any_type_survives_its_text(column_type: ColumnType, required: bool) -> None:  # noqa: FBT001
    text = format_type(column_type) + "!" * required

    assert parse_column("c", text) == Column("c", column_type, required)


def test_an_exclamation_mark_is_required_at_every_depth() -> None:
    column = parse_column("lines", "list<struct<id: long!, tags: map<string, string!>>!>!")

    field = build_table_schema((column,)).find_field("lines")
    assert str(field) == (
        "1: lines: required list<struct<3: id: required long, 4: tags: optional "
        "map<string, string>>>"
    )


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("id", "bigint", "unknown type 'bigint'; known: boolean, int, long"),
        ("id", "decimal(39,2)", "precision 1 to 38"),
        ("id", "decimal(0,0)", "precision 1 to 38"),
        ("id", "decimal(4,5)", "scale 0 to precision"),
        ("id", "decimal(x,2)", "a number expected, 'x' found in 'decimal(x,2)'"),
        ("id", "decimal(9,)", "a number expected, ')' found"),
        ("id", "fixed(n)", "a number expected, 'n' found"),
        ("id", "fixed(0)", "length in bytes must be 1 to"),
        ("id", "decimal", "ends too early: '(' missing"),
        ("id", "list<long", "ends too early: '>' missing"),
        ("id", "list<>", "unknown type '>'"),
        ("id", "map<long, string>", "must be string, not long"),
        ("id", "struct<a long>", "':' expected, 'long' found"),
        ("id", "struct<a: long, A: long>", "'a' and 'A' differ only in case"),
        ("id", "long?", "unexpected '?'"),
        ("id", "long long", "unexpected 'long' after the type"),
        ("id", "", "ends too early"),
        ("id", "time", "Spark cannot write it to Iceberg tables; use string"),
        ("1st", "long", "column name '1st'"),
        ("a-b", "long", "column name 'a-b'"),
        ("id", "long from", "ends too early"),
        ("id", "long from 1st", "the name of a field expected after from, 1 found"),
        ("id", 'long from ""', "unexpected '\"'"),
        ("id", "long from a from b", "unexpected 'from' after the type"),
        ("id", "from a long", "unknown type 'from'"),
        ("id", "struct<a: int from x, b: int from x>", "'a' and 'b' read the same field"),
        ("id", "struct<a: int, b: int from a>", "'a' and 'b' read the same field"),
    ],
)
def test_a_broken_column_says_what_is_wrong(name: str, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_column(name, text)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("long!", "c"),
        ('long! from "order-id"', "order-id"),
        ("long from 'a.b'", "a.b"),
        ("list<long> from Id", "Id"),
        (r'long from "a\"b"', 'a"b'),
        ('long from "größe 9>,:"', "größe 9>,:"),
        ('struct<from: long from "@x"> from "from"', "from"),
    ],
)
def test_a_column_may_read_a_field_with_another_name(text: str, field: str) -> None:
    column = parse_column("c", text)

    assert column.field == field
    assert column == parse_column("c", text.rpartition(" from ")[0] or text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("long", "long!"),
        ("long!", "long!"),
        ("long !", "long !"),
        ("decimal(9, 2) ", "decimal(9, 2)! "),
        ('long from "x"', 'long! from "x"'),
        ('long! from "x"', 'long! from "x"'),
        ('long from"x"', 'long! from"x"'),
        ('long\tfrom "x"', 'long!\tfrom "x"'),
        ("long\n from x", "long!\n from x"),
        ('long from " from "', 'long! from " from "'),
        ("long from 'a from b'", "long! from 'a from b'"),
        ('struct<a: long from "x">', 'struct<a: long from "x">!'),
        ('struct<a: long from "x"> from "y"', 'struct<a: long from "x">! from "y"'),
        ('list<struct<a: long! from "x">>', 'list<struct<a: long! from "x">>!'),
        ("map<string, long!>", "map<string, long!>!"),
    ],
)
def test_only_the_column_itself_becomes_required(text: str, expected: str) -> None:
    column = parse_column("c", text)

    required = require_column(text)

    assert required == expected
    assert parse_column("c", required) == replace(column, required=True)
    assert parse_column("c", required).source == column.source


@given(st.text(max_size=6) | st.from_regex("[_0-9a-z.-]{1,6}", fullmatch=True))
def test_what_an_error_says_to_write_for_a_name_can_be_read(name: str) -> None:
    try:
        parse_column(name, "long")
    except ValueError as error:
        suggested = re.search(
            "to read such a field, write `(.+?): {type: …, from", str(error), re.DOTALL
        )
        assert suggested or not name
        if suggested:
            source = json.dumps(name, ensure_ascii=False)
            assert parse_column(suggested[1], f"long from {source}").field == name


def test_columns_that_differ_only_in_case_are_refused() -> None:  # E11
    columns = (parse_column("id", "long"), parse_column("Id", "long"))

    with pytest.raises(ValueError, match="'id' and 'Id' differ only in case"):
        validate_distinct_names(columns)


@pytest.mark.parametrize(
    ("text", "ddl"),
    [
        ("long", "BIGINT"),
        ("timestamp", "TIMESTAMP_NTZ"),
        ("timestamptz", "TIMESTAMP"),
        ("decimal(9,2)", "DECIMAL(9,2)"),
        ("fixed(4)", "BINARY"),
        ("map<string, list<int>>", "MAP<STRING,ARRAY<INT>>"),
        ("struct<a: long!, b: date>", "STRUCT<`a`:BIGINT,`b`:DATE>"),
    ],
)
def test_spark_decodes_a_column_as_this_type(text: str, ddl: str) -> None:
    assert to_spark_ddl(parse_column("c", text).type) == ddl
