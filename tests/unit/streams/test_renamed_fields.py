"""A column reads a field with another name: the forms of `from`, and where it is refused."""

import pytest
from pydantic import ValidationError
from support.lake import make_stream

from frazil.streams.models import Stream

BY_FROM = {"order_id": {"type": "long!", "from": "order-id"}}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "long!", "from": "order-id"},
        'long! from "order-id"',
        "long! from 'order-id'",
    ],
    ids=["a mapping", "a text", "a text in single quotes"],
)
def test_a_column_names_its_field(given: object) -> None:
    stream = make_stream(value={"columns": {"order_id": given, "b": {"type": "int"}}})

    first, second = stream.parsed_columns
    assert (first.name, first.field, first.required) == ("order_id", "order-id", True)
    assert (second.name, second.field) == ("b", "b")


def test_a_stream_with_renamed_fields_can_be_dumped_and_loaded() -> None:
    columns = {**BY_FROM, "s": 'struct<a: int from "a b">', "q": {"type": "int", "from": '"\\é'}}
    stream = make_stream(value={"columns": columns})

    again = Stream.model_validate(stream.model_dump(by_alias=True, exclude_unset=True))

    assert [column.field for column in again.parsed_columns] == ["order-id", "s", '"\\é']
    assert again.content_hash == stream.content_hash
    assert again.content_hash != make_stream(value={"columns": {"order_id": "long!"}}).content_hash


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"value": {"columns": {"a": {"from": "x"}}}}, "write a type, or"),
        ({"value": {"columns": {"a": {"type": "int", "as": "x"}}}}, "write a type, or"),
        ({"value": {"columns": {"a": {"type": "int", "from": 5}}}}, "must be texts"),
        ({"value": {"columns": {"a": {"type": "int", "from": ""}}}}, "must be texts"),
        ({"value": {"columns": {"a": "int", "b": {"type": "int", "from": "a"}}}},
         "'a' and 'b' read the same field"),
        ({"value": {"columns": {"_file": {"type": "int", "from": "x"}}}}, "belongs to Iceberg"),
        ({"value": {"columns": {"value": "struct<a: int> from x"}, "transform": "none"}},
         "remove `from`"),
        ({"value": {"convert": "string", "columns": {"value": "string from x"}}},
         "requires `value: string`"),
        ({"key": {"convert": "json", "type": "struct<a: int> from x"}}, "remove `from`"),
    ],
)  # fmt: skip
def test_a_wrong_from_is_refused(sections: dict[str, object], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        make_stream(**sections)


KEY = {"convert": "json"}
EVENTS = {"transform": "flatten_debezium"}
RESERVED = [
    *((EVENTS, f"_frazil_{name}") for name in ("op", "unavailable", "source", "rest")),
    ({"rest": "others"}, "_frazil_rest"),
    ({}, "_frazil_rest"),
]


@pytest.mark.parametrize(("options", "field"), RESERVED)
def test_a_field_that_frazil_writes_itself_cannot_be_read(
    options: dict[str, object], field: str
) -> None:
    columns = {"id": "long", "x": {"type": "string", "from": field}}

    with pytest.raises(ValidationError, match=f"from '{field}': Frazil writes such a") as raised:
        make_stream(value={**options, "columns": columns})

    [error] = raised.value.errors()
    assert (*error["loc"], *error["ctx"]["error"].path) == ("value", "columns", "x")


@pytest.mark.parametrize("text", ["string from '_frazil_rest'", 'string!  from "_frazil_rest"'])
def test_no_column_reads_the_field_of_the_rest_however_it_is_written(text: str) -> None:
    for sections in ({"value": {"columns": {"x": text}}}, {"key": {**KEY, "columns": {"x": text}}}):
        with pytest.raises(ValidationError, match="Frazil writes such a field itself"):
            make_stream(**sections)


def test_other_fields_with_the_prefix_may_be_read() -> None:
    columns = {"id": "long", "x": {"type": "string", "from": "_frazil_x"}}

    for options in (EVENTS, {"rest": "others"}, {}):
        stream = make_stream(value={**options, "columns": columns})
        assert [each.field for each in stream.value.parsed_columns[:2]] == ["id", "_frazil_x"]
    plain = make_stream(value={"columns": {"x": {"type": "string", "from": "_frazil_op"}}})
    assert plain.value.parsed_columns[0].field == "_frazil_op"


def test_a_key_s_column_and_a_value_s_field_may_have_one_name() -> None:
    key = {"convert": "json", "type": 'struct<id: long from "order-id">'}
    columns = {"k": {"type": "string", "from": "key"}}

    assert len(make_stream(value={"columns": columns}, key=key).parsed_columns) == 2


def test_a_route_may_use_a_renamed_field() -> None:
    columns = {"kind": {"type": "string!", "from": "event-type"}}
    route = {"field": "kind", "tables": {"a": "demo.a"}}

    assert make_stream(value={"columns": columns}, route=route).route is not None
