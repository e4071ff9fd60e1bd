"""A lab whose table another writer fills from the lab's own topic, on real parts."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from conftest import Lab
from pyiceberg.table import Table
from support.foreign_tables import WRITERS, ForeignTable, Row
from support.forked import Run

from faults.judges import assert_exactly_once
from frazil.ledger.recovery_point import keys

WHO = ("--by", "jane@example.org", "--reason", "replaces the Kafka Connect sink")
VALUES = [
    pa.field("id", pa.int64()),
    pa.field("name", pa.string()),
    pa.field("amount", pa.float64()),
]


@dataclass
class Legacy:
    """A lab whose table another writer fills from the lab's own topic."""

    lab: Lab
    foreign: ForeignTable

    @property
    def table(self) -> Table:
        return self.foreign.table

    def create(self) -> None:
        self.foreign.create()

    def write(self, rows: list[Row]) -> None:
        self.foreign.write(*rows)

    def append(self, rows: list[Row]) -> None:
        """Append rows to the table as it is now, with what the other writer does not know as null.

        The table's own schema, which an adoption has widened, decides about the columns.
        """
        table = self.table
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    def read_topic(self, isolation: str = "read_committed") -> list[Row]:
        """Read what the other writer would: every record with Kafka's own timestamp."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.lab.stack.bootstrap,
                "group.id": f"legacy-{self.lab.topic}",
                "enable.partition.eof": True,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
            }
        )
        partitions = consumer.list_topics(self.lab.topic).topics[self.lab.topic].partitions
        consumer.assign([TopicPartition(self.lab.topic, p, 0) for p in partitions])
        try:
            return list(self._consume(consumer, set(partitions)))
        finally:
            consumer.close()

    def _consume(self, consumer: Consumer, waiting: set[int]) -> Iterator[Row]:
        while waiting:
            message = consumer.poll(30)
            assert message is not None, "the topic fell silent"
            error = message.error()
            if error is None:
                yield as_row(message)
            elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - its public name
                waiting.discard(message.partition() or 0)

    def adopt(self, *arguments: str, **environment: str) -> Run:
        return self.lab.frazil("adopt", self.lab.stream, *arguments, "--json", **environment)

    def take_over(self, *arguments: str) -> Run:
        run = self.adopt(*WHO, "--no-dry-run", *arguments)
        assert run.code == 0, run.out + run.err
        return run

    def kinds(self) -> list[str]:
        """List the kinds of the snapshots in the metadata."""
        snapshots = self.table.metadata.snapshots
        return [(s.summary.get(keys.KIND) if s.summary else None) or "" for s in snapshots]

    def assert_exactly_once(self) -> None:
        """Let both audits judge, and compare every row with the topic itself."""
        assert_exactly_once(self.lab)
        ids = sorted(row["id"] for row in self.table.scan().to_arrow().to_pylist())
        assert ids == sorted(int(str(row["id"])) for row in self.read_topic())


def as_row(message: Message) -> Row:
    value = json.loads(message.value() or b"{}")
    place = {"partition": message.partition(), "offset": message.offset()}
    return {**value, **place, "at_ms": message.timestamp()[1]}


def filled(legacy: Legacy, writer: str = "Kafka Connect", count: int = 40) -> list[Row]:
    """Let the other writer write the first records, a half in each of two snapshots."""
    legacy.foreign = legacy.foreign.of(writer=WRITERS[writer])
    legacy.create()
    rows = [row for row in legacy.read_topic() if int(str(row["offset"])) < count // 2]
    legacy.write(rows[::2])
    legacy.write(rows[1::2])
    return rows
