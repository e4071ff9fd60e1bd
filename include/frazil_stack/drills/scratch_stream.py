"""A scratch stream beside the real ones: what a drill breaks, and mends by the documented commands.

Topic and tables have a name of their own, the connections are those of a real stream. Commands run
in processes of their own, as an operator would type them, so that one may be killed.
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

from frazil.connections import connection_from_environment, find_connection, to_librdkafka
from frazil.errors import DrillError, FrazilError, KafkaUnavailableError
from frazil.iceberg.catalog import translated_errors
from frazil.workspace import Workspace
from frazil_stack.drills.scratch_broker import Broker
from frazil_stack.settings import STREAMS_VARIABLE

PREFIX = "frazil_drill_"
NAMESPACE = "frazil_drill"
AUTHOR = ("--by", "drill@frazil", "--reason", "drill", "--no-dry-run")
_TIMEOUT_SECONDS = 300
_ADMIN_SECONDS = 30
_TOPIC_SECONDS = 60


@dataclass(frozen=True)
class Answer:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - each command has its own answer
        """Read the answer of `--json`."""
        return json.loads(self.out)


@dataclass
class Scratch:
    """One scratch stream; `seen` lists what was typed and what came back.

    `cluster` are librdkafka's settings of the cluster that its connection leads to; `broker` is one
    of its own, for drills that need it.
    """

    like: Workspace
    folder: Path
    name: str
    document: dict[str, Any]
    cluster: dict[str, str]
    broker: Broker | None = None
    seen: list[str] = field(default_factory=list)

    @property
    def table(self) -> str:
        """Name the scratch table."""
        return f"{NAMESPACE}.{self.name}"

    def write_stream(self, **changes: object) -> None:
        """Write the stream file anew, with other top-level keys."""
        self.document |= changes
        (self.folder / f"{self.name}.yaml").write_text(yaml.safe_dump(self.document))

    def create_topic(self) -> None:
        """Create the topic, of one partition, so that every offset is known."""
        topic = NewTopic(self.name, 1, -1, config={"retention.ms": "-1"})
        with _kafka("creating the scratch topic"):
            admin = self.admin  # must outlive its answer
            admin.create_topics([topic])[self.name].result(_ADMIN_SECONDS)

    def delete_topic(self) -> None:
        """Delete the topic with its records."""
        with _kafka("deleting the scratch topic"):
            admin = self.admin
            admin.delete_topics([self.name])[self.name].result(_ADMIN_SECONDS)

    def recreate_topic(self) -> None:
        """Delete the topic, wait until the cluster has forgotten it, and create it again."""
        self.delete_topic()
        deadline = time.monotonic() + _TOPIC_SECONDS
        while self.name in self.admin.list_topics(timeout=10).topics:
            if time.monotonic() > deadline:
                self._fail(f"the scratch topic was not deleted in {_TOPIC_SECONDS} s")
            time.sleep(0.5)
        self.create_topic()

    def delete_records(self, before: int) -> None:
        """Let records go as retention would."""
        with _kafka("deleting records of the scratch topic"):
            admin = self.admin
            place = TopicPartition(self.name, 0, before)
            admin.delete_records([place])[place].result(_ADMIN_SECONDS)

    @property
    def admin(self) -> AdminClient:
        """Open an admin client of the stream's cluster."""
        return AdminClient({"log_level": 0, **to_librdkafka(self.cluster)})

    def produce(self, count: int, *, good: bool = True) -> None:
        """Send records, all that fit or none, each of an instant of its own."""
        producer, began_ms = self.open_producer(), int(time.time() * 1000)
        for number in range(count):
            value = json.dumps({"id": number}) if good else json.dumps({"id": "no number"})
            producer.produce(
                self.name,
                value=value.encode(),
                key=str(number).encode(),
                partition=0,
                timestamp=began_ms + number,
            )
        self.flush(producer, count)

    def open_producer(self) -> Producer:
        """Open a producer of the stream's cluster."""
        return Producer({"log_level": 0, **to_librdkafka(self.cluster)})

    def flush(self, producer: Producer, count: int) -> None:
        """Wait until the cluster has taken what was sent.

        Raises:
            KafkaUnavailableError: it has not.
        """
        if producer.flush(_ADMIN_SECONDS):
            raise KafkaUnavailableError(
                f"the scratch topic {self.name} did not take {count} records",
                "`frazil doctor` checks the broker; then run the drill again",
            )

    def type_in(self, *words: str, **environment: str) -> Answer:
        """Run a command of Frazil on the scratch stream."""
        return self.finish(self.start(*words, **environment), *words, **environment)

    def start(self, *words: str, **environment: str) -> "subprocess.Popen[str]":
        """Start a command of Frazil on the scratch stream."""
        return subprocess.Popen(
            [sys.executable, "-m", "frazil_cli.main", words[0], self.name, *words[1:]],
            env={**self.environment(), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def finish(self, process: "subprocess.Popen[str]", *words: str, **environment: str) -> Answer:
        """Wait for a command, and keep what it said; one that takes too long is ended."""
        try:
            out, err = process.communicate(timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
        told = err.strip().splitlines()[-2:] if process.returncode else []
        extra = "".join(f"{name}=… " for name in environment)
        command = " ".join([words[0], self.name, *words[1:]])
        self.seen.append(f"{extra}frazil {command} → {process.returncode}")
        self.seen += [f"  {line}" for line in told]
        return Answer(process.returncode, out, err)

    def must_do(self, *words: str) -> None:
        """Run a command that has to succeed.

        Raises:
            DrillError: it did not; its error is the finding.
        """
        answer = self.type_in(*words)
        if answer.code != 0:
            self._fail(f"`frazil {words[0]}` ended with {answer.code}: {answer.err.strip()[-500:]}")

    def environment(self) -> dict[str, str]:
        """Give a command the connections that this process sees; they stay in its memory."""
        found = {}
        stream = self.like.stream
        for name in (stream.source.connection, stream.table.connection, "spark_connect_default"):
            if connection_from_environment(name) is None:
                given = find_connection(name)
                content = {**vars(given), "extra": dict(given.extra)}
                found[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps(content)
        if self.cluster != self.like.kafka_config:
            own = f"AIRFLOW_CONN_{stream.source.connection.upper()}"
            found[own] = json.dumps({"conn_type": "kafka", "extra": self.cluster})
        return {**os.environ, **found, STREAMS_VARIABLE: str(self.folder)}

    def count_rows(self) -> int:
        """Count the rows that everybody sees."""
        return len(self.like.store.load(self.table).scan(selected_fields=("id",)).to_arrow())

    def expect(self, what: str, found: object, wanted: object) -> None:
        """See that something is as it must be.

        Raises:
            DrillError: it is not; the drill has failed.
        """
        self.seen.append(f"{what}: {found}")
        if found != wanted:
            self._fail(f"{what} is {found}, not {wanted}")

    def _fail(self, finding: str) -> NoReturn:
        raise DrillError(
            finding, f"the scratch stream was {self.name}; `frazil drill … --keep` leaves it there"
        )

    def remove(self) -> None:
        """Remove topic and tables; what cannot be removed is told, and is no finding."""
        try:
            self.delete_topic()
        except KafkaUnavailableError as error:
            self.seen.append(f"topic {self.name} stays behind: {error.facts}")
        for table in (self.table, f"{self.table}__dead_letters"):
            try:
                with contextlib.suppress(NoSuchTableError), translated_errors("cleaning up"):
                    self.like.store.catalog.purge_table(table)
            except FrazilError as error:
                self.seen.append(f"table {table} stays behind: {error.facts}")


@contextlib.contextmanager
def opened_scratch(
    like: Workspace,
    *,
    keep: bool = False,
    cluster: dict[str, str] | None = None,
    broker: Broker | None = None,
    start: int = 0,
) -> Iterator[Scratch]:
    """Make a scratch stream with the connections of a real one, and remove it afterwards.

    It begins at offset `start`, on another cluster if one is given.
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
        read_from = cluster or like.kafka_config
        scratch = Scratch(like, Path(folder), name, document, read_from, broker)
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
    except KafkaException as error:
        raise KafkaUnavailableError(
            f"{doing}: {error.args[0].str()}",
            "a drill has to create and delete topics; `frazil doctor` checks the broker",
        ) from error


def refused(settings: Mapping[str, str]) -> str:
    """Write a catalog connection by which nothing can be reached."""
    return json.dumps({"conn_type": "iceberg", "extra": {"type": "rest", **settings}})
