"""Who runs a stream's batches and decisions: a user's commands, or the DAGs of an Airflow."""

import json
from dataclasses import dataclass
from typing import Any, Protocol, cast

from conftest import Lab

from frazil_demo.airflow_api import AirflowApi

PATIENCE = 1200.0
"""Seconds for a command or a run, on a busy machine."""
Field = str | list[str]
DECISIONS = ("erase", "recover", "waive")
"""Actions that ask who decides and why."""
REASON = "conformance"


class Caller(Protocol):
    """Runs the steps of one stream."""

    def ingest(self) -> bool:
        """Run a batch; return whether it succeeded."""

    def operate(self, action: str, **fields: Field) -> None:
        """Do an action of `operate__<stream>`, which must succeed."""


@dataclass(frozen=True)
class CommandLine:
    """The commands of a user."""

    lab: Lab

    def ingest(self) -> bool:
        return run_frazil(self.lab, "run") is not None

    def operate(self, action: str, **fields: Field) -> None:
        words = ["--no-dry-run"]
        if action in DECISIONS:
            words += ["--by", "jane@example.org", "--reason", REASON]
        for name, value in fields.items():
            option = "--key" if name == "keys" else f"--{name.replace('_', '-')}"
            for each in [value] if isinstance(value, str) else value:
                words += [option, each]
        run(self.lab, action.replace("_", "-"), *words)


@dataclass(frozen=True)
class Dags:
    """The DAGs of the stream in an Airflow."""

    lab: Lab
    api: AirflowApi

    def ingest(self) -> bool:
        return self._trigger("ingest")

    def operate(self, action: str, **fields: Field) -> None:
        reason = {"reason": REASON} if action in DECISIONS else {}
        assert self._trigger("operate", action=action, dry_run=False, **reason, **fields), action

    def _trigger(self, kind: str, **form: object) -> bool:
        """Run a DAG once; return whether it succeeded."""
        dag = f"{kind}__{self.lab.stream}"
        body = {"logical_date": None, "conf": form}
        run_id = self.api.request("POST", f"/dags/{dag}/dagRuns", body)["dag_run_id"]
        return self.api.wait_for_run(dag, run_id, PATIENCE).state == "success"


def run(lab: Lab, command: str, *arguments: str) -> dict[str, Any]:
    """Run a command that must succeed; return its answer."""
    answer = run_frazil(lab, command, *arguments)
    assert answer is not None, (lab.folder / "output.log").read_text()[-5000:]
    return answer


def run_frazil(lab: Lab, command: str, *arguments: str) -> dict[str, Any] | None:
    """Run a command; return its answer, or None if it failed; keep what it printed."""
    ended = lab.frazil(command, lab.stream, *arguments, "--json", timeout=PATIENCE)
    with (lab.folder / "output.log").open("a") as log:
        log.write(f"# frazil {command}: exit {ended.code}\n{ended.out}{ended.err}\n")
    return cast("dict[str, Any]", json.loads(ended.out)) if ended.code == 0 else None
