"""An Airflow that a site has set up by itself, beside a cell's servers."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import requests
from conftest import FRAZIL, REPO, Lab
from faults.rest_catalog import find_free_port

from conformance.callers import Dags
from conformance.packages import AIRFLOW_PARTS, ensure_packages
from conformance.servers import Servers
from frazil_demo.airflow_api import AirflowApi

AIRFLOW = str(FRAZIL.with_name("airflow"))
PARTS = (("scheduler", "--skip-serve-logs"), ("dag-processor",), ("api-server",))
WORKER = ("celery", "worker", "--skip-serve-logs", "--concurrency", "2")
START_SECONDS = 240
NEVER = "0 0 1 1 *"


def describe_site(lab: Lab, home: Path) -> dict[str, str]:
    """Return the environment of a site: the cell's connections, and no settings of this Airflow."""
    port = find_free_port()
    kept = {k: v for k, v in lab.environment().items() if not k.startswith("AIRFLOW__")}
    kept.pop("FRAZIL_FORK_SERVER", None)
    folders = [REPO / "include", REPO / "spark_jobs"]
    return {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPO / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__API__HOST": "127.0.0.1",
        # Another Airflow may have the default port.
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }


def run_airflow(lab: Lab, environment: Mapping[str, str], *words: str) -> None:
    """Run a command of Airflow; its output is among the files that are searched for secrets."""
    with (lab.folder / "output.log").open("a") as log:
        command = [AIRFLOW, *words]
        subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=600, check=True)


def describe_executor(executor: str, servers: Servers, database: str) -> dict[str, str]:
    """Return the settings of an executor as its users write them: metadata in PostgreSQL."""
    metadata = servers.database.create(database)
    settings = {
        "AIRFLOW__CORE__EXECUTOR": executor,
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"postgresql+psycopg2://{metadata}",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": f"postgresql+asyncpg://{metadata}",
    }
    if executor == "CeleryExecutor":
        settings["AIRFLOW__CELERY__BROKER_URL"] = servers.redis
        settings["AIRFLOW__CELERY__RESULT_BACKEND"] = f"db+postgresql+psycopg2://{metadata}"
    return settings


@contextmanager
def run_site(lab: Lab, executor: str, servers: Servers) -> Iterator[Dags]:
    """Run an Airflow with the stream's DAGs and metadata in PostgreSQL; what it stored is dumped.

    Nothing of it is configured but the executor, the folder of DAGs, the database and an address.
    """
    home, database = lab.stack.home / "airflow", f"airflow_{lab.stream}"
    home.mkdir()
    environment = describe_site(lab, home) | describe_executor(executor, servers, database)
    environment["PYTHONPATH"] += f"{os.pathsep}{ensure_packages('airflow', AIRFLOW_PARTS)}"
    run_airflow(lab, environment, "db", "migrate")
    assert name_executor(environment) == executor
    parts = [*PARTS, WORKER] if executor == "CeleryExecutor" else PARTS
    with ExitStack() as stack:
        for words in parts:
            stack.enter_context(start_part(words, environment))
        api = log_in(environment)
        ingest = f"ingest__{lab.stream}"
        api.wait_for_dag(ingest, START_SECONDS)
        api.request("PATCH", f"/dags/{ingest}", {"is_paused": False})
        yield Dags(lab, api)
        servers.database.dump(database, home / "metadata.sql")


@contextmanager
def start_part(words: tuple[str, ...], environment: Mapping[str, str]) -> Iterator[None]:
    """Start a part in a process group of its own; end it with its children, in the end by force."""
    home = Path(environment["AIRFLOW_HOME"])
    with (home / f"{words[0]}.log").open("wb") as log:
        process = subprocess.Popen(
            [AIRFLOW, *words],
            env=environment,
            cwd=home,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(30)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def wait_for_server(environment: Mapping[str, str]) -> str:
    """Wait for the API server; return its address."""
    url, deadline = environment["AIRFLOW__API__BASE_URL"], time.monotonic() + START_SECONDS
    while True:
        try:
            requests.get(f"{url}/api/v2/version", timeout=10).raise_for_status()
        except requests.RequestException:
            assert time.monotonic() < deadline, "the API server did not answer"
            time.sleep(1)
        else:
            return url


def log_in(environment: Mapping[str, str]) -> AirflowApi:
    """Wait for the API server, and log in with the password that Airflow made."""
    url = wait_for_server(environment)
    home = Path(environment["AIRFLOW_HOME"])
    passwords = json.loads((home / "simple_auth_manager_passwords.json.generated").read_text())
    (home / "password").write_text(passwords["admin"])
    return AirflowApi(url, "admin", home / "password")


def name_executor(environment: Mapping[str, str]) -> str:
    """Ask Airflow which executor it has."""
    asked = [AIRFLOW, "config", "get-value", "core", "executor"]
    told = subprocess.run(asked, env=environment, check=True, capture_output=True, text=True)
    return told.stdout.split()[-1]
