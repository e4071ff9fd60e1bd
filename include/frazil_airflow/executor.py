"""A LocalExecutor whose tasks begin with Frazil's libraries imported."""

from importlib import import_module

from airflow.executors.local_executor import LocalExecutor

WARM_MODULES = ("frazil.ingest", "frazil.workspace", "frazil.watch", "frazil.maintenance")
"""What tasks import first; with PyIceberg, PyArrow and Kafka's client below them."""


class WarmLocalExecutor(LocalExecutor):
    """Import before forking: each task otherwise spends a second of processor time on it.

    Workers are forked from the scheduler, tasks from the workers, so the imported modules are
    shared, in memory too. Importing opens no connection; the threads that it starts are those of
    OpenBLAS and jemalloc, which both handle a fork.
    """

    def start(self) -> None:
        """Import what tasks need, then fork the workers."""
        for module in WARM_MODULES:
            import_module(module)
        super().start()
