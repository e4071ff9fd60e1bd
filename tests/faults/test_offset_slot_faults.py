"""Offsets without a record (docs/faults.md, D9 to D12): markers, aborted records, compaction.

A batch reads fewer records than its range is wide, and that is no loss.
"""

import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource
from conftest import Lab, good_values

from faults.audit_kafka import read_logs
from faults.batches import Batches
from frazil.ingest.messages import NothingToRead

pytestmark = pytest.mark.stack

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
}
COMPACTION_SECONDS = 90
ROLL_SECONDS = 0.3


def begin(lab: Lab, batches: Batches, count: int, name: str = "one") -> Producer:
    """Send records in a transaction that stays open."""
    return batches.produce(good_values(count), **{"transactional.id": f"{lab.topic}-{name}"})


def test_d9_a_log_that_ends_with_a_control_record_is_read_to_its_end_without_alarm(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic(partitions=1)
    begin(lab, batches, 5).commit_transaction(15)
    begin(lab, batches, 4, "two").abort_transaction(15)
    begin(lab, batches, 3, "three").commit_transaction(15)
    batches.wait_for_stable_end(15)

    published = batches.publish()

    assert published.ranges == {lab.topic: {0: (0, 15)}}
    assert (published.rows_written, published.rows_quarantined) == (8, 0)
    assert batches.next_offsets == [15]
    assert batches.faults() == ()
    audit = lab.frazil("audit", lab.stream)
    assert audit.code == 0, audit.out


def test_d9_a_range_of_control_records_alone_moves_the_offsets_and_adds_no_row(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic(partitions=1)
    begin(lab, batches, 4).abort_transaction(15)
    batches.wait_for_stable_end(5)

    published = batches.publish()

    assert (published.rows_written, published.ranges) == (0, {lab.topic: {0: (0, 5)}})
    assert batches.next_offsets == [5]
    assert batches.faults() == ()


@pytest.mark.parametrize(
    ("isolation", "delivered"), [("read_committed", [0, 6]), ("read_uncommitted", [0, 1, 2, 3, 6])]
)
def test_d10_aborted_records_appear_only_where_the_stream_file_asks_for_them(
    lab: Lab, batches: Batches, isolation: str, delivered: list[int]
) -> None:
    source = {"topic": lab.topic} | (
        {"isolation": isolation} if isolation != "read_committed" else {}
    )
    lab.write_stream(source=source)
    lab.create_topic(partitions=1)
    batches.produce(good_values(1))
    begin(lab, batches, 3).abort_transaction(15)
    batches.wait_for_stable_end(5)
    batches.produce([b"no json", *good_values(1)])

    published = batches.publish()

    assert published.rows_quarantined == 1
    assert batches.places() == {0: delivered}


def test_d11_what_an_open_transaction_holds_back_is_read_after_its_commit(
    lab: Lab, batches: Batches
) -> None:
    lab.create_topic(partitions=1)
    batches.produce(good_values(3))
    hanging = begin(lab, batches, 2)
    batches.produce(good_values(4))

    assert batches.publish().ranges == {lab.topic: {0: (0, 3)}}
    assert isinstance(batches.run(), NothingToRead)
    hanging.commit_transaction(15)
    batches.wait_for_stable_end(10)
    assert batches.publish().rows_written == 6

    assert batches.places() == {0: [*range(9)]}
    assert batches.next_offsets == [10]
    assert batches.faults() == ()


def test_d12_the_gaps_of_a_compacted_topic_are_no_loss(lab: Lab, batches: Batches) -> None:
    lab.write_stream(batch={"max_records": 67})
    wake_cleaner(lab)
    lab.create_topic(partitions=1, **COMPACTED)
    kept = [*range(0, 200, 20), 199, 200]
    produce_until_compacted_to(lab, kept)

    ranges = []
    while not isinstance(published := batches.run(), NothingToRead):
        ranges.append(published.ranges[lab.topic][0])

    assert ranges == [(0, 67), (67, 134), (134, 201)]
    assert batches.places() == {0: kept}
    assert batches.faults() == ()
    audit = lab.frazil("audit", lab.stream)
    assert audit.code == 0, audit.out


def wake_cleaner(lab: Lab) -> None:
    """Let the broker look for what it can compact each 0.2 s; its default is 15 s."""
    admin = lab.admin
    [broker] = admin.list_topics(timeout=30).brokers
    entry = ConfigEntry(
        "log.cleaner.backoff.ms", "200", incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource("broker", str(broker), incremental_configs=[entry])
    admin.incremental_alter_configs([resource])[resource].result(15)


def produce_until_compacted_to(lab: Lab, kept: list[int]) -> None:
    """Write one key again and again, others once, and wait for the broker's cleaner.

    It never touches the segment that is written to: the last record begins a new one.
    """
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    for offset, value in enumerate(good_values(200)):
        key = b"hot" if offset % 20 else f"once-{offset}"
        producer.produce(lab.topic, value=value, key=key, partition=0)
    assert producer.flush(15) == 0
    time.sleep(ROLL_SECONDS)
    producer.produce(lab.topic, value=b'{"id": 200}', key=b"hot", partition=0)
    assert producer.flush(15) == 0
    deadline = time.monotonic() + COMPACTION_SECONDS
    while (found := read_offsets(lab)) != kept:
        assert time.monotonic() < deadline, f"the broker still keeps {len(found)} records"
        time.sleep(0.5)


def read_offsets(lab: Lab) -> list[int]:
    """List the offsets that the broker still delivers."""
    [log] = read_logs(lab.stack.bootstrap, lab.topic, "read_committed").values()
    return [int(offset) for offset in log.offsets]
