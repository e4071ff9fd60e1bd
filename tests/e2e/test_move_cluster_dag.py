"""A stream is moved to its topic's copy by form, and its DAG goes on there."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
from conftest import Lab, Stack, good_values
from faults.brokers import copy_records, create_topic, own_broker
from pyiceberg.catalog import load_catalog

from e2e.conftest import Airflow

pytestmark = pytest.mark.stack

COPY = "kafka_copy"


@pytest.fixture
def second(tmp_path_factory: pytest.TempPathFactory, airflow: Airflow) -> Iterator[Stack]:
    """Run a second cluster, and tell Airflow of it as an administrator does."""
    with own_broker(tmp_path_factory.mktemp("second") / "home") as stack:
        extra = json.dumps({"bootstrap.servers": stack.bootstrap})
        body = {"connection_id": COPY, "conn_type": "kafka", "extra": extra}
        airflow.api.request("POST", "/connections", body)
        yield stack


def read_ids(lab: Lab) -> list[int]:
    table = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)
    return sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


def test_d6_a_form_moves_a_stream_and_its_dag_goes_on_with_the_copy(
    airflow: Airflow, second: Stack, airflow_lab: Lab
) -> None:
    lab, first = airflow_lab, airflow_lab.stack
    lab.create_topic()
    lab.produce(good_values(20))
    ingest = f"ingest__{lab.stream}"
    for dag in (ingest, "move_cluster"):
        airflow.wait_for_dag(dag)
    airflow.run(ingest)
    lab.produce(good_values(10, 20))
    create_topic(second, lab.topic)
    copy_records(first, second, lab.topic)
    lab.write_stream(source={"topic": lab.topic, "connection": COPY})
    # From here on what the table holds is compared with the copy, also after this test.
    lab.stack = replace(first, facts={**first.facts, "kafka": second.facts["kafka"]})
    form = {"stream": lab.stream, "old_connection": "kafka_default"}
    meant = {**form, "dry_run": False, "reason": "mirror promoted"}

    refused = airflow.run(ingest)
    looked = airflow.run("move_cluster", **form)
    assert read_ids(lab) == list(range(20))
    moved = airflow.run("move_cluster", **meant)
    again = airflow.run("move_cluster", **meant)
    went_on = airflow.run(ingest)

    assert airflow.states(ingest, refused)["plan"] == "failed"
    assert airflow.states("move_cluster", looked) == {"preview": "success", "move": "skipped"}
    assert airflow.states("move_cluster", moved) == {"preview": "success", "move": "success"}
    assert airflow.states("move_cluster", again) == {"preview": "success", "move": "success"}
    history = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table).metadata
    kinds = [s.summary.additional_properties["frazil.kind"] for s in history.snapshots if s.summary]
    assert kinds.count("move") == 1, "a repetition finds it there"
    assert set(airflow.states(ingest, went_on).values()) == {"success"}
    assert read_ids(lab) == list(range(30))
