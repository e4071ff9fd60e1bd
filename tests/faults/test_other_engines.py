"""What another engine does to a running stream's table by SQL (docs/faults.md, C)."""

import re
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from conftest import Lab, Stack, good_values
from pyspark.sql import SparkSession

from faults.batches import Batches
from frazil.recovery.value_audit import audit_values

pytestmark = [pytest.mark.spark, pytest.mark.stack]
Sql = Callable[[str], object]
REPLACE = "CREATE OR REPLACE TABLE {table} USING iceberg AS SELECT * FROM {table} WHERE {kept}"
DELETE = "DELETE FROM {table} WHERE id = {id}"
UPDATE = "UPDATE {table} SET {change} WHERE id = {id}"
DECIDED = ("--by", "jane@example.org", "--reason", "undo", "--no-dry-run")


@pytest.fixture
def sql(stack: Stack) -> Iterator[Sql]:
    """Run statements in a Spark session of another program."""
    spark = SparkSession.builder.remote(str(stack.facts["spark_connect"]["url"])).create()
    yield lambda statement: spark.sql(statement).collect()
    spark.stop()


def publish(lab: Lab, batches: Batches, *counts: int) -> int:
    """Publish a batch for each count; return main's head."""
    for number, count in enumerate(counts):
        lab.produce(good_values(count, sum(counts[:number])))
        batches.publish()
    head = batches.table.current_snapshot()
    assert head is not None
    return head.snapshot_id


def refuse(lab: Lab, why: str) -> str:
    """Run, which must halt for this reason; return the error."""
    run = lab.frazil("run", lab.stream)
    assert run.code == 1
    assert why in run.err, run.err
    return run.err


def decide(lab: Lab, *arguments: str) -> str:
    """Run a command that must succeed; return its output."""
    run = lab.frazil(*arguments)
    assert run.code == 0, run.err
    return run.out


def read_ids(batches: Batches) -> list[int]:
    rows = batches.table.scan(selected_fields=("id",)).to_arrow()
    return sorted(rows["id"].to_pylist())


def test_i5_changed_values_are_found_by_an_audit_of_values_alone(
    lab: Lab, batches: Batches, sql: Sql
) -> None:
    lab.create_topic()
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    for number, value in enumerate([*good_values(20), b"no json"]):
        headers = [("trace", b"t")] if number == 3 else None
        producer.produce(lab.topic, value=value, partition=0, key=b"k", headers=headers)
    assert producer.flush(30) == 0
    batches.publish()
    table = f"lake.{lab.table}"
    sql(DELETE.format(table=table, id=1))  # the audit of coordinates finds that
    before = audit_values(batches.open(), window=8)
    assert (before.rows, before.same, before.holds) == (19, 19, True)

    sql(UPDATE.format(table=table, change="amount = -12345.5", id=7))
    sql(UPDATE.format(table=table, change="name = NULL", id=12))
    sql(UPDATE.format(table=table, change="_kafka.headers = array()", id=4))

    found = audit_values(batches.open(), window=8)
    assert (found.rows, found.same, found.changed) == (19, 16, 3)
    assert found.coordinates == tuple((lab.topic, 0, offset) for offset in (4, 7, 12))
    assert found.columns == ("_kafka.headers", "amount", "name")
    assert "12345" not in found.text
    shown = lab.frazil("audit", lab.stream, "--values", "--json")
    assert shown.code == 1
    assert isinstance(shown.json, dict)
    assert shown.json["values"]["changed"] == 3


def roll_back_an_erasure(lab: Lab, batches: Batches, sql: Sql) -> None:
    state_id = publish(lab, batches, 20, 10)
    erased = lab.frazil("erase", lab.stream, "--key", "id=3", *DECIDED)
    assert erased.code == 0, erased.err
    sql(f"CALL lake.system.rollback_to_snapshot('{lab.table}', {state_id})")
    named = re.findall(r"--to-snapshot (\d+)", refuse(lab, "erase snapshot"))
    decide(lab, "recover", lab.stream, "--to-snapshot", named[0], *DECIDED)
    assert read_ids(batches) == [n for n in range(30) if n != 3]


def replace_by_nothing(lab: Lab, batches: Batches, sql: Sql) -> None:
    publish(lab, batches, 20, 10)
    sql(REPLACE.format(table=f"lake.{lab.table}", kept="false"))
    assert "--reingest" in refuse(lab, "replaced the table")
    decide(lab, "recover", lab.stream, "--reingest", *DECIDED)
    batches.publish()
    assert read_ids(batches) == list(range(30))


def replace_by_half(lab: Lab, batches: Batches, sql: Sql) -> None:
    publish(lab, batches, 20, 10)
    sql(REPLACE.format(table=f"lake.{lab.table}", kept="_kafka.partition = 0"))
    assert "--reingest" in refuse(lab, "replaced the table")
    answer = decide(lab, "recover", lab.stream, "--reingest", *DECIDED, "--json")
    assert lab.frazil("audit", lab.stream).code == 1
    missing = re.findall(r"--offsets '([^']+)'", answer)[0]
    decide(lab, "replay", lab.stream, "--offsets", missing, "--no-dry-run")
    assert read_ids(batches) == list(range(30))


@pytest.mark.storm(0)  # the unit tests of every reason run always
@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("write.format.default", "orc", "property write.format.default is orc"),
        ("write.parquet.page-row-limit", "0", "it must be a whole number from 1"),
        ("write.location-provider.impl", "com.example.Places", "it is refused: other proass"),
        ("format-version", "3", "its Iceberg format version is 3"),
    ],
)
def test_e29_a_table_that_another_engine_made_unwritable_is_named_by_every_command(
    lab: Lab, batches: Batches, sql: Sql, key: str, value: str, reason: str
) -> None:
    lab.create_topic()
    publish(lab, batches, 4)
    sql(f"ALTER TABLE lake.{lab.table} SET TBLPROPERTIES ('{key}' = '{value}')")
    lab.produce(good_values(4, 4))

    for command in ("plan", "run", "status"):
        shown = lab.frazil(command, lab.stream)
        assert shown.code == (0 if command == "status" else 1)
        said = " ".join((shown.out + shown.err).split())
        assert reason in said
        assert "IncompatibleTable" in said

    if key == "format-version":
        return
    sql(f"ALTER TABLE lake.{lab.table} UNSET TBLPROPERTIES ('{key}')")
    batches.publish()
    assert read_ids(batches) == list(range(8))


@pytest.mark.storm(1)
@pytest.mark.parametrize("undo", [roll_back_an_erasure, replace_by_nothing, replace_by_half])
def test_c5_c6_the_command_that_a_halt_names_repairs_what_another_engine_did(
    lab: Lab, batches: Batches, sql: Sql, undo: Callable[[Lab, Batches, Sql], None]
) -> None:
    lab.create_topic()

    undo(lab, batches, sql)

    audited = lab.frazil("audit", lab.stream)
    assert audited.code == 0, audited.out
