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
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from frazil.ingest.messages import StageRequest
from frazil.messages import Message
from frazil.spark.job_errors import encode_job_error
from frazil.spark.submit import WAIT_VARIABLE

if TYPE_CHECKING:  # a site that uses Spark Connect only has no SparkContext
    from pyspark import SparkContext

RequestMessage = TypeVar("RequestMessage", bound=Message)
RETRIES = 4
SESSION_SECONDS = 1800
MAX_BACKOFF_MS = 2000
DEFAULT_WAIT_SECONDS = 300
NO_EXECUTORS = "no executor works for this job"
_POLL_SECONDS = 1.0


def run_job(
    action: Callable[[SparkSession, RequestMessage], Message], request: type[RequestMessage]
) -> None:
    """Run `action` on the request file and write its result, or its error, to the result file."""
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
        _write_cpu_time(session, result_path)
    sys.stdout.flush()
    # The interpreter's own shutdown waits for gRPC threads; the result is on disk already, also if
    # the server ended meanwhile.
    with suppress(PySparkException):
        session.stop()


def is_remote() -> bool:
    """Return whether this is a client of a Connect server, not an application of its own."""
    return bool(os.environ.get("SPARK_REMOTE"))


def _watched_cluster(session: SparkSession, result_path: Path) -> AbstractContextManager[None]:
    """Exit with an error where the driver would wait forever for executors."""

    def give_up(why: str) -> None:
        result_path.write_text(encode_job_error(TimeoutError(why)))
        os._exit(1)

    return watched_executors(session.sparkContext, give_up)


def _write_cpu_time(session: SparkSession, result_path: Path) -> None:
    """Write the executors' CPU time to a file beside the result."""
    from frazil.spark.submit import CPU_SUFFIX  # noqa: PLC0415 - not for Connect

    result_path.with_suffix(CPU_SUFFIX).write_text(str(read_cpu_ms(session.sparkContext)))


def open_session(request: Message) -> SparkSession:
    """Open a session on the Connect server, or return the application's own session."""
    remote = os.environ.get("SPARK_REMOTE")
    if not remote:
        return SparkSession.builder.getOrCreate()
    if isinstance(request, StageRequest) and needs_workers(request):
        # Spark opens a catalog once per session: other settings need another session.
        settings = f"{request.catalog} {request.table} {sorted(request.session_conf.items())}"
        address = share_session(remote, request.stream, time.time(), settings)
        session: SparkSession = SparkSession.builder.remote(address).create()
        session.release_session_on_close = False  # type: ignore[attr-defined]  # Connect only
    else:
        session = SparkSession.builder.remote(remote).create()
    _limit_retries(session)
    return session


def needs_workers(request: StageRequest) -> bool:
    """Return whether Python workers will run for a request."""
    wires = (request.wire, request.key.wire if request.key else None)
    return request.fast_path is not None or any(w and w.format == "protobuf" for w in wires)


def share_session(remote: str, stream: str, now: float, settings: str = "") -> str:
    """Return the server's address with one session id for a stream's batches of half an hour.

    For each session that had Python workers Spark keeps a thread, and for a while their daemon. The
    server closes a session that was idle for an hour, and never accepts its id again.
    """
    name = uuid.uuid5(uuid.NAMESPACE_URL, f"{stream} {now // SESSION_SECONDS:.0f} {settings}")
    return f"{remote if ';' in remote else remote.rstrip('/') + '/'};session_id={name}"


def _limit_retries(session: SparkSession) -> None:
    """Stop retrying an unreachable server within seconds; the next task tries again."""
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415 - connect only

    client = session.client  # type: ignore[operator]  # PySpark's wrapped property has no type
    client.set_retry_policies([DefaultPolicy(max_retries=RETRIES, max_backoff=MAX_BACKOFF_MS)])


def _interrupt_on_sigterm(session: SparkSession) -> None:
    """Interrupt the server's operations when the task is stopped."""
    tag = f"frazil-{uuid.uuid4()}"
    if is_remote():
        session.addTag(tag)

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if is_remote():
            session.interruptTag(tag)
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, interrupt)


@contextmanager
def watched_executors(context: "SparkContext", give_up: Callable[[str], None]) -> Iterator[None]:
    """Call `give_up` if stages are active and no executor was registered for a time.

    Spark itself would wait forever, for lost workers or in a full queue.
    """
    done = threading.Event()
    patience = float(os.environ.get(WAIT_VARIABLE) or DEFAULT_WAIT_SECONDS)

    def watch() -> None:
        seen = time.monotonic()
        while not done.wait(_POLL_SECONDS):
            if count_executors(context) > 0 or not context.statusTracker().getActiveStageIds():
                seen = time.monotonic()
            elif time.monotonic() - seen > patience:
                give_up(f"{NO_EXECUTORS}: none of {context.master} for {patience:.0f} s")
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


def count_executors(context: "SparkContext") -> int:
    """Return the number of registered executors; Spark's list contains the driver as well."""
    return int(_scala(context).getExecutorMemoryStatus().size()) - 1


def read_cpu_ms(context: "SparkContext") -> int:
    """Return the CPU time of all tasks in ms, without Python workers."""
    scala = _scala(context)
    gateway: Any = context._gateway  # noqa: SLF001 - no public access to the JVM
    scala.listenerBus().waitUntilEmpty()
    no_filter = gateway.jvm.java.util.ArrayList()
    quantiles = gateway.new_array(gateway.jvm.double, 0)
    without = (False, False)  # no details of tasks, no summaries of them
    stages = scala.statusStore().stageList(no_filter, *without, quantiles, no_filter)
    nanoseconds = (stages.apply(index).executorCpuTime() for index in range(stages.size()))
    return int(sum(nanoseconds)) // 1_000_000


def _scala(context: "SparkContext") -> Any:  # noqa: ANN401 - an object of the JVM
    return context._jsc.sc()  # noqa: SLF001 - likewise
