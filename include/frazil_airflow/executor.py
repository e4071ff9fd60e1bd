"""A LocalExecutor whose workers have imported the libraries of Frazil's tasks.

Airflow runs each task in a fork of a worker, and each worker is a fork of the scheduler: what the
scheduler has imported before it starts them, no task imports again. Nothing is opened here: a
connection or a thread would not live through a fork.
"""

from collections.abc import Sequence
from importlib import import_module

from airflow.executors.local_executor import LocalExecutor
from airflow.executors.workloads import ExecutorWorkload

LIBRARIES = (
    "airflow.sdk.execution_time.task_runner",
    "confluent_kafka.admin",
    "fastavro",
    "google.protobuf.descriptor_pb2",
    "numpy.typing",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
    "pyiceberg.io.pyarrow",
    "rich.console",
    "stamina",
)
"""None of Frazil's own modules: what is on disk is what runs, without a restart."""

TASKS_PER_WORKER = 3
"""With many streams a turn of the scheduler takes seconds; with one, workers would wait for it."""


class WarmLocalExecutor(LocalExecutor):
    """Run tasks on this machine, without their imports."""

    def start(self) -> None:
        """Import, then start the workers."""
        for module in LIBRARIES:
            import_module(module)
        super().start()

    def _spawn_workers_with_gc_freeze(self, spawn_number: int) -> None:
        """Start fewer workers than tasks are taken: each finds its next one while Airflow plans."""
        wanted = max(1, self.parallelism // TASKS_PER_WORKER)
        missing = min(spawn_number, wanted - len(self.workers))
        super()._spawn_workers_with_gc_freeze(missing)  # type: ignore[no-untyped-call]

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
