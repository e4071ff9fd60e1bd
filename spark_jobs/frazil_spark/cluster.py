"""An application of our own on a cluster: what it used, and when nobody works for it."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark import SparkContext

from frazil.spark_submit import WAIT_VARIABLE

DEFAULT_WAIT_SECONDS = 300
NOBODY = "no executor works for this job"
_LOOK_SECONDS = 1.0


@contextmanager
def watched_executors(context: SparkContext, give_up: Callable[[str], None]) -> Iterator[None]:
    """Call `give_up` if work waits inside and no executor has been there for so long.

    Spark itself would wait for ever: for workers that are gone, or for a queue that is full.
    """
    done = threading.Event()
    patience = float(os.environ.get(WAIT_VARIABLE) or DEFAULT_WAIT_SECONDS)

    def watch() -> None:
        seen = time.monotonic()
        while not done.wait(_LOOK_SECONDS):
            if count_executors(context) > 0 or not context.statusTracker().getActiveStageIds():
                seen = time.monotonic()
            elif time.monotonic() - seen > patience:
                give_up(f"{NOBODY}: none of {context.master} for {patience:.0f} s")
                return

    watcher = threading.Thread(target=watch, daemon=True)
    if not str(context.master).startswith("local"):
        watcher.start()
    try:
        yield
    finally:
        done.set()
        if watcher.is_alive():
            watcher.join()


def count_executors(context: SparkContext) -> int:
    """Count the executors that are there; the driver is the one more that Spark lists."""
    return int(_scala(context).getExecutorMemoryStatus().size()) - 1


def read_cpu_ms(context: SparkContext) -> int:
    """Sum up the CPU time of all tasks, ms; Python workers are not in it."""
    scala = _scala(context)
    gateway: Any = context._gateway  # noqa: SLF001 - no public way to the JVM
    scala.listenerBus().waitUntilEmpty()
    nothing = gateway.jvm.java.util.ArrayList()
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    without = (False, False)  # no details of tasks, no summaries of them
    stages = scala.statusStore().stageList(nothing, *without, quantiles, nothing)
    nanoseconds = (stages.apply(index).executorCpuTime() for index in range(stages.size()))
    return int(sum(nanoseconds)) // 1_000_000


def _scala(context: SparkContext) -> Any:  # noqa: ANN401 - an object of the JVM
    return context._jsc.sc()  # noqa: SLF001 - likewise
