"""Supervisor as seen from outside: start it, ask it, tell it what to start and stop."""

import socket
import subprocess
import time
import xmlrpc.client
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from supervisor.xmlrpc import Faults, SupervisorTransport, UnixStreamHTTPConnection

from frazil.connections import choose_socket_path
from frazil.errors import StackError

ServiceState = Literal[
    "STOPPED", "STARTING", "RUNNING", "BACKOFF", "STOPPING", "EXITED", "FATAL", "UNKNOWN"
]
DEAD_STATES: frozenset[ServiceState] = frozenset({"BACKOFF", "EXITED", "FATAL", "UNKNOWN"})
ACTIVE_STATES: frozenset[ServiceState] = frozenset({"STARTING", "RUNNING"})

_ANSWER_SECONDS = 10.0
_AT_ONCE = False
"""Whether supervisor's answer waits for a service's start or stop."""


@dataclass(frozen=True)
class ServiceInfo:
    """What supervisor knows of one service; `pid` is 0 unless it runs."""

    name: str
    state: ServiceState
    pid: int
    started_at_seconds: int
    log: Path


def socket_path(stack: Path) -> Path:
    """Place supervisor's socket beside its config, or in the temp folder if that is too deep."""
    return choose_socket_path(stack, "supervisor.sock")


class Supervisor:
    """Talk to the supervisor of one stack over its Unix socket."""

    def __init__(self, stack: Path, patience_seconds: float | None = None) -> None:
        """Keep the address; each question is a connection of its own."""
        self._transport = _PatientTransport(socket_path(stack), patience_seconds)

    @property
    def pid(self) -> int:
        """Ask for supervisor's own pid."""
        return cast("int", self._ask("getPID"))

    def services(self) -> dict[str, ServiceInfo]:
        """Ask for the state of all services."""
        answer = cast("list[Mapping[str, str | int]]", self._ask("getAllProcessInfo"))
        return {str(info["name"]): _service_info(info) for info in answer}

    def start(self, name: str) -> None:
        """Start a service and return at once; a running one stays as it is."""
        try:
            self._ask("startProcess", name, _AT_ONCE)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != Faults.ALREADY_STARTED:
                raise StackError(
                    f"supervisor could not start {name}: {fault.faultString}",
                    "`frazil stack down`, then `frazil stack up`",
                ) from fault

    def stop(self, name: str) -> None:
        """Ask a service to stop and return at once; supervisor kills its group when it is late."""
        try:
            self._ask("stopProcess", name, _AT_ONCE)
        except xmlrpc.client.Fault as fault:
            if fault.faultCode != Faults.NOT_RUNNING:
                raise StackError(
                    f"supervisor could not stop {name}: {fault.faultString}", "`frazil stack down`"
                ) from fault

    def shutdown(self) -> None:
        """Ask supervisor to end; its services end with it."""
        self._ask("shutdown")

    def _ask(self, question: str, *words: object) -> object:
        with xmlrpc.client.ServerProxy("http://localhost", self._transport) as server:
            return getattr(server.supervisor, question)(*words)


class _PatientConnection(UnixStreamHTTPConnection):  # type: ignore[misc]
    """A connection to supervisor's socket, with an end to waiting; None waits for ever."""

    def __init__(self, socket_file: Path, patience_seconds: float | None) -> None:
        super().__init__("localhost")
        self.socketfile, self._patience_seconds = str(socket_file), patience_seconds

    def connect(self) -> None:
        line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        line.settimeout(self._patience_seconds)
        try:
            line.connect(self.socketfile)
        except OSError:
            line.close()
            raise
        self.sock = line


class _PatientTransport(SupervisorTransport):  # type: ignore[misc]
    def __init__(self, socket_file: Path, patience_seconds: float | None) -> None:
        super().__init__(serverurl=f"unix://{socket_file}")
        self._get_connection = lambda: _PatientConnection(socket_file, patience_seconds)


def connect_supervisor(stack: Path) -> Supervisor | None:
    """Connect to the running supervisor of a stack; None when there is none."""
    candidate = Supervisor(stack)
    try:
        candidate.services()
    except (OSError, xmlrpc.client.Error):
        return None
    return candidate


def launch_supervisor(stack: Path, bin_folder: Path, environment: Mapping[str, str]) -> Supervisor:
    """Start supervisor in the background and wait until it answers.

    Raises:
        StackError: it did not start; carries its own words.
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
        raise StackError(f"supervisor cannot be run: {error}", "run `make setup`") from error
    deadline = time.monotonic() + _ANSWER_SECONDS
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
    """Read supervisor's answer about one service."""
    return ServiceInfo(
        name=str(info["name"]),
        state=cast("ServiceState", info["statename"]),
        pid=int(info["pid"]),
        started_at_seconds=int(info["start"]),
        log=Path(str(info["stdout_logfile"])),
    )
