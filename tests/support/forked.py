"""The `frazil` command without its imports: the product's fork server, which has done them.

Each command is a process of its own all the same, and may be killed at any line. Other tests start
it as a shell does.
"""

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from frazil.spark.fork_server import ForkedScript

FRAZIL = Path(sys.executable).with_name("frazil")
MODULES = (
    "confluent_kafka.admin",
    "frazil.observability.audit",
    "frazil_cli.main",
    "frazil.ingest.checking",
    "frazil.ingest.pipeline",
    "frazil.workspace",
    "pyiceberg.catalog.rest",
    "pyiceberg.catalog.sql",
)
START_SECONDS = 60
WIDE = {"COLUMNS": "200"}
"""Tables whose cells are not folded. The console is as wide as when its module was imported."""


@dataclass(frozen=True)
class Run:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> object:
        return json.loads(self.out)


def run_frazil(arguments: Sequence[str], environment: Mapping[str, str], timeout: float) -> Run:
    """Run a command; one that takes too long is stopped.

    Raises:
        TimeoutError: it took too long.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = [sys.executable, str(FRAZIL), *arguments]
        outputs = out.fileno(), err.fileno()
        with ForkedScript(start_server(), command, {**environment, **WIDE}, outputs) as process:
            code = process.wait(timeout)
        out.seek(0)
        err.seek(0)
        return Run(code, out.read(), err.read())


@cache
def start_server() -> Path:
    """Start the server of this test process, which ends with it, and give its address."""
    folder = tempfile.TemporaryDirectory(prefix="frazil-forked-")
    address = Path(folder.name) / "socket"
    server = subprocess.Popen(
        [sys.executable, "-m", "frazil.spark.fork_server", str(address), *MODULES],
        env={**os.environ, **WIDE, "OPENBLAS_NUM_THREADS": "1"},
    )

    def end() -> None:
        server.terminate()
        server.wait()
        folder.cleanup()

    atexit.register(end)
    deadline = time.monotonic() + START_SECONDS
    while not address.is_socket():
        assert server.poll() is None, "the fork server ended"
        assert time.monotonic() < deadline, "the fork server does not start"
        time.sleep(0.02)
    return address
