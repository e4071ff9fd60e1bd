"""Flink and Kafka Connect beside the others, each as one warm JVM; needs a JDK for `javac`."""

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from confluent_kafka.admin import AdminClient, NewTopic
from faults.rest_catalog import find_free_port, wait_for_answer
from pyiceberg.catalog import load_catalog
from support.ivy_jars import ensure_jars

from frazil.connections.clients import CatalogPreset, find_catalog
from frazil_stack.java import find_java

HERE = Path(__file__).parent
MEMORY = ("-Xmx3g", "-XX:+UseParallelGC")
OPENED = ("nio", "lang", "util", "net", "io", "time", "util.concurrent", "lang.reflect", "text")
"""Packages of `java.base` that Flink's own start scripts open to it on Java 17."""
COMMIT_SECONDS = 10
"""Flink's checkpoints and Kafka Connect's commits."""
STALLED_SECONDS = 120
STOP_SECONDS = 30
LOG_LINES = 40
FETCH = {
    "max.partition.fetch.bytes": "8388608",
    "fetch.max.bytes": "52428800",
    "max.poll.records": "5000",
}
FLINK_COLUMNS = (
    "event_id STRING, event_type STRING, ts TIMESTAMP(6), "
    "`user` ROW<id BIGINT, country STRING, city STRING>, order_id BIGINT, "
    "amount DECIMAL(18,2), currency STRING, "
    "items ARRAY<ROW<sku STRING, qty INT, price DOUBLE>>, session STRING, ua STRING, "
    "topic STRING METADATA VIRTUAL, `partition` INT METADATA VIRTUAL, "
    "`offset` BIGINT METADATA VIRTUAL, `timestamp` TIMESTAMP_LTZ(6) METADATA VIRTUAL"
)
FLINK_SETTINGS = {
    "execution.runtime-mode": "streaming",
    "execution.checkpointing.interval": f"{COMMIT_SECONDS}s",
    "parallelism.default": "2",
    "taskmanager.numberOfTaskSlots": "2",
    "taskmanager.memory.managed.size": "256m",
    "taskmanager.memory.network.min": "128m",
    "taskmanager.memory.network.max": "128m",
    "pipeline.object-reuse": "true",
    "table.local-time-zone": "UTC",
    # The default sink of 1.11.0 loses rows: it keeps what writers sent at their end under one key,
    # so that a checkpoint between the ends of two writers makes the second replace the first.
    "table.exec.iceberg.use-v2-sink": "true",
}
CONNECT_COORDINATES = (
    "kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT, kafka_timestamp TIMESTAMP"
)
"""What KafkaMetadataTransform calls them; it has a prefix and joins it by `_`."""


