"""The CPU time of the stack's Spark server, so that a batch can say what it took of it."""

import json
import xmlrpc.client

import psutil  # type: ignore[import-untyped]

from frazil.connections import home_dir
from frazil.stack.supervision import Supervisor

_PATIENCE_SECONDS = 5.0
"""A batch does not wait longer to learn what it cost."""


def read_server_cpu_ms(remote: str) -> int | None:
    """Read the CPU time of the server at `remote` and its Python workers since it began, ms.

    None where it is not this home's stack that runs it.
    """
    try:
        described = json.loads((home_dir() / "stack" / "stack.json").read_text())
        if described["spark_connect"]["url"] != remote:
            return None
        server = Supervisor(home_dir() / "stack", _PATIENCE_SECONDS).services()["spark_connect"]
        process = psutil.Process(server.pid)
        family = [process, *process.children(recursive=True)]
        return sum(_cpu_ms(member) for member in family)
    except (OSError, xmlrpc.client.Error, KeyError, psutil.Error):
        return None


def _cpu_ms(process: psutil.Process) -> int:
    """Read one process's time, and that of its children that have ended."""
    times: tuple[float, ...] = process.cpu_times()[:4]  # own and children's, user and system
    return round(sum(times) * 1000)
