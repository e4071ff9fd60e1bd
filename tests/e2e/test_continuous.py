"""A continuous stream: batches follow as records come, and nothing runs when none do."""

import time

import pytest
from conftest import Lab, good_values

from e2e.conftest import Airflow

pytestmark = pytest.mark.stack
QUIET_SECONDS = 12


def wait_for_rows(lab: Lab, rows: int, seconds: float = 150) -> None:
    deadline = time.monotonic() + seconds
    while lab.rows != rows:
        assert time.monotonic() < deadline, f"{lab.rows} rows, not {rows}"
        time.sleep(0.5)


def list_runs(airflow: Airflow, lab: Lab) -> dict[str, str]:
    answer = airflow.api.request("GET", f"/dags/ingest__{lab.stream}/dagRuns?limit=100")
    return {run["dag_run_id"]: run["state"] for run in answer["dag_runs"]}


def wait_until_it_waits(airflow: Airflow, lab: Lab) -> str:
    """Wait until the stream's one run is in its first task, in the triggerer."""
    dag, deadline = f"ingest__{lab.stream}", time.monotonic() + 120
    while True:
        running = [run for run, state in list_runs(airflow, lab).items() if state == "running"]
        if running and airflow.states(dag, running[0]).get("wait") == "deferred":
            return running[0]
        assert time.monotonic() < deadline, list_runs(airflow, lab)
        time.sleep(0.5)


def test_records_are_read_as_they_come_and_an_idle_stream_starts_no_runs(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    lab.create_topic()
    lab.produce(good_values(100))
    lab.write_stream(batch={"schedule": "continuous", "max_records": 80})
    airflow.wait_for_dag(f"ingest__{lab.stream}")

    wait_for_rows(lab, 100)
    waiting = wait_until_it_waits(airflow, lab)
    before = list_runs(airflow, lab)
    time.sleep(QUIET_SECONDS)
    assert list_runs(airflow, lab) == before
    assert airflow.states(f"ingest__{lab.stream}", waiting)["wait"] == "deferred"

    lab.produce(good_values(50, start=100))
    wait_for_rows(lab, 150)

    assert lab.frazil("audit", lab.stream).code == 0
    states = airflow.states(f"ingest__{lab.stream}", waiting)
    assert states == dict.fromkeys(("wait", "plan", "stage", "check", "publish"), "success")
