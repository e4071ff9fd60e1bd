"""A LocalExecutor whose workers have imported the libraries of Frazil's tasks.

Airflow runs each task in a fork of a worker, and each worker is a fork of the scheduler: what the
scheduler has imported before it starts them, no task imports again. Nothing is opened here: a
connection or a thread would not live through a fork.
"""

from importlib import import_module

from airflow.executors.local_executor import LocalExecutor

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


class WarmLocalExecutor(LocalExecutor):
    """Run tasks on this machine, without their imports."""

    def start(self) -> None:
        """Import, then start the workers."""
        for module in LIBRARIES:
            import_module(module)
        super().start()
