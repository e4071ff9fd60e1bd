"""What a schema change is called, who decides it, and that the table then agrees."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import StructType as IcebergStruct

from frazil.iceberg.table_schema import build_table_schema, list_schema_differences, to_columns
from frazil.ledger.keys import KAFKA_COLUMN
from frazil.schemas.merge import merge_schema
from frazil.streams.column_types import Column, ColumnType, ListType, MapType, Primitive, StructType
from frazil.streams.column_types import parse_column as parse
from frazil.streams.models import SchemaPolicy
from frazil.streams.schema_changes import choose_policy, compare_columns, follow_columns

ALL = frozenset({"a", "b", "c", "d", "s", "l", "m"})

CASES = {
    "the same": ("a long", "a long", []),
    "a new column": ("a long", "a long, b string", ["add_column b: string"]),
    "a new required one": ("a long", "a long, b string!", ["add_required b: string!"]),
    "a new nested field": (
        "s struct<x:int>",
        "s struct<x:int,y:string>",
        ["add_column s.y: string"],
    ),
    "in a list": (
        "l list<struct<x:int>>",
        "l list<struct<x:int,y:int>>",
        ["add_column l.element.y: int"],
    ),
    "in a map": (
        "m map<string,struct<x:int>>",
        "m map<string,struct<x:long>>",
        ["widen m.value.x: int to long"],
    ),
    "int to long": ("a int", "a long", ["widen a: int to long"]),
    "float to double": ("a float", "a double", ["widen a: float to double"]),
    "more digits": (
        "a decimal(9,2)",
        "a decimal(12,2)",
        ["widen a: decimal(9,2) to decimal(12,2)"],
    ),
    "another scale": (
        "a decimal(9,2)",
        "a decimal(12,3)",
        ["change_type a: decimal(9,2) to decimal(12,3)"],
    ),
    "long to int": ("a long", "a int", ["narrow a: long to int"]),
    "fewer digits": (
        "a decimal(12,2)",
        "a decimal(9,2)",
        ["narrow a: decimal(12,2) to decimal(9,2)"],
    ),
    "string to binary, which PyIceberg would promote": (
        "a string",
        "a binary",
        ["change_type a: string to binary"],
    ),
    "int to double": ("a int", "a double", ["change_type a: int to double"]),
    "date to timestamp": ("a date", "a timestamp", ["change_type a: date to timestamp"]),
    "required becomes optional": ("a long!", "a long", ["relax a: long! to long"]),
    "optional becomes required: the stream's own matter": ("a long", "a long!", []),
    "gone": ("a long, b string", "a long", ["drop b: string"]),
    "renamed": ("a long, b string", "a long, c string", ["rename b to c"]),
    "renamed and of another type is two changes": (
        "a long, b string",
        "a long, c int",
        ["add_column c: int", "drop b: string"],
    ),
    "two of a type cannot be told apart": (
        "a long, b long",
        "c long, d long",
        ["add_column c: long", "add_column d: long", "drop a: long", "drop b: long"],
    ),
    "only the case differs": ("a long", "A long", ["rename a to A"]),
    "only the case differs, and wider": (
        "a int",
        "A long",
        ["rename a to A", "widen A: int to long"],
    ),
    "renamed inside": ("s struct<x:int,y:int>", "s struct<x:int,z:int>", ["rename s.y to z"]),
    "dropped inside": ("s struct<x:int,y:int>", "s struct<x:int>", ["drop s.y: int"]),
    "another order": ("a long, b string", "b string, a long", []),
    "a struct for a string": (
        "a string",
        "a struct<x:int>",
        ["change_type a: string to struct<x:int>"],
    ),
    "another key": ("m map<string,int>", "m map<string,long>", ["widen m.value: int to long"]),
}


def columns(text: str) -> tuple[Column, ...]:
    depth, parts, word = 0, [], ""
    for letter in text + ",":
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append(word.strip().split(" ", 1))
            word = ""
        else:
            word += letter
    return tuple(parse(name, kind) for name, kind in parts)


def merged(have: tuple[Column, ...], want: tuple[Column, ...]) -> tuple[Schema, Schema]:
    before = build_table_schema(have)
    changes = compare_columns(have, want, ALL)
    return before, merge_schema(before, before.highest_field_id, want, changes)


def own_columns(schema: Schema) -> tuple[Column, ...]:
    return to_columns(f for f in schema.fields if f.name != KAFKA_COLUMN)


@pytest.mark.parametrize("name", CASES)
def test_a_change_has_a_name(name: str) -> None:
    have, want, texts = CASES[name]

    assert [c.text for c in compare_columns(columns(have), columns(want), ALL)] == texts


@pytest.mark.parametrize("name", [n for n in CASES if n != "dropped inside"])
def test_a_table_that_followed_agrees_and_has_lost_no_column(name: str) -> None:
    have, want = (columns(text) for text in CASES[name][:2])
    before, after = merged(have, want)

    written = frozenset(column.name for column in want)
    assert not compare_columns(own_columns(after), want, written)
    assert not list_schema_differences(after, want)
    ids = {field.field_id for field in before.fields}
    assert ids <= {field.field_id for field in after.fields}
    assert after.fields[-1] == before.fields[-1]


def test_what_changes_type_is_set_aside_and_keeps_its_id() -> None:
    before, after = merged(columns("a long, b string"), columns("a string, b string"))

    assert [f.name for f in after.fields] == ["a", "a_v0", "b", KAFKA_COLUMN]
    assert after.find_field("a_v0").field_id == before.find_field("a").field_id
    assert after.find_field("a").field_id > before.highest_field_id


def test_a_new_column_stands_where_the_file_has_it() -> None:
    _, after = merged(columns("a long, b string"), columns("c int, a long, d int, b string"))

    assert [f.name for f in after.fields] == ["c", "a", "d", "b", KAFKA_COLUMN]


def test_a_column_of_others_is_no_drop() -> None:
    have, want = columns("a long, theirs string"), columns("a long")

    assert not compare_columns(have, want, frozenset({"a"}))
    assert compare_columns(columns("a long, theirs string!"), want, frozenset({"a"}))


def test_a_column_of_others_that_differs_in_case_is_taken_for_the_same() -> None:
    found = compare_columns(columns("Id long"), columns("id long"), frozenset())

    assert [change.kind for change in found] == ["rename"]


@pytest.mark.parametrize(
    ("name", "possible"),
    [("dropped inside", False), ("long to int", True), ("a new nested field", True)],
)
def test_inside_a_struct_nothing_can_be_set_aside(name: str, *, possible: bool) -> None:
    have, want, _ = CASES[name]
    found = compare_columns(columns(have), columns(want), ALL)

    assert all(change.is_possible for change in found) == possible


def test_the_strictest_policy_wins() -> None:
    policy = SchemaPolicy(add_column="auto", widen="quarantine", relax="fail", other="review")
    have = columns("a int, b string!, d long")

    def answer(want: str) -> str:
        return choose_policy(compare_columns(have, columns(want), ALL), policy)

    assert answer("a int, b string!, d long, c int") == "auto"
    assert answer("a long, b string!, d long, c int") == "quarantine"
    assert answer("a long, b string, d long") == "fail"
    assert answer("a int, b string!, d int, c int") == "review"


PRIMITIVE = st.sampled_from(
    [Primitive(n) for n in ("int", "long", "float", "double", "string", "binary", "date")]
    + [Primitive("decimal", p) for p in ((5, 2), (9, 2), (9, 4))]
)


def structs(inner: st.SearchStrategy[ColumnType]) -> st.SearchStrategy[StructType]:
    return st.dictionaries(st.sampled_from("xyz"), st.tuples(inner, st.booleans()), min_size=1).map(
        lambda d: StructType(tuple(Column(n, t, r) for n, (t, r) in sorted(d.items())))
    )


TYPES: st.SearchStrategy[ColumnType] = st.recursive(
    PRIMITIVE,
    lambda inner: (
        structs(inner)
        | st.builds(ListType, inner, st.booleans())
        | st.builds(MapType, st.just(Primitive("string")), inner, st.booleans())
    ),
    max_leaves=4,
)
COLUMNS = st.dictionaries(st.sampled_from("abcd"), st.tuples(TYPES, st.booleans()), min_size=1).map(
    lambda d: tuple(Column(n, t, r) for n, (t, r) in d.items())
)


def test_fields_of_a_struct_in_another_order_are_no_change_and_refused_by_name() -> None:
    x, y = (
        Column("x", Primitive("int"), required=False),
        Column("y", Primitive("int"), required=False),
    )
    have, want = ((Column("b", StructType(pair), required=False),) for pair in ((x, y), (y, x)))

    assert compare_columns(have, want, ALL) == ()
    (misfit,) = list_schema_differences(merged(have, have)[1], want)
    assert misfit.startswith("column b is struct<")


@given(have=COLUMNS, want=COLUMNS)
def test_whatever_is_possible_is_reached_in_one_step(
    have: tuple[Column, ...], want: tuple[Column, ...]
) -> None:
    changes = compare_columns(have, want, ALL)
    if not all(change.is_possible for change in changes):
        return
    before, after = merged(have, want)

    written = frozenset(column.name for column in want)
    assert not compare_columns(own_columns(after), want, written)
    assert not list_schema_differences(after, want)
    names = [f.name.lower() for f in after.fields]
    assert len(set(names)) == len(names)
    ids = list(list_ids(after.as_struct()))
    assert len(set(ids)) == len(ids)
    assert {f.field_id for f in before.fields} <= set(ids)


def list_ids(struct: IcebergStruct) -> itertools.chain[int]:
    return itertools.chain.from_iterable(
        (
            field.field_id,
            *(list_ids(field.field_type) if isinstance(field.field_type, IcebergStruct) else ()),
        )
        for field in struct.fields
    )


@given(have=COLUMNS, newest=COLUMNS)
def test_following_a_schema_loses_nothing_and_demands_nothing(
    have: tuple[Column, ...], newest: tuple[Column, ...]
) -> None:
    followed = follow_columns(have, newest)

    changes = compare_columns(have, followed, frozenset(column.name for column in have))
    assert {change.kind for change in changes} <= {"add_column", "widen", "relax"}
    assert [c.name for c in followed][: len(have)] == [c.name for c in have]
    assert {c.name for c in newest} <= {c.name for c in followed}
    assert follow_columns(followed, newest) == followed


def test_following_widens_relaxes_and_adds_also_inside() -> None:
    have = columns("id int!, at struct<x:int!,gone:string>, tags list<int>")
    newest = columns("tags list<long>, at struct<x:long,y:string!>, n string!")

    assert follow_columns(have, newest) == columns(
        "id int!, at struct<x:long,gone:string,y:string>, tags list<long>, n string"
    )


def test_following_leaves_what_does_not_fit() -> None:
    have = columns("a string, b long, c struct<x:int>")

    assert follow_columns(have, columns("a int, b int, c list<int>")) == have
