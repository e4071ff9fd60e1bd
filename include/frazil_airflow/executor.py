"""A LocalExecutor whose workers have imported what Frazil's tasks import.

Airflow runs each task in a fork of a worker, and each worker is a fork of the scheduler: what the
scheduler has imported before it starts them, no task imports again. Until then nothing is opened: a
connection or a thread would not live through a fork.
"""

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache, wraps
from typing import TYPE_CHECKING, Any

from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecutorWorkload
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, State
from sqlalchemy import exists, func, select, update
from sqlalchemy.exc import SQLAlchemyError

from frazil.spark.preloading import preload

if TYPE_CHECKING:
    from airflow.sdk.execution_time.supervisor import ActivitySubprocess

LONG_AGO = datetime(1970, 1, 2, tzinfo=UTC)
"""A second earlier MySQL's timestamps would not reach."""

FULL_SECONDS = 0.5
"""How long a turn of the scheduler waits for a slot when all are taken."""

LOOK_SECONDS = 0.05
GATHER_SECONDS = 0.2
"""How long it waits for more of them then, so that one turn goes on with several runs."""

MODULES = (
    "airflow.sdk.execution_time.task_runner",
    "confluent_kafka.admin",
    "fastavro",
    "frazil.ingest.pipeline",
    "frazil.spark.engine",
    "frazil.observability.watch",
    "frazil.workspace",
    "frazil_airflow.assets",
    "frazil_airflow.freshness_watch",
    "frazil_airflow.dag_runs",
    "frazil_airflow.dag_loading",
    "frazil_airflow.tasks",
    "google.protobuf.descriptor_pb2",
    "jinja2.ext",
    "numpy.typing",
    "pyiceberg.avro.decoder_fast",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "rich.console",
    "stamina",
    "supervisor.xmlrpc",
)


def prepare() -> None:
    """Do what Airflow and PyIceberg would do anew in each task, and always with the same result.

    Pydantic's schemas of all messages between a task and its supervisor are a tenth of what a small
    task does; the plugins, and the mapping of the SQL catalog's tables, are the next.
    """
    from airflow.sdk.execution_time import comms, supervisor, task_runner  # noqa: PLC0415 - see `MODULES`
    from airflow.sdk.listener import get_listener_manager  # noqa: PLC0415 - likewise
    from pydantic import JsonValue, TypeAdapter  # noqa: PLC0415 - likewise
    from sqlalchemy.orm import configure_mappers  # noqa: PLC0415 - likewise

    adapt = cache(TypeAdapter)
    for module in (comms, task_runner):
        setattr(module, "TypeAdapter", adapt)  # noqa: B010 - a name of another's module
    adapt(comms.ToTask)
    adapt(JsonValue)
    get_listener_manager()
    configure_mappers()
    _count_start_as_heartbeat(supervisor.ActivitySubprocess)


def _count_start_as_heartbeat(process: "type[ActivitySubprocess]") -> None:
    """Keep Airflow (3.3) from a heartbeat right after it has said that the task started.

    It is one of seven requests of a small task. A test fails where the names are others.
    """
    start = process._on_child_started  # noqa: SLF001 - see above

    @wraps(start)
    def start_and_count(self: "ActivitySubprocess", **given: Any) -> None:  # noqa: ANN401 - theirs
        start(self, **given)
        self._last_heartbeat_attempt = time.monotonic()

    setattr(process, start.__name__, start_and_count)


def put_ready_first() -> None:
    """Let the scheduler look at runs in which a task has ended before those that only wait.

    Runs that it has not looked at yet stay first of all. These get an old date, not none as where
    somebody clears a task: a run whose DAG was paused would not end then.

    Raises:
        SQLAlchemyError: the database did not answer.
    """
    # By the run's tasks: SQLite would look by state at all that the DAG ever ran.
    state = func.coalesce(TaskInstance.state, "")
    ended = exists().where(
        TaskInstance.dag_id == DagRun.dag_id,
        TaskInstance.run_id == DagRun.run_id,
        state.in_(State.finished),
        TaskInstance.updated_at > DagRun.last_scheduling_decision,
    )
    ready = select(DagRun.id).where(
        DagRun.state == DagRunState.RUNNING, DagRun.last_scheduling_decision > LONG_AGO, ended
    )
    with create_session() as session:
        found = session.scalars(ready).all()
    if found:
        first = update(DagRun).where(DagRun.id.in_(found), DagRun.state == DagRunState.RUNNING)
        with create_session() as session:  # another one: SQLite lets no reader go on as a writer
            session.execute(
                first.values(last_scheduling_decision=LONG_AGO),
                execution_options={"synchronize_session": False},
            )


class WarmLocalExecutor(LocalExecutor):
    """Run tasks on this machine, without their imports."""

    def start(self) -> None:
        """Import, then start the workers."""
        preload(MODULES)
        prepare()
        super().start()

    def sync(self) -> None:
        """Read which tasks have ended; without a free slot, wait for the first that does.

        What a scheduler does meanwhile starts nothing, and with a hundred runs that wait it looks
        at them again and again, with the processor that the tasks need.
        """
        super().sync()
        if self.slots_available <= 0:
            self._wait_for_results()
            super().sync()
        try:
            put_ready_first()
        except SQLAlchemyError as error:  # the order is never worth more than the scheduler
            self.log.warning("runs stay in Airflow's own order this time: %s", error)

    def _wait_for_results(self) -> None:
        deadline = time.monotonic() + FULL_SECONDS
        while self.result_queue.empty():
            if time.monotonic() >= deadline:
                return
            time.sleep(LOOK_SECONDS)
        time.sleep(GATHER_SECONDS)

    def _process_workloads(self, workload_list: Sequence[ExecutorWorkload]) -> None:
        """Take workloads, and take the slots that they fill.

        Airflow's own executor (3.3) does not: it takes more with each turn of the scheduler, and
        in its queue the last step of a batch waits behind the first steps of thirty others.
        """
        super()._process_workloads(workload_list)  # type: ignore[no-untyped-call]
        self.running.update(workload.key for workload in workload_list)

    def _check_workers(self) -> None:
        """Begin to count anew where a worker has died: nobody says which slot it filled."""
        if not all(process.is_alive() for process in self.workers.values()):
            self.running.clear()
        super()._check_workers()  # type: ignore[no-untyped-call]
