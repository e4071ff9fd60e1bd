"""A LocalExecutor whose workers have imported what Frazil's tasks import.

Airflow runs each task in a fork of a worker, and each worker is a fork of the scheduler: what the
scheduler has imported before it starts them, no task imports again. Nothing is opened here: a
connection or a thread would not live through a fork.
"""

from collections.abc import Sequence

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
    "frazil_airflow.following",
    "frazil_airflow.parsing",
    "frazil_airflow.tasks",
    "google.protobuf.descriptor_pb2",
    "numpy.typing",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "rich.console",
    "stamina",
    "supervisor.xmlrpc",
)


class WarmLocalExecutor(LocalExecutor):
    """Run tasks on this machine, without their imports."""

    def start(self) -> None:
        """Import, then start the workers."""
        preload(MODULES)
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
