"""First records of a real broker: one with its timestamp, none at all, and nobody knows."""

import time

import pytest
from confluent_kafka import Producer
from conftest import Lab, good_values

from frazil.kafka.cluster import KafkaLog

pytestmark = pytest.mark.stack

ISOLATIONS = ("read_committed", "read_uncommitted")
MARK_SECONDS = 30


@pytest.fixture
def log(lab: Lab) -> KafkaLog:
    """Ask the stack's broker about a topic of one partition."""
    lab.create_topic(partitions=1, **{"retention.ms": "-1"})
    return KafkaLog({"bootstrap.servers": lab.stack.bootstrap})


def begin_transaction(lab: Lab, name: str = "one") -> Producer:
    """Send one record within a transaction that stays open."""
    settings = {"bootstrap.servers": lab.stack.bootstrap}
    producer = Producer({**settings, "transactional.id": f"{lab.topic}-{name}"})
    producer.init_transactions(15)
    producer.begin_transaction()
    producer.produce(lab.topic, value=b"{}", partition=0)
    assert producer.flush(15) == 0
    return producer


def abort(producer: Producer, lab: Lab, log: KafkaLog) -> None:
    """Abort, and wait for the mark in the log: the coordinator writes it after its answer."""
    producer.abort_transaction(15)
    deadline = time.monotonic() + MARK_SECONDS
    while time.monotonic() < deadline:
        ends = [log.fetch_topic(lab.topic, isolation).partitions[0].end for isolation in ISOLATIONS]
        if len(set(ends)) == 1:
            return
        time.sleep(0.1)
    raise AssertionError(f"the mark of the aborted transaction is not there: {ends}")


def test_the_first_record_tells_its_timestamp(lab: Lab, log: KafkaLog) -> None:
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    for timestamp_ms in (1_000, 2_000, 3_000):
        producer.produce(lab.topic, value=b"{}", partition=0, timestamp=timestamp_ms)
    assert producer.flush(15) == 0

    assert log.fetch_first_timestamps(lab.topic, {0: 1}) == {0: 2_000}


def test_marks_of_transactions_are_no_record(lab: Lab, log: KafkaLog) -> None:
    abort(begin_transaction(lab), lab, log)

    assert log.fetch_topic(lab.topic).partitions[0].end == 2
    assert log.fetch_first_timestamps(lab.topic, {0: 0}) == {0: None}


def test_what_an_open_transaction_holds_is_no_record_for_committed_readers(
    lab: Lab, log: KafkaLog
) -> None:
    abort(begin_transaction(lab), lab, log)
    hanging = begin_transaction(lab, "two")

    committed = log.fetch_first_timestamps(lab.topic, {0: 0})
    uncommitted = log.fetch_first_timestamps(lab.topic, {0: 2}, "read_uncommitted")
    hanging.abort_transaction(15)

    assert committed == {0: None}
    assert uncommitted[0] is not None


def test_an_offset_that_is_gone_is_unknown_and_not_the_end(lab: Lab, log: KafkaLog) -> None:
    lab.produce(good_values(2), partitions=1)

    assert log.fetch_first_timestamps(lab.topic, {0: 1_000}) == {}


def test_a_hanging_transaction_is_seen_behind_one_that_was_aborted(lab: Lab, log: KafkaLog) -> None:
    assert log.fetch_topic(lab.topic).partitions[0].end == 0
    assert "no new records" in lab.frazil("run", lab.stream).out
    abort(begin_transaction(lab), lab, log)
    hanging = begin_transaction(lab, "two")

    answer = lab.frazil("status", lab.stream, "--json").json
    hanging.abort_transaction(15)

    assert isinstance(answer, list)
    assert answer[0]["lag"] == 2
    assert answer[0]["freshness"]["stream_clock_seconds"] is None
    assert "1 offset in open transactions" in answer[0]["freshness"]["text"]
