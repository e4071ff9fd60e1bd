"""Bad input: each a typed error that names the next step, exit 1, nothing written."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import NewPartitions
from conftest import FRAZIL, Lab, good_values
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from support.forked import Run

from faults.batches import Batches
from frazil.iceberg.catalog import snapshot_summary
from frazil.ledger.recovery_point import keys
from frazil_stack.processes import find_processes

pytestmark = pytest.mark.stack


def assert_refused(run: Run, error: str, *facts: str) -> None:
    """See a typed error with its facts and a next step, and no stack trace."""
    assert run.code == 1, run.out + run.err
    assert f"\n{error}: " in f"\n{run.err}", run.err
    assert "\nNext: " in run.err
    assert "Traceback" not in run.err
    for fact in facts:
        assert fact in run.err, run.err


def assert_on_timeline(lab: Lab, error: str, *facts: str) -> None:
    """See the failure on the line of time, once, with its facts and the next step."""
    events = lab.frazil("timeline", "--stream", lab.stream, "--json").json
    assert isinstance(events, list)
    [event] = [event for event in events if event["kind"] == "failure"]
    assert event["text"].startswith(f"{error}: ")
    for fact in facts:
        assert fact in event["text"]
    assert event["facts"]["error"] == error
    assert event["facts"]["next_step"]


def snapshot_count(lab: Lab) -> int:
    """Count the snapshots of the lab's table; 0 where there is none."""
    return len(load_table(lab).metadata.snapshots) if table_exists(lab) else 0


def table_exists(lab: Lab) -> bool:
    """Return whether the lab's table is there."""
    return load_catalog("lake", **lab.stack.catalog_properties).table_exists(lab.table)


def load_table(lab: Lab) -> Table:
    """Load the lab's table afresh."""
    return load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)


def head_kind(lab: Lab) -> str | None:
    """Return what main's newest snapshot is."""
    head = load_table(lab).current_snapshot()
    assert head is not None
    return snapshot_summary(head.summary).get(keys.KIND)


def test_a_topic_that_does_not_exist(lab: Lab) -> None:
    assert_refused(lab.frazil("run", lab.stream), "UnknownTopic", lab.topic)
    assert snapshot_count(lab) == 0


def test_a_topic_without_data_is_no_error_and_makes_no_batch(lab: Lab) -> None:
    lab.create_topic()

    run = lab.frazil("run", lab.stream)

    assert run.code == 0
    assert "no new records" in run.out


@pytest.mark.core
def test_a_broker_that_is_down(lab: Lab) -> None:
    dead = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "127.0.0.1:9"}})

    run = lab.frazil("run", lab.stream, AIRFLOW_CONN_KAFKA_DEFAULT=dead)

    assert_refused(run, "KafkaUnavailable", "127.0.0.1:9: nothing listens", "bootstrap.servers")
    assert snapshot_count(lab) == 0


def test_a_catalog_that_is_down(lab: Lab) -> None:
    lab.create_topic()
    extra = {"catalog": "lake", "type": "rest", "uri": "http://127.0.0.1:9", "warehouse": "x"}
    dead = json.dumps({"conn_type": "iceberg", "extra": extra})

    run = lab.frazil("run", lab.stream, AIRFLOW_CONN_ICEBERG_DEFAULT=dead)

    assert_refused(run, "CatalogUnavailable", "nothing listens", "frazil stack up")
    assert not table_exists(lab)
    assert_on_timeline(lab, "CatalogUnavailable", "lake")


def test_a_spark_server_that_is_down(lab: Lab) -> None:
    lab.create_topic()
    lab.produce(good_values(5))
    dead = json.dumps({"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": 9})

    run = lab.frazil("run", lab.stream, AIRFLOW_CONN_SPARK_CONNECT_DEFAULT=dead)

    assert_refused(run, "SparkUnavailable", "frazil stack")
    assert (head_kind(lab), lab.rows) == (keys.BOOTSTRAP, 0)
    assert lab.frazil("run", lab.stream).code == 0


