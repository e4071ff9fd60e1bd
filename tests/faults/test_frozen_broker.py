"""A broker that falls silent is never taken for the end of the log (docs/faults.md, D17)."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import Lab

from faults.batches import Batches, EventfulEngine
from faults.test_server_kills import find_part
from frazil.errors import KafkaUnavailableError
from frazil.ingest.checking import check_batch
from frazil.ingest.pipeline import plan_next_batch, publish_staged
from frazil.ingest.staging import stage_batch
from frazil.workspace import Workspace

pytestmark = pytest.mark.stack

RECORDS = 6_000
RECORD_BYTES = 10_000
SMALL_FETCHES = {"java.max.partition.fetch.bytes": "1024", "java.max.poll.records": "50"}
IMPATIENT = (
    ("kafkaConsumer.pollTimeoutMs", "3000"),
    ("kafka.default.api.timeout.ms", "3000"),
    ("kafka.request.timeout.ms", "2000"),
)
SILENCE_SECONDS = 2


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Let a process stand still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture
def work(lab: Lab, batches: Batches, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """Return a stream whose records come in many small answers of the broker."""
    extra = {"bootstrap.servers": lab.stack.bootstrap, **SMALL_FETCHES}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"extra": extra}))
    lab.write_stream(batch={"max_records": RECORDS})
    lab.create_topic(partitions=1)
    batches.produce([b'{"id": 1, "name": "%s"}' % (b"x" * RECORD_BYTES)] * RECORDS)
    return batches.open()


@contextmanager
def freezing_in_the_middle(lab: Lab, seconds: float) -> Iterator[threading.Event]:
    """Freeze the broker when it has sent a quarter of the records; tell whether it has."""
    broker = find_part(lab, "kafka")
    enough = count_sent_bytes(broker) + RECORDS * RECORD_BYTES // 4
    happened, over = threading.Event(), threading.Event()

    def freeze() -> None:
        while count_sent_bytes(broker) < enough:
            if over.wait(0.002):
                return
        with frozen(broker):
            happened.set()
            over.wait(seconds)

    watcher = threading.Thread(target=freeze)
    watcher.start()
    try:
        yield happened
    finally:
        over.set()
        watcher.join()


def count_sent_bytes(pid: int) -> int:
    """Count what a process has written so far, to files and sockets."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["wchar"])


def test_d17_a_broker_that_is_silent_at_the_plan_is_no_empty_topic(
    lab: Lab, work: Workspace
) -> None:
    with frozen(find_part(lab, "kafka")), pytest.raises(KafkaUnavailableError):
        plan_next_batch(work)


def test_d17_a_broker_that_stays_silent_in_the_middle_of_a_read_fails_the_run(
    lab: Lab, batches: Batches, work: Workspace
) -> None:
    plan, head = batches.plan(), batches.table.current_snapshot()
    work.__dict__["engine"] = EventfulEngine(work.engine.remote, options=IMPATIENT)

    with (
        freezing_in_the_middle(lab, seconds=120) as happened,
        pytest.raises(KafkaUnavailableError, match="Spark job stage_batch"),
    ):
        stage_batch(work, plan)

    assert happened.is_set()
    assert batches.table.current_snapshot() == head
    assert batches.publish().rows_written == RECORDS
    assert batches.faults() == ()


def test_d17_a_broker_that_wakes_up_in_the_middle_of_a_read_has_delivered_everything(
    lab: Lab, batches: Batches, work: Workspace
) -> None:
    plan = batches.plan()

    with freezing_in_the_middle(lab, SILENCE_SECONDS) as happened:
        staged = stage_batch(work, plan)

    assert happened.is_set()
    assert staged.rows_read == RECORDS
    publish_staged(work, plan, staged, check_batch(work, plan, staged))
    assert batches.faults() == ()
