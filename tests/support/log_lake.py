"""A lake that is filled from a log in memory by the product's own commits, with its mistakes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from support.lake import CLUSTER_ID, TOPIC_ID, Lake, append

from frazil.iceberg.branches import create_branch, name_branch
from frazil.ingest.messages import PartitionCount, Staged
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.coordinates import Offsets
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.state import StreamState
from frazil.observability.audit import audit_table
from frazil.observability.audit_messages import AuditReport

Records = Iterable[tuple[int, int]]
"""Partition and offset of each record."""

TOPIC = "orders"


@dataclass
class LogInMemory:
    """A topic of two partitions that delivers the offsets it holds, as a broker would."""

    offsets: dict[int, list[int]] = field(default_factory=lambda: {0: [], 1: []})
    earliest: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    topic_id: str = TOPIC_ID
    cleanup_policy: str = "delete"

    def produce(self, partition: int, *offsets: int) -> None:
        """Add records; what is left out is a hole."""
        self.offsets[partition] += offsets

    def age_out(self, partition: int, earliest: int) -> None:
        """Delete records as retention does."""
        self.earliest[partition] = earliest
        self.offsets[partition] = [o for o in self.offsets[partition] if o >= earliest]

    @property
    def ends(self) -> tuple[int, int]:
        """Return the next offset of both partitions."""
        first, second = (max(self.offsets[p], default=self.earliest[p] - 1) + 1 for p in (0, 1))
        return first, second

    def fetch_topic(self, topic: str, isolation: str) -> TopicFacts:  # noqa: ARG002 - one level
        """Answer as `KafkaLog` does."""
        partitions = tuple(PartitionOffsets(self.earliest[p], self.ends[p]) for p in (0, 1))
        return TopicFacts(topic, self.topic_id, CLUSTER_ID, partitions)

    def fetch_topic_settings(self, topic: str) -> Mapping[str, str]:  # noqa: ARG002 - one topic
        """Answer as `KafkaLog` does."""
        return {"cleanup.policy": self.cleanup_policy}

    def fetch_delivered(
        self,
        topic: str,  # noqa: ARG002 - one topic
        ranges: Mapping[int, OffsetRange],
        isolation: str,  # noqa: ARG002 - one level
    ) -> Mapping[int, Offsets]:
        """Deliver what is held of the ranges."""
        held = {p: [o for o in self.offsets[p] if r.holds(o)] for p, r in ranges.items()}
        return {p: np.array(offsets, dtype=np.int64) for p, offsets in held.items()}


@dataclass(frozen=True)
class Pipeline:
    """A lake that is filled from a log by the product's own commits, with mistakes on demand."""

    lake: Lake
    log: LogInMemory

    def ingest(self, letters: Records = (), skipped: Records = (), lost: Records = ()) -> None:
        """Publish what the log has; `lost` records are claimed as written and are not."""
        plan = self.lake.plan(*self.log.ends)
        attempt = name_branch(plan.stream, plan.base_epoch)
        base_head = create_branch(self.lake.store, plan.table, attempt)
        delivered = self.log.fetch_delivered(TOPIC, plan.offset_ranges[TOPIC], "read_committed")
        read = [(p, int(o)) for p, offsets in delivered.items() for o in offsets]
        good = [record for record in read if record not in [*letters, *skipped]]
        self.append([r for r in good if r not in [*lost]], branch=attempt)
        self.append_letters(letters, attempt)
        staged = Staged(
            stream=plan.stream,
            batch_id=plan.batch_id,
            attempt=attempt,
            snapshot_id=self.lake.table.metadata.refs[attempt].snapshot_id,
            base_head=base_head,
            rows_read=len(read),
            rows_written=len(good),
            rows_quarantined=len([*letters]),
            rows_skipped=len([*skipped]),
            partitions=count_partitions(read, good),
        )
        self.lake.publish(plan, staged)

    def append(self, records: Records, branch: str = "main", topic: str = TOPIC) -> None:
        """Append rows as any writer of the table may."""
        table = self.lake.table
        rows = [{"id": o, "_kafka": coordinate(topic, p, o)} for p, o in records]
        append(self.lake.catalog, table, rows, branch)

    def append_letters(self, records: Records, attempt: str) -> None:
        """Append dead letters of an attempt."""
        letters = self.lake.store.load(self.lake.stream.dead_letters_table)
        rows = [{"attempt": attempt, "_kafka": coordinate(TOPIC, p, o)} for p, o in records]
        append(self.lake.catalog, letters, rows)

    def delete(self, partition: int, offset: int) -> None:
        """Delete one record's row as any writer of the table may."""
        self.lake.table.delete(f"_kafka.partition == {partition} AND _kafka.offset == {offset}")

    def audit(self, log: LogInMemory | None = None) -> AuditReport:
        """Audit against the log."""
        return audit_table(self.lake.store, self.lake.stream, log or self.log)


def coordinate(topic: str, partition: int, offset: int) -> dict[str, str | int]:
    return {"topic": topic, "partition": partition, "offset": offset}


def count_partitions(read: Records, good: Records) -> tuple[PartitionCount, ...]:
    sizes = {p: [sum(p == q for q, _ in records) for records in (read, good)] for p in (0, 1)}
    return tuple(
        PartitionCount(topic=TOPIC, partition=p, rows_read=n, rows_good=m)
        for p, (n, m) in sizes.items()
        if n
    )


def state_of(epoch: int, offsets: tuple[int, ...], topic_id: str = TOPIC_ID) -> StreamState:
    return StreamState(epoch, f"batch-{epoch}", {TOPIC: offsets}, {TOPIC: topic_id}, CLUSTER_ID)
