"""The CPU time of a Spark Connect server on this machine, for the cost of a batch."""

from urllib.parse import urlparse

import psutil  # type: ignore[import-untyped]

_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def read_server_cpu_ms(remote: str) -> int | None:
    """Return the CPU time in ms of the server at `remote` and its Python workers since their start.

    None if the server runs on another machine or its process cannot be found.
    """
    address = urlparse(remote.partition(";")[0])
    if address.hostname not in _LOCAL_HOSTS:
        return None
    try:
        server = _find_listener(address.port or 15002)
        if server is None:
            return None
        family = [server, *server.children(recursive=True)]
        return sum(_cpu_ms(member) for member in family)
    except psutil.Error:
        return None


def _find_listener(port: int) -> psutil.Process | None:
    """Find the process that listens on a TCP port of this machine."""
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
        if listens and connection.pid is not None:
            return psutil.Process(connection.pid)
    return None


def _cpu_ms(process: psutil.Process) -> int:
    """Return one process's CPU time in ms, with that of its children that have ended."""
    times: tuple[float, ...] = process.cpu_times()[:4]  # own and children's, user and system
    return round(sum(times) * 1000)
