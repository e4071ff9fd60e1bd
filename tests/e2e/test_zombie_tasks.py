"""An Airflow task dies or is cleared while its Spark job is in flight (docs/faults.md, B1, B2)."""

import os
import signal
from pathlib import Path

import pytest
from conftest import Lab
from faults.auditor import audit_table

from e2e.conftest import Airflow
from e2e.jobs import find_jobs, start_until_the_job_runs

pytestmark = pytest.mark.stack


def find_parent(pid: int) -> int:
    """Give the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


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
    report = audit_table(
        lab.stack.catalog_properties, "lake", lab.table, lab.stack.bootstrap, lab.stream
    )
    assert report.findings == ()


def test_b1_a_task_that_is_killed_leaves_a_job_that_harms_nothing(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    run_id, job = start_until_the_job_runs(airflow, airflow_lab)

    os.kill(find_parent(job), signal.SIGKILL)

    assert job in find_jobs(airflow), "the job ended with its task"
    assert_published_once(airflow, airflow_lab, run_id)


def test_b2_a_task_that_is_cleared_while_its_job_runs_publishes_once(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab, dag = airflow_lab, f"ingest__{airflow_lab.stream}"
    run_id, _ = start_until_the_job_runs(airflow, lab)

    body = {"dag_run_id": run_id, "task_ids": ["stage"], "dry_run": False, "only_failed": False}
    airflow.api.request("POST", f"/dags/{dag}/clearTaskInstances", body)
    airflow.wait_for_states(dag, run_id)

    assert_published_once(airflow, lab, run_id)
