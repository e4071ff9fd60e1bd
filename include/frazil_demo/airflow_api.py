"""Airflow's REST API, as much of it as the demonstration needs."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import stamina

from frazil.errors import StackError

_FINAL = frozenset({"success", "failed"})
TIMEOUT_SECONDS = 60
"""A busy machine may need half a minute for an answer."""


@dataclass(frozen=True)
class DagRun:
    """A run and how it ended."""

    run_id: str
    state: str


class AirflowApi:
    """One Airflow, one user."""

    def __init__(self, url: str, user: str, password_file: Path) -> None:
        """Log in; the password is read from its file and kept in memory only."""
        self._url = url.rstrip("/")
        self._headers: dict[str, str] = {}
        login = {"username": user, "password": password_file.read_text().strip()}
        token = self.request("POST", "/auth/token", login, root="")["access_token"]
        self._headers = {"Authorization": f"Bearer {token}"}

    def wait_for_dag(self, dag_id: str, seconds: float = 120.0) -> None:
        """Wait until Airflow has parsed the DAG.

        Raises:
            StackError: it did not appear.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.request("GET", f"/dags/{dag_id}", allow_missing=True)
            if answer and not answer.get("is_stale", False):
                return
            time.sleep(1)
        raise StackError(
            f"Airflow did not show DAG {dag_id} within {seconds:.0f} s",
            f"open {self._url} and look at the import errors, or run `frazil streams`",
        )

    def trigger(self, dag_id: str) -> DagRun:
        """Start a manual run."""
        answer = self.request("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None})
        return DagRun(answer["dag_run_id"], answer["state"])

    def wait_for_run(self, dag_id: str, run_id: str, seconds: float = 900.0) -> DagRun:
        """Wait until a run has ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.request("GET", f"/dags/{dag_id}/dagRuns/{run_id}")
            if answer["state"] in _FINAL:
                return DagRun(run_id, answer["state"])
            time.sleep(0.5)
        raise StackError(
            f"run {run_id} of {dag_id} did not end within {seconds:.0f} s",
            f"open {self._url}/dags/{dag_id}/runs/{run_id}",
        )

    def request(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        allow_missing: bool = False,
        root: str = "/api/v2",
    ) -> dict[str, Any]:
        """Call one endpoint below the root and give its JSON; {} where missing is allowed.

        Raises:
            StackError: Airflow does not answer, or not with what was asked for.
        """
        address = f"{self._url}{root}{path}"
        asked = stamina.retry_context(
            on=requests.Timeout,
            attempts=3 if method == "GET" else 1,
            timeout=None,
            wait_initial=0.1,
        )
        try:
            for attempt in asked:
                with attempt:  # a question may be asked again, an order may not
                    answer = requests.request(
                        method, address, json=body, headers=self._headers, timeout=TIMEOUT_SECONDS
                    )
            if allow_missing and answer.status_code == requests.codes.not_found:
                return {}
            answer.raise_for_status()
            content: dict[str, Any] = answer.json()
        except requests.RequestException as error:
            raise StackError(
                f"Airflow did not do {method} {address}: {error}",
                "`frazil stack status` shows its parts, `frazil stack up` starts what is missing; "
                "then `make demo` again",
            ) from error
        return content
