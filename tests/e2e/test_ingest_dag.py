"""The ingest DAG on real parts: a topic becomes a table, and repeating changes nothing."""

import time

import pytest
from confluent_kafka import Producer
from conftest import Lab, good_values
from pyiceberg.catalog import load_catalog
from pyiceberg.expressions import EqualTo

from e2e.conftest import Airflow

pytestmark = pytest.mark.stack
STEPS = ("plan", "stage", "check", "publish")
AFTER_THE_PLAN = {"plan": "success", "stage": "skipped", "publish": "skipped"}
"""A plan that is cleared finds nothing new: what is cleared after it has nothing to do."""


def head_of(lab: Lab) -> tuple[object, int]:
    """Return the newest snapshot and how many there are."""
    snapshots = lab.frazil("snapshots", lab.stream, "--json").json
    assert isinstance(snapshots, list)
    return snapshots[0]["snapshot_id"], len(snapshots)


def run_until_idle(airflow: Airflow, lab: Lab, dag: str) -> tuple[str, str, str]:
    """Ingest a full batch, the rest behind it, and nothing; give the three runs."""
    lab.create_topic()
    lab.produce([*good_values(1000), b"no json"])
    airflow.wait_for_dag(dag)
    first = airflow.run(dag)
    listed = airflow.api.request("GET", f"/dags/{dag}/dagRuns")["dag_runs"]
    (second,) = {run["dag_run_id"] for run in listed} - {first}
    airflow.api.wait_for_run(dag, second, 240)
    return first, second, airflow.run(dag)


