"""The columns of a state table are those of its change table, by field id, whatever happened."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from frazil.iceberg.table_schema import build_table_schema, to_columns
from frazil.ledger import keys
from frazil.schemas.merge import merge_schema
from frazil.state_tables.followed_schema import (
    FollowedSchema,
    decode_pairs,
    encode_pairs,
    follow_schema,
    list_former_names,
)
from frazil.streams.column_types import Column, ColumnType, parse_column
from frazil.streams.schema_changes import compare_columns

OWN = frozenset({keys.KAFKA_COLUMN})
NAMES = ("a", "b", "c", "d")
TYPES = ("int", "long", "string", "struct<x:int>", "struct<x:long,y:string>", "list<struct<x:int>>")


def columns(text: str) -> tuple[Column, ...]:
    pairs = [part.strip().split(" ", 1) for part in text.split(";")]
    return tuple(parse_column(name, kind) for name, kind in pairs)


def own_columns(schema: Schema) -> tuple[Column, ...]:
    return to_columns(f for f in schema.fields if f.name != keys.KAFKA_COLUMN)


def fields_of(changes: Schema) -> tuple[NestedField, ...]:
    return tuple(f for f in changes.fields if f.name != keys.KAFKA_COLUMN)


def evolve(table: Schema, want: Sequence[Column]) -> Schema:
    """Change a table's columns as an accepted change of the stream file does."""
    written = frozenset(column.name for column in own_columns(table))
    found = compare_columns(own_columns(table), want, written)
    merged = merge_schema(table, table.highest_field_id, want, found)
    return merged.model_copy(update={"schema_id": table.schema_id + 1})


def by_id(*schemas: Schema) -> dict[int, Schema]:
    return {schema.schema_id: schema for schema in schemas}


def follow(state: Schema, pairs: dict[int, int], changes: Schema) -> FollowedSchema:
    return follow_schema(state, fields_of(changes), pairs, state.highest_field_id, OWN)


def strip(column: Column) -> tuple[str, ColumnType]:
    return column.name, column.type


@pytest.mark.parametrize(
    "steps",
    [
        ("a long; b string", "c long; b string"),  # a rename
        ("a long", "a string"),
        ("a long", "a string", "a long"),
        ("a int; b long", "a long; b long", "a long; b string; c date"),
        ("s struct<x:int,y:string>", "s struct<x:long,z:string>"),
        ("l list<struct<x:int>>; a int", "l list<struct<x:int,y:date>>; a int"),
        ("m map<string,struct<x:int>>", "m map<string,struct<x:long,y:int>>"),
        ("a long; b string", "b string", "b string; a long"),
    ],
)
@pytest.mark.parametrize("merges_between", [True, False])
def test_the_state_has_the_columns_of_its_changes(
    steps: tuple[str, ...], *, merges_between: bool
) -> None:
    changes = state = build_table_schema(columns(steps[0]))
    followed = follow(state, {}, changes)
    assert followed.schema.fields == state.fields
    for step in steps[1:]:
        changes = evolve(changes, columns(step))
        if merges_between:
            followed = follow(followed.schema, dict(followed.pairs), changes)
    followed = follow(followed.schema, dict(followed.pairs), changes)

    assert [*map(strip, own_columns(followed.schema))] == [*map(strip, own_columns(changes))]
    again = follow(followed.schema, dict(followed.pairs), changes)
    assert again.schema.fields == followed.schema.fields
    assert again.added == ()


@given(st.data())
def test_a_column_of_the_state_follows_one_of_the_changes_for_ever(data: st.DataObject) -> None:
    kinds = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TYPES), min_size=1)
    steps = data.draw(st.lists(kinds, min_size=2, max_size=6))
    wanted = [tuple(parse_column(n, k) for n, k in step.items()) for step in steps]
    changes = build_table_schema(wanted[0])
    followed = follow(changes, {}, changes)
    seen = [dict(followed.pairs)]
    for want in wanted[1:]:
        if any(not c.is_possible for c in compare_columns(own_columns(changes), want, OWN)):
            continue
        changes = evolve(changes, want)
        if data.draw(st.booleans()):
            followed = follow(followed.schema, dict(followed.pairs), changes)
            seen.append(dict(followed.pairs))
    followed = follow(followed.schema, dict(followed.pairs), changes)
    seen.append(dict(followed.pairs))

    assert {*map(strip, own_columns(followed.schema))} == {*map(strip, own_columns(changes))}
    for before, after in pairwise(seen):
        assert before.items() <= after.items()
    assert len({*followed.pairs.values()}) == len(followed.pairs)
    for field in fields_of(changes):
        mine = followed.schema.find_field(followed.pairs[field.field_id])
        assert mine.name == field.name
    assert decode_pairs(encode_pairs(followed.pairs)) == followed.pairs


