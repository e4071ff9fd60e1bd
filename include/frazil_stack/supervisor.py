"""A client of supervisor: start it, read the states of services, start and stop them."""

import socket
import subprocess
import time
import xmlrpc.client
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from supervisor.xmlrpc import Faults, SupervisorTransport, UnixStreamHTTPConnection

from frazil.environment import choose_socket_path
from frazil.errors import StackError

ServiceState = Literal[
    "STOPPED", "STARTING", "RUNNING", "BACKOFF", "STOPPING", "EXITED", "FATAL", "UNKNOWN"
]
DEAD_STATES: frozenset[ServiceState] = frozenset({"BACKOFF", "EXITED", "FATAL", "UNKNOWN"})
ACTIVE_STATES: frozenset[ServiceState] = frozenset({"STARTING", "RUNNING"})

_START_SECONDS = 10.0
_WAIT = False
"""The argument `wait` of supervisor's calls: return before the service has started or stopped."""


@dataclass(frozen=True)
class ServiceInfo:
    """The state of one service; `pid` is 0 unless it runs."""

    name: str
    state: ServiceState
    pid: int
    started_at_seconds: int
    log: Path


def socket_path(stack: Path) -> Path:
    """Return supervisor's socket: in the stack folder, or a temp folder if the path is too long."""
    return choose_socket_path(stack, "supervisor.sock")


class Supervisor:
    """A client of the supervisor of one stack, over its Unix socket."""

    def __init__(self, stack: Path, timeout_seconds: float | None = None) -> None:
        """Store the address; each call opens a connection, and waits without end by default."""
        self._transport = _TimeoutTransport(socket_path(stack), timeout_seconds)

    @property
    def pid(self) -> int:
        """Return supervisor's own pid."""
        return cast("int", self._call("getPID"))

    def services(self) -> dict[str, ServiceInfo]:
        """Return the state of all services."""
        infos = cast("list[Mapping[str, str | int]]", self._call("getAllProcessInfo"))
        return {str(info["name"]): _service_info(info) for info in infos}

    def start(self, name: str) -> None:
        """Start a service unless it runs; return before it has started."""
        self._change("startProcess", name, Faults.ALREADY_STARTED)

    def stop(self, name: str) -> None:
        """Stop a service; return before it has ended. Supervisor kills it if it is late."""
        self._change("stopProcess", name, Faults.NOT_RUNNING)

    def shutdown(self) -> None:
        """Stop supervisor and all its services."""
        self._call("shutdown")

    def _change(self, method: str, name: str, harmless_fault: int) -> None:
        try:
            self._call(method, name, _WAIT)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != harmless_fault:
                raise StackError(
                    f"{method} of service {name} failed: {fault.faultString}",
                    "run `frazil stack down`, then `frazil stack up`",
                ) from fault

    def _call(self, method: str, *arguments: object) -> object:
        with xmlrpc.client.ServerProxy("http://localhost", self._transport) as server:
            return getattr(server.supervisor, method)(*arguments)


class _TimeoutConnection(UnixStreamHTTPConnection):  # type: ignore[misc]
    """A connection to supervisor's socket with a timeout; None waits without end."""

    def __init__(self, socket_file: Path, timeout_seconds: float | None) -> None:
        super().__init__("localhost")
        self.socketfile, self._timeout_seconds = str(socket_file), timeout_seconds

    def connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout_seconds)
        try:
            connection.connect(self.socketfile)
        except OSError:
            connection.close()
            raise
        self.sock = connection


class _TimeoutTransport(SupervisorTransport):  # type: ignore[misc]
    def __init__(self, socket_file: Path, timeout_seconds: float | None) -> None:
        super().__init__(serverurl=f"unix://{socket_file}")
        self._get_connection = lambda: _TimeoutConnection(socket_file, timeout_seconds)


def connect_supervisor(stack: Path) -> Supervisor | None:
    """Return a client of the running supervisor of a stack, or None if there is none."""
    candidate = Supervisor(stack)
    try:
        candidate.services()
    except (OSError, xmlrpc.client.Error):
        return None
    return candidate


def launch_supervisor(stack: Path, bin_folder: Path, environment: Mapping[str, str]) -> Supervisor:
    """Start supervisor in the background and wait until it answers.

    Raises:
        StackError: it did not start; with its output.
    """
    command = [str(bin_folder / "supervisord"), "-c", str(stack / "supervisord.conf")]
    try:
        done = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except OSError as error:
        raise StackError(f"cannot run supervisor: {error}", "run `make setup`") from error
    deadline = time.monotonic() + _START_SECONDS
    while done.returncode == 0 and time.monotonic() < deadline:
        running = connect_supervisor(stack)
        if running is not None:
            return running
        time.sleep(0.05)
    raise StackError(
        f"supervisor did not start: {(done.stderr or done.stdout).strip() or 'no answer'}",
        f"read {stack / 'supervisord.log'}, then `frazil stack up`",
    )


def _service_info(info: Mapping[str, str | int]) -> ServiceInfo:
    return ServiceInfo(
        name=str(info["name"]),
        state=cast("ServiceState", info["statename"]),
        pid=int(info["pid"]),
        started_at_seconds=int(info["start"]),
        log=Path(str(info["stdout_logfile"])),
    )
