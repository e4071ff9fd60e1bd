"""Kafka Connect with Debezium's connector, as one process that ends with the demonstration."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frazil.errors import StackError
from frazil_stack.database import DATABASE, USER, Database
from frazil_stack.jars import ensure_folder
from frazil_stack.java import find_java
from frazil_stack.settings import ReportProgress, load_settings

PREFIX = "shop"
TABLE = "customers"
TOPIC = f"{PREFIX}.public.{TABLE}"
_MAIN = "org.apache.kafka.connect.cli.ConnectStandalone"
_STOP_SECONDS = 30
_CONVERTER = "org.apache.kafka.connect.json.JsonConverter"


@contextmanager
def run_connector(
    bootstrap: str, database: Database, home: Path, report: ReportProgress
) -> Iterator["Connector"]:
    """Run a worker that sends the changes of a table; its offsets stay in `home`.

    Raises:
        StackError: the jars could not be downloaded.
    """
    java, settings = find_java(), load_settings()
    ivy_file = settings.templates / "ivy-debezium.xml"
    jars = ensure_folder(settings, java, ivy_file, "debezium", report)
    files = _write_settings(bootstrap, database, home)
    log = home / "connect.log"
    command = [str(java.executable), "-Xmx320m", "-cp", f"{jars}/*", _MAIN, *map(str, files)]
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield Connector(process, log)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _write_settings(bootstrap: str, database: Database, home: Path) -> list[Path]:
    """Write the files of worker and connector, which only this user may read."""
    worker = {
        "bootstrap.servers": bootstrap,
        "listeners": "http://127.0.0.1:0",
        "key.converter": _CONVERTER,
        "value.converter": _CONVERTER,
        "offset.storage.file.filename": str(home / "offsets"),
        "offset.flush.interval.ms": "1000",
        "plugin.discovery": "service_load",
    }
    connector = {
        "name": TABLE,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": "127.0.0.1",
        "database.port": str(database.port),
        "database.user": USER,
        "database.password": database.password,
        "database.dbname": DATABASE,
        "plugin.name": "pgoutput",
        "topic.prefix": PREFIX,
        "table.include.list": f"public.{TABLE}",
        "topic.creation.default.replication.factor": "1",
        "topic.creation.default.partitions": "1",
    }
    files = [home / "worker.properties", home / "connector.properties"]
    for path, given in zip(files, (worker, connector), strict=True):
        path.touch(mode=0o600)
        path.write_text("".join(f"{key}={value}\n" for key, value in given.items()))
    return files


class Connector:
    """A running worker."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        """Store the process and the path of its log."""
        self._process = process
        self._log = log

    def require_running(self) -> None:
        """Raise if the worker has ended.

        Raises:
            StackError: it has; the next step names its log.
        """
        if self._process.poll() is not None:
            raise StackError("the connector has ended", f"read {self._log}, then `make demo-cdc`")