@pytest.mark.core
def test_d1_records_that_retention_took_stop_the_stream_until_somebody_accepts(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic()
    lab.produce(good_values(20))
    assert lab.frazil("run", lab.stream).code == 0
    lab.produce(good_values(40, start=20))
    admin = lab.admin
    admin.delete_records([TopicPartition(lab.topic, 0, 25)])[TopicPartition(lab.topic, 0)].result(
        15
    )
    before = snapshot_count(lab)

    run = lab.frazil("run", lab.stream)

    assert_refused(run, "RetentionGap", f"{lab.topic}:0:10-25", "frazil accept-gap")
    assert_on_timeline(lab, "RetentionGap", f"{lab.topic}:0:10-25")
    assert snapshot_count(lab) == before
    person = ("--by", "tests@example.org", "--reason", "test of retention")
    shown = lab.frazil("accept-gap", lab.stream)
    assert (shown.code, f"{lab.topic}:0:10-25" in shown.out) == (0, True)
    assert snapshot_count(lab) == before
    command = ("accept-gap", lab.stream, *person, "--no-dry-run", "--json")
    accepted = [lab.frazil(*command) for _ in range(2)]
    assert [(run.code, run.out) for run in accepted] == [(0, accepted[0].out)] * 2
    assert snapshot_count(lab) == before + 1
    lab.drain()
    assert lab.frazil("audit", lab.stream).code == 0
    assert batches.places() == {0: [*range(10), *range(25, 30)], 1: list(range(30))}
    assert batches.faults() == ()


@pytest.mark.storm(1)
@pytest.mark.parametrize("refill", [5, 60], ids=["shorter than before", "longer than before"])
def test_d4_d5_a_topic_that_was_deleted_and_created_again_is_read_once_somebody_accepts(
    lab: Lab, batches: Batches, refill: int
) -> None:
    lab.create_topic()
    lab.produce([*good_values(18), b"no json", b"no json"])
    lab.drain()
    admin = lab.admin
    admin.delete_topics([lab.topic])[lab.topic].result(15)
    lab.create_topic()
    lab.produce([b"no json", *good_values(refill - 1)])
    before = snapshot_count(lab)

    run = lab.frazil("run", lab.stream)

    assert_refused(run, "TopicRecreated", lab.topic, f"frazil accept-gap {lab.stream} --by")
    assert (snapshot_count(lab), lab.rows) == (before, 18)
    assert_on_timeline(lab, "TopicRecreated", lab.topic)
    person = ("--by", "tests@example.org", "--reason", "the topic was created again")
    accepted = lab.frazil("accept-gap", lab.stream, *person, "--no-dry-run")
    assert accepted.code == 0, accepted.err
    lab.drain()
    new = [divmod(number, 2) for number in range(1, refill)]
    new_places = {p: [offset for offset, partition in new if partition == p] for p in (0, 1)}
    assert batches.places() == {p: sorted([*range(9), *new_places[p]]) for p in (0, 1)}
    audited = lab.frazil("audit", lab.stream)
    assert audited.code == 0, audited.out + audited.err
    report = batches.audit()
    assert report.findings == ()
    assert report.facts["records_delivered"] == refill


def test_d7_a_partition_that_was_added_is_read_from_its_beginning(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic()
    lab.produce(good_values(20))
    assert lab.frazil("run", lab.stream).code == 0
    admin = lab.admin
    admin.create_partitions([NewPartitions(lab.topic, 3)])[lab.topic].result(15)
    lab.produce(good_values(30, start=20), partitions=3)

    lab.drain()

    snapshots = lab.frazil("snapshots", lab.stream, "--json").json
    assert isinstance(snapshots, list)
    assert snapshots[0]["ranges"][lab.topic]["2"] == [0, 10]
    assert lab.frazil("audit", lab.stream).code == 0
    assert batches.faults() == ()


def test_c6_a_table_that_was_dropped_and_created_again(lab: Lab) -> None:
    lab.create_topic()
    lab.produce(good_values(20))
    assert lab.frazil("run", lab.stream).code == 0
    catalog = load_catalog("lake", **lab.stack.catalog_properties)
    old = catalog.load_table(lab.table)
    catalog.drop_table(lab.table)
    catalog.create_table(lab.table, old.schema(), partition_spec=old.spec())

    run = lab.frazil("run", lab.stream)

    assert_refused(run, "TableRecreated", str(old.metadata.table_uuid), "--new-table")
    assert_on_timeline(lab, "TableRecreated", str(old.metadata.table_uuid))
    assert snapshot_count(lab) == 0


@pytest.fixture
def small_warehouse(lab: Lab, tmp_path: Path) -> Iterator[str]:
    """Return a catalog connection whose warehouse is a 64 MB file system."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(mount)], check=False
    )
    if done.returncode != 0:
        # A full warehouse cannot be made without a small file system; only root may mount one.
        pytest.skip("only root may mount the 64 MB file system that this test fills")  # not root
    extra = {"catalog": "lake", **lab.stack.catalog_properties, "warehouse": f"file://{mount}"}
    yield json.dumps({"conn_type": "iceberg", "extra": extra})
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_a_warehouse_that_fills(lab: Lab, small_warehouse: str, tmp_path: Path) -> None:
    lab.create_topic()
    lab.produce(good_values(500))
    prepared = lab.frazil("run", lab.stream, AIRFLOW_CONN_ICEBERG_DEFAULT=small_warehouse)
    before = snapshot_count(lab)
    filler = tmp_path / "small" / "filler"
    filler.write_bytes(os.urandom(shutil.disk_usage(filler.parent).free - 4096))

    run = lab.frazil("run", lab.stream, AIRFLOW_CONN_ICEBERG_DEFAULT=small_warehouse)

    assert prepared.code == 0, prepared.err
    assert_refused(run, "Storage", "space")
    assert snapshot_count(lab) == before
    filler.unlink()
    lab_run = lab.frazil("run", lab.stream, AIRFLOW_CONN_ICEBERG_DEFAULT=small_warehouse)
    assert lab_run.code == 0, lab_run.err


def run_up(home: Path, *before: str, **extra: str) -> Run:
    """Try to start a stack in a home of its own, perhaps by way of another command."""
    jars = os.environ.get("FRAZIL_JARS", str(Path(__file__).parents[2] / ".frazil" / "jars"))
    environment = {**os.environ, "FRAZIL_HOME": str(home), "FRAZIL_JARS": jars, **extra}
    command = [*before, str(FRAZIL), "stack", "up", "--only", "kafka"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    return Run(done.returncode, done.stdout, done.stderr)


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])

        run = run_up(tmp_path / "home", FRAZIL_KAFKA_PORT=port)

    assert_refused(run, "Stack", f"port {port}", f"process {os.getpid()}", "FRAZIL_KAFKA_PORT")
    assert find_processes(tmp_path / "home") == ()
    assert not (tmp_path / "home" / "stack" / "supervisord.pid").exists()