def test_a_column_that_someone_added_to_the_state_gives_way() -> None:
    changes = build_table_schema(columns("id long"))
    followed = follow(changes, {}, changes)
    added = NestedField(50, "note", StringType(), required=True)
    state = Schema(*followed.schema.fields, added)

    kept = follow(state, dict(followed.pairs), changes).schema
    paired = follow(state, dict(followed.pairs), evolve(changes, columns("id long; note string")))
    moved = follow(state, dict(followed.pairs), evolve(changes, columns("id long; note date")))

    assert kept.find_field("note").optional
    assert paired.schema.find_field("note").field_id == 50
    assert moved.schema.find_field("note_v0").field_id == 50
    assert moved.added == ("note",)


def test_an_older_schema_of_the_changes_narrows_no_column() -> None:
    old = build_table_schema(columns("a int; l list<int>"))
    followed = follow(old, {}, old)
    wider = evolve(old, columns("a long; l list<long>"))
    newer = follow(followed.schema, dict(followed.pairs), wider)

    back = follow(newer.schema, dict(newer.pairs), old).schema

    assert back.find_field("a").field_type == LongType()
    assert isinstance(back.find_field("l").field_type, ListType)
    assert back.find_field("l.element").field_type == LongType()


def test_a_new_column_has_ids_of_the_state() -> None:
    changes = build_table_schema(columns("id long"))
    followed = follow(changes, {}, changes)
    wider = evolve(changes, columns("id long; s struct<x:int,y:list<string>>"))

    schema = follow_schema(
        followed.schema, fields_of(wider), followed.pairs, last_column_id=70, own=OWN
    ).schema

    added = schema.find_field("s")
    assert (added.field_id, added.optional) == (71, True)
    assert isinstance(added.field_type, StructType)
    assert [f.field_id for f in added.field_type.fields] == [72, 73]
    assert schema.find_field("s.x").field_type == IntegerType()
    assert schema.find_field("s.y.element").field_id == 74


def test_former_names_are_those_of_renamed_columns_that_no_other_column_has() -> None:
    first = build_table_schema(columns("a long; b long; c long"))
    renamed = evolve(first, columns("a long; d long; c long"))
    reused = evolve(renamed, columns("a long; d long; c long; b long"))

    assert list_former_names(by_id(first, renamed), renamed) == {"b": ("d",)}
    assert list_former_names(by_id(first, renamed, reused), reused) == {}
    assert list_former_names(by_id(first), first) == {}


def test_the_name_of_a_replaced_column_is_that_of_both() -> None:
    first = build_table_schema(columns("a long; b long"))
    second = evolve(first, columns("a string; b long"))
    third = evolve(second, columns("a list<int>; b long"))
    every = by_id(first, second, third)

    assert list_former_names(by_id(first, second), second) == {"a": ("a", "a_v0")}
    assert list_former_names(every, third) == {"a": ("a", "a_v0", "a_v1")}
    assert list_former_names(every, third, written=("a", "a_v1", "b")) == {"a": ("a", "a_v0")}


def rename(table: Table, old: str, new: str) -> None:
    with table.update_schema() as update:
        update.rename_column(old, new)


def replace(table: Table, old: str, new: str, kind: IcebergType) -> None:
    """Change a column's type as an accepted change of the stream file does."""
    rename(table, old, f"{new}_v{table.schema().schema_id}")
    with table.update_schema() as update:
        update.add_column(new, kind)


def former(table: Table, *written: str) -> dict[str, tuple[str, ...]]:
    return list_former_names(table.schemas(), table.schema(), written)


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    catalog = SqlCatalog("c", uri="sqlite:///:memory:", warehouse=str(tmp_path))
    catalog.create_namespace("n")
    yield catalog.create_table("n.t", Schema(NestedField(1, "doc", StringType())))
    catalog.close()


def test_a_renamed_column_whose_type_had_changed_means_the_one_set_aside_too(table: Table) -> None:
    replace(table, "doc", "doc", BinaryType())
    rename(table, "doc", "body")
    meant = ("body", "doc_v0")

    assert former(table, "body") == {"doc": meant, "body": meant}

    rename(table, "doc_v0", "old")
    meant = ("body", "old")

    assert former(table, "body") == dict.fromkeys(("doc", "doc_v0", "body"), meant)


def test_a_change_of_case_and_type_means_both_columns_by_both_names(table: Table) -> None:
    replace(table, "doc", "Doc", BinaryType())
    meant = ("Doc", "Doc_v0")

    assert former(table, "Doc") == {"doc": meant, "Doc": meant}


def test_a_column_renamed_before_another_got_its_name_is_not_meant_by_it(table: Table) -> None:
    rename(table, "doc", "body")
    with table.update_schema() as update:
        update.add_column("doc", LongType())
    replace(table, "doc", "doc", StringType())

    assert former(table, "body", "doc") == {"doc": ("doc", "doc_v2")}
