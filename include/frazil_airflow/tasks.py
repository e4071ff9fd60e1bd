"""The decorator of every task: results become JSON, errors end the task, a kill ends Spark jobs."""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from airflow.sdk import Context, XComArg
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from pydantic import BaseModel

from frazil.errors import (
    CatalogUnavailableError,
    ConfigurationError,
    FrazilError,
    StorageError,
    hide_message,
    is_debugging,
)
from frazil.ingest.messages import Published
from frazil.messages import Message, errors_of_forms
from frazil.state_tables.messages import Merged
from frazil.streams.models import Stream
from frazil_airflow.assets import announce_snapshot
from frazil_airflow.connections import use_airflow_connections
from frazil_airflow.outcomes import choose_log_level, choose_outcome, describe, skip_downstream

if TYPE_CHECKING:
    from frazil_airflow.lineage import Lineage

RUN_TYPES = ("scheduled", "manual", "operator_triggered")
"""The runs of a scheduled DAG: Airflow's Backfill is for dates, and no task reads by date."""
MAX_TAG_CHARACTERS = 100
"""With a longer tag Airflow rejects every DAG of the file."""

TaskDefaults: TypeAlias = dict[str, str | int | float | timedelta | Callable[[Context], None]]

DEFINITE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,  # a library's, for settings that it does not support
    TypeError,
    ValueError,
)
"""Exceptions that the same input raises again, so that a retry would only take time."""

log = logging.getLogger(__name__)


class TaskStoppedError(BaseException):
    """Airflow stopped the task; a BaseException, so that no `except Exception` catches it."""


class FrazilTask(DecoratedOperator):
    """Run one function of Frazil as a task.

    With `PythonOperator` as base class the parse of a hundred streams takes a third longer.
    """

    custom_operator_name = "@frazil_task"
    _is_running = False
    _done: Published | Merged | None = None

    def execute(self, context: Context) -> object:
        """Call the function with the context values that it names; return its result as JSON.

        Raises:
            AirflowSkipException, AirflowFailException, FrazilError: see `choose_outcome`.
            DownstreamTasksSkipped: there are no new records.
            TaskStoppedError: Airflow stopped the task.
        """
        with run_as_task(context, {}):
            known = {**context, "params": read_params(context), **self.op_kwargs}
        values = self.determine_kwargs(known)
        bound = inspect.signature(self.python_callable).bind_partial(*self.op_args, **values)
        self._skip_without_input(bound.arguments)
        self._is_running = True
        try:
            with run_as_task(context, bound.arguments):
                result = self.python_callable(*self.op_args, **values)
        finally:
            self._is_running = False
        return self._deliver(result, context)

    def _skip_without_input(self, given: Mapping[str, object]) -> None:
        """Skip if the preceding task was cleared alone and had no result this time."""
        parameters = inspect.signature(self.python_callable).parameters
        for name, value in given.items():
            if value is None and parameters[name].annotation is str:
                message = f"the preceding task returned no {name}; nothing was changed"
                log.warning(message)
                raise AirflowSkipException(message)

    def _deliver(self, result: object, context: Context) -> object:
        answer = log_result(result)
        if isinstance(result, Message) and result.ends_run:
            context["task"].outlets = []  # the task succeeds, and the table has nothing new
            raise skip_downstream(self)
        if isinstance(result, Published | Merged):
            announce_snapshot(result, context)
            self._done = result
        return answer

    def get_openlineage_facets_on_complete(self, _: object) -> "Lineage | None":
        """Describe batch or merge for OpenLineage; its provider calls this if it is in use."""
        from frazil_airflow.lineage import describe_lineage  # noqa: PLC0415 - heavy, and rare

        return None if self._done is None else describe_lineage(self._done)

    def on_kill(self) -> None:
        """Turn Airflow's SIGTERM into an exception, which ends the Spark client's process.

        Airflow calls this from its signal handler, continues the task, and kills it five seconds
        later. The Spark client has its own process group and would survive that.
        """
        if self._is_running:
            self._is_running = False
            raise TaskStoppedError("Airflow stopped this task; its Spark job is being interrupted")


def log_result(result: object) -> object:
    """Describe a result in the task's log, and return it as JSON."""
    log.log(choose_log_level(result), describe(result))
    return result.model_dump_json() if isinstance(result, BaseModel) else result


@contextmanager
def run_as_task(context: Context, given: Mapping[str, object]) -> Iterator[None]:
    """Resolve connections by Airflow, and translate errors to what Airflow does next.

    Raises:
        AirflowSkipException, AirflowFailException, FrazilError: see `choose_outcome`.
    """
    use_airflow_connections()
    _log_retries_by_class()
    stream = _find_stream(given, context)
    try:
        with errors_of_forms():
            yield
    except AirflowException:
        raise
    except Exception as error:  # noqa: BLE001 - its message stays here
        failure = hide_message(error)
        _note_failure(failure, stream, context)
        outcome = choose_outcome(failure)
        if isinstance(outcome, AirflowSkipException):
            log.warning("%s", failure)
        # requests' errors of JSON are an OSError too: the next try may succeed
        if isinstance(error, DEFINITE) and not isinstance(error, OSError):
            outcome = AirflowFailException(f"{failure.code}: {failure}")
        raise outcome from (error if is_debugging() else None)
    else:
        _record_notes(stream, context)


