"""The ports of a stack, all on 127.0.0.1: configured, used before, or chosen at random."""

import json
import random
import socket
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from frazil.errors import StackError

# Below the range from which Linux and macOS hand out ports to outgoing connections.
_RANDOM_PORTS = range(20_000, 32_000)
_MAX_TRIES = 200
PORT_VARIABLES: Mapping[str, str] = {
    "kafka": "FRAZIL_KAFKA_PORT",
    "kafka_controller": "FRAZIL_KAFKA_CONTROLLER_PORT",
    "spark_connect": "FRAZIL_SPARK_PORT",
    "airflow": "FRAZIL_AIRFLOW_PORT",
    "registry": "FRAZIL_REGISTRY_PORT",
}
LOOPBACK = "127.0.0.1"
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""An opener of URLs that uses no proxy: a proxy cannot reach 127.0.0.1."""


@dataclass(frozen=True)
class Ports:
    """All ports on which a stack listens."""

    kafka: int = 19092
    kafka_controller: int = 19093
    spark_connect: int = 15002
    airflow: int = 18080
    registry: int = 18081


@dataclass(frozen=True)
class PortHolder:
    """The process that listens on a port; `pid` is None if it belongs to another user."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        """Describe the process in one phrase."""
        return f"process {self.pid} ({self.command})" if self.pid else "a process of another user"


def read_configured_ports(environment: Mapping[str, str]) -> dict[str, int]:
    """Return the port variables that are set; 0 means any free port.

    Raises:
        StackError: a value is not a port number.
    """
    configured: dict[str, int] = {}
    for name, variable in PORT_VARIABLES.items():
        text = environment.get(variable, "").strip()
        if not text:
            continue
        if not text.isdecimal() or int(text) > 65_535:  # noqa: PLR2004 - the highest port number
            raise StackError(
                f"{variable}={text} is not a port number",
                f"set {variable} to 1-65535, or to 0 for any free port",
            )
        configured[name] = int(text)
    return configured


def resolve_ports(
    configured: Mapping[str, int], previous: Ports | None, is_free: Callable[[int], bool]
) -> Ports:
    """Return every port: the configured one, else the previous one of this home, else the default.

    A configured 0 keeps the previous port while it is free, so that clients' settings stay valid.
    """
    ports = previous or Ports()
    for name, port in configured.items():
        before = getattr(previous, name) if previous else 0
        keep = before if before and is_free(before) else 0
        used = frozenset(asdict(ports).values())
        ports = replace(ports, **{name: port or keep or pick_free_port(is_free, used)})
    return ports


def require_unmoved_ports(configured: Mapping[str, int], running: Ports) -> None:
    """Check that no configured port differs from the one that a running stack uses.

    Raises:
        StackError: one differs.
    """
    for name, port in configured.items():
        if port and port != getattr(running, name):
            raise StackError(
                f"{PORT_VARIABLES[name]}={port}, but the running stack uses port"
                f" {getattr(running, name)}",
                f"unset {PORT_VARIABLES[name]}, or run `frazil stack down` first",
            )


def pick_free_port(is_free: Callable[[int], bool], used: frozenset[int]) -> int:
    """Return a random free port; two stacks that start at the same time rarely choose the same.

    Raises:
        StackError: none was found.
    """
    for _ in range(_MAX_TRIES):
        port = random.choice(_RANDOM_PORTS)  # noqa: S311 - no secret
        if port not in used and is_free(port):
            return port
    raise StackError(
        f"no free port found between {_RANDOM_PORTS.start} and {_RANDOM_PORTS.stop}",
        f"set {', '.join(PORT_VARIABLES.values())} to free ports",
    )


def is_free(port: int) -> bool:
    """Return whether a service could listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def find_holder(port: int) -> PortHolder:
    """Return the process that listens on the port."""
    for process in psutil.process_iter():
        try:
            connections = process.net_connections(kind="tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections):
                return PortHolder(process.pid, " ".join(process.cmdline())[:120] or process.name())
        except psutil.Error:
            continue
    return PortHolder(None, "")


def require_free_ports(ports: Ports, names: frozenset[str], own_pids: frozenset[int]) -> None:
    """Check that the named ports are free, or used by the given processes of this stack.

    A service may use its port already, since supervisor restarts a service that died.

    Raises:
        StackError: another process uses a port.
    """
    for name in sorted(names):
        port = getattr(ports, name)
        holder = None if is_free(port) else find_holder(port)
        if holder is not None and holder.pid not in own_pids:
            variable = PORT_VARIABLES[name]
            raise StackError(
                f"port {port} for {name} is used by {holder}",
                f"stop that process, or choose another port: {variable}=0 frazil stack up",
            )


def load_ports(path: Path) -> Ports | None:
    """Return the ports that this home used last; None before its first `up`, or if unreadable."""
    known = {field.name for field in fields(Ports)}
    try:
        content = json.loads(path.read_text())
        return Ports(**{name: int(port) for name, port in content.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None


def save_ports(path: Path, ports: Ports) -> None:
    """Store the ports for the next `up`."""
    path.write_text(json.dumps(asdict(ports), indent=2) + "\n")
