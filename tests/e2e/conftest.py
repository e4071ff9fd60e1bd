"""Airflow beside the broker and Spark, once for all end-to-end tests."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from conftest import FRAZIL, FREE_PORTS, REPO, Lab, Stack
from faults.auditor import audit_table
from pyiceberg.catalog import load_catalog
from support.stack_home import Home

from frazil_demo.airflow_api import AirflowApi


@dataclass(frozen=True)
class Airflow:
    """A running Airflow and the folder of the stream files that it reads."""

    api: AirflowApi
    streams: Path
    home: Path
    url: str
    idle_pss_mb: int = 0
    """Memory of the stack when it had just started."""

    def run(self, dag_id: str, **form: object) -> str:
        """Trigger a run, wait for its end, give its id."""
        body = {"logical_date": None, "conf": form}
        run_id: str = self.api.request("POST", f"/dags/{dag_id}/dagRuns", body)["dag_run_id"]
        self.api.wait_for_run(dag_id, run_id, 240)
        return run_id

    def wait_for_dag(self, dag_id: str) -> None:
        """Wait for a DAG; if its file is known by other DAGs, ask Airflow to parse it now."""
        if not self.api.request("GET", f"/dags/{dag_id}", allow_missing=True):
            kind = dag_id.partition("__")[0]
            found = f"/dags?dag_id_pattern={kind}&exclude_stale=false&limit=1"
            for known in self.api.request("GET", found)["dags"]:
                self.api.request("PUT", f"/parseDagFile/{known['file_token']}")
        self.api.wait_for_dag(dag_id)

    def log_in(self, user: str) -> AirflowApi:
        """Log in as another user of the stack."""
        file = self.home / "airflow" / f"{user}-password.txt"
        return AirflowApi(self.url, user, file)

    def read_page(self, path: str) -> tuple[int, str]:
        """Ask for a page of Frazil's own, logged in; give status and text."""
        headers = self.api._headers  # noqa: SLF001 - one login for both
        answer = requests.get(f"{self.url}/frazil/{path}", headers=headers, timeout=60)
        return answer.status_code, answer.text

    def answer(
        self, task: tuple[str, str, str], by: AirflowApi | None = None, **body: object
    ) -> dict[str, Any]:
        """Answer a question under Required Actions, and give it as it was asked.

        A quick answer may cross Airflow's own note that the task is parked; then Airflow takes the
        task for failed, tries it again, and asks once more.
        """
        dag_id, run_id, task_id = task
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/-1/hitlDetails"
        deadline = time.monotonic() + 180
        asked: dict[str, Any] = {}
        while (state := self.states(dag_id, run_id).get(task_id)) not in {"success", "failed"}:
            assert time.monotonic() < deadline, self.states(dag_id, run_id)
            if state == "awaiting_input":
                asked = self.api.request("GET", path)
                if not asked["response_received"]:
                    (by or self.api).request("PATCH", path, body)
            time.sleep(1)
        return asked

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Return the state of every task of a run."""
        answer = self.api.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances")
        return {t["task_id"]: t["state"] for t in answer["task_instances"]}

    def wait_for_states(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Wait until a cleared run has ended again."""
        time.sleep(2)
        self.api.wait_for_run(dag_id, run_id, 240)
        return self.states(dag_id, run_id)


@pytest.fixture(scope="package")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Start a whole stack of its own: its Airflow reads a folder that the tests write."""
    base = tmp_path_factory.mktemp("whole")
    streams = base / "streams"
    (streams / "expectations").mkdir(parents=True)
    environment = {
        **os.environ,
        **FREE_PORTS,
        "FRAZIL_HOME": str(base / "home"),
        "FRAZIL_STREAMS": str(streams),
        "FRAZIL_JARS": os.environ.get("FRAZIL_JARS", str(REPO / ".frazil" / "jars")),
    }
    try:
        subprocess.run([str(FRAZIL), "stack", "up"], env=environment, check=True)
        stack = Stack.read(base / "home")
        facts = {name: str(value) for name, value in stack.facts["airflow"].items()}
        api = AirflowApi(facts["url"], facts["user"], Path(facts["password_file"]))
        # Not `rss_mb`: Airflow's workers are forks, whose common pages it counts in each of them.
        idle = int(Home(base / "home").at("pss_mb"))
        yield Airflow(api, streams, base / "home", facts["url"], idle)
    finally:
        subprocess.run([str(FRAZIL), "stack", "down"], env=environment, check=True)


@pytest.fixture
def airflow_lab(airflow: Airflow) -> Iterator[Lab]:
    """Yield a stream that Airflow sees."""
    with lend_stream(airflow) as lab:
        yield lab


@contextmanager
def lend_stream(airflow: Airflow) -> Iterator[Lab]:
    """Make a stream that Airflow sees; it runs only when triggered.

    Its file goes with the test: the watch would start a task for each of them every minute. The
    independent auditor judges the table that stays, if there is one.
    """
    stream = f"e{os.urandom(4).hex()}"
    lab = Lab(Stack.read(airflow.home), airflow.streams, stream)
    lab.document = yaml.safe_load(
        f"""
        stream: {stream}
        owner: tests@example.org
        source: {{topic: {stream}}}
        value: {{convert: json, columns: {{id: long!, name: string, amount: double}}}}
        table: {{name: {lab.table}, partition_by: ["bucket(id, 2)"]}}
        batch: {{max_records: 600, schedule: "0 0 1 1 *"}}
        maintenance: {{schedule: "0 0 1 1 *"}}
        errors: {{max_bad_ratio: 0.1}}
        """
    )
    lab.write_stream()
    yield lab
    (airflow.streams / f"{stream}.yaml").unlink(missing_ok=True)
    audit(lab)


@pytest.fixture(name="lab")
def audited_lab(lab: Lab) -> Iterator[Lab]:
    """Yield a stream that needs no Airflow; the independent auditor judges its table."""
    yield lab
    audit(lab)


def audit(lab: Lab) -> None:
    """Let the independent auditor judge the table that a test leaves, if there is one."""
    properties = lab.stack.catalog_properties
    if load_catalog("lake", **properties).table_exists(lab.table):
        report = audit_table(properties, "lake", lab.table, lab.stack.bootstrap, lab.stream)
        assert not report.findings, report.findings
