"""A Trino server of a test's own: it reads the tables of a REST catalog, whose files are local.

`$TRINO_HOME` is an unpacked `io.trino:trino-server-core:476` (`tar.gz`) of Maven, with the content
of `io.trino:trino-iceberg:476` (`zip`) in its folder `plugin/iceberg`. `$TRINO_JAVA_HOME` is a Java
24 or newer, which Spark and Kafka do not run on.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import stamina
from faults.rest_catalog import find_free_port

NAMES = ("TRINO_HOME", "TRINO_JAVA_HOME")
MISSING = (
    "Trino is not there: set TRINO_HOME to an unpacked io.trino:trino-server-core:476 that has "
    "io.trino:trino-iceberg:476 as plugin/iceberg, and TRINO_JAVA_HOME to a Java 24 or newer"
)
HAS_TRINO = all(os.environ.get(name) for name in NAMES)
CATALOG = "lake"
START_SECONDS = 240
QUERY_SECONDS = 120
MEMORY = ("-Xmx1g", "-XX:ReservedCodeCacheSize=256M")
OPENED = (
    "--add-modules=jdk.incubator.vector",
    "--enable-native-access=ALL-UNNAMED",
    "--sun-misc-unsafe-memory-access=allow",
    "-Djdk.attach.allowAttachSelf=true",
)
"""What Trino's own `jvm.config` asks of Java."""
Rows = list[tuple[object, ...]]


def _read_instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace(" UTC", "+00:00"))


READERS: dict[str, Callable[[Any], object]] = {
    "date": date.fromisoformat,
    "decimal": Decimal,
    "timestamp": _read_instant,
    "timestamp with time zone": _read_instant,
}
"""Types whose values Trino writes as text into its JSON."""


class TrinoError(Exception):
    """Trino refuses a statement."""


class NoNodeError(TrinoError):
    """No server may read the catalog yet."""


@dataclass(frozen=True)
class Trino:
    """A running server."""

    url: str

    def ask(self, statement: str) -> Rows:
        """Run one statement; give its rows as Python's values.

        A young server knows a catalog before it knows a server that may read it.
        """
        for turn in stamina.retry_context(on=NoNodeError, attempts=None, timeout=60, wait_jitter=0):
            with turn:
                return self._ask(statement)
        raise AssertionError(statement)

    def _ask(self, statement: str) -> Rows:
        """Run one statement once, following its pages."""
        rows: Rows = []
        deadline = time.monotonic() + QUERY_SECONDS
        answer = self._call("/v1/statement", statement)
        while True:
            if error := answer.get("error"):
                kind = NoNodeError if error["errorName"] == "NO_NODES_AVAILABLE" else TrinoError
                raise kind(error["message"])
            types = [each["typeSignature"]["rawType"] for each in answer.get("columns", ())]
            rows += [tuple(map(_read_value, types, row)) for row in answer.get("data", ())]
            if "nextUri" not in answer:
                return rows
            assert time.monotonic() < deadline, f"no answer to {statement}"
            answer = self._call(answer["nextUri"].removeprefix(self.url))

    def _call(self, path: str, statement: str | None = None) -> Any:  # noqa: ANN401 - JSON
        given = {
            "X-Trino-User": "tests",
            "X-Trino-Time-Zone": "UTC",
            "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",  # without it: milliseconds
        }
        body = None if statement is None else statement.encode()
        request = Request(f"{self.url}{path}", body, given)  # noqa: S310 - our own server
        with urlopen(request, timeout=60) as answer:  # noqa: S310
            return json.load(answer)


def _read_value(kind: str, value: object) -> object:
    read = READERS.get(kind)
    return value if value is None or read is None else read(value)


@contextmanager
def run_trino(folder: Path, rest_uri: str) -> Iterator[Trino]:
    """Start a server whose catalog `lake` is the REST catalog at this address."""
    port = find_free_port()
    with (folder / "trino.log").open("w") as log:
        process = subprocess.Popen(
            _write_command(folder, port, rest_uri),
            cwd=folder,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    trino = Trino(f"http://127.0.0.1:{port}")
    try:
        _wait_for_start(trino.url, process)
        yield trino
    finally:
        process.terminate()
        process.wait(timeout=60)


def _write_command(folder: Path, port: int, rest_uri: str) -> list[str]:
    """Write the server's files of settings; give the command that starts it."""
    home, java = (Path(os.environ[name]) for name in NAMES)
    server = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": str(port),
        "discovery.uri": f"http://127.0.0.1:{port}",
        "node.bind-ip": "127.0.0.1",
        "node.internal-address": "127.0.0.1",
        "node.environment": "tests",
        "query.max-memory-per-node": "300MB",
        "memory.heap-headroom-per-node": "200MB",
    }
    catalog = {
        "connector.name": "iceberg",
        "iceberg.catalog.type": "rest",
        "iceberg.rest-catalog.uri": rest_uri,
        "fs.native-local.enabled": "true",
        "local.location": "/",
    }
    (folder / "etc" / "catalog").mkdir(parents=True)
    for path, settings in (("config", server), (f"catalog/{CATALOG}", catalog)):
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (folder / "etc" / f"{path}.properties").write_text(text)
    places = {
        "config": folder / "etc" / "config.properties",
        "catalog.config-dir": folder / "etc" / "catalog",
        "node.data-dir": folder / "data",
        "plugin.dir": home / "plugin",
    }
    given = [f"-D{key}={value}" for key, value in places.items()]
    classes = ["-cp", f"{home / 'lib'}/*", "io.trino.server.TrinoServer"]
    return [str(java / "bin" / "java"), *MEMORY, *OPENED, *given, *classes]


def _wait_for_start(url: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the server takes statements; fail at once if it ended."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urlopen(f"{url}/v1/info", timeout=10) as answer:  # noqa: S310 - our own server
                if not json.load(answer)["starting"]:
                    return
        except (URLError, ConnectionError, TimeoutError):
            pass
        time.sleep(0.5)
    raise AssertionError(f"no Trino at {url}; exit code {process.poll()}")
