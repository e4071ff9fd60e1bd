"""A lake whose topic is real: the broker keeps the records, PyIceberg stages their rows."""

from typing import cast

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from support.lake import load_with_history
from support.stack_lake import StackLake

from frazil.ingest.bootstrap import initial_state, new_table
from frazil.ingest.messages import BatchPlan
from frazil.ingest.planning import PlanInput, TableFacts, plan_batch
from frazil.kafka.cluster import TopicFacts
from frazil.ledger.recovery_point import find_recovery_point, keys
from frazil.streams.models import Stream


class BrokerLake(StackLake):
    """A stream of a test's own in the embedded stack's catalog and broker, without Spark."""

    @property
    def topic(self) -> str:
        return self.stream.source.names[0]

    @property
    def facts(self) -> TopicFacts:
        return self.work.kafka.fetch_topic(self.topic)

    def create_topic(self, bootstrap: str, partitions: int = 2) -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.topic, partitions, 1)])[self.topic].result(60)

    def begin(self, stream: Stream | None = None) -> None:
        """Bootstrap a stream of the table where the broker's log begins."""
        stream = stream or self.stream
        if self.store.find(stream.table.name) is None:
            self.store.create(stream.table.name, new_table(stream))
        table, history = load_with_history(self.store, stream.table.name)
        state = initial_state(stream, [self.facts], self.work.kafka)
        self.mark(keys.BOOTSTRAP, {stream.stream: state}, table, history)

    def produce(self, count: int) -> None:
        """Send records round robin to two partitions."""
        producer = Producer(self.work.kafka_config)
        for number in range(count):
            producer.produce(self.topic, value=b'{"id": 1}', partition=number % 2)
        assert producer.flush(30) == 0

    def produce_at(self, begin_ms: int, *seconds: int) -> None:
        """Send records with these timestamps, in this order, to partition 0."""
        producer = Producer(self.work.kafka_config)
        for second in seconds:
            at_ms = begin_ms + 1000 * second
            producer.produce(self.topic, value=b'{"id": 1}', partition=0, timestamp=at_ms)
        assert producer.flush(30) == 0

    def delete_records(self, before: int, partition: int = 0) -> None:
        """Let retention take what lies before an offset."""
        place = TopicPartition(self.topic, partition, before)
        admin = AdminClient(self.work.kafka_config)
        admin.delete_records([place])[place].result(15)

    def plan(self, *_ends: int, suite_hash: str = "") -> BatchPlan:
        """Plan up to the broker's ends."""
        table, history = load_with_history(self.store, self.stream.table.name)
        point = find_recovery_point(history, self.stream.stream)
        assert point is not None
        metadata = table.metadata
        facts = TableFacts(
            str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id
        )
        given = PlanInput(self.stream, point.state, [self.facts], facts, suite_hash)
        return cast("BatchPlan", plan_batch(given))

    def load(self, count: int) -> int:
        """Produce and publish one batch; give main's head."""
        self.produce(count)
        return self.ingest().entry.snapshot_id

    def places(self) -> dict[int, list[int]]:
        """List the offsets of all rows by partition."""
        rows = self.table.scan(selected_fields=("_kafka",)).to_arrow().to_pylist()
        found: dict[int, list[int]] = {}
        for row in rows:
            found.setdefault(row["_kafka"]["partition"], []).append(row["_kafka"]["offset"])
        return {partition: sorted(offsets) for partition, offsets in sorted(found.items())}

    @property
    def head(self) -> int:
        head = self.table.current_snapshot()
        assert head is not None
        return head.snapshot_id

    @property
    def kinds(self) -> list[str]:
        """List the kinds of all snapshots in the metadata."""
        return [e.summary.get(keys.KIND, "") for e in self.history.entries.values()]
