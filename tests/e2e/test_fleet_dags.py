"""The DAGs that look after every stream, and a drill, in a running Airflow."""

import sqlite3
import threading
import time
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from conftest import Lab, good_values

from e2e.conftest import Airflow
from frazil.errors import StackError

pytestmark = pytest.mark.stack

WAIT_SECONDS = 120


def begin(lab: Lab) -> None:
    """Publish a first batch."""
    lab.create_topic()
    lab.produce(good_values(20))
    assert lab.frazil("run", lab.stream).code == 0


def run_with(airflow: Airflow, dag: str, **conf: object) -> str:
    """Trigger a run with a form, wait for its end, give its id."""
    airflow.wait_for_dag(dag)
    body = {"logical_date": None, "conf": conf}
    run_id = str(airflow.api.request("POST", f"/dags/{dag}/dagRuns", body)["dag_run_id"])
    airflow.api.wait_for_run(dag, run_id, 240)
    return run_id


def wait_for_parsing(airflow: Airflow, dag: str, lab: Lab) -> None:
    """Wait until a DAG was parsed with this stream's file.

    What Airflow notes is when a parse ended; one that had begun before the file is over by then.
    """
    path = airflow.streams / f"{lab.stream}.yaml"
    written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    deadline = time.monotonic() + 120
    airflow.wait_for_dag(dag)
    while True:
        parsed = airflow.api.request("GET", f"/dags/{dag}")["last_parsed_time"]
        if datetime.fromisoformat(parsed) > written + timedelta(seconds=5):
            return
        assert time.monotonic() < deadline
        time.sleep(1)


def list_instances(airflow: Airflow, dag: str, run_id: str) -> dict[str, dict[str, Any]]:
    """List a run's task instances by the stream that they are named after.

    There may be two: a run whose DAG is parsed anew, without a stream before this one, counts anew.
    """
    answer = airflow.api.request("GET", f"/dags/{dag}/dagRuns/{run_id}/taskInstances")
    return {str(each["rendered_map_index"]): each for each in answer["task_instances"]}


def find_instance(airflow: Airflow, dag: str, stream: str, **conf: object) -> dict[str, Any]:
    """Run a fleet DAG, again if need be: Airflow looks twice a minute at most for what changed."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = list_instances(airflow, dag, run_with(airflow, dag, **conf))
        if stream in found:
            return found[stream]
        assert time.monotonic() < deadline, [*found]


def read_log(airflow: Airflow, instance: dict[str, Any]) -> str:
    """Read what a task instance told, of its last try."""
    run = f"/dags/{instance['dag_id']}/dagRuns/{instance['dag_run_id']}"
    path = f"{run}/taskInstances/{instance['task_id']}/logs/{instance['try_number']}"
    return str(airflow.api.request("GET", f"{path}?map_index={instance['map_index']}"))


def read_fleet_log(airflow: Airflow, run_id: str) -> str:
    """Read what the watch told of all streams."""
    path = f"/dags/watch/dagRuns/{run_id}/taskInstances/watch_fleet"
    instance = airflow.api.request("GET", path)
    assert instance["state"] == "success"
    return read_log(airflow, instance)


def test_a_stream_that_fails_has_an_instance_of_its_own_that_says_why(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    begin(lab)
    wait_for_parsing(airflow, f"ingest__{lab.stream}", lab)

    fresh = run_with(airflow, "watch")
    unready = find_instance(airflow, "readiness", lab.stream, outage_hours=24 * 365)
    lab.write_stream(freshness={"warn_seconds": 1, "fail_seconds": 2})
    airflow.api.request("PATCH", f"/dags/ingest__{lab.stream}", {"is_paused": True})
    lab.produce(good_values(5, start=20))
    time.sleep(3)
    late = find_instance(airflow, "watch", lab.stream)

    assert lab.stream not in list_instances(airflow, "watch", fresh)
    assert f"{lab.stream}: up to date" in read_fleet_log(airflow, fresh)
    assert [each["state"] for each in (unready, late)] == ["failed", "failed"]
    assert "raise retention.ms" in read_log(airflow, unready)
    told = read_log(airflow, late)
    assert "5 unread offsets" in told
    assert f"unpause DAG ingest__{lab.stream}" in told


def test_a_drill_by_form_reports_what_it_broke_and_saw(airflow: Airflow, airflow_lab: Lab) -> None:
    lab = airflow_lab
    run_id = run_with(airflow, "drill", stream=lab.stream, drill="lost_commit_answer")

    assert airflow.states("drill", run_id) == {"run_drill": "success"}
    path = f"/dags/drill/dagRuns/{run_id}/taskInstances/run_drill/xcomEntries/return_value"
    report = str(airflow.api.request("GET", path)["value"])
    for word in ("its batch was: ALREADY", "passed", "seconds"):
        assert word in report, report
    with pytest.raises(StackError, match="400"):
        run_with(airflow, "drill", stream=lab.stream, drill="earthquake")


def test_a_run_is_triggered_once_while_the_database_is_locked_longer_than_airflow_waits(
    airflow: Airflow,
) -> None:
    airflow.wait_for_dag("watch")
    runs = "/dags/watch/dagRuns?run_type=manual&limit=100"
    before = {run["dag_run_id"] for run in airflow.api.request("GET", runs)["dag_runs"]}
    file = airflow.home / "airflow" / "airflow.db"

    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as database:
        database.execute("BEGIN IMMEDIATE")
        unlocking = threading.Timer(13, database.execute, ["ROLLBACK"])
        unlocking.start()
        started = airflow.api.trigger("watch")
        locked = unlocking.is_alive()
        unlocking.join()

    assert not locked
    after = {run["dag_run_id"] for run in airflow.api.request("GET", runs)["dag_runs"]}
    assert after - before == {started.run_id}
