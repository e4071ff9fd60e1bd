"""An Airflow that Frazil did not set up: its own executor, no pools, no settings of the stack.

It has the DAGs, the plugin, connections and the modules on its path, and an address of its own.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import stamina
from conformance.sites import AIRFLOW, PARTS, START_SECONDS, log_in, name_executor, start_part
from conftest import REPO, Lab, Stack, good_values
from faults.rest_catalog import find_free_port

from e2e.conftest import Airflow
from frazil.errors import StackError

pytestmark = pytest.mark.stack

RECORDS = 100


def describe_connections(stack: Stack) -> dict[str, str]:
    """Return the connections of the stack's parts as Airflow reads them."""
    spark = str(stack.facts["spark_connect"]["url"])
    host, _, port = spark.rpartition(":")
    contents: dict[str, object] = {
        "KAFKA": {"conn_type": "kafka", "extra": {"bootstrap.servers": stack.bootstrap}},
        "ICEBERG": {
            "conn_type": "iceberg",
            "extra": {"catalog": "lake", **stack.catalog_properties},
        },
        "SPARK_CONNECT": {"conn_type": "spark_connect", "host": host, "port": int(port)},
    }
    return {f"AIRFLOW_CONN_{name}_DEFAULT": json.dumps(each) for name, each in contents.items()}


def make_environment(
    stack: Stack, streams: Path, home: Path, extra: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a site: this one without Airflow's and Frazil's variables."""
    port = find_free_port()
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "FRAZIL"))}
    return {
        **kept,
        **describe_connections(stack),
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPO / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        # Another Airflow may have the default port.
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "FRAZIL_STREAMS": str(streams),
        "PYTHONPATH": f"{REPO / 'include'}:{REPO / 'spark_jobs'}",
        **extra,
    }


@contextmanager
def start_airflow(stack: Stack, streams: Path, home: Path, **extra: str) -> Iterator[Airflow]:
    """Start three parts of Airflow, each in a process group of its own, and end them."""
    environment = make_environment(stack, streams, home, extra)
    home.mkdir()
    migrate = [AIRFLOW, "db", "migrate"]
    subprocess.run(migrate, env=environment, cwd=home, check=True, capture_output=True)
    assert name_executor(environment) == "LocalExecutor"
    with ExitStack() as parts:
        for words in PARTS:
            parts.enter_context(start_part(words, environment))
        yield Airflow(log_in(environment), streams, home, environment["AIRFLOW__API__BASE_URL"])


@stamina.retry(on=StackError, attempts=5)
def unpause(airflow: Airflow, dag: str) -> None:
    """Unpause a DAG; the API answers 500 while another part of Airflow writes to SQLite."""
    airflow.api.request("PATCH", f"/dags/{dag}", {"is_paused": False})


@pytest.mark.core
def test_a_stock_airflow_publishes_a_batch(lab: Lab, tmp_path: Path) -> None:
    dag = f"ingest__{lab.stream}"
    lab.create_topic()
    lab.produce(good_values(RECORDS))
    lab.write_stream(batch={"schedule": "0 0 1 1 *"})  # it runs only when triggered

    with start_airflow(lab.stack, lab.folder, tmp_path / "airflow") as airflow:
        airflow.api.wait_for_dag(dag, START_SECONDS)
        unpause(airflow, dag)
        ended = airflow.states(dag, airflow.run(dag))
        pools = airflow.api.request("GET", "/pools")["pools"]

    assert ended == dict.fromkeys(("plan", "stage", "check", "publish"), "success")
    assert [pool["name"] for pool in pools] == ["default_pool"]
    assert lab.rows == RECORDS
    assert lab.frazil("audit", lab.stream).code == 0


def wait_for(airflow: Airflow, path: str, is_there: Callable[[str], bool]) -> str:
    """Ask Airflow again and again until it says what is expected."""
    deadline = time.monotonic() + START_SECONDS
    while not is_there(told := str(airflow.api.request("GET", path, allow_missing=True))):
        assert time.monotonic() < deadline, told
        time.sleep(1)
    return told


def test_the_watch_names_the_pool_that_nobody_created_and_the_task_goes_on_once_it_is_there(
    lab: Lab, tmp_path: Path
) -> None:
    dag, pool = f"ingest__{lab.stream}", f"frazil_{lab.table.replace('.', '_')}"
    lab.create_topic()
    lab.produce(good_values(RECORDS))
    freshness = {"warn_seconds": 1, "fail_seconds": 2}
    lab.write_stream(batch={"schedule": "0 0 1 1 *"}, freshness=freshness)

    with start_airflow(
        lab.stack, lab.folder, tmp_path / "airflow", FRAZIL_TABLE_POOLS="true"
    ) as airflow:
        airflow.api.wait_for_dag(dag, START_SECONDS)
        unpause(airflow, dag)
        body = {"logical_date": None, "conf": {}}
        run_id = airflow.api.request("POST", f"/dags/{dag}/dagRuns", body)["dag_run_id"]
        run = f"/dags/{dag}/dagRuns/{run_id}"
        wait_for(airflow, f"{run}/taskInstances/stage", lambda told: "'scheduled'" in told)
        watched = airflow.run("watch")
        instance = f"/dags/watch/dagRuns/{watched}/taskInstances/watch_stream"
        told = str(airflow.api.request("GET", f"{instance}/logs/1?map_index=0"))
        airflow.api.request("POST", "/pools", {"name": pool, "slots": 1})
        airflow.api.wait_for_run(dag, run_id, START_SECONDS)

    assert f"no slot: tasks wait for pool {pool}" in told
    assert f'`airflow pools set {pool} 1 "one writer"`' in told
    assert lab.rows == RECORDS
