"""The frame of every DAG that a person triggers: settings, form, and the page from its file."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, dag

from frazil_airflow.params import dry_run_param, reason_param, stream_param
from frazil_airflow.tasks import task_defaults


def manual_dag(
    dag_id: str,
    description: str,
    params: Mapping[str, Param] | None = None,
    *,
    reason: str = "",
    changes_tables: bool = True,
    **settings: Any,  # noqa: ANN401 - those of Airflow's `dag`
) -> Callable[[Callable[[], None]], DAG]:
    """Return a decorator that defines the DAG whose tasks the function wires.

    The docstring of the function's module is the DAG's page. A DAG that changes tables asks for the
    stream and is a dry run by default; with `reason`, the description of that field, it also asks
    why. Who decides is the user who triggers the run. `settings` replace those of the frame.
    """
    form: dict[str, Param] = {}
    if changes_tables:
        form |= {"stream": stream_param(), "dry_run": dry_run_param()}
        description += "; a dry run by default"
    form |= params or {}
    if reason:
        form["reason"] = reason_param(reason)
    frame: dict[str, Any] = {
        "catchup": False,
        "allowed_run_types": ("manual", "operator_triggered"),
        "max_active_runs": 1,
        "is_paused_upon_creation": False,  # a run of a paused DAG would wait
        "dagrun_timeout": timedelta(hours=6),
        "default_args": task_defaults("frazil"),
        "tags": ["frazil", "manual"],
    }

    def define(wire: Callable[[], None]) -> DAG:
        page = wire.__globals__["__doc__"]
        text = {"dag_id": dag_id, "description": description, "doc_md": page}
        return dag(schedule=None, params=form, **(text | frame | settings))(wire)()

    return define
