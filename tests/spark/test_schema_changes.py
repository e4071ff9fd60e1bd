"""A stream file changes between batches: rows of both forms are in the table, none is lost."""

import json

import pytest
from conftest import Lab
from faults.judges import assert_audited
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.stack]


@pytest.fixture
def begun(lab: Lab) -> Lab:
    """Return a lab whose first batch holds one record with every column."""
    lab.write_stream(
        value={"columns": {"id": "int!", "name": "string", "at": "struct<x:int>"}},
        table={"name": lab.table},
        quality={},
    )
    lab.create_topic(1)
    send(lab, {"id": 1, "name": "one", "at": {"x": 1}})
    run(lab)
    return lab


def send(lab: Lab, *documents: dict[str, object]) -> None:
    lab.produce([json.dumps(document).encode() for document in documents], partitions=1)


def run(lab: Lab) -> None:
    done = lab.frazil("run", lab.stream)
    assert done.code == 0, done.out + done.err


def load(lab: Lab) -> Table:
    return load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)


def read(lab: Lab, *names: str) -> list[tuple[object, ...]]:
    rows = sorted(load(lab).scan().to_arrow().to_pylist(), key=lambda r: r["_kafka"]["offset"])
    assert_audited(lab)
    return [tuple(row[name] for name in names) for row in rows]


@pytest.mark.core
def test_new_wider_and_optional_columns_come_by_themselves(begun: Lab) -> None:
    columns = {"id": "long", "name": "string", "at": "struct<x:long,y:string>", "city": "string"}
    begun.write_stream(value={"columns": columns})
    send(begun, {"id": 2**40, "at": {"x": 2**40, "y": "there"}, "city": "Bern"}, {"name": "no id"})

    run(begun)

    assert read(begun, "id", "name", "at", "city") == [
        (1, "one", {"x": 1, "y": None}, None),
        (2**40, None, {"x": 2**40, "y": "there"}, "Bern"),
        (None, "no id", None, None),
    ]


def test_an_audit_of_values_expects_null_in_rows_older_than_a_column(begun: Lab) -> None:
    send(begun, {"id": 2, "at": {"x": 2, "y": "unread"}, "city": "Thun"})
    run(begun)
    columns = {"id": "int!", "name": "string", "at": "struct<x:int,y:string>", "city": "string"}
    begun.write_stream(value={"columns": columns})
    send(begun, {"id": 3, "at": {"x": 3, "y": "there"}, "city": "Bern"})
    run(begun)

    assert compare_values(begun) == (3, 3, [])

    url = str(begun.stack.facts["spark_connect"]["url"])
    spark = SparkSession.builder.remote(url).create()
    for change, same in (("city = NULL WHERE id = 3", 2), ("city = 'Rome' WHERE id = 1", 1)):
        spark.sql(" ".join(("UPDATE", f"lake.{begun.table}", "SET", change))).collect()
        assert compare_values(begun) == (3, same, ["city"])
    spark.stop()


def compare_values(lab: Lab) -> tuple[int, int, list[str]]:
    """Return how many rows the audit compared and found equal, and the columns that differ."""
    report = lab.frazil("audit", lab.stream, "--values", "--json").json
    assert isinstance(report, dict), report
    found = report["values"]
    return found["rows"], found["same"], found["columns"]


