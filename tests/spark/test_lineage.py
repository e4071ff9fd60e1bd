"""A run of the ingest DAG sends its lineage by HTTP to a receiver, through Airflow's provider."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import REPO, Lab, good_values
from support.http_server import Request, serve_http

pytestmark = [pytest.mark.stack, pytest.mark.airflow]
AIRFLOW = str(Path(sys.executable).with_name("airflow"))
Events = list[dict[str, Any]]


@contextmanager
def receiver(events: Events) -> Iterator[str]:
    """Collect the events that are sent to an address."""

    def answer(request: Request) -> tuple[int, bytes]:
        events.append(json.loads(request.rfile.read(int(request.headers["Content-Length"]))))
        return 201, b""

    with serve_http(answer) as address:
        yield f"http://{address}"


def run_dag(lab: Lab, home: Path, url: str, kind: str = "ingest", **form: object) -> None:
    """Run a DAG by an Airflow of its own, without its other processes: the stream's, or by form."""
    dag = [f"{kind}__{lab.stream}"] if not form else [kind, "--conf", json.dumps(form)]
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPO / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(REPO / "plugins"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db",
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "http", "url": url}),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "frazil-tests",
        "PYTHONPATH": f"{REPO / 'include'}:{REPO / 'spark_jobs'}",
    }
    test = ["dags", "test", "--dagfile-path", str(REPO / f"dags/{kind}_dag.py")]
    for command in (["db", "migrate"], [*test, *dag]):
        run = subprocess.run(
            [AIRFLOW, *command],
            env=lab.environment(**settings),
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]


def test_a_published_batch_is_lineage_from_the_topic_to_the_table(lab: Lab, tmp_path: Path) -> None:
    lab.create_topic()
    lab.produce([*good_values(9), b"{"])
    events: Events = []

    with receiver(events) as url:
        run_dag(lab, tmp_path, url)

    complete = {e["job"]["name"]: e for e in events if e["eventType"] == "COMPLETE"}
    event = complete[f"ingest__{lab.stream}.publish"]
    (topic,), (table,) = event["inputs"], event["outputs"]
    (snapshot,) = (s for s in lab.frazil("snapshots", lab.stream, "--json").json if s["ranges"])
    assert (topic["namespace"], topic["name"]) == (f"kafka://{lab.stack.bootstrap}", lab.topic)
    assert topic["facets"]["frazil_offsets"]["ranges"] == {"0": [0, 5], "1": [0, 5]}
    assert topic["inputFacets"]["inputStatistics"]["rowCount"] == 10
    assert table["outputFacets"]["outputStatistics"]["rowCount"] == 9
    assert table["facets"]["version"]["datasetVersion"] == str(snapshot["snapshot_id"])
    assert {f["name"] for f in table["facets"]["schema"]["fields"]} == {"id", "name", "amount"}
    assert (
        table["facets"]["columnLineage"]["fields"]["amount"]["inputFields"][0]["field"] == "amount"
    )
    identifier = {"namespace": "iceberg://iceberg_default", "name": lab.table, "type": "TABLE"}
    assert table["facets"]["symlinks"]["identifiers"] == [identifier]
    assert complete[f"ingest__{lab.stream}.stage"].get("outputs", []) == []


def read_asset_events(home: Path) -> list[tuple[str, dict[str, Any]]]:
    """Read which assets Airflow has heard of, with the content of each event."""
    query = (
        "SELECT name, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
    )
    with sqlite3.connect(home / "airflow.db") as database:
        return [(name, json.loads(extra)) for name, extra in database.execute(query)]


def test_a_merge_is_lineage_from_the_change_table_to_the_state_table_and_an_asset_event(
    lab: Lab, tmp_path: Path
) -> None:
    lab.write_stream(
        table={"name": lab.table, "mode": "upsert", "id_columns": ["id"]},
        merge={"schedule": "manual"},
    )
    lab.create_topic(partitions=1)
    lab.produce([*good_values(9), good_values(1)[0]], partitions=1)
    events: Events = []

    with receiver(events) as url:
        run_dag(lab, tmp_path, url)
        run_dag(lab, tmp_path, url, "merge", stream=lab.stream, dry_run=False)

    complete = {e["job"]["name"]: e for e in events if e["eventType"] == "COMPLETE"}
    event = complete["merge.merge"]
    (changes,), (state,) = event["inputs"], event["outputs"]
    (_, before), (name, told) = read_asset_events(tmp_path)
    assert (name, told["counts"]["changes"], told["counts"]["inserted"]) == (lab.table, 10, 9)
    assert changes["facets"]["version"]["datasetVersion"] == str(before["snapshot_id"])
    assert changes["facets"]["symlinks"]["identifiers"][0]["name"] == f"{lab.table}__changes"
    assert changes["inputFacets"]["inputStatistics"]["rowCount"] == 10
    assert state["facets"]["version"]["datasetVersion"] == str(told["snapshot_id"])
    assert state["facets"]["symlinks"]["identifiers"][0]["name"] == lab.table
    assert state["outputFacets"]["outputStatistics"]["rowCount"] == 9
    assert state["facets"]["frazil_merge"]["counts"]["superseded"] == 1
    (source,) = state["facets"]["columnLineage"]["fields"]["amount"]["inputFields"]
    assert (source["name"], source["field"]) == (changes["name"], "amount")
