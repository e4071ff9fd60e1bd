"""A stream whose Spark job fails at named records; Spark is left out.

PyIceberg stages a row for each offset, and the "job" fails at the offsets of `failing`.
"""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest
from support.lake import Lake, make_stream
from support.staged_offsets import Topic, stage_offsets

from frazil.errors import (
    FrazilError,
)
from frazil.iceberg.catalog import dead_letters_name
from frazil.ingest import isolation
from frazil.ingest.checking import check_batch
from frazil.ingest.messages import BatchPlan, Published, StageRequest
from frazil.ingest.pipeline import plan_next_batch, publish_staged
from frazil.ingest.staging import stage_batch
from frazil.kafka.cluster import KafkaLog
from frazil.kafka.consumer import KafkaRecord, OffsetConsumer
from frazil.ledger.offsets import OffsetRange
from frazil.messages import Message
from frazil.spark.engine import Engine, ResultMessage
from frazil.spark.job_errors import encode_job_error, is_server_gone, parse_job_error
from frazil.spark.messages import PartsRequest, PartsResult
from frazil.streams.models import Stream
from frazil.workspace import Workspace

LETTERS = dead_letters_name("demo.orders")
Offset = tuple[int, int]


class PythonException(Exception):  # noqa: N818 - the name that PySpark gives it
    """An error of a job at a record; its text quotes the record."""


class IllegalArgumentException(Exception):  # noqa: N818 - the name that PySpark gives it
    """An error of Java, whose text quotes a value."""


class SparkConnectGrpcException(Exception):  # noqa: N818 - the name that PySpark gives it
    """The error of a client whose server ended."""


VALUE = "jane@example.org"
THROWN = PythonException(f"ValueError: cannot read {VALUE}")
KILLED = SparkConnectGrpcException("status = StatusCode.UNAVAILABLE")
NO_KAFKA = PythonException("org.apache.kafka.common.errors.TimeoutException: no broker")


@dataclass
class JobAtOffsets(Engine):
    """The engine without Spark: jobs fail at the offsets of `failing`."""

    lake: Lake
    failing: dict[Offset, Exception] = field(default_factory=dict)
    bad: int = 0
    jobs: Counter[str] = field(default_factory=Counter)
    requests: list[StageRequest] = field(default_factory=list)
    before: Callable[[StageRequest], object] = lambda _: None

    def run_job(self, job: str, request: Message, result: type[ResultMessage]) -> ResultMessage:
        """Run a job in this process, as `spark_jobs` does with Spark."""
        self.jobs[job] += 1
        if isinstance(request, PartsRequest):
            return cast("ResultMessage", self._run_parts(request))
        text = self._stage(cast("StageRequest", request))
        error = parse_job_error(job, text, "orders")
        if error is not None:
            raise error
        return result.parse(text)

    def _run_parts(self, request: PartsRequest) -> PartsResult:
        results: list[str] = []
        for part in map(StageRequest.parse, request.parts):
            results.append(self._stage(part))
            if is_server_gone(results[-1]):
                break
        return PartsResult(results=tuple(results))

    def _stage(self, request: StageRequest) -> str:
        self.requests.append(request)
        self.before(request)
        removed = request.isolated.get("orders", {})
        for (partition, offset), error in self.failing.items():
            start, end = request.ranges["orders"].get(partition, (0, 0))
            runs = removed.get(partition, []) + request.given.get("orders", {}).get(partition, [])
            if start <= offset < end and not any(low <= offset < high for low, high in runs):
                return encode_job_error(error)
        return stage_offsets(self.lake, request, self.bad).encode()

    def _describe(self) -> str:
        return "this process"

    def _require_reachable(self) -> None:
        pass

    def _run(self, command: list[str]) -> tuple[int, str]:
        raise AssertionError(command)


@dataclass
class Run:
    """One stream, whose every attempt is a process of its own."""

    lake: Lake
    stream: Stream
    topic: Topic
    engine: JobAtOffsets

    def open(self) -> Workspace:
        work = Workspace(self.stream, self.lake.folder, "test")
        work.__dict__["kafka"] = cast("KafkaLog", self.topic)
        work.__dict__["engine"] = self.engine
        return work

    def plan(self) -> BatchPlan:
        return cast("BatchPlan", plan_next_batch(self.open()))

    def publish(self) -> Published:
        plan = self.plan()
        staged = stage_batch(self.open(), plan)
        return publish_staged(self.open(), plan, staged, check_batch(self.open(), plan, staged))

    def fail(self, kind: type[FrazilError]) -> FrazilError:
        with pytest.raises(kind) as caught:
            self.publish()
        assert VALUE not in str(caught.value)
        return caught.value

    def read_blocked(self) -> str:
        """Return the id of the blocked batch."""
        stored = json.loads(self.lake.table.properties["frazil.blocked.orders"])
        return cast("str", stored["plan"]["batch_id"])

    def letters(self) -> list[tuple[int, int, str, str | None]]:
        rows = self.lake.store.load(LETTERS).scan().to_arrow().to_pylist()
        return sorted(
            (row["_kafka"]["partition"], row["_kafka"]["offset"], row["reason"], row["detail"])
            for row in rows
        )

    def require_exact(self, *failing: Offset) -> None:
        """Require each offset once, as a row or as a dead letter with the type of its error."""
        ends = enumerate(self.topic.ends)
        every = [(partition, offset) for partition, end in ends for offset in range(end)]
        assert self.lake.coordinates() == [each for each in every if each not in failing]
        found = self.letters() if failing else []
        assert [(partition, offset) for partition, offset, *_ in found] == sorted(failing)
        assert {reason for _, _, reason, _ in found} <= {"decoder_failed"}
        assert VALUE not in repr(found)


def begin_run(lake: Lake, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Run:
    """Begin a stream with records to read, a broker that delivers them, and no pauses."""
    extra = {"extra": dict(lake.store.preset.properties)}
    monkeypatch.setenv("AIRFLOW_CONN_ICEBERG_DEFAULT", json.dumps(extra))
    kafka = {"extra": {"bootstrap.servers": "127.0.0.1:1"}}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    monkeypatch.setenv("FRAZIL_HOME", str(folder))
    monkeypatch.setattr(isolation, "SHUTDOWN_SECONDS", 0)
    monkeypatch.setattr(isolation, "MAX_PAUSE_SECONDS", 0)
    monkeypatch.setattr(isolation, "LOCK_SECONDS", 0)
    monkeypatch.setattr(OffsetConsumer, "fetch_records", deliver)
    monkeypatch.setattr(OffsetConsumer, "fetch_unreadable", lambda *_: {})
    stream = make_stream(errors={"max_bad_ratio": 0.6})
    return Run(lake, stream, Topic((12, 4)), JobAtOffsets(lake))


def deliver(
    _: OffsetConsumer, topic: str, partition: int, span: OffsetRange, __: str
) -> tuple[KafkaRecord, ...]:
    """Deliver a record for each offset."""
    return tuple(
        KafkaRecord(topic, partition, offset, 1_700_000_000_000, 0, None, b"{", None)
        for offset in range(span.start, span.end)
    )
