"""A scratch stream for a drill, with the connections of a real stream.

Topic and tables have random names. Commands run as processes, so that a drill can kill one.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import yaml
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.exceptions import NoSuchTableError

from frazil.connections.lookup import connection_from_environment, find_connection
from frazil.errors import DrillError, FrazilError, KafkaUnavailableError
from frazil.iceberg.catalog import translated_errors
from frazil.kafka.client_settings import to_librdkafka
from frazil.workspace import Workspace
from frazil_stack.database import Database
from frazil_stack.drills.scratch_broker import Broker
from frazil_stack.settings import STREAMS_VARIABLE

PREFIX = "frazil_drill_"
NAMESPACE = "frazil_drill"
AUTHOR = ("--by", "drill@frazil", "--reason", "drill", "--no-dry-run")
KILLED = -9
_TABLES = ("__dead_letters", "__changes", "__changes__dead_letters", "__deletes")
_TIMEOUT_SECONDS = 300
_ADMIN_SECONDS = 30
_TOPIC_SECONDS = 60


@dataclass(frozen=True)
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - each command has its own output
        """Parse the output of `--json`."""
        return json.loads(self.out)


@dataclass
class Scratch:
    """One scratch stream; `seen` lists the commands and their results.

    `cluster` holds librdkafka's settings of the stream's cluster; `broker` is the second broker,
    `database` the PostgreSQL, of drills that need one.
    """

    like: Workspace
    folder: Path
    name: str
    document: dict[str, Any]
    cluster: dict[str, str]
    broker: Broker | None = None
    database: Database | None = None
    seen: list[str] = field(default_factory=list)

    @property
    def table(self) -> str:
        """Return the name of the scratch table."""
        return f"{NAMESPACE}.{self.name}"

    def write_stream(self, **changes: object) -> None:
        """Write the stream file again with changed top-level keys."""
        self.document |= changes
        (self.folder / f"{self.name}.yaml").write_text(yaml.safe_dump(self.document))

    def create_topic(self) -> None:
        """Create the topic with one partition."""
        topic = NewTopic(self.name, 1, -1, config={"retention.ms": "-1"})
        with _kafka("creating the scratch topic"):
            admin = self.admin  # must outlive the future
            admin.create_topics([topic])[self.name].result(_ADMIN_SECONDS)

    def delete_topic(self) -> None:
        """Delete the topic with its records."""
        with _kafka("deleting the scratch topic"):
            admin = self.admin
            admin.delete_topics([self.name])[self.name].result(_ADMIN_SECONDS)

    def recreate_topic(self) -> None:
        """Delete the topic, wait until it is gone, and create it again."""
        self.delete_topic()
        deadline = time.monotonic() + _TOPIC_SECONDS
        while self.name in self.admin.list_topics(timeout=10).topics:
            if time.monotonic() > deadline:
                self._fail(f"the scratch topic was not deleted in {_TOPIC_SECONDS} s")
            time.sleep(0.5)
        self.create_topic()

    def delete_records(self, before: int) -> None:
        """Delete the records before an offset, as retention does."""
        with _kafka("deleting records of the scratch topic"):
            admin = self.admin
            end = TopicPartition(self.name, 0, before)
            admin.delete_records([end])[end].result(_ADMIN_SECONDS)

    @property
    def admin(self) -> AdminClient:
        """Open an admin client of the stream's cluster."""
        return AdminClient({"log_level": 0, **to_librdkafka(self.cluster)})

    def produce(self, count: int, *, good: bool = True) -> None:
        """Send records with increasing timestamps: valid ones, or ones that fail to decode."""
        producer, start_ms = self.open_producer(), int(time.time() * 1000)
        for number in range(count):
            value = json.dumps({"id": number}) if good else json.dumps({"id": "no number"})
            producer.produce(
                self.name,
                value=value.encode(),
                key=str(number).encode(),
                partition=0,
                timestamp=start_ms + number,
            )
        self.flush(producer, count)

    def open_producer(self) -> Producer:
        """Open a producer of the stream's cluster."""
        return Producer({"log_level": 0, **to_librdkafka(self.cluster)})

    def flush(self, producer: Producer, count: int) -> None:
        """Wait until the cluster has acknowledged all records.

        Raises:
            KafkaUnavailableError: it has not within the time limit.
        """
        if producer.flush(_ADMIN_SECONDS):
            raise KafkaUnavailableError(
                f"Kafka did not acknowledge all {count} records for the scratch topic {self.name}",
                "`frazil doctor` checks the broker; then run the drill again",
            )

    def run_command(self, *words: str, **environment: str) -> CommandResult:
        """Run a `frazil` command on the scratch stream."""
        return self.finish(self.start(*words, **environment), *words, **environment)

    def start(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a `frazil` command on the scratch stream."""
        return subprocess.Popen(
            [sys.executable, "-m", "frazil_cli.main", words[0], self.name, *words[1:]],
            env={**self.environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(
        self, process: "subprocess.Popen[str]", *words: str, **environment: str
    ) -> CommandResult:
        """Wait for a command and add its result to `seen`; kill it after the time limit."""
        try:
            out, err = process.communicate(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        last_lines = err.strip().splitlines()[-2:] if process.returncode else []
        extra = "".join(f"{name}=… " for name in environment)
        command = " ".join([words[0], self.name, *words[1:]])
        self.seen.append(f"{extra}frazil {command} → {process.returncode}")
        self.seen += [f"  {line}" for line in last_lines]
        return CommandResult(process.returncode, out, err)

    def must_succeed(self, *words: str, **environment: str) -> None:
        """Run a command that must succeed.

        Raises:
            DrillError: it failed; with its error.
        """
        result = self.run_command(*words, **environment)
        if result.code != 0:
            self._fail(f"`frazil {words[0]}` ended with {result.code}: {result.err.strip()[-500:]}")

    def environment(self) -> dict[str, str]:
        """Return the environment of a command, with the connections that this process sees."""
        found = {}
        stream = self.like.stream
        for name in (stream.source.connection, stream.table.connection, "spark_connect_default"):
            if connection_from_environment(name) is None:
                found[f"AIRFLOW_CONN_{name.upper()}"] = find_connection(name).to_json()
        if self.cluster != self.like.kafka_config:
            own = f"AIRFLOW_CONN_{stream.source.connection.upper()}"
            found[own] = json.dumps({"conn_type": "kafka", "extra": self.cluster})
        return {**os.environ, **found, STREAMS_VARIABLE: str(self.folder)}

    def count_rows(self) -> int:
        """Count the rows on branch main."""
        return len(self.like.store.load(self.table).scan(selected_fields=("id",)).to_arrow())

    def expect(self, what: str, found: object, wanted: object) -> None:
        """Add an observation to `seen` and compare it.

        Raises:
            DrillError: it differs; the drill has failed.
        """
        self.seen.append(f"{what}: {found}")
        if found != wanted:
            self._fail(f"{what}: {found}, expected {wanted}")

    def _fail(self, finding: str) -> NoReturn:
        raise DrillError(
            finding,
            f"run the drill again with --keep to inspect it; its stream was {self.name}",
        )

    def remove(self) -> None:
        """Remove the topic and the tables; a failure is added to `seen` and fails no drill."""
        try:
            self.delete_topic()
        except KafkaUnavailableError as error:
            self.seen.append(f"topic {self.name} was not removed: {error.facts}")
        for suffix in ("", *_TABLES):
            table = self.table + suffix
            try:
                with contextlib.suppress(NoSuchTableError), translated_errors("cleaning up"):
                    self.like.store.catalog.purge_table(table)
            except FrazilError as error:
                self.seen.append(f"table {table} was not removed: {error.facts}")


@contextlib.contextmanager
def opened_scratch(
    like: Workspace,
    *,
    keep: bool = False,
    cluster: dict[str, str] | None = None,
    broker: Broker | None = None,
    database: Database | None = None,
    start: int = 0,
) -> Iterator[Scratch]:
    """Create a scratch stream with the connections of a real one, and remove it afterwards.

    It begins at offset `start`, on `cluster` if that is given.
    """
    name = PREFIX + secrets.token_hex(4)
    stream = like.stream
    document: dict[str, Any] = {
        "stream": name,
        "owner": stream.owner,
        "source": {
            "topic": name,
            "connection": stream.source.connection,
            "start": {"offsets": {0: start}} if start else "earliest",
        },
        "value": {"convert": "json", "columns": {"id": "long!"}},
        "table": {"name": f"{NAMESPACE}.{name}", "connection": stream.table.connection},
    }
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        own_cluster = cluster or like.kafka_config
        scratch = Scratch(like, Path(folder), name, document, own_cluster, broker, database)
        scratch.write_stream()
        scratch.create_topic()
        try:
            yield scratch
        finally:
            if not keep:
                scratch.remove()


@contextlib.contextmanager
def _kafka(doing: str) -> Iterator[None]:
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        cause = error.args[0].str() if error.args else f"no answer within {_ADMIN_SECONDS} s"
        raise KafkaUnavailableError(
            f"{doing}: {cause}",
            "a drill must be allowed to create and delete topics; `frazil doctor` checks Kafka",
        ) from error


def unreachable_catalog(settings: Mapping[str, str]) -> str:
    """Return a connection to a catalog that does not answer."""
    return json.dumps({"conn_type": "iceberg", "extra": {"type": "rest", **settings}})
