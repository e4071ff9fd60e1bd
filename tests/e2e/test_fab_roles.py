"""The roles of docs/airflow.md, as FAB decides them for a user of each role."""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
from conformance.packages import FAB, ensure_packages
from conformance.sites import AIRFLOW, start_part, wait_for_server
from conftest import REPO
from faults.rest_catalog import find_free_port

pytestmark = [pytest.mark.stack, pytest.mark.long]

PAGE = REPO / "docs" / "airflow.md"
ROLES = ("view", "operate", "decide")
PASSWORD = "planted-fab-password"  # noqa: S105 - of a test
STREAM = """\
stream: {name}
owner: shop@example.org
source: {{topic: {name}}}
value: {{convert: json, columns: {{id: long!}}}}
table: {{name: shop.{name}}}
batch: {{schedule: "0 0 1 1 *"}}
maintenance: {{schedule: "0 0 1 1 *"}}
"""
ADMIN = "airflow.providers.fab.auth_manager.fab_auth_manager.FabAuthManager"
RUN: Mapping[str, object] = {"logical_date": None, "conf": {}}
REQUESTS: Mapping[str, tuple[str, str, Mapping[str, object] | None]] = {
    "see runs": ("GET", "/dags/ingest__orders/dagRuns", None),
    "pause": ("PATCH", "/dags/ingest__orders", {"is_paused": True}),
    "trigger": ("POST", "/dags/operate__orders/dagRuns", RUN),
    "see runs of another stream": ("GET", "/dags/ingest__refunds/dagRuns", None),
    "trigger another stream": ("POST", "/dags/operate__refunds/dagRuns", RUN),
    "trigger a DAG for all streams": ("POST", "/dags/watch/dagRuns", RUN),
}
OWN = {"see runs"}
MAY: Mapping[str, set[str]] = {
    "view": OWN,
    "operate": OWN | {"pause", "trigger"},
    "decide": set(REQUESTS),
}


def read_roles() -> list[dict[str, str]]:
    """Return the page's table of roles as `airflow roles import` reads it."""
    table = PAGE.read_text().partition("| role in FAB |")[2].partition("\n\n")[0]
    rights: dict[str, list[tuple[str, str]]] = {}
    role = ""
    for line in table.splitlines()[2:]:
        name, actions, resources = (part.strip() for part in line.split("|")[1:4])
        if name:
            role = name.partition(":")[0]
            rights[role] = [*rights["view"]] if name != role else []
        given = re.findall(r"`([^`]+)`", resources)
        rights[role] += [(",".join(re.findall(r"`([^`]+)`", actions)), each) for each in given]
    return [
        {"name": name, "action": action, "resource": resource}
        for name, pairs in rights.items()
        for action, resource in pairs
    ]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an Airflow with FAB's provider, two streams, and a user of each role."""
    home = tmp_path / "airflow"
    for folder in (home, tmp_path / "streams"):
        folder.mkdir()
    for name in ("orders", "refunds"):
        (tmp_path / "streams" / f"{name}.yaml").write_text(STREAM.format(name=name))
    (tmp_path / "roles.json").write_text(json.dumps(read_roles()))
    port = find_free_port()
    folders = [REPO / "include", REPO / "spark_jobs", ensure_packages("fab", FAB)]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "FRAZIL"))}
    made = {
        **kept,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(REPO / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__AUTH_MANAGER": ADMIN,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
        "FRAZIL_STREAMS": str(tmp_path / "streams"),
        "FRAZIL_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }
    user = ("--firstname", "A", "--lastname", "B", "--password", PASSWORD)
    for words in (
        ("db", "migrate"),
        ("dags", "reserialize"),
        ("sync-perm", "--include-dags"),
        ("roles", "import", str(tmp_path / "roles.json")),
        *(
            ("users", "create", "--username", r, "--role", r, "--email", f"{r}@example.org", *user)
            for r in ROLES
        ),
    ):
        ran = subprocess.run(
            [AIRFLOW, *words], env=made, cwd=home, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
    return made


@contextmanager
def log_in(url: str, user: str) -> Iterator[requests.Session]:
    with requests.Session() as session:
        login = {"username": user, "password": PASSWORD}
        answer = session.post(f"{url}/auth/token", json=login, timeout=60)
        session.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
        yield session


def test_each_role_may_what_the_page_says_and_no_more(environment: Mapping[str, str]) -> None:
    answers: dict[str, dict[str, int]] = {}
    seen = {}
    with start_part(("api-server",), environment):
        url = wait_for_server(environment)
        for role in ROLES:
            with log_in(url, role) as session:
                listed = session.get(f"{url}/api/v2/dags?limit=100", timeout=60).json()["dags"]
                seen[role] = {dag["dag_id"] for dag in listed}
                answers[role] = {
                    name: session.request(
                        method, f"{url}/api/v2{path}", json=body, timeout=60
                    ).status_code
                    for name, (method, path, body) in REQUESTS.items()
                }

    own = {"ingest__orders", "operate__orders"}
    assert (seen["view"], seen["operate"]) == (own, own)
    assert seen["decide"] > own | {"ingest__refunds", "erase", "watch"}
    assert answers == {
        role: {name: 200 if name in may else 403 for name in REQUESTS} for role, may in MAY.items()
    }
