"""What a Kafka log does to a reader (docs/faults.md, D), on a real broker and a real Spark."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer
from conftest import Lab, good_values

from faults.batches import Batches, EventfulEngine
from frazil.errors import RetentionGapError, SourceError
from frazil.ingest.pipeline import plan_next_batch
from frazil.ingest.staging import stage_batch
from frazil.ledger.authors import Author
from frazil.observability.audit import audit_stream
from frazil.recovery.decisions import accept_gap

pytestmark = pytest.mark.stack

MEGABYTE = 1_000_000
FUTURE = "2100-01-01T00:00:00Z"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_d3_records_that_go_between_plan_and_read_or_while_it_reads_abort_the_run(
    lab: Lab, batches: Batches, moment: str
) -> None:
    lab.create_topic(partitions=1)
    lab.produce(good_values(20), partitions=1)
    batches.publish()
    lab.produce(good_values(20), partitions=1)
    plan, head = batches.plan(), batches.table.current_snapshot()
    work = batches.open()
    engine = EventfulEngine(work.engine.remote)
    work.__dict__["engine"] = engine
    setattr(engine, moment, lambda: batches.delete_records(before=30))

    with pytest.raises(RetentionGapError, match=f"plan {lab.stream}|accept-gap {lab.stream}"):
        stage_batch(work, plan)

    assert batches.table.current_snapshot() == head
    with pytest.raises(RetentionGapError, match=rf"{lab.topic}:0:20-30"):
        plan_next_batch(batches.open())
    assert batches.table.current_snapshot() == head


def test_d8_a_topic_that_comes_back_with_fewer_partitions_waits_for_a_person(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic(partitions=3)
    lab.produce([*good_values(28), b"no json"], partitions=3)
    batches.publish()
    admin = lab.admin
    admin.delete_topics([lab.topic])[lab.topic].result(15)
    lab.create_topic(partitions=1)
    lab.produce([*good_values(14), b"no json"], partitions=1)

    with pytest.raises(SourceError, match=r"(?s)deleted and created again.*accept-gap"):
        plan_next_batch(batches.open())

    accept_gap(batches.open(), Author("tests@example.org", "created again, with one partition"))
    batches.publish()
    assert batches.next_offsets == [15]
    assert batches.places() == {0: sorted([*range(10), *range(14)]), 1: [*range(9)], 2: [*range(9)]}
    assert audit_stream(batches.open()).findings == ()
    report = batches.audit()
    assert report.findings == ()
    assert report.facts["records_delivered"] == 15


def test_d14_the_first_messages_are_read_one_by_one_beside_an_empty_partition(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic(partitions=2)
    assert batches.next_offsets == [0, 0]

    for count in (1, 1, 2):
        lab.produce(good_values(count), partitions=1)
        assert batches.publish().rows_written == count

    assert batches.next_offsets == [4, 0]
    assert batches.places() == {0: [0, 1, 2, 3]}
    assert batches.faults() == ()


def test_d15_a_start_in_the_future_begins_at_the_end(lab: Lab, batches: Batches) -> None:
    lab.create_topic(partitions=2)
    lab.produce(good_values(3))
    lab.write_stream(source={"topic": lab.topic, "start": {"timestamp": FUTURE}})
    assert batches.next_offsets == [2, 1]
    lab.produce(good_values(3))

    batches.publish()

    assert batches.places() == {0: [2, 3], 1: [1]}
    assert batches.faults() == ()


def test_d15_a_start_in_the_future_waits_before_an_open_transaction(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic(partitions=1)
    lab.write_stream(source={"topic": lab.topic, "start": {"timestamp": FUTURE}})
    batches.produce(good_values(2))
    hanging = batches.produce(good_values(3), **{"transactional.id": lab.topic})

    assert batches.next_offsets == [2]

    hanging.commit_transaction(15)
    batches.wait_for_stable_end(6)
    assert batches.publish().rows_written == 3


def test_d16_timestamps_out_of_order_or_unknown_lose_no_record(lab: Lab, batches: Batches) -> None:
    instants = [5_000, 1_000, -1, 9_000, 1_000]
    lab.create_topic(partitions=1, **{"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    for value, instant_ms in zip(good_values(len(instants)), instants, strict=True):
        producer.produce(lab.topic, value=value, partition=0, timestamp=instant_ms)
    assert producer.flush(15) == 0

    batches.publish()

    rows = batches.table.scan(selected_fields=("_kafka",)).to_arrow().to_pylist()
    by_offset = {row["_kafka"]["offset"]: row["_kafka"]["timestamp"] for row in rows}
    told = [at and round(at.timestamp() * 1000) for _, at in sorted(by_offset.items())]
    assert told == [5_000, 1_000, None, 9_000, 1_000]
    summary = batches.table.metadata.snapshots[-1].summary
    assert summary is not None
    assert (summary["frazil.min-timestamp-ms"], summary["frazil.max-timestamp-ms"]) == (
        "1000",
        "9000",
    )
    assert batches.faults() == ()


def test_d18_a_record_of_20_megabytes_comes_through(lab: Lab, batches: Batches) -> None:
    lab.create_topic(partitions=1, **{"max.message.bytes": str(22 * MEGABYTE)})
    [small] = good_values(1)
    huge = b'{"id": 1, "name": "%s"}' % (b"x" * 20 * MEGABYTE)
    bad = b'{"id": "%s"}' % (b"y" * 20 * MEGABYTE)
    batches.produce([small, huge, bad, small], **{"message.max.bytes": 22 * MEGABYTE})

    published = batches.publish()

    assert (published.rows_written, published.rows_quarantined) == (3, 1)
    assert batches.places() == {0: [0, 1, 3]}
    assert batches.faults() == ()


def test_d19_a_producer_that_outruns_the_reader_does_not_move_the_planned_end(
    lab: Lab, batches: Batches
) -> None:
    lab.write_stream(batch={"max_records": 1_000_000})
    lab.create_topic(partitions=1)
    lab.produce(good_values(50), partitions=1)
    plan, work = batches.plan(), batches.open()

    with producing(lab) as sent:
        staged = stage_batch(work, plan)
        sent_meanwhile = len(sent)

    assert sent_meanwhile > 0
    assert staged.rows_read == 50
    assert batches.publish().rows_written == 50 + len(sent)
    assert batches.faults() == ()


@contextmanager
def producing(lab: Lab) -> Iterator[list[int]]:
    """Send records without a pause; give the list that grows with them."""
    sent: list[int] = []
    stop = threading.Event()

    def produce() -> None:
        while not stop.wait(0.01):
            lab.produce(good_values(5), partitions=1)
            sent.extend(range(5))

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        yield sent
    finally:
        stop.set()
        producer.join()
