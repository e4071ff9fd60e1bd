"""Which ports a stack listens on: asked for, remembered, or picked; all on 127.0.0.1."""

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
_PICK_FROM = range(20_000, 32_000)


_PICK_TRIES = 200


@dataclass(frozen=True)
class Ports:
    """The ports of a stack; nothing else in it listens."""

    kafka: int = 19092
    kafka_controller: int = 19093
    spark_connect: int = 15002
    airflow: int = 18080
    registry: int = 18081


PORT_VARIABLES: Mapping[str, str] = {
    "kafka": "FRAZIL_KAFKA_PORT",
    "kafka_controller": "FRAZIL_KAFKA_CONTROLLER_PORT",
    "spark_connect": "FRAZIL_SPARK_PORT",
    "airflow": "FRAZIL_AIRFLOW_PORT",
    "registry": "FRAZIL_REGISTRY_PORT",
}


@dataclass(frozen=True)
class PortHolder:
    """The process that listens on a port, as far as this user may see it."""

    pid: int | None
    command: str

    def __str__(self) -> str:
        """Say it in one phrase."""
        return f"process {self.pid} ({self.command})" if self.pid else "a process of another user"


def read_port_wishes(environment: Mapping[str, str]) -> dict[str, int]:
    """Read the port variables that are set; 0 means: pick a free one.

    Raises:
        StackError: a value is no port.
    """
    wishes: dict[str, int] = {}
    for name, variable in PORT_VARIABLES.items():
        text = environment.get(variable, "").strip()
        if not text:
            continue
        if not text.isdecimal() or int(text) > 65_535:  # noqa: PLR2004 - the last port there is
            raise StackError(
                f"{variable}={text} is no port", f"set {variable} to 1-65535, or to 0 to pick one"
            )
        wishes[name] = int(text)
    return wishes


def resolve_ports(
    wishes: Mapping[str, int], remembered: Ports | None, is_free: Callable[[int], bool]
) -> Ports:
    """Decide every port: the wish, else what this home used before, else the default.

    A wish of 0 keeps the remembered port while it is free, so that clients' settings stay true.
    """
    ports = remembered or Ports()
    for name, wish in wishes.items():
        before = getattr(remembered, name) if remembered else 0
        keep = before if before and is_free(before) else 0
        taken = frozenset(asdict(ports).values())
        ports = replace(ports, **{name: wish or keep or pick_free_port(is_free, taken)})
    return ports


def refuse_moved_ports(wishes: Mapping[str, int], running: Ports) -> None:
    """Refuse to move a port under a running service.

    Raises:
        StackError: a wish differs from what the running stack listens on.
    """
    for name, wish in wishes.items():
        if wish and wish != getattr(running, name):
            raise StackError(
                f"{PORT_VARIABLES[name]}={wish}, but this home's stack runs with"
                f" {getattr(running, name)}",
                f"unset {PORT_VARIABLES[name]}, or `frazil stack down` before `frazil stack up`",
            )


def pick_free_port(is_free: Callable[[int], bool], taken: frozenset[int]) -> int:
    """Pick a free port at random, so that two stacks starting at once seldom meet.

    Raises:
        StackError: none was found.
    """
    for _ in range(_PICK_TRIES):
        port = random.choice(_PICK_FROM)  # noqa: S311 - no secret
        if port not in taken and is_free(port):
            return port
    raise StackError(
        f"found no free port between {_PICK_FROM.start} and {_PICK_FROM.stop}",
        f"set {', '.join(PORT_VARIABLES.values())}",
    )


def is_free(port: int) -> bool:
    """Try to listen on the port, as the service will."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def find_holder(port: int) -> PortHolder:
    """Name the process that listens on the port."""
    for process in psutil.process_iter():
        try:
            connections = process.net_connections(kind="tcp")
            if any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections):
                return PortHolder(process.pid, " ".join(process.cmdline())[:120] or process.name())
        except psutil.Error:
            continue
    return PortHolder(None, "")


def refuse_taken_ports(ports: Ports, names: frozenset[str], own_pids: frozenset[int]) -> None:
    """Refuse to start when a port of a service about to start is taken by a stranger.

    A service of this stack may hold it already: supervisor restarts what has just died.

    Raises:
        StackError: names the port, its holder and the variable that moves it.
    """
    for name in sorted(names):
        port = getattr(ports, name)
        holder = None if is_free(port) else find_holder(port)
        if holder is not None and holder.pid not in own_pids:
            variable = PORT_VARIABLES[name]
            raise StackError(
                f"port {port} for {name} is taken by {holder}",
                f"end that process, or choose another port: {variable}=0 frazil stack up",
            )


def load_ports(path: Path) -> Ports | None:
    """Load the ports that this home used last; None before its first `up`."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    known = {field.name for field in fields(Ports)}
    return Ports(**{name: int(port) for name, port in content.items() if name in known})


def save_ports(path: Path, ports: Ports) -> None:
    """Remember the ports for the next `up`."""
    path.write_text(json.dumps(asdict(ports), indent=2) + "\n")


LOOPBACK = "127.0.0.1"


DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens URLs without a proxy: one that is set for the internet cannot reach 127.0.0.1."""