@dataclass(frozen=True)
class FlinkPeer:
    """Flink's SQL over a mini cluster: one bounded streaming job at a time."""

    process: "subprocess.Popen[str]"
    bootstrap: str
    log: Path
    version: str

    def run(self, topic: str, table: str) -> None:
        """Read what the topic holds now into a table."""
        preset = find_catalog("iceberg_default")
        catalog = {"type": "iceberg", **jvm_properties(preset)}
        source = {
            "connector": "kafka",
            "topic": topic,
            "scan.startup.mode": "earliest-offset",
            "scan.bounded.mode": "latest-offset",
            "format": "json",
            "json.timestamp-format.standard": "ISO-8601",
            "properties.group.id": table,
            "properties.bootstrap.servers": self.bootstrap,
            **{f"properties.{key}": value for key, value in FETCH.items()},
        }
        statements = (
            f"CREATE CATALOG {preset.name} WITH ({quote(catalog)})",
            f"CREATE TEMPORARY TABLE source ({FLINK_COLUMNS}) WITH ({quote(source)})",
            f"INSERT INTO {preset.name}.{table} SELECT * FROM source",  # noqa: S608 - our own names
        )
        self.execute(statements)

    def execute(self, statements: Sequence[str]) -> None:
        """Run the statements of one job, and wait for its end."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\t".join(statements) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer == "done", f"Flink: {answer or 'it ended'}\n{read_end(self.log)}"


@dataclass(frozen=True)
class ConnectPeer:
    """One standalone worker of Kafka Connect; each run is a connector of its own."""

    process: "subprocess.Popen[str]"
    bootstrap: str
    url: str
    log: Path
    version: str

    def run(self, topic: str, table: str, records: int) -> float:
        """Return the seconds until the commit that completed the table.

        The last commit counts by its own time: the connector goes on until somebody looks.
        """
        name = table.replace(".", "-")
        control = f"{name}-control"
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(control, 1, 1)])[control].result(15)
        settings = {"topics": topic, "iceberg.tables": table, "iceberg.control.topic": control}
        started = time.time()
        self.ask("POST", "/connectors", {"name": name, "config": connector_settings(settings)})
        ended = self.wait_for_rows(name, table, records)
        self.ask("DELETE", f"/connectors/{name}")
        return ended - started

    def wait_for_rows(self, name: str, table: str, records: int) -> float:
        """Wait until a table holds all records, and give the time of its newest commit."""
        preset = find_catalog("iceberg_default")
        catalog = load_catalog(preset.name, **preset.properties)
        rows, moved = 0, time.monotonic()
        while time.monotonic() - moved < STALLED_SECONDS:
            newest = catalog.load_table(table).current_snapshot()
            found = int(newest.summary["total-records"] or 0) if newest and newest.summary else 0
            if newest and found >= records:
                return float(newest.timestamp_ms / 1000)
            if found > rows:
                rows, moved = found, time.monotonic()
            assert not self.has_failed(name), f"a task failed\n{read_end(self.log)}"
            time.sleep(0.5)
        raise AssertionError(f"{rows} of {records} rows\n{read_end(self.log)}")

    def has_failed(self, name: str) -> bool:
        """Return whether a task ended; a connector that is just made has no status yet."""
        try:
            tasks = self.ask("GET", f"/connectors/{name}/status")["tasks"]
        except HTTPError:
            return False
        return any(task["state"] == "FAILED" for task in tasks)

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """Ask the worker's REST interface."""
        request = Request(  # noqa: S310 - our own server on this machine
            f"{self.url}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=60) as answer:  # noqa: S310 - as above
            return json.loads(answer.read() or "null")


@contextmanager
def start_flink(bootstrap: str, folder: Path) -> Iterator[FlinkPeer]:
    """Compile the peer's class and start its JVM."""
    jars = ensure_jars(HERE / "ivy-flink.xml", "flink")
    java = find_java()
    classes = folder / "classes"
    compiler = [str(java.home / "bin" / "javac"), "-cp", f"{jars}/*", "-d", str(classes)]
    subprocess.run([*compiler, str(HERE / "FlinkPeer.java")], check=True)
    settings = FLINK_SETTINGS | {"execution.checkpointing.dir": f"file://{folder}/checkpoints"}
    command = [
        *(f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in OPENED),
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        *("-cp", f"{classes}:{jars}/*", "FlinkPeer"),
        *(f"{key}={value}" for key, value in settings.items()),
    ]
    log = folder / "flink.log"
    with run_jvm(command, log, subprocess.PIPE) as process:
        yield FlinkPeer(process, bootstrap, log, jar_version(jars, "flink-clients"))


@contextmanager
def start_connect(bootstrap: str, folder: Path) -> Iterator[ConnectPeer]:
    """Start the worker on a free port of this machine and wait for its answer."""
    jars = ensure_jars(HERE / "ivy-connect.xml", "connect")
    url = f"http://127.0.0.1:{find_free_port()}"
    settings = {
        "bootstrap.servers": bootstrap,
        "listeners": url,
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        "offset.storage.file.filename": str(folder / "connect.offsets"),
        # By default the last commit waits up to a minute for the consumed offsets.
        "offset.flush.interval.ms": "1000",
        "connector.client.config.override.policy": "All",
        "plugin.discovery": "service_load",
    }
    worker = folder / "worker.properties"
    worker.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    main = "org.apache.kafka.connect.cli.ConnectStandalone"
    log = folder / "connect.log"
    with run_jvm(["-cp", f"{jars}/*", main, str(worker)], log) as process:
        wait_for_answer(f"{url}/", process)
        version = jar_version(jars, "iceberg-kafka-connect")
        yield ConnectPeer(process, bootstrap, url, log, version)


@contextmanager
def run_jvm(
    command: list[str], log: Path, answers: int | None = None
) -> Iterator["subprocess.Popen[str]"]:
    """Run a JVM and end it, whatever happened; Ctrl-C reaches only the benchmark, which ends it."""
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(find_java().executable), *MEMORY, *command],
            stdin=subprocess.PIPE,
            stdout=answers or output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def jvm_properties(preset: CatalogPreset) -> dict[str, str]:
    """Return the catalog's properties as Iceberg's Java library takes them."""
    prefix = f"spark.sql.catalog.{preset.name}."
    return {
        key.removeprefix(prefix): value
        for key, value in preset.spark_conf().items()
        if key.startswith(prefix)
    }


def connector_settings(own: dict[str, str]) -> dict[str, str]:
    """Write one connector's settings: the sink, its catalog, its fetches, the coordinates."""
    preset = find_catalog("iceberg_default")
    transform = "org.apache.iceberg.connect.transforms.KafkaMetadataTransform"
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": "2",
        "iceberg.catalog": preset.name,
        **{f"iceberg.catalog.{key}": value for key, value in jvm_properties(preset).items()},
        "iceberg.control.commit.interval-ms": str(COMMIT_SECONDS * 1000),
        "consumer.override.auto.offset.reset": "earliest",
        **{f"consumer.override.{key}": value for key, value in FETCH.items()},
        "transforms": "coordinates",
        "transforms.coordinates.type": transform,
        "transforms.coordinates.field_name": "kafka",
        **own,
    }


def jar_version(jars: Path, artifact: str) -> str:
    """Read the version of an artifact from its file, which says what really ran."""
    versions = [path.stem.removeprefix(f"{artifact}-") for path in jars.glob(f"{artifact}-*.jar")]
    return next(version for version in versions if version[0].isdigit())


def read_end(log: Path) -> str:
    """Return the last words of a JVM, whose folder goes with the benchmark."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def quote(options: dict[str, str]) -> str:
    """Write options as Flink's SQL has them."""
    return ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
