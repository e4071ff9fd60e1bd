"""The frame of every Spark job: read the request, run one action, write the result.

The same file runs as a Spark Connect client (`SPARK_REMOTE` is set) and under spark-submit.
"""

import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession

from frazil.ingest.messages import StageRequest
from frazil.messages import Message
from frazil.spark.job_errors import encode_job_error
from frazil.spark.submit import WAIT_VARIABLE

RequestMessage = TypeVar("RequestMessage", bound=Message)


RETRIES = 4


SHARED_SECONDS = 1800


MAX_BACKOFF_MS = 2000


def run_job(
    action: Callable[[SparkSession, RequestMessage], Message], request: type[RequestMessage]
) -> None:
    """Run `action` on the request file and leave its result, or its error, in the result file."""
    request_path, result_path = (Path(argument) for argument in sys.argv[1:3])
    try:
        message = request.parse(request_path.read_text())
        session = open_session(message)
        _interrupt_on_sigterm(session)
        with nullcontext() if is_remote() else _watched_cluster(session, result_path):
            result = action(session, message)
    except Exception as error:  # noqa: BLE001 - the one place where any error becomes a result
        result_path.write_text(encode_job_error(error))
        sys.exit(1)
    result_path.write_text(result.encode())
    if not is_remote():
        _leave_cpu(session, result_path)
    sys.stdout.flush()
    # The interpreter's own shutdown waits for gRPC threads; the result is on disk already.
    session.stop()


def is_remote() -> bool:
    """Say whether this is a client of a Connect server; else the application is ours."""
    return bool(os.environ.get("SPARK_REMOTE"))


def _watched_cluster(session: SparkSession, result_path: Path) -> AbstractContextManager[None]:
    """End with an error where the driver would wait for executors that never come."""

    def give_up(why: str) -> None:
        result_path.write_text(encode_job_error(TimeoutError(why)))
        os._exit(1)

    return watched_executors(session.sparkContext, give_up)


def _leave_cpu(session: SparkSession, result_path: Path) -> None:
    """Say beside the result what the executors used."""
    from frazil.spark.submit import CPU_SUFFIX  # noqa: PLC0415 - no part of Connect

    result_path.with_suffix(CPU_SUFFIX).write_text(str(read_cpu_ms(session.sparkContext)))


def open_session(request: Message) -> SparkSession:
    """Open a session on the Connect server, or the application's own session."""
    remote = os.environ.get("SPARK_REMOTE")
    if not remote:
        return SparkSession.builder.getOrCreate()
    if isinstance(request, StageRequest) and needs_workers(request):
        # Spark opens a catalog once per session: other settings need another one.
        settings = f"{request.catalog} {request.table} {sorted(request.session_conf.items())}"
        address = share_session(remote, request.stream, time.time(), settings)
        session: SparkSession = SparkSession.builder.remote(address).create()
        session.release_session_on_close = False  # type: ignore[attr-defined]  # Connect only
    else:
        session = SparkSession.builder.remote(remote).create()
    _limit_retries(session)
    return session


def needs_workers(request: StageRequest) -> bool:
    """Say whether Python workers will run for a request."""
    wires = (request.wire, request.key.wire if request.key else None)
    return request.direct is not None or any(w and w.format == "protobuf" for w in wires)


def share_session(remote: str, stream: str, now: float, settings: str = "") -> str:
    """Name one session for a stream's batches of half an hour, in the server's address.

    Spark keeps a thread, and their daemon for a while, for each session that had Python workers.
    The server forgets a session that was idle for an hour and never takes its name again.
    """
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{stream} {now // SHARED_SECONDS:.0f} {settings}")
    return f"{remote if ';' in remote else remote.rstrip('/') + '/'};session_id={name}"


def _limit_retries(session: SparkSession) -> None:
    """Give up on a server that is gone within seconds; the next task tries again."""
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - connect only

    client = session.client  # type: ignore[operator]  # PySpark's wrapped property has no type
    client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, max_backoff=MAX_BACKOFF_MS)])


def _interrupt_on_sigterm(session: SparkSession) -> None:
    """Stop the server's work when the task is stopped, so that no operation runs on alone."""
    tag = f"frazil-{uuid.uuid4()}"
    if is_remote():
        session.addTag(tag)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if is_remote():
            session.interruptTag(tag)
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, interrupt)


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
