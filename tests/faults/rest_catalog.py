"""The reference REST catalog of the Iceberg project, as one process beside the tests."""

import os
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from support.ivy_jars import ensure_jars

from frazil_stack.java import find_java

IVY_FILE = Path(__file__).with_name("ivy-rest.xml")
CATALOG_NAME = "lake"
SERVER_CLASS = "org.apache.iceberg.rest.RESTCatalogServer"
START_SECONDS = 60


@contextmanager
def run_rest_catalog(
    folder: Path, settings: Mapping[str, str] = MappingProxyType({}), more_jars: Sequence[Path] = ()
) -> Iterator[dict[str, str]]:
    """Run the server over a SQLite file and give the properties that a client opens it with."""
    folders = [ensure_jars(IVY_FILE, "rest"), *more_jars]
    jars = ":".join(f"{folder}/*" for folder in folders)
    port = find_free_port()
    with (folder / "rest.log").open("w") as log:
        process = subprocess.Popen(
            [str(find_java().executable), "-Xmx256m", "-cp", jars, SERVER_CLASS],
            env={**os.environ, **server_settings(folder, port), **settings},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for_answer(f"http://127.0.0.1:{port}/v1/config", process)
        yield {"type": "rest", "uri": f"http://127.0.0.1:{port}"}
    finally:
        process.terminate()
        process.wait(timeout=30)


def server_settings(folder: Path, port: int) -> dict[str, str]:
    """Write the server's settings as it reads them: from the environment, `__` for a hyphen."""
    return {
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": f"jdbc:sqlite:{folder / 'rest.db'}",
        "CATALOG_WAREHOUSE": f"file://{folder / 'warehouse'}",
        "CATALOG_REST_PORT": str(port),
        "CATALOG_CATALOG_NAME": CATALOG_NAME,
    }


def find_free_port() -> int:
    """Let the system choose a port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_answer(url: str, process: subprocess.Popen[Any]) -> None:
    """Wait until the server answers; fail at once if it ended."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(url, timeout=2):  # noqa: S310 - our own server on this machine
                return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    raise AssertionError(f"no server at {url}; exit code {process.poll()}")
