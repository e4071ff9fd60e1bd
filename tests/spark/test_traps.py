"""The traps that we hit ourselves, each on the real parts, beside the way that avoids it.

docs/protocol.md, "Traps". Those of PyIceberg alone are in tests/unit.
"""

import json
import re
import secrets
from functools import cached_property
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions
from conftest import Lab, Stack
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from support.lake import Lake, make_stream, rows_of
from support.stack_lake import let_days_pass

import stage_batch as job
from frazil.connections.clients import find_catalog
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.ingest.messages import StageRequest
from frazil.ledger.recovery_point import walk_ancestors
from frazil_spark.decode.sources import read_ranges

pytestmark = [pytest.mark.core, pytest.mark.spark, pytest.mark.stack]

REPO = Path(__file__).parents[2]


class SparkLake(Lake):
    """A stream of a test's own in the embedded stack's catalog."""

    @cached_property
    def store(self) -> TableStore:
        return TableStore(find_catalog("iceberg_default"))

    @property
    def name(self) -> str:
        return f"lake.{self.stream.table.name}"

    @property
    def head(self) -> int:
        """Return main's head."""
        return self.table.metadata.refs["main"].snapshot_id


@pytest.fixture
def lake(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SparkLake:
    """Begin a stream with three rows."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    name = f"t{secrets.token_hex(4)}"
    stream = make_stream(name, source={"topic": "orders"}, table={"name": f"traps.{name}"})
    lake = SparkLake(tmp_path, stream)
    lake.begin()
    lake.ingest(2, 1)
    return lake


def rows_to_append(spark: SparkSession, lake: SparkLake) -> DataFrame:
    """Take the rows that are there: they fit."""
    return spark.table(lake.name)


def request_for(lab: Lab, ranges: dict[int, tuple[int, int]], branch: str = "b") -> StageRequest:
    """Ask to stage ranges of the lab's topic."""
    return StageRequest(
        catalog="lake",
        table=lab.table,
        branch=branch,
        stream=lab.stream,
        batch_id="b",
        ranges={lab.topic: ranges},
        kafka_options={"kafka.bootstrap.servers": lab.stack.bootstrap},
        convert="json",
        columns={"id": "long!", "name": "string", "amount": "double"},
        isolation="read_committed",
    )


def test_the_branch_option_is_ignored_and_writes_to_main(
    spark: SparkSession, lake: SparkLake
) -> None:
    create_branch(lake.store, lake.stream.table.name, "aside")
    head = lake.head

    rows_to_append(spark, lake).writeTo(lake.name).option("branch", "aside").append()

    assert lake.head != head, "Iceberg learnt to obey: the option could be used"
    assert lake.table.metadata.refs["aside"].snapshot_id == head


def test_spark_loads_what_was_committed_by_a_clock_that_was_set_back(
    spark: SparkSession, lake: SparkLake
) -> None:
    let_days_pass(lake, -1)
    table = lake.table
    added = commits.build_append(table, {})
    main = commits.set_branch(commits.MAIN, added.snapshot.snapshot_id)

    commits.commit(lake.store.catalog, table, commits.require_uuid(table), [added, main])

    # Without the snapshot's later time: "[BUG] Expected sorted snapshot log entries".
    assert spark.table(lake.name).count() == 3


def test_the_branchs_identifier_leaves_main_alone(spark: SparkSession, lake: SparkLake) -> None:
    create_branch(lake.store, lake.stream.table.name, "aside")
    head = lake.head
    request = StageRequest.model_construct(branch="aside", write_options={})

    job.write(rows_to_append(spark, lake), lake.name, request)

    assert lake.head == head
    staged = lake.table.snapshot_by_id(lake.table.metadata.refs["aside"].snapshot_id)
    assert staged is not None
    assert staged.parent_snapshot_id == head


def test_snapshot_properties_that_spark_writes_are_lower_cased(
    spark: SparkSession, lake: SparkLake
) -> None:
    writer = rows_to_append(spark, lake).writeTo(lake.name)

    writer.option("snapshot-property.Frazil.State.Orders", "x").append()

    summary = lake.history.entries[lake.head].summary
    assert summary["frazil.state.orders"] == "x"
    assert "Frazil.State.Orders" not in summary


def test_appends_of_pyiceberg_re_base_by_themselves_and_double_a_range(lake: SparkLake) -> None:
    plan = lake.plan(4, 1)
    first, second = lake.table, lake.table
    rows = rows_of(first, plan)

    first.append(rows)
    second.append(rows)

    assert lake.coordinates().count((0, 2)) == 2, "PyIceberg no longer retries on another head"


def test_spark_refuses_a_missing_branch_and_pyiceberg_begins_it_without_a_parent(
    spark: SparkSession, lake: SparkLake
) -> None:
    head = lake.head

    with pytest.raises(Exception, match=r"Cannot use branch \(does not exist\): aside"):
        rows_to_append(spark, lake).writeTo(f"{lake.name}.branch_aside").append()
    lake.table.append(rows_of(lake.table, lake.plan(4, 1)), branch="aside")

    begun = lake.table.metadata.refs["aside"].snapshot_id
    assert lake.history.entries[begun].parent_id is None
    assert lake.head == head


def test_a_partition_that_appears_between_plan_and_read_breaks_subscribe_and_not_assign(
    spark: SparkSession, lab: Lab
) -> None:
    lab.create_topic(partitions=1)
    lab.produce([b"{}"] * 3, partitions=1)
    ours = read_ranges(spark, request_for(lab, {0: (0, 3)}))
    theirs = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", lab.stack.bootstrap)
        .option("subscribe", lab.topic)
        .option("startingOffsets", json.dumps({lab.topic: {"0": 0}}))
        .option("endingOffsets", json.dumps({lab.topic: {"0": 3}}))
        .load()
    )

    admin = lab.admin
    admin.create_partitions([NewPartitions(lab.topic, 2)])[lab.topic].result(15)

    assert ours.count() == 3
    with pytest.raises(Exception, match=r"(?i)partition"):
        theirs.count()


