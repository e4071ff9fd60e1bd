"""The columns that changes of a column's type set aside are found by field ids."""

from collections.abc import Mapping

import pytest
from pyiceberg.schema import Schema

from frazil.iceberg.table_schema import build_table_schema, to_columns
from frazil.ledger import keys
from frazil.schemas.merge import EarlierColumns, find_earlier_columns, merge_schema
from frazil.streams.column_types import Column, parse_column
from frazil.streams.schema_changes import compare_columns

LAST_ID = 60


def columns(text: str) -> tuple[Column, ...]:
    return tuple(parse_column(*part.strip().split(" ", 1)) for part in text.split(";"))


def evolve(table: Schema, want: tuple[Column, ...]) -> Schema:
    """Change a table's columns as an accepted change of the stream file does."""
    own = to_columns(field for field in table.fields if field.name != keys.KAFKA_COLUMN)
    found = compare_columns(own, want, frozenset(column.name for column in own))
    merged = merge_schema(table, max(table.highest_field_id, LAST_ID), want, found)
    return merged.model_copy(update={"schema_id": table.schema_id + 1})


def rename(table: Schema, old: str, new: str) -> Schema:
    """Rename a column as another engine does."""
    fields = [f.model_copy(update={"name": new}) if f.name == old else f for f in table.fields]
    return Schema(*fields, schema_id=table.schema_id + 1)


def make_history(*steps: str) -> dict[int, Schema]:
    """Make the schemas of a table; a step is its columns, or `old -> new` for a rename."""
    schemas = [build_table_schema(columns(steps[0]))]
    for step in steps[1:]:
        old, arrow, new = step.partition(" -> ")
        last = schemas[-1]
        schemas.append(rename(last, old, new) if arrow else evolve(last, columns(step)))
    return dict(enumerate(schemas))


def find(schemas: Mapping[int, Schema], path: str) -> EarlierColumns:
    return find_earlier_columns(schemas, schemas[max(schemas)], path)


@pytest.mark.parametrize(
    ("steps", "path", "found"),
    [
        (["a int", "a string"], "a", ("a_v0",)),
        (["a int", "a string", "a int"], "a", ("a_v1", "a_v0")),
        (["a int", "a string", "a -> b", "b long"], "b", ("b_v2", "a_v0")),
        (["s struct<x:int>", "s string", "s struct<x:int>"], "s.x", ("s_v0.x",)),
        (["a int; a_v0 string", "a string; a_v0 string"], "a", ("a_v0_2",)),
        (["customer int", "Customer string"], "Customer", ("Customer_v0",)),
        (["customer int", "customer string", "Customer string"], "Customer", ("customer_v0",)),
        (["a int", "a string", "a_v0 -> old_a"], "a", ("old_a",)),
        (["a int", "a string", "a_v0 -> a_v9"], "a", ("a_v9",)),
        (["a int", "a string", "a_v0 -> b", "a -> a_v0"], "a_v0", ("b",)),
    ],
)
def test_earlier_columns_are_found_whatever_their_names_are_now(
    steps: list[str], path: str, found: tuple[str, ...]
) -> None:
    assert find(make_history(*steps), path) == EarlierColumns(found)


@pytest.mark.parametrize(
    ("steps", "path"),
    [
        (["a string", "b string", "b string; a int", "b string; a string"], "b"),
        (["a string", "b string", "b string; a int"], "a"),
        (["a string; a_v0 string"], "a"),
        (["a string", "a string; a_v0 string"], "a"),
        (["a string", "a string; b int", "b -> a_v0"], "a"),
    ],
)
def test_a_column_that_was_not_set_aside_from_this_one_is_none_of_its_earlier_ones(
    steps: list[str], path: str
) -> None:
    assert find(make_history(*steps), path) == EarlierColumns()


@pytest.mark.parametrize(
    ("steps", "lost", "path", "found"),
    [
        (["a int", "a string"], [0], "a", "a_v0"),
        (["customer int", "Customer string"], [0], "Customer", "Customer_v0"),
        (["a int", "a string", "a string; b date"], [1], "a", "a_v0"),
        (["a int", "a string", "a_v0 -> old_a"], [1], "a", "old_a"),
        (["a int", "a string", "a_v0 -> old_a"], [0], "a", "old_a"),
        (["a int", "a -> a_v7", "a_v7 int; a string"], [], "a", "a_v7"),
    ],
)
def test_a_column_is_unproven_where_a_schema_is_lost_or_the_number_is_another(
    steps: list[str], lost: list[int], path: str, found: str
) -> None:
    schemas = make_history(*steps)
    known = {number: schema for number, schema in schemas.items() if number not in lost}

    assert find(known, path) == EarlierColumns((), (found,) if found else ())


def test_a_column_that_was_there_before_is_no_unproven_successor() -> None:
    steps = ["a string", "b string", "b string; a int", "b string; a string", "b -> a_v1"]
    schemas = make_history(*steps)
    del schemas[2]

    assert find(schemas, "a_v1") == EarlierColumns()
    assert find(schemas, "a") == EarlierColumns((), ("a_v2",))
