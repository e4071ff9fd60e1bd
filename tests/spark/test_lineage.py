"""A run of the ingest DAG sends its lineage by HTTP to a receiver, through Airflow's provider."""

import json
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


def run_dag(lab: Lab, home: Path, url: str) -> None:
    """Run the stream's ingest DAG by an Airflow of its own, without its other processes."""
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
    test = ["dags", "test", "--dagfile-path", str(REPO / "dags/ingest_dag.py")]
    for command in (["db", "migrate"], [*test, f"ingest__{lab.stream}"]):
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
