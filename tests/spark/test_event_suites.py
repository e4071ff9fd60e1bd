"""A suite judges what change events say of the source: no deletes, no values that did not come."""

import json

import pytest
from conftest import Lab
from faults.judges import assert_exactly_once
from support.change_events import Message, event, send

pytestmark = pytest.mark.stack
LARGE = '"__debezium_unavailable_value"'
EVENTS = [
    event("c", '{"id": 1, "doc": "large", "code": "a"}'),
    event("u", f'{{"id": 1, "doc": {LARGE}, "code": "b"}}'),
    event("d"),
    event("c", '{"id": 2, "doc": "x", "code": "c"}', key='{"id": 2}'),
]
EXPECTATIONS = [
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "doc"}},
    {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "code"}},
    # Great Expectations itself answers these, since one pass cannot count them.
    {"type": "expect_column_unique_value_count_to_be_between",
     "kwargs": {"column": "code", "min_value": 3, "max_value": 3}},
    {"type": "expect_column_proportion_of_unique_values_to_be_between",
     "kwargs": {"column": "doc", "min_value": 1}},
    {"type": "expect_table_row_count_to_equal", "kwargs": {"value": 4}},
]  # fmt: skip


def begin(lab: Lab, messages: list[Message], expectations: list[dict[str, object]]) -> None:
    suites = lab.folder / "expectations"
    suites.mkdir()
    document = {"name": "events", "expectations": expectations}
    (suites / "events.json").write_text(json.dumps(document))
    columns = {"id": "int!", "doc": "string", "code": "string"}
    lab.write_stream(
        value={"convert": "json", "transform": "flatten_debezium", "columns": columns},
        table={"name": lab.table},
        quality={"suite": "events"},
    )
    lab.create_topic(partitions=1)
    send(lab.stack.bootstrap, lab.topic, messages)


def test_a_delete_and_a_value_that_did_not_come_are_no_nulls_of_the_source(lab: Lab) -> None:
    begin(lab, EVENTS, EXPECTATIONS)

    lab.drain()

    assert_exactly_once(lab, "--values")


def test_a_batch_of_deletes_has_no_rows_to_check(lab: Lab) -> None:
    unique = "expect_column_proportion_of_unique_values_to_be_between"
    most = {"type": "expect_column_max_to_be_between", "kwargs": {"column": "id", "max_value": 9}}
    begin(lab, [event("d")], [most, {"type": unique, "kwargs": {"column": "id", "min_value": 1}}])

    lab.drain()

    assert_exactly_once(lab, "--values")


def test_a_null_that_the_source_has_blocks_the_batch(lab: Lab) -> None:
    begin(lab, [*EVENTS, event("u", '{"id": 2, "doc": null, "code": "d"}')], EXPECTATIONS[:1])

    blocked = lab.frazil("run", lab.stream)

    assert blocked.code == 1
    assert "1 of 3 unexpected" in blocked.err
