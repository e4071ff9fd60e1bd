"""A second Airflow begins with an old copy of the first one's database (docs/faults.md, B10)."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from conftest import FRAZIL, Lab, Stack, good_values

from e2e.conftest import Airflow
from e2e.jobs import RECORDS, job_in_flight
from frazil_demo.airflow_api import AirflowApi

pytestmark = pytest.mark.stack

MORE = 20


def back_up(airflow: Airflow, home: Path) -> list[str]:
    """Copy the running Airflow's database and keys, as a day-old backup holds them.

    Returns:
        The tasks that run in the copy, for ever if nobody takes them over.
    """
    folder = airflow.home / "airflow"
    (home / "airflow").mkdir(parents=True, mode=0o700)
    for name in ("keys.json", "password.txt", "approver-password.txt"):
        shutil.copy(folder / name, home / "airflow" / name)
    copy = home / "airflow" / "airflow.db"
    with (
        closing(sqlite3.connect(folder / "airflow.db")) as live,
        closing(sqlite3.connect(copy)) as kept,
    ):
        live.backup(kept)
        # Scheduler and tasks died long ago: the next scheduler takes the tasks over at once.
        for table, column in (("job", "latest_heartbeat"), ("task_instance", "last_heartbeat_at")):
            kept.execute(f"UPDATE {table} SET {column} = datetime({column}, '-1 day')")  # noqa: S608
        kept.commit()
        running = kept.execute("SELECT task_id FROM task_instance WHERE state = 'running'")
        return [task for (task,) in running]


@contextmanager
def start_restored(airflow: Airflow, home: Path) -> Iterator[Airflow]:
    """Start an Airflow from a backup, beside the first one: same broker, Spark, catalog, files."""
    (home / "lake").symlink_to(airflow.home / "lake")
    ports = json.loads((airflow.home / "stack" / "ports.json").read_text())
    environment = {
        **os.environ,
        "FRAZIL_HOME": str(home),
        "FRAZIL_STREAMS": str(airflow.streams),
        "FRAZIL_JARS": os.environ.get("FRAZIL_JARS", str(FRAZIL.parents[2] / ".frazil" / "jars")),
        "FRAZIL_KAFKA_PORT": str(ports["kafka"]),
        "FRAZIL_SPARK_PORT": str(ports["spark_connect"]),
        "FRAZIL_AIRFLOW_PORT": "0",
    }
    command = [str(FRAZIL), "stack"]
    try:
        subprocess.run([*command, "up", "--only", "airflow"], env=environment, check=True)
        facts = Stack.read(home).facts["airflow"]
        api = AirflowApi(str(facts["url"]), str(facts["user"]), Path(str(facts["password_file"])))
        yield Airflow(api, airflow.streams, home, str(facts["url"]))
    finally:
        subprocess.run([*command, "down"], env=environment, check=True)


@pytest.mark.long
def test_b10_an_airflow_with_an_old_database_meets_the_table_and_doubles_nothing(
    airflow: Airflow, airflow_lab: Lab, tmp_path: Path
) -> None:
    lab, dag = airflow_lab, f"ingest__{airflow_lab.stream}"
    green = dict.fromkeys(("plan", "stage", "check", "publish"), "success")
    with job_in_flight(airflow, lab) as (open_run, job):
        os.kill(job, signal.SIGSTOP)
    running = back_up(airflow, tmp_path)
    os.kill(job, signal.SIGCONT)
    airflow.api.wait_for_run(dag, open_run, 240)
    lab.produce(good_values(MORE, start=RECORDS))
    airflow.run(dag)

    with start_restored(airflow, tmp_path) as restored:
        restored.api.wait_for_run(dag, open_run, 480)  # first it has to find the lost task
        # Its publish may have started another run, which must not read what comes below.
        for run in restored.api.request("GET", f"/dags/{dag}/dagRuns")["dag_runs"]:
            restored.api.wait_for_run(dag, run["dag_run_id"], 240)
        tried_again = restored.states(dag, open_run)
        instances = f"/dags/{dag}/dagRuns/{open_run}/taskInstances"
        stage = restored.api.request("GET", f"{instances}/stage")
        found = restored.api.request("GET", f"{instances}/publish/xcomEntries/return_value")
        lab.produce(good_values(MORE, start=RECORDS + MORE))
        newest = restored.run(dag)
        ended = restored.states(dag, newest)
        idle = airflow.states(dag, airflow.run(dag))

    assert "stage" in running
    assert (tried_again, ended) == (green, green)
    assert stage["try_number"] > 1
    assert "ALREADY" in str(found["value"])
    assert idle == {"plan": "success", **dict.fromkeys(("stage", "check", "publish"), "skipped")}
    snapshots = lab.frazil("snapshots", lab.stream, "--json").json
    assert isinstance(snapshots, list)
    assert [entry["kind"] for entry in snapshots] == ["ingest"] * 3 + ["bootstrap"]
    assert lab.rows == RECORDS + 2 * MORE
