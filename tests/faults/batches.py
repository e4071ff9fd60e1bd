"""Batches of a lab's stream, step by step in the test's own process, on the real parts."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import Producer, TopicPartition
from conftest import Lab
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from faults.audit_values import AuditReport, Finding
from faults.auditor import audit_table
from frazil.connections.clients import find_catalog
from frazil.ingest.messages import BatchPlan, NothingToRead, Published, StageRequest
from frazil.ingest.pipeline import plan_next_batch
from frazil.messages import Message
from frazil.spark.engine import SparkEngine
from frazil.workspace import Workspace, open_workspace
from frazil_cli.steps import run_one_batch

Offsets = dict[int, list[int]]
ResultMessage = TypeVar("ResultMessage", bound=Message)


@dataclass(frozen=True)
class Batches:
    """A lab's stream; every batch opens it afresh, as a run of its own would."""

    lab: Lab

    def open(self) -> Workspace:
        """Read the stream file as it is now."""
        return open_workspace(self.lab.stream, "test")

    def plan(self) -> BatchPlan:
        """Plan a batch where there is something to read; what was measured is left out."""
        plan = plan_next_batch(self.open())
        assert isinstance(plan, BatchPlan)
        return plan.model_copy(update=dict.fromkeys(("used", "began_at_ms", "ended_at_ms")))

    def run(self) -> Published | NothingToRead:
        """Run one batch as `frazil run` does."""
        return run_one_batch(self.lab.stream)

    def publish(self) -> Published:
        """Run one batch where there is something to read."""
        published = self.run()
        assert isinstance(published, Published)
        return published

    @property
    def catalog(self) -> Catalog:
        """Open the catalog of the stream's connection."""
        preset = find_catalog("iceberg_default")
        return load_catalog(preset.name, **preset.properties)

    @property
    def table(self) -> Table:
        """Load the table afresh."""
        return self.catalog.load_table(self.lab.table)

    @property
    def next_offsets(self) -> list[int]:
        """Return where the next batch begins; only where nothing is left to read."""
        idle = self.run()
        assert isinstance(idle, NothingToRead)
        return list(idle.next_offsets[self.lab.topic])

    def audit(self) -> AuditReport:
        """Let the independent auditor recompute the table."""
        lab, preset = self.lab, find_catalog("iceberg_default")
        return audit_table(
            preset.properties, preset.name, lab.table, lab.stack.bootstrap, lab.stream
        )

    def faults(self) -> tuple[Finding, ...]:
        """List what the independent auditor finds."""
        return self.audit().findings

    def places(self) -> Offsets:
        """List the offsets of all rows by partition."""
        found: Offsets = {}
        for row in self.table.scan(selected_fields=("_kafka",)).to_arrow().to_pylist():
            found.setdefault(row["_kafka"]["partition"], []).append(row["_kafka"]["offset"])
        return {partition: sorted(offsets) for partition, offsets in sorted(found.items())}

    def wait_for_stable_end(self, end: int) -> None:
        """Wait for the coordinator's marks in partition 0, which it writes after its answer."""
        work = self.open()
        for _ in range(300):
            if work.kafka.fetch_topic(self.lab.topic).partitions[0].end == end:
                return
            time.sleep(0.05)
        raise AssertionError(f"the last stable offset never became {end}")

    def delete_records(self, before: int, partition: int = 0) -> None:
        """Let retention take what lies before an offset."""
        place = TopicPartition(self.lab.topic, partition, before)
        admin = self.lab.admin
        admin.delete_records([place])[place].result(15)

    def produce(self, values: Iterable[bytes | None], **settings: str | float) -> Producer:
        """Send values to partition 0 with a producer of these settings, and wait for the broker."""
        producer = Producer({"bootstrap.servers": self.lab.stack.bootstrap, **settings})
        if "transactional.id" in settings:
            producer.init_transactions(15)
            producer.begin_transaction()
        for value in values:
            producer.produce(self.lab.topic, value=value, partition=0)
        assert producer.flush(30) == 0
        return producer


@dataclass
class EventfulEngine(SparkEngine):
    """The real engine, with things that happen around its job, and options for its reads."""

    remote: str
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None
    options: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Begin as every engine does."""
        super().__init__(self.remote)

    def run_job(self, job: str, request: Message, result: type[ResultMessage]) -> ResultMessage:
        """Let it happen, run the job, let it happen."""
        if isinstance(request, StageRequest):
            options = {**request.kafka_options, **dict(self.options)}
            request = request.model_copy(update={"kafka_options": options})
        self.before()
        answer = super().run_job(job, request, result)
        self.after()
        return answer
