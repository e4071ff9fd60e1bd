"""Columns of the file with names that Frazil gives to its own are columns like any other."""

import pyarrow as pa
import pytest
from support.merge_model import make_stream

from frazil.iceberg.table_schema import build_table_schema
from frazil.state_tables.merge_rules import find_operation, hash_rules
from frazil.state_tables.tables import list_state_columns
from frazil.state_tables.trim_rules import sort_changes
from frazil.streams.models import Stream

COLUMNS = {"id": "long!", "op": "string", "at": "long"}
KEYED = {"table": {"name": "a.b", "mode": "upsert", "id_columns": ["id"], "tombstones": "delete"}}
KEYED |= {
    "key": {"convert": "json", "columns": {"id": "long!"}},
    "value": {"columns": {"v": "int"}},
}
EVENTS = {"value": {"transform": "flatten_debezium", "columns": {"id": "long!", "v": "int"}}}


def with_sections(**sections: object) -> Stream:
    content = make_stream().model_dump(by_alias=True, exclude_unset=True)
    return Stream.model_validate({**content, **sections})


def list_names(stream: Stream) -> list[str]:
    schema = build_table_schema(stream.parsed_columns)
    return [column.name for column in list_state_columns(stream, schema)]


def test_a_column_of_the_file_says_nothing_about_the_key_unless_the_file_says_so() -> None:
    stream = make_stream()
    value = stream.value.model_copy(update={"columns": {**COLUMNS, "_op": "string"}})
    unchecked = stream.model_copy(update={"value": value})

    assert find_operation(unchecked, ["id", "_op"]) is None


@pytest.mark.parametrize("sections", [KEYED, EVENTS], ids=["tombstones", "events"])
def test_the_column_that_the_options_add_says_what_happened(sections: dict[str, object]) -> None:
    stream = with_sections(**sections)

    assert find_operation(stream, stream.typed_columns) == "_op"
    assert list_names(stream) == [
        n for n in stream.typed_columns if n not in {"_op", "_unavailable"}
    ]


def test_deletes_stay_deletes_once_the_file_no_longer_adds_the_column() -> None:
    assert find_operation(make_stream(), ["id", "op", "_op", "_kafka"]) == "_op"


def test_the_state_has_a_column_of_the_file_that_is_named_as_one_of_events() -> None:
    stream = with_sections(value={"columns": {**COLUMNS, "_unavailable": "string"}})

    assert "_unavailable" in list_names(stream)
    assert hash_rules(stream) != hash_rules(make_stream())  # its older rows lack the column


@pytest.mark.parametrize("order", ["kafka", {"sequence_by": ["partition"]}])
def test_changes_are_sorted_by_columns_named_as_coordinates(order: object) -> None:
    table = {"name": "a.b", "mode": "upsert", "id_columns": ["offset", "topic"]}
    columns = {"offset": "long!", "topic": "string!", "partition": "long!"}
    if order == "kafka":
        columns["partition"] = "long"
    stream = with_sections(value={"columns": columns}, table=table, order=order)
    places = [{"topic": "t", "partition": 0, "offset": number} for number in range(3)]
    changes = pa.table(
        {"offset": [7, 5, 7], "topic": ["a"] * 3, "partition": [2, 9, 1], "_kafka": places}
    )

    indexes, is_last = sort_changes(stream, changes)

    assert indexes.to_pylist() == ([1, 0, 2] if order == "kafka" else [1, 2, 0])
    assert is_last.tolist() == [True, False, True]
