"""One decorator for every task: values leave as JSON, errors as outcomes, a stop stops Spark."""

import inspect
import logging
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Protocol, TypeAlias, cast

from airflow.sdk import Context, XComArg
from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory
from airflow.sdk.exceptions import AirflowException, AirflowSkipException
from pydantic import BaseModel

from frazil.errors import FrazilError
from frazil.ingest.messages import Published
from frazil.messages import Message
from frazil.streams.models import Stream
from frazil_airflow.assets import announce_snapshot
from frazil_airflow.connections import use_airflow_connections
from frazil_airflow.outcomes import choose_log_level, choose_outcome, describe, end_without_work

MAX_TAG_CHARACTERS = 100
"""Airflow refuses a longer tag, and with it every DAG of the file."""

POOLS_VARIABLE = "FRAZIL_TABLE_POOLS"
DEFAULT_POOL = "default_pool"
POOL_PREFIX = "frazil_"

TaskDefaults: TypeAlias = dict[str, str | int | float | timedelta | Callable[[Context], None]]

log = logging.getLogger(__name__)


class TaskStoppedError(BaseException):
    """Somebody stopped the task; not an `Exception`, so that no `except` on the way keeps it."""


class FrazilTask(DecoratedOperator):
    """Run one function of Frazil as a task.

    Built on the decorator's operator alone: with `PythonOperator` between, a parse of a hundred
    streams would take a third longer.
    """

    custom_operator_name = "@frazil_task"
    _is_running = False

    def execute(self, context: Context) -> object:
        """Call the function with what it asks of the context; give its answer as JSON.

        Raises:
            AirflowSkipException, AirflowFailException, FrazilError: see `choose_outcome`.
            DownstreamTasksSkipped: there is nothing to read.
            TaskStoppedError: Airflow stopped the task.
        """
        use_airflow_connections()
        wanted = self.determine_kwargs({**context, **self.op_kwargs})
        given = inspect.signature(self.python_callable).bind_partial(*self.op_args, **wanted)
        self._skip_without_input(given.arguments)
        self._is_running = True
        try:
            answer = self.python_callable(*self.op_args, **wanted)
        except FrazilError as error:
            _note_failure(error, given.arguments, context)
            outcome = choose_outcome(error)
            if isinstance(outcome, AirflowSkipException):
                log.warning("%s", error)
            raise outcome from None
        finally:
            self._is_running = False
        return self._deliver(answer, context)

    def _skip_without_input(self, given: Mapping[str, object]) -> None:
        """Skip where the step before was cleared alone, and now had nothing to give."""
        parameters = inspect.signature(self.python_callable).parameters
        for name, value in given.items():
            if value is None and parameters[name].annotation is str:
                message = f"{name}: the step before has nothing for this one; nothing was changed"
                log.warning(message)
                raise AirflowSkipException(message)

    def _deliver(self, answer: object, context: Context) -> object:
        log.log(choose_log_level(answer), describe(answer))
        if isinstance(answer, Message) and answer.is_last_word:
            raise end_without_work(self)
        if isinstance(answer, Published):
            announce_snapshot(answer, context)
        return answer.model_dump_json() if isinstance(answer, BaseModel) else answer

    def on_kill(self) -> None:
        """Turn Airflow's SIGTERM into an exception, which alone ends the engine's process.

        Airflow calls this from its signal handler and goes on with the task; five seconds later it
        kills. The Spark client has a process group of its own and would live on.
        """
        if self._is_running:
            self._is_running = False
            raise TaskStoppedError("Airflow stopped this task; Spark's work is being interrupted")


def _note_failure(error: BaseException, given: Mapping[str, object], context: Context) -> None:
    """Note for the timeline what failed, where task, form or DAG name a stream."""
    from frazil.events import UnexpectedError, note_failure  # noqa: PLC0415 - heavy, and rare

    if not isinstance(error, FrazilError):
        text = f"{type(error).__name__}: {error}"
        error = UnexpectedError(text, "the task's log has the traceback; the next run plans anew")
    dag = context.get("dag")
    of_dag = dag.dag_id.partition("__")[2] if dag else None
    stream = given.get("stream") or context["params"].get("stream") or of_dag
    if isinstance(stream, str) and stream:
        note_failure(error, stream, "", context["run_id"])


class TaskFactory(Protocol):
    """What `frazil_task` makes of a function."""

    def __call__(self, *args: object) -> XComArg:
        """Put the task into the DAG that is being defined."""

    def override(self, **settings: object) -> "TaskFactory":
        """Give the same task with other settings."""

    def expand(self, **arguments: object) -> XComArg:
        """Make one task instance per value."""


def frazil_task(function: Callable[..., object]) -> TaskFactory:
    """Make a task of a function whose name is the task id and whose docstring is its page."""
    # Airflow reads it three times for each task; with many streams that shows.
    function.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    made = task_decorator_factory(
        function,
        multiple_outputs=False,
        decorated_operator_class=FrazilTask,
        doc_md=inspect.getdoc(function),
    )
    return cast("TaskFactory", made)


def task_defaults(owner: str) -> TaskDefaults:
    """Give what all tasks share: tries after 10, 20 and 40 seconds, never more than two minutes.

    Priorities are absolute: by Airflow's default a compaction, with three tasks behind it, would
    take the table's slot before a publish, which has none.
    """
    return {
        "owner": owner,
        "retries": 3,
        "retry_delay": timedelta(seconds=10),
        "retry_exponential_backoff": 2.0,
        "max_retry_delay": timedelta(minutes=2),
        "weight_rule": "absolute",
        "on_failure_callback": write_last_words,
        "on_retry_callback": write_last_words,
    }


def write_last_words(context: Context) -> None:
    """Repeat the error as the last thing in the task's log, below Airflow's traceback.

    Airflow has opened a folded group by now; what should be seen must stand outside of it.
    """
    error = context.get("exception")
    if error is not None:
        if not isinstance(error, str | FrazilError | AirflowException):
            _note_failure(error, {}, context)
        log.info("::endgroup::")
        log.error("%s", f"{error.code}: {error}" if isinstance(error, FrazilError) else error)


def choose_pool(stream: Stream) -> str:
    """Return the pool of tasks that write to the stream's table: Airflow's default one.

    Where `FRAZIL_TABLE_POOLS` is `true` it is `frazil_<namespace>_<table>`, which the site creates.
    """
    if os.environ.get(POOLS_VARIABLE, "").lower() != "true":
        return DEFAULT_POOL
    return POOL_PREFIX + stream.table.name.replace(".", "_")


def dag_tags(stream: Stream) -> list[str]:
    """Tag a DAG for the filters of Airflow's DAG list."""
    return ["frazil", stream.stream, stream.owner[:MAX_TAG_CHARACTERS]]
