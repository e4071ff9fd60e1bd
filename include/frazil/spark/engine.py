"""Engines that run Spark jobs as separate processes, with a JSON request and a JSON result.

The library itself never imports PySpark. A job is the same file for Spark Connect and for
spark-submit; `SparkEngine` runs it as a client of a Spark Connect server.
"""

import logging
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil  # type: ignore[import-untyped]

from frazil.connections.addresses import split_address
from frazil.environment import fork_server_address, shipped_path
from frazil.errors import FrazilError, JobFailedError, SparkUnavailableError, is_debugging
from frazil.ledger.usage import count_job
from frazil.messages import Message
from frazil.spark.fork_server import ForkedScript
from frazil.spark.job_errors import hide_messages, parse_job_error
from frazil.spark.messages import PartsRequest, PartsResult

log = logging.getLogger(__name__)

JOBS_DIR = shipped_path("spark_jobs")
CONNECT_TIMEOUT_SECONDS = 3.0
_TAIL_LINES = 15
_POLL_SECONDS = 0.5
CONNECT_PORT = 15002
_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})

ResultMessage = TypeVar("ResultMessage", bound=Message)


@dataclass(frozen=True)
class JobExit:
    """Exit code of a job's process (negative for a signal), its output, and its CPU time in ms."""

    code: int
    output: str
    cpu_ms: int


class Engine(ABC):
    """Base of the engines, which differ in how they start a job's process."""

    def run_job(self, job: str, request: Message, result: type[ResultMessage]) -> ResultMessage:
        """Run `spark_jobs/<job>.py` and return its result.

        Raises:
            SparkUnavailableError: Spark cannot be reached, or provides no executor.
            JobFailedError: the job ended with an error, or was killed.
            FrazilError: another error that the job reported, see `parse_job_error`.
        """
        self._require_reachable()
        with tempfile.TemporaryDirectory(prefix="frazil-job-") as folder:
            request_path, result_path = Path(folder, "request.json"), Path(folder, "result.json")
            request_path.touch(mode=0o600)  # it holds the secrets of connections
            request_path.write_text(request.encode())
            command = [
                sys.executable,
                str(JOBS_DIR / f"{job}.py"),
                str(request_path),
                str(result_path),
            ]
            code, log = self._run(command)
            if code == 0 and result_path.is_file():
                return result.parse(result_path.read_text())
            text = result_path.read_text() if result_path.is_file() else ""
        stream: str | None = getattr(request, "stream", None)
        error = parse_job_error(job, text, stream, _find_brokers(request))
        if error is not None:
            raise error
        ending = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit {code}"
        raise JobFailedError(
            f"Spark job {job} ended without a result ({ending})\n{log}",
            "run again, it is safe: staged rows are on a branch, not on main; `frazil doctor` "
            "checks the Spark server",
        )

    def run_parts(
        self, job: str, requests: Sequence[Message], result: type[ResultMessage]
    ) -> list[ResultMessage | FrazilError]:
        """Run a job for parts of its input in one process; return each part's result or error.

        The list is shorter than the requests if the server ended, and empty if it was not reached.

        Raises:
            JobFailedError: the process ended without results.
        """
        stream: str = getattr(requests[0], "stream", "")
        brokers = _find_brokers(requests[0])
        parts = tuple(request.encode() for request in requests)
        request = PartsRequest(stream=stream, job=job, parts=parts)
        try:
            results = self.run_job("run_parts", request, PartsResult).results
        except SparkUnavailableError:
            return []
        return [
            parse_job_error(job, text, stream, brokers) or result.parse(text) for text in results
        ]

    def wait_until_reachable(self, timeout_seconds: float) -> None:
        """Wait until Spark can be reached again, after its server ended and was restarted.

        Raises:
            SparkUnavailableError: it could not be reached in this time.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            try:
                return self._require_reachable()
            except SparkUnavailableError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def probe(self) -> str:
        """Check that jobs can be started, and describe where they run, without secrets.

        Raises:
            SparkUnavailableError, ConfigurationError: they cannot.
        """
        self._require_reachable()
        return self._describe()

    @abstractmethod
    def _describe(self) -> str:
        """Describe where jobs run."""

    @abstractmethod
    def _require_reachable(self) -> None:
        """Check that Spark's port is open, because a client would retry for minutes."""

    @abstractmethod
    def _run(self, command: list[str]) -> tuple[int, str]:
        """Run `python script request result`; return exit code and last lines of the output."""


