"""Batches on a real standalone cluster: a master, two workers, and what may happen to them."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import FRAZIL, Lab, good_values
from faults.judges import assert_audited
from support.spark_cluster import Cluster, find_commands, read_all, wait_until
from support.stack_lake import StackLake, ingest_up_to, rows_up_to

from frazil.maintenance.tables import new_request, run_table_job

pytestmark = pytest.mark.stack
MARK = "unlike-anything-else-4711"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        made.start(workers=2)
        yield made
    finally:
        made.stop()


@pytest.fixture
def submitted(lab: Lab) -> Lab:
    """Return the lab with the other engine; nothing else changes."""
    lab.write_stream(batch={"engine": "submit"})
    lab.create_topic(partitions=4)
    return lab


def start_run(lab: Lab, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [str(FRAZIL), "run", lab.stream, "--json"],
        env=lab.environment(**environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_executor(
    cluster: Cluster, run: "subprocess.Popen[str]", worker: str, earlier: set[Path]
) -> None:
    """Wait until a worker has an executor for the run, which must not end before."""

    def has_begun() -> bool:
        assert run.poll() is None, run.communicate()
        return bool(cluster.list_applications(worker) - earlier)

    wait_until(has_begun, f"an executor on {worker}")


def test_a_batch_lands_once_though_a_worker_dies_in_the_middle(
    cluster: Cluster, submitted: Lab
) -> None:
    submitted.produce([*good_values(4000), b"no json"], partitions=4)
    earlier = cluster.list_applications("worker0")
    both = {  # no task begins before each worker has an executor
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }

    # as in a process that had a session of Spark Connect before
    left = {"SPARK_CONNECT_MODE_ENABLED": "1"}
    run = start_run(submitted, AIRFLOW_CONN_SPARK_DEFAULT=cluster.connection(**both), **left)
    wait_for_executor(cluster, run, "worker0", earlier)
    wait_until(lambda: "Running task" in cluster.read_logs("worker0"), "a task of the batch")
    cluster.kill("worker0")
    out, err = run.communicate()
    cluster.add_worker("worker0")

    assert run.returncode == 0, err
    assert '"outcome": "PUBLISHED"' in out
    assert "Lost executor" in err
    assert submitted.rows == 4000
    assert_audited(submitted)


def test_secrets_are_in_no_command_line_no_event_log_and_no_executors_log(
    cluster: Cluster, submitted: Lab, tmp_path: Path
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    logged = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": f"file:{events}",
    }
    submitted.produce([*good_values(10), b"no json"], partitions=4)
    earlier = cluster.list_applications("worker1")

    run = start_run(
        submitted,
        AIRFLOW_CONN_SPARK_DEFAULT=cluster.connection(**logged),
        AIRFLOW_CONN_KAFKA_DEFAULT=kafka_with_password(submitted),
        AIRFLOW_CONN_ICEBERG_DEFAULT=catalog_with_secret(submitted),
    )
    wait_for_executor(cluster, run, "worker1", earlier)
    wait_until(lambda: cluster.read_logs("worker1"), "an executor")
    seen = find_commands(MARK)
    out, err = run.communicate()

    assert run.returncode == 0, err
    told = read_all(events)
    assert "spark.sql.catalog.lake.credential" in told
    assert MARK not in told + out + err + cluster.read_logs("worker0")
    assert MARK not in cluster.read_logs("worker1")
    assert seen == []


@pytest.mark.long
def test_a_killed_run_leaves_no_driver_and_the_next_one_lands_the_batch(
    cluster: Cluster, submitted: Lab
) -> None:
    connection = cluster.connection()
    submitted.produce(good_values(500), partitions=4)

    run = start_run(submitted, AIRFLOW_CONN_SPARK_DEFAULT=connection)
    wait_until(cluster.find_drivers, "a driver")
    run.kill()
    run.communicate()
    wait_until(lambda: not cluster.find_drivers(), "the driver's end")
    again = submitted.frazil("run", submitted.stream, AIRFLOW_CONN_SPARK_DEFAULT=connection)

    assert again.code == 0, again.err
    assert submitted.rows == 500
    assert_audited(submitted)


def test_a_cluster_without_workers_ends_in_a_typed_error(submitted: Lab, tmp_path: Path) -> None:
    lonely = Cluster(tmp_path)
    lonely.start(workers=0)
    submitted.produce(good_values(5), partitions=4)
    connection = lonely.connection(**{"executor-wait-seconds": "2"})

    run = submitted.frazil("run", submitted.stream, "--json", AIRFLOW_CONN_SPARK_DEFAULT=connection)
    lonely.stop()

    assert run.code == 1
    assert run.json["error"] == "SparkUnavailable"  # type: ignore[call-overload, index]
    assert "no executor works for this job" in run.out
    assert submitted.rows == 0


def test_maintenance_runs_on_the_cluster_too(
    cluster: Cluster, lake: StackLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", cluster.connection())
    ingest_up_to(lake, 1, 2, 3)
    batch = lake.stream.batch.model_copy(update={"engine": "submit"})
    work = replace(lake.work, stream=lake.stream.model_copy(update={"batch": batch}))
    wanted = {"action": "compact", "rewrite_all": True, "dry_run": False}
    request = new_request(work, lake.stream.table.name).model_copy(update=wanted)

    result = run_table_job(work, "compact_table", request)

    assert result.counts["rewritten_data_files_count"] == 3
    assert lake.coordinates() == rows_up_to(3)


def kafka_with_password(lab: Lab) -> str:
    """Return a connection with a password for Java's client only, which the broker ignores."""
    login = f'org.apache.kafka.common.security.plain.PlainLoginModule required password="{MARK}";'
    extra = {"bootstrap.servers": lab.stack.bootstrap, "java.sasl.jaas.config": login}
    return json.dumps({"extra": extra})


def catalog_with_secret(lab: Lab) -> str:
    """Return a connection with a secret that only Spark's catalog gets; it has no use for it."""
    secret = {"spark.credential": MARK}
    extra = {"catalog": "lake", **lab.stack.catalog_properties, **secret}
    return json.dumps({"extra": extra})
