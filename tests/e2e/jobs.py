"""Runs of a stream's DAG that are caught while their Spark job is in flight."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conftest import Lab, good_values
from faults.test_frozen_broker import frozen
from faults.test_server_kills import find_part

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


@contextmanager
def job_in_flight(airflow: Airflow, lab: Lab) -> Iterator[tuple[str, int]]:
    """Trigger a run of the stream's DAG; give its id and the pid of its Spark job's client.

    Inside the block the job cannot end: Spark's server stands still.
    """
    dag = f"ingest__{lab.stream}"
    lab.create_topic()
    lab.produce(good_values(RECORDS))
    airflow.wait_for_dag(dag)
    with frozen(find_part(lab, "spark_connect")):
        run_id = airflow.api.trigger(dag).run_id
        deadline = time.monotonic() + WAIT_SECONDS
        while not (jobs := find_jobs(airflow)):
            assert time.monotonic() < deadline, airflow.states(dag, run_id)
            time.sleep(0.02)
        [job] = jobs
        yield run_id, job