class SparkEngine(Engine):
    """Run jobs against one Spark Connect server."""

    def __init__(self, remote: str, environment: Mapping[str, str] | None = None) -> None:
        """Store the address, `sc://host:port`."""
        self.remote = remote
        self._environment = dict(environment or {})

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Run the client in a process group of its own, which ends with this process."""
        environment = {**os.environ, **self._environment, "SPARK_REMOTE": self.remote}
        clock = _ServerClock(self.remote)
        ended = _run_forked(command, environment, clock.begin) or run_process(
            command, environment, clock.begin
        )
        count_job(ended.cpu_ms, clock.read_ms())
        return write_output(ended)

    def _describe(self) -> str:
        plain, _, parameters = self.remote.partition(";")
        names = {pair.partition("=")[0] for pair in parameters.split(";")}
        is_secure = "use_ssl=true" in parameters or (
            "token" in names and split_address(plain, CONNECT_PORT)[0] != "localhost"
        )
        return f"{plain.rstrip('/')}{' with a token' * ('token' in names)}{', by TLS' * is_secure}"

    def _require_reachable(self) -> None:
        """Check that the port is open: the Connect client would retry for minutes."""
        plain = self.remote.partition(";")[0]  # the parameters may include a token
        try:
            check_listens(*split_address(plain, CONNECT_PORT))
        except OSError as error:
            raise SparkUnavailableError(
                f"Spark Connect at {plain}: {error}",
                "check the server with `frazil stack status`, start it with `frazil stack up`; "
                "nothing was staged, the next run tries the same range again",
            ) from error


def _find_brokers(request: Message) -> str:
    """Return the addresses of the brokers that a job reads from; empty for one that reads none."""
    options: Mapping[str, str] = getattr(request, "kafka_options", {})
    return options.get("kafka.bootstrap.servers", "")


def check_listens(host: str, port: int) -> None:
    """Check that a server listens on a port.

    Raises:
        OSError: none does.
    """
    socket.create_connection((host, port), CONNECT_TIMEOUT_SECONDS).close()


def write_output(ended: JobExit) -> tuple[int, str]:
    """Write a job's output to standard error; return exit code and last lines.

    Spark's driver logs the messages of failed tasks, which may quote values of records.
    """
    output = ended.output if is_debugging() else hide_messages(ended.output)
    sys.stderr.write(output)
    return ended.code, "\n".join(output.splitlines()[-_TAIL_LINES:])


class _ServerClock:
    """CPU time of a Spark server on this machine while a job runs; unknown for other servers."""

    def __init__(self, remote: str) -> None:
        """Store the server's address."""
        self._remote = remote
        self._server: psutil.Process | None = None
        self._start_ms: int | None = None

    def begin(self) -> None:
        """Start to measure."""
        self._server = find_local_server(self._remote)
        self._start_ms = read_cpu_ms(self._server)

    def read_ms(self) -> int | None:
        """Return the server's CPU time since `begin` in ms; None if it is unknown."""
        now_ms = read_cpu_ms(self._server)
        if now_ms is None or self._start_ms is None or now_ms < self._start_ms:
            return None  # the server or one of its Python workers ended
        return now_ms - self._start_ms


def _run_forked(
    command: list[str], environment: Mapping[str, str], started: Callable[[], None]
) -> JobExit | None:
    """Run a command by the fork server, which has done the imports; None if there is none."""
    address = fork_server_address()
    if address is None or not address.is_socket():
        return None
    reader, writer = os.pipe()
    with open(reader, encoding="utf-8", errors="replace") as lines:  # noqa: PTH123 - a pipe
        try:
            process = ForkedScript(address, command, environment, (writer, writer))
        except PermissionError as error:
            log.warning("The fork server is not used: %s; jobs start more slowly", error)
            return None
        except OSError:
            return None
        finally:
            os.close(writer)
        with process:
            started()
            output = lines.read()
            return JobExit(process.wait(), output, process.cpu_ms)


def run_process(
    command: list[str],
    environment: Mapping[str, str],
    started: Callable[[], None] = lambda: None,
    stdin: int | None = None,
) -> JobExit:
    """Run a command in a new process group, which ends with this call at the latest."""
    before_ms = _children_cpu_ms()
    with subprocess.Popen(
        command,
        env=environment,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0,
    ) as process:
        try:
            started()
            output, _ = process.communicate()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(timeout=30)
    return JobExit(process.returncode, output, _children_cpu_ms() - before_ms)


def _children_cpu_ms() -> int:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((used.ru_utime + used.ru_stime) * 1000)


def find_local_server(remote: str) -> psutil.Process | None:
    """Return the Java process that serves `remote`; None if this machine does not run it.

    Linux only. `psutil.net_connections` would read the open files of all processes and decode each
    closed connection, of which a busy machine has thousands.
    """
    host, port = split_address(remote.partition(";")[0], CONNECT_PORT)
    if host not in _LOCAL_HOSTS:
        return None
    listening = _find_listening_socket(port)
    if listening is None:
        return None
    for process_id in psutil.pids():
        with suppress(OSError, psutil.Error):  # it has ended, or belongs to another user
            if _is_java(process_id) and _has_open(process_id, listening):
                return psutil.Process(process_id)
    return None


def _find_listening_socket(port: int) -> str | None:
    """Return the socket that listens on a TCP port, `socket:[inode]`."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), Path(table).open() as lines:
            for line in lines:
                if f":{port:04X} " in line and " 0A " in line:  # 0A: it listens
                    return f"socket:[{line.split()[9]}]"
    return None


def _is_java(process_id: int) -> bool:
    return Path(f"/proc/{process_id}/comm").read_text() == "java\n"


def _has_open(process_id: int, file: str) -> bool:
    with os.scandir(f"/proc/{process_id}/fd") as files:
        return any(os.readlink(one) == file for one in files)  # noqa: PTH115 - faster


def read_cpu_ms(server: psutil.Process | None) -> int | None:
    """Return the CPU time in ms of a server and its Python workers; None if it has ended."""
    if server is None:
        return None
    try:
        return sum(_cpu_ms(member) for member in (server, *server.children(recursive=True)))
    except psutil.Error:
        return None


def _cpu_ms(process: psutil.Process) -> int:
    """Return one process's CPU time in ms, with that of its children that have ended."""
    times: tuple[float, ...] = process.cpu_times()[:4]  # own and children's, user and system
    return round(sum(times) * 1000)