@pytest.mark.core
def test_a_full_batch_is_followed_at_once_and_an_idle_run_skips(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    dag = f"ingest__{lab.stream}"

    first, second, idle = run_until_idle(airflow, lab, dag)

    assert second.startswith("catch_up__")
    assert airflow.states(dag, first) == dict.fromkeys(STEPS, "success")
    assert airflow.states(dag, second) == dict.fromkeys(STEPS, "success")
    skipped = {"plan": "success", "stage": "skipped", "check": "skipped", "publish": "skipped"}
    assert airflow.states(dag, idle) == skipped
    assert lab.frazil("audit", lab.stream).code == 0
    assert head_of(lab)[1] == 3
    runs = airflow.api.request("GET", f"/dags/{dag}/dagRuns")["dag_runs"]
    assert len(runs) == 3, "the second batch was not full: nothing follows it"


def test_a_stream_of_one_task_catches_up_blocks_and_clears_like_four_tasks(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    dag = f"ingest__{lab.stream}"
    schedule = {"max_records": 600, "schedule": "0 0 1 1 *"}
    lab.write_stream(batch={**schedule, "tasks": "one"})

    first, second, idle = run_until_idle(airflow, lab, dag)
    body = {"dag_run_id": first, "task_ids": ["ingest"], "dry_run": False, "only_failed": False}
    airflow.api.request("POST", f"/dags/{dag}/clearTaskInstances", body)
    cleared = airflow.wait_for_states(dag, first)
    before = head_of(lab)
    lab.produce([b"no json"] * 50)
    bad = airflow.run(dag)

    assert second.startswith("catch_up__")
    assert [airflow.states(dag, run) for run in (second, idle)] == [{"ingest": "success"}] * 2
    assert cleared == {"ingest": "success"}
    assert airflow.states(dag, bad) == {"ingest": "failed"}
    assert (before[1], head_of(lab), lab.rows) == (3, before, 1000)
    status = lab.frazil("status", lab.stream, "--json").json
    assert isinstance(status, list)
    assert status[0]["state"] == "blocked"
    assert lab.frazil("audit", lab.stream).code == 0


def test_a_batch_that_was_not_merged_is_merged_without_new_records(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    dag = f"ingest__{lab.stream}"
    columns = {"id": "long!", "name": "string", "amount": "double"}
    lab.write_stream(
        value={"convert": "json", "columns": columns},
        table={"name": f"{lab.table}_state", "mode": "upsert", "id_columns": ["id"]},
    )
    lab.create_topic(partitions=1)
    lab.produce(good_values(100), partitions=1)
    assert lab.frazil("run", lab.stream, FRAZIL_FAILPOINT="merge.after-branch").code != 0
    airflow.wait_for_dag(dag)

    run = airflow.run(dag)

    skipped = {"plan": "success", "stage": "skipped", "check": "skipped", "publish": "skipped"}
    assert airflow.states(dag, run) == {**skipped, "merge": "success"}
    merged = lab.frazil("merge", lab.stream, "--json").json
    assert isinstance(merged, dict)
    assert (merged["outcome"], lab.rows) == ("NOTHING", 100)
    assert lab.frazil("audit", lab.stream).code == 0


def test_clearing_any_task_of_a_published_run_changes_nothing(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    dag = f"ingest__{lab.stream}"
    lab.create_topic()
    lab.produce(good_values(100))
    airflow.wait_for_dag(dag)
    run = airflow.run(dag)
    before = head_of(lab)

    for task, state in (*dict.fromkeys(STEPS[1:], "success").items(), *AFTER_THE_PLAN.items()):
        body = {"dag_run_id": run, "task_ids": [task], "dry_run": False, "only_failed": False}
        airflow.api.request("POST", f"/dags/{dag}/clearTaskInstances", body)
        states = airflow.wait_for_states(dag, run)
        assert states[task] == state, states

    assert head_of(lab) == before
    assert lab.frazil("audit", lab.stream).code == 0


def test_a_bad_batch_fails_the_run_and_the_next_run_answers_at_once(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    dag = f"ingest__{lab.stream}"
    lab.create_topic()
    lab.produce([*good_values(50), *[b"no json"] * 50])
    airflow.wait_for_dag(dag)

    bad, held = airflow.run(dag), airflow.run(dag)

    assert airflow.states(dag, bad)["check"] == "failed"
    assert airflow.states(dag, held)["plan"] == "failed"
    status = lab.frazil("status", lab.stream, "--json").json
    assert isinstance(status, list)
    assert (status[0]["state"], status[0]["rows"]) == ("blocked", 0)
    events = lab.frazil("timeline", "--stream", lab.stream, "--json").json
    assert isinstance(events, list)
    told = [(e["run_id"], e["facts"]["error"]) for e in events if e["kind"] == "failure"]
    assert told == [(bad, "BudgetExceeded"), (held, "BatchBlocked")]


def test_maintenance_runs_its_four_tasks_and_keeps_every_row(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    dag = f"maintain__{lab.stream}"
    rule = {"column": "_kafka.timestamp", "keep_days": 30}
    lab.write_stream(maintenance={"schedule": "0 0 1 1 *", "expire_rows": rule})
    lab.create_topic(**{"retention.ms": "-1"})
    lab.produce(good_values(100))
    produce_old(lab)
    lab.drain()
    assert lab.rows == 101
    airflow.wait_for_dag(dag)

    tasks = ("compact", "expire_snapshots", "remove_orphans", "expire_rows", "report")
    for form, rows in (({"dry_run": True}, 101), ({}, 100)):
        run = airflow.run(dag, **form)
        assert airflow.states(dag, run) == dict.fromkeys(tasks, "success")
        assert lab.rows == rows
    assert lab.frazil("audit", lab.stream).code == 0
    told = load_catalog("lake", **lab.stack.catalog_properties).load_table("frazil.timeline")
    events = told.scan(row_filter=EqualTo("stream", lab.stream)).to_arrow()  # type: ignore[call-arg, arg-type]
    assert {"bootstrap", "ingest", "expire-rows"} <= set(events["kind"].to_pylist())


def produce_old(lab: Lab) -> None:
    """Send a record of forty days ago."""
    at_ms = int((time.time() - 40 * 86_400) * 1000)
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    (value,) = good_values(1, 100)
    producer.produce(lab.topic, value=value, partition=0, timestamp=at_ms)
    assert producer.flush(30) == 0
