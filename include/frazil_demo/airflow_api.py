"""A client of the endpoints of Airflow's REST API that the demonstration needs."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import stamina

from frazil.errors import StackError

_FINAL = frozenset({"success", "failed"})
TIMEOUT_SECONDS = 60
"""A busy machine may need half a minute for a response."""

_ROLLED_BACK = requests.codes.internal_server_error
"""Airflow answers so where its database was locked too long: nothing of the request is left."""


@dataclass(frozen=True)
class DagRun:
    """A DAG run and its state."""

    run_id: str
    state: str


class AirflowApi:
    """A client of one Airflow as one user."""

    def __init__(self, url: str, user: str, password_file: Path) -> None:
        """Log in with the password of a file."""
        self._url = url.rstrip("/")
        self._headers: dict[str, str] = {}
        login = {"username": user, "password": password_file.read_text().strip()}
        token = self.request("POST", "/auth/token", login, root="")["access_token"]
        self._headers = {"Authorization": f"Bearer {token}"}

    def wait_for_dag(self, dag_id: str, seconds: float = 120.0) -> None:
        """Wait until Airflow has parsed the DAG.

        Raises:
            StackError: it did not within the time limit.
        """
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = self.request("GET", f"/dags/{dag_id}", allow_missing=True)
            if answer and not answer.get("is_stale", False):
                return
            time.sleep(1)
        raise StackError(
            f"Airflow did not load DAG {dag_id} within {seconds:.0f} s",
            f"open {self._url} and read its DAG import errors, or run `frazil streams`",
        )

    def trigger(self, dag_id: str) -> DagRun:
        """Start a manual run and return it."""
        answer = self.request("POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None})
        return DagRun(answer["dag_run_id"], answer["state"])

    def wait_for_run(self, dag_id: str, run_id: str, seconds: float = 900.0) -> DagRun:
        """Wait until a run has ended and return it.

        Raises:
            StackError: it did not within the time limit.
        """
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
        """Call one endpoint and return its JSON; {} for 404 if `allow_missing`.

        Raises:
            StackError: Airflow did not respond, or with an error.
        """
        address = f"{self._url}{root}{path}"
        retries = stamina.retry_context(
            on=lambda error: _is_safe_to_repeat(method, error),
            attempts=3,
            timeout=None,
            wait_initial=0.1,
        )
        try:
            for attempt in retries:
                with attempt:
                    answer = requests.request(
                        method, address, json=body, headers=self._headers, timeout=TIMEOUT_SECONDS
                    )
                    if allow_missing and answer.status_code == requests.codes.not_found:
                        return {}
                    answer.raise_for_status()
            content: dict[str, Any] = answer.json()
        except requests.RequestException as error:
            raise StackError(
                f"request to Airflow failed: {method} {address}: {error}",
                "`frazil stack status` shows the services, `frazil stack up` starts missing ones; "
                "then repeat `make demo`",
            ) from error
        return content


def _is_safe_to_repeat(method: str, error: Exception) -> bool:
    """Whether the request left nothing behind that a second one would double."""
    if isinstance(error, requests.Timeout):
        return method == "GET"
    answer = error.response if isinstance(error, requests.HTTPError) else None
    return answer is not None and answer.status_code == _ROLLED_BACK
