"""A schema change that waits for a person: asked in Airflow once, answered there, recorded."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Lab, good_values
from pyiceberg.catalog import load_catalog

from e2e.conftest import Airflow, lend_stream
from frazil.errors import StackError
from frazil.ledger.recovery_point import keys

pytestmark = pytest.mark.stack
REVIEW = "review_schema"
WAIT_SECONDS = 120


def begin_and_rename(airflow: Airflow, lab: Lab) -> str:
    """Load a batch, rename a column in the stream file, and meet the review; give its run's id."""
    dag = f"ingest__{lab.stream}"
    lab.create_topic()
    lab.produce(good_values(20))
    airflow.wait_for_dag(dag)
    airflow.wait_for_dag(REVIEW)
    assert airflow.states(dag, airflow.run(dag))["publish"] == "success"
    columns = {"id": "long!", "label": "string", "amount": "double"}
    lab.write_stream(value={"convert": "json", "columns": columns})
    lab.produce([json.dumps({"id": 20, "label": "unseen-payload"}).encode()])
    for _ in range(2):
        assert airflow.states(dag, airflow.run(dag))["plan"] == "failed"
    [review] = list_reviews(airflow, lab)
    return str(review["dag_run_id"])


def start_review(airflow: Airflow, lab: Lab) -> str:
    """Ask by hand what waits; give the run's id."""
    body = {"logical_date": None, "conf": {"stream": lab.stream}}
    return str(airflow.api.request("POST", f"/dags/{REVIEW}/dagRuns", body)["dag_run_id"])


def list_reviews(airflow: Airflow, lab: Lab) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = airflow.api.request("GET", f"/dags/{REVIEW}/dagRuns")["dag_runs"]
    return [run for run in runs if run["conf"].get("stream") == lab.stream]


def hitl_path(run_id: str) -> str:
    """Return the address of a review's question."""
    return f"/dags/{REVIEW}/dagRuns/{run_id}/taskInstances/decide/-1/hitlDetails"


def read_question(airflow: Airflow, run_id: str) -> dict[str, Any]:
    """Wait until the question stands under Required Actions."""
    path = hitl_path(run_id)
    deadline = time.monotonic() + WAIT_SECONDS
    while not (question := airflow.api.request("GET", path, allow_missing=True)):
        assert time.monotonic() < deadline, airflow.states(REVIEW, run_id)
        time.sleep(0.5)
    return question


def answer(airflow: Airflow, run_id: str, choice: str, reason: str) -> dict[str, str]:
    body = {"chosen_options": [choice], "params_input": {"reason": reason}}
    airflow.answer((REVIEW, run_id, "decide"), **body)
    airflow.api.wait_for_run(REVIEW, run_id, WAIT_SECONDS)
    return airflow.states(REVIEW, run_id)


@pytest.fixture
def other(airflow: Airflow) -> Iterator[Lab]:
    """Return a second stream with records to read, which no review concerns."""
    with lend_stream(airflow) as lab:
        lab.create_topic()
        lab.produce(good_values(20))
        yield lab


def test_a_change_is_asked_for_once_accepted_by_a_person_and_read_on(
    airflow: Airflow, airflow_lab: Lab, other: Lab
) -> None:
    lab, dag = airflow_lab, f"ingest__{airflow_lab.stream}"
    run_id = begin_and_rename(airflow, lab)

    question = read_question(airflow, run_id)
    assert question["subject"] == f"Apply this schema change to {lab.table}?"
    for text in ("rename name to label", "keeps its values", "next offsets to read"):
        assert text in question["body"]
    assert "unseen-payload" not in question["body"]
    airflow.wait_for_dag(f"ingest__{other.stream}")
    beside = airflow.states(f"ingest__{other.stream}", airflow.run(f"ingest__{other.stream}"))
    assert beside["publish"] == "success"
    assert not airflow.api.request("GET", hitl_path(run_id))["response_received"]
    states = answer(airflow, run_id, "Accept", "agreed with the owners")

    assert states == dict.fromkeys(("show", "decide"), "success")
    assert airflow.states(dag, airflow.run(dag))["publish"] == "success"
    table = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)
    rows = table.scan().to_arrow()
    assert rows.num_rows == 21
    assert rows["label"].null_count == 0
    record = json.loads(table.properties[f"{keys.SCHEMA_CHANGE_PREFIX}1"])
    assert (record["by"], record["reason"]) == ("admin", "agreed with the owners")
    assert lab.frazil("audit", lab.stream).code == 0


def test_a_no_in_airflow_keeps_the_stream_waiting_and_is_not_asked_again(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab, dag = airflow_lab, f"ingest__{airflow_lab.stream}"
    run_id = begin_and_rename(airflow, lab)
    read_question(airflow, run_id)

    states = answer(airflow, run_id, "Stop", "label is not agreed")

    assert states["decide"] == "success"
    assert airflow.states(dag, airflow.run(dag))["plan"] == "failed"
    assert len(list_reviews(airflow, lab)) == 1
    stopped = lab.frazil("plan", lab.stream)
    assert "admin stopped the stream" in stopped.err
    assert "label is not agreed" in stopped.err

    again = start_review(airflow, lab)
    question = read_question(airflow, again)

    assert "Quarantine is unavailable: this stream does not take its schema" in question["body"]
    with pytest.raises(StackError, match="400"):
        answer(airflow, again, "Quarantine", "go on without it")
    assert answer(airflow, again, "Stop", "still not agreed")["decide"] == "success"
    assert "admin stopped the stream" in lab.frazil("plan", lab.stream).err