def test_a_change_of_type_waits_is_accepted_and_reads_on_where_it_stood(begun: Lab) -> None:
    before = load(begun).metadata_location
    begun.write_stream(
        value={"columns": {"id": "string!", "name": "string", "at": "struct<x:int>"}}
    )
    send(begun, {"id": "two", "name": "two"}, {"name": "no id"})

    for command in ("plan", "run"):
        waiting = begun.frazil(command, begun.stream)
        assert waiting.code == 1
        assert "change_type id: int to string" in waiting.err
        assert f"frazil review-schema {begun.stream} --accept" in waiting.err
    assert load(begun).metadata_location == before
    shown = begun.frazil("review-schema", begun.stream, "--json").json
    assert isinstance(shown, dict)
    assert shown["next_offsets"] == {begun.topic: [1]}
    refused = begun.frazil("review-schema", begun.stream, "--accept")
    assert refused.code == 1
    assert "add --by YOU" in refused.err
    assert "add --reason WHY" in refused.err

    given = ("--by", "jane@example.org", "--reason", "ids are texts now")
    review = ("--review", str(shown["review"]))
    accepted = begun.frazil("review-schema", begun.stream, "--accept", *given, *review)
    assert accepted.code == 0, accepted.err
    run(begun)

    assert read(begun, "id", "id_v0", "name") == [
        (None, 1, "one"),
        ("two", None, "two"),
    ]
    letters = load_catalog("lake", **begun.stack.catalog_properties).load_table(
        f"{begun.table}__dead_letters"
    )
    assert letters.scan().to_arrow().num_rows == 1


@pytest.mark.parametrize(
    ("columns", "names", "rows"),
    [
        (
            {"id": "int!", "label": "string", "at": "struct<x:int>"},
            ("id", "label"),
            [(1, "one"), (2, "two")],
        ),
        ({"id": "int!", "at": "struct<x:int>"}, ("id", "name"), [(1, "one"), (2, None)]),
        (
            {"Id": "int!", "name": "string", "at": "struct<x:int>"},
            ("Id", "name"),
            [(1, "one"), (2, "two")],
        ),
    ],
    ids=["renamed", "dropped", "case"],
)
def test_what_a_person_accepts_keeps_the_values_that_are_there(
    begun: Lab, columns: dict[str, str], names: tuple[str, ...], rows: list[tuple[object, ...]]
) -> None:
    begun.write_stream(value={"columns": columns})
    send(begun, {"id": 2, "Id": 2, "name": "two", "label": "two"})
    assert begun.frazil("run", begun.stream).code == 1

    given = ("--by", "jane@example.org", "--reason", "agreed")
    assert begun.frazil("review-schema", begun.stream, "--accept", *given).code == 0
    run(begun)

    assert read(begun, *names) == rows


def test_a_no_keeps_the_stream_waiting_and_says_who(begun: Lab) -> None:
    begun.write_stream(value={"columns": {"id": "int!", "at": "struct<x:int>"}})
    given = ("--by", "joe@example.org", "--reason", "the name is needed")
    assert begun.frazil("review-schema", begun.stream, "--stop", *given).code == 0

    send(begun, {"id": 2})
    stopped = begun.frazil("run", begun.stream)

    assert stopped.code == 1
    assert "joe@example.org stopped the stream" in stopped.err
    assert "the name is needed" in stopped.err


def test_accepted_partitions_hold_the_rows_that_come_and_after_a_rewrite_all(begun: Lab) -> None:
    begun.write_stream(table={"name": begun.table, "partition_by": ["bucket(id, 4)", "name"]})
    send(begun, *({"id": number, "name": "one"} for number in range(2, 6)))
    waiting = begun.frazil("run", begun.stream)
    assert waiting.code == 1
    assert "repartition by bucket(id, 4), name, before by none" in waiting.err

    given = ("--by", "jane@example.org", "--reason", "readers ask by name")
    assert begun.frazil("review-schema", begun.stream, "--accept", *given).code == 0
    run(begun)

    assert read(begun, "id") == [(number,) for number in range(1, 6)]
    files = list(load(begun).inspect.files().to_pylist())
    assert [file["record_count"] for file in files if file["spec_id"] == 0] == [1]
    assert {file["partition"]["name"] for file in files if file["spec_id"] == 1} == {"one"}
    assert sum(file["record_count"] for file in files if file["spec_id"] == 1) == 4

    everything = ("--only", "compact", "--rewrite-all", "--no-dry-run")
    assert begun.frazil("maintain", begun.stream, *everything).code == 0
    assert {file["spec_id"] for file in load(begun).inspect.files().to_pylist()} == {1}
    assert read(begun, "id") == [(number,) for number in range(1, 6)]
