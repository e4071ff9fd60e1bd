"""The form that brings dead letters back, on real parts: dry first, then once."""

import json

import pytest
from conftest import Lab, good_values

from e2e.conftest import Airflow

pytestmark = pytest.mark.stack
DAG = "replay_dead_letters"
STRICT = {"id": "long!", "name": "string!", "amount": "double"}
DONE = {"check_parameters": "success", "redrive": "success"}


def fill_in(airflow: Airflow, **form: object) -> dict[str, str]:
    """Send the form, wait for the run, give the states of its tasks."""
    body = {"logical_date": None, "conf": form}
    run_id = airflow.api.request("POST", f"/dags/{DAG}/dagRuns", body)["dag_run_id"]
    airflow.api.wait_for_run(DAG, run_id, 240)
    return airflow.states(DAG, run_id)


def count_letters(lab: Lab) -> tuple[object, object]:
    """Return the open dead letters, and the resolved ones."""
    answer = lab.frazil("dead-letters", lab.stream, "--json").json
    assert isinstance(answer, dict)
    return answer["open"], answer["resolved"]


def test_the_form_shows_first_and_brings_letters_back_once(
    airflow: Airflow, airflow_lab: Lab
) -> None:
    lab = airflow_lab
    mended = lab.document["value"]
    lab.create_topic()
    lab.produce(good_values(10))
    lab.drain()
    lab.write_stream(value={"convert": "json", "columns": STRICT}, errors={"max_bad_ratio": 1.0})
    lab.produce([json.dumps({"id": i, "amount": 0.5}).encode() for i in range(6)] + [b"no json"])
    lab.drain()
    lab.write_stream(value=mended)
    airflow.wait_for_dag(DAG)

    dry = fill_in(airflow, stream=lab.stream)
    assert (dry, count_letters(lab)) == (DONE, (7, 0))
    for _ in range(2):
        real = fill_in(airflow, stream=lab.stream, reasons=["required_missing"], dry_run=False)
        assert (real, count_letters(lab)) == (DONE, (1, 6))
    status, page = airflow.read_page(f"streams/{lab.stream}")
    assert (status, "required_missing" in page, "malformed_json" in page) == (200, True, True)
    assert "1 open dead letter, 6 restored." in page
    wrong = fill_in(airflow, stream="no_such_stream", dry_run=False)

    assert wrong == {"check_parameters": "failed", "redrive": "upstream_failed"}
    assert lab.frazil("audit", lab.stream).code == 0
