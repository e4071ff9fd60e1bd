"""A LocalExecutor whose workers have imported what Frazil's tasks import.

Airflow runs each task in a fork of a worker, and each worker is a fork of the scheduler: what the
scheduler has imported before it starts them, no task imports again. Nothing is opened here: a
connection or a thread would not live through a fork.
"""

from collections.abc import Sequence
from functools import cache

from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecutorWorkload

from frazil.preloading import preload

MODULES = (
    "airflow.sdk.execution_time.task_runner",
    "confluent_kafka.admin",
    "fastavro",
    "frazil.ingest",
    "frazil.stack.server_cpu",
    "frazil.watch",
    "frazil.workspace",
    "frazil_airflow.assets",
    "frazil_airflow.fleet_watch",
    "frazil_airflow.following",
    "frazil_airflow.parsing",
    "frazil_airflow.tasks",
    "google.protobuf.descriptor_pb2",
    "jinja2.ext",
    "numpy.typing",
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
    from airflow.sdk.execution_time import comms, task_runner  # noqa: PLC0415 - see `MODULES`
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


class WarmLocalExecutor(LocalExecutor):
    """Run tasks on this machine, without their imports."""

    def start(self) -> None:
        """Import, then start the workers."""
        preload(MODULES)
        prepare()
        super().start()

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