def test_an_empty_range_observes_nulls_and_the_result_says_zero(
    spark: SparkSession, lab: Lab
) -> None:
    lab.create_topic(partitions=1)
    lab.produce([b'{"id": 1}'], partitions=1)
    assert lab.frazil("run", lab.stream).code == 0
    spark.sql(f"ALTER TABLE lake.{lab.table} CREATE BRANCH `empty`")
    observation = Observation()
    request = request_for(lab, {0: (1, 1)}, "empty")
    empty = read_ranges(spark, request).observe(observation, F.sum("offset").alias("sum"))

    empty.collect()
    result = job.stage_batch(spark, request)

    assert observation.get == {"sum": None}
    assert (result.rows_read, result.rows_good, result.rows_invalid) == (0, 0, 0)
    counts = result.partitions[0]
    assert (counts.rows_read, counts.rows_good) == (0, 0)


def test_pyiceberg_erases_the_parent_of_what_outlives_an_expiry_and_the_archive_restores_it(
    lake: SparkLake,
) -> None:
    lake.ingest(3, 2)
    walk = [entry.snapshot_id for entry in walk_ancestors(lake.history)]
    archive_all_entries(lake.store, lake.history)

    table = lake.table
    gone = RemoveSnapshotsUpdate(snapshot_ids=walk[1:])
    commits.commit(lake.store.catalog, table, commits.require_uuid(table), [gone])

    assert lake.history.entries[walk[0]].parent_id is None
    assert [e.snapshot_id for e in walk_ancestors(lake.history, beyond_metadata=False)] == walk[:1]
    assert [entry.snapshot_id for entry in walk_ancestors(lake.history)] == walk


def test_spark_keeps_the_parent_of_what_outlives_an_expiry(
    spark: SparkSession, lake: SparkLake
) -> None:
    lake.ingest(3, 2)
    first, second = [entry.snapshot_id for entry in walk_ancestors(lake.history)][:2]

    spark.sql(
        f"CALL lake.system.expire_snapshots(table => '{lake.stream.table.name}', "
        f"snapshot_ids => array({second}L))"
    ).collect()

    assert second not in lake.history.entries
    assert lake.history.entries[first].parent_id == second


def test_nothing_lets_spark_merge_schemas() -> None:
    sources = [*(REPO / "spark_jobs").rglob("*.py"), *(REPO / "include").rglob("*.*")]
    sources = [path for path in sources if path.suffix != ".pyc"]
    option = re.compile(
        rb"[\"']merge-?schema[\"']|accept-any-schema|withSchemaEvolution", re.IGNORECASE
    )

    assert len(sources) > 50
    found = [path for path in sources if path.is_file() and option.search(path.read_bytes())]
    assert found == [REPO / "include/frazil/streams/table_properties.py"]  # refuses it
