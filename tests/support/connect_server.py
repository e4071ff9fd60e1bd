"""A Spark Connect server of a test's own that logs what it may: INFO, event log, web interface."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from faults.rest_catalog import find_free_port

from frazil_stack.java import find_java
from frazil_stack.settings import load_settings

_START_SECONDS = 240
_LOG4J = """rootLogger.level = info
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
logger.executions.name = org.apache.spark.sql.connect.service.SparkConnectExecutionManager
logger.executions.level = warn
"""
_PAGES = ("environment/", "SQL/", "connect/", "jobs/")


@dataclass(frozen=True)
class ConnectServer:
    """A running server, and the folder of its logs."""

    remote: str
    folder: Path
    ui: str

    @property
    def event_log(self) -> str:
        """Return the file of the events, as text."""
        [found] = (each for each in (self.folder / "events").iterdir() if each.name[0] != ".")
        return str(found)

    def read_traces(self) -> dict[str, str]:
        """Return all that the server has left: logs, event logs, and pages of its interface."""
        files = [p for p in self.folder.rglob("*") if p.is_file()]
        found = {str(p): p.read_bytes().decode(errors="replace") for p in files}
        for page in _PAGES:
            with urlopen(f"{self.ui}/{page}", timeout=20) as answer:  # noqa: S310 - our own server
                found[page] = answer.read().decode()
        return found


@contextmanager
def run_connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[ConnectServer]:
    """Run the server with these settings until the block ends."""
    folder.mkdir(parents=True)
    (folder / "log4j2.properties").write_text(_LOG4J.format(log=folder / "server.log"))
    (folder / "events").mkdir()
    port, ui = find_free_port(), find_free_port()
    jars = sorted((load_settings().jars / "spark").glob("*.jar"))
    java = f"-Dlog4j2.configurationFile=file:{folder / 'log4j2.properties'}"
    own = {
        "spark.master": "local[1]",
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": f"{java} -Djava.io.tmpdir={folder} -Duser.timezone=UTC",
        "spark.driver.extraClassPath": ":".join(map(str, jars)),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.port": str(ui),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.dir": (folder / "events").as_uri(),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    properties = folder / "server.properties"
    properties.write_text("".join(f"{k} {v}\n" for k, v in (own | dict(settings)).items()))
    command = [
        *(str(Path(sys.executable).with_name("spark-submit")), "--properties-file"),
        *(str(properties), "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        "spark-internal",
    ]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAVA_HOME": str(find_java().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    environment = {k: v for k, v in environment.items() if k != "SPARK_REMOTE"}
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        server = ConnectServer(f"sc://127.0.0.1:{port}", folder, f"http://127.0.0.1:{ui}")
        _wait(server, process)
        yield server
    finally:
        process.terminate()
        process.wait(timeout=60)


def _wait(server: ConnectServer, process: "subprocess.Popen[bytes]") -> None:
    log = server.folder / "server.log"
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if log.is_file() and "Spark Connect server started" in log.read_text():
            return
        time.sleep(0.2)
    output = (server.folder / "output.log").read_text()[-3000:]
    raise AssertionError(f"no Spark Connect server, exit code {process.poll()}:\n{output}")
