"""An Airflow task dies or is cleared while its Spark job is in flight (docs/faults.md, B1, B2)."""

import os
import signal
import time

import pytest
from conftest import Lab
from faults.judges import assert_audited

from e2e.conftest import Airflow
from e2e.jobs import WAIT_SECONDS, find_jobs, job_in_flight

pytestmark = pytest.mark.stack


def assert_published_once(airflow: Airflow, lab: Lab, run_id: str) -> None:
    """See one green run with a second try, one batch, and every record once."""
    dag = f"ingest__{lab.stream}"
    airflow.api.wait_for_run(dag, run_id, 240)
    stage = airflow.api.request("GET", f"/dags/{dag}/dagRuns/{run_id}/taskInstances/stage")
    assert stage["try_number"] == 2
    states = airflow.states(dag, run_id)
    assert states == dict.fromkeys(("plan", "stage", "check", "publish"), "success")
    snapshots = lab.frazil("snapshots", lab.stream, "--json").json
    assert isinstance(snapshots, list)
    assert [entry["kind"] for entry in snapshots] == ["ingest", "bootstrap"]
    assert_audited(lab)


def test_b1_a_task_that_is_killed_takes_its_job_along_and_is_tried_again(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab, instances = airflow_lab, f"/dags/ingest__{airflow_lab.stream}/dagRuns"
    with job_in_flight(airflow, lab) as (run_id, job):
        stage = airflow.api.request("GET", f"{instances}/{run_id}/taskInstances/stage")
        os.kill(stage["pid"], signal.SIGKILL)
        deadline = time.monotonic() + WAIT_SECONDS
        while job in find_jobs(airflow):
            assert time.monotonic() < deadline, "the job lives on without its task"
            time.sleep(0.02)

    assert_published_once(airflow, lab, run_id)


def test_b2_a_task_that_is_cleared_while_its_job_runs_publishes_once(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab, dag = airflow_lab, f"ingest__{airflow_lab.stream}"
    with job_in_flight(airflow, lab) as (run_id, _):
        body = {"dag_run_id": run_id, "task_ids": ["stage"], "dry_run": False, "only_failed": False}
        airflow.api.request("POST", f"/dags/{dag}/clearTaskInstances", body)
    airflow.wait_for_states(dag, run_id)

    assert_published_once(airflow, lab, run_id)
