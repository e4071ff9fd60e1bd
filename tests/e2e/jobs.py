"""Runs of a stream's DAG that are caught while their Spark job is in flight."""

import time
from contextlib import suppress
from pathlib import Path

from conftest import Lab, good_values

from e2e.conftest import Airflow

RECORDS = 100
WAIT_SECONDS = 120


def find_jobs(airflow: Airflow) -> set[int]:
    """Find the clients of staging jobs that this Airflow's tasks have started."""
    home = f"FRAZIL_HOME={airflow.home}".encode()
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_job = b"stage_batch.py" in (folder / "cmdline").read_bytes()
            if is_job and home in (folder / "environ").read_bytes().split(b"\0"):
                found.add(int(folder.name))
    return found


def start_until_the_job_runs(airflow: Airflow, lab: Lab) -> tuple[str, int]:
    """Trigger a run of the stream's DAG; give its id and the pid of its Spark job's client."""
    dag = f"ingest__{lab.stream}"
    lab.create_topic()
    lab.produce(good_values(RECORDS))
    airflow.api.wait_for_dag(dag)
    run_id = airflow.api.trigger(dag).run_id
    deadline = time.monotonic() + WAIT_SECONDS
    while not (jobs := find_jobs(airflow)):
        assert time.monotonic() < deadline, airflow.states(dag, run_id)
        time.sleep(0.02)
    [job] = jobs
    return run_id, job