def _log_retries_by_class() -> None:
    """Replace stamina's log of retries, which has the messages of errors."""
    from stamina.instrumentation import RetryDetails, set_on_retry_hooks  # noqa: PLC0415 - heavy

    def note(details: RetryDetails) -> None:
        name = type(details.caused_by).__name__
        log.info("%s: attempt %d after %s", details.name, details.retry_num + 1, name)

    set_on_retry_hooks([note])


def read_params(context: Context) -> Mapping[str, object]:
    """Return the form of a run; where it has a reason, `by` is the user who triggered the run.

    Raises:
        ConfigurationError: the form names another person.
    """
    given = dict(context["params"])
    if "reason" not in given:
        return given
    user = context["dag_run"].triggering_user_name or ""
    if given.get("by") not in (None, "", user):
        raise ConfigurationError(
            f"`by` names another person than {user or 'an unknown user'}, who triggered this run; "
            "nothing was written",
            "trigger the DAG again without `by`: the triggering user is recorded",
        )
    return given | {"by": user}


def _find_stream(given: Mapping[str, object], context: Context) -> str:
    """Return the stream that the task, the DAG or the form names; empty if none does.

    The DAG of a stream comes before the form: its users may not write into another's timeline.
    """
    dag = context.get("dag")
    of_dag = dag.dag_id.partition("__")[2] if dag else None
    stream = given.get("stream") or of_dag or context.get("params", {}).get("stream")
    return stream if isinstance(stream, str) else ""


def _note_failure(error: FrazilError, stream: str, context: Context) -> None:
    """Note a failure for the timeline, and record it unless the catalog or the storage failed."""
    from frazil.events import note_failure  # noqa: PLC0415 - heavy, and rare

    if stream:
        note_failure(error, stream, "", context["run_id"])
    if not isinstance(error, CatalogUnavailableError | StorageError):
        _record_notes(stream, context)


def _record_notes(stream: str, context: Context) -> None:
    """Copy this worker's notes of a stream into the timeline table: the worker may be a pod.

    Notes that cannot be recorded now are left for a later task of this worker. The task itself has
    already succeeded or failed, so an error here does not change its outcome.
    """
    from frazil.events import has_notes  # noqa: PLC0415 - heavy for a DAG file

    if not (stream and has_notes(stream)):
        return
    from frazil.observability.timeline_table import record_notes  # noqa: PLC0415 - heavy, and rare
    from frazil.workspace import open_workspace  # noqa: PLC0415 - heavy, and rare

    try:
        record_notes(open_workspace(stream, context["run_id"]))
    except Exception as error:  # noqa: BLE001 - see above
        code = hide_message(error).code
        log.info("timeline: the notes of this worker are not recorded yet: %s", code)


class TaskFactory(Protocol):
    """A task that can be added to a DAG."""

    def __call__(self, *args: object) -> XComArg:
        """Add the task to the DAG that is being defined."""

    def override(self, **settings: object) -> "TaskFactory":
        """Return the same task with other settings."""

    def expand(self, **arguments: object) -> XComArg:
        """Add a task that is mapped over values."""


def frazil_task(function: Callable[..., object]) -> TaskFactory:
    """Return a task from a function; its name is the task id, its docstring the task's page."""
    # Airflow reads the signature three times for each task; with many streams it takes time.
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    made = task_decorator_factory(
        function,
        multiple_outputs=False,
        decorated_operator_class=FrazilTask,
        doc_md=inspect.getdoc(function),
    )
    return cast("TaskFactory", made)


def task_defaults(owner: str) -> TaskDefaults:
    """Return the settings of all tasks: three retries, after 10, 20 and 40 seconds.

    Priorities are absolute: with Airflow's default a compaction, which has tasks downstream, would
    run before a publish, which has none.
    """
    return {
        "owner": owner,
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=2),
        "weight_rule": "absolute",
        "on_failure_callback": log_error_last,
        "on_retry_callback": log_error_last,
    }


def log_error_last(context: Context) -> None:
    """Log the error once more, as the last line below Airflow's traceback.

    Airflow has opened a folded group in its log viewer; `::endgroup::` ends it.
    """
    error = context.get("exception")
    if error is None:
        return
    log.info("::endgroup::")
    if isinstance(error, str | AirflowException):
        log.error("%s", error)
        return
    failure = hide_message(error)
    if failure is not error:
        _note_failure(failure, _find_stream({}, context), context)
    log.error("%s: %s", failure.code, failure)


def dag_tags(stream: Stream) -> list[str]:
    """Return the tags by which Airflow's list of DAGs can be filtered."""
    return ["frazil", stream.stream, stream.owner[:MAX_TAG_CHARACTERS]]
