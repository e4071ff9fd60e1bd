"""The frame of every DAG that a person triggers: settings, form, page, and plans between tasks."""

from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.sdk import DAG, Param, dag

from frazil.errors import ConfigurationError
from frazil.ledger.offsets import (
    PlainRanges,
    Ranges,
    iterate_ranges,
    parse_offset_ranges,
    unpack_ranges,
)
from frazil.messages import Message
from frazil_airflow.params import dry_run_param, reason_param, stream_param
from frazil_airflow.tasks import task_defaults

if TYPE_CHECKING:
    from frazil.workspace import Workspace

Planned = TypeVar("Planned", bound=Message)


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


def require_as_asked(plan: Planned, request: Message, work: "Workspace") -> Planned:
    """Return the plan of the task before, if it is one of what the form asks for.

    Users may write the results (XComs) of tasks, so the form of the run, the user who triggered it
    and the stream file decide: a field of theirs has the same value in the plan, where it has one.

    Raises:
        ConfigurationError: a field has another value, or offsets are not among those of the form.
    """
    asked = _read_fields(request) | {"table": work.stream.table.name}
    parts = [_read_fields(part) for part in _list_parts(plan)]
    changed = {n for part in parts for n in asked.keys() & part.keys() if part[n] != asked[n]}
    planned = [part["ranges"] for part in parts if part.get("ranges")]
    if planned and asked.get("offsets"):
        offsets = parse_offset_ranges(asked["offsets"])
        if not all(_is_within(ranges, offsets) for ranges in planned):
            changed.add("offsets")
    if changed:
        raise ConfigurationError(
            f"stream {work.stream.stream}: the plan of the preceding task differs from the "
            f"form, the user or the stream file in: {', '.join(sorted(changed))}; nothing was "
            "written",
            "trigger the DAG again, and leave the results (XComs) of its tasks as they are",
        )
    return plan


def _read_fields(message: Message) -> dict[str, Any]:
    """Return the fields of a message by name; `dict()` would ask a field `keys` for them."""
    return {name: getattr(message, name) for name in type(message).model_fields}


def _list_parts(plan: Message) -> Iterator[Message]:
    """Yield a plan, and what it has of request, batch and windows."""
    yield plan
    yield from (part for _, part in plan if isinstance(part, Message))
    yield from getattr(plan, "windows", ())


def _is_within(ranges: PlainRanges, offsets: Ranges) -> bool:
    """Return whether the ranges are parts of these offsets."""
    for topic, partition, span in iterate_ranges(unpack_ranges(ranges)):
        whole = offsets.get(topic, {}).get(partition)
        if whole is None or span.start < whole.start or span.end > whole.end:
            return False
    return True
