"""Rows that are too old, on a real broker and a real Spark: killed, raced, audited."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from confluent_kafka import Producer
from conftest import Lab

from faults.batches import Batches
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.row_expiry import expire_rows
from frazil.observability.audit import audit_stream
from frazil.recovery.messages import ReplayRequest
from frazil.recovery.replay import plan_replay, replay

pytestmark = pytest.mark.stack
RULE = {"column": "_kafka.timestamp", "keep_days": 30}


def produce_aged(lab: Lab, *days: int) -> None:
    """Send a record to each of two partitions for each age in days."""
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    now = datetime.now(UTC)
    for number, age in enumerate(days):
        at_ms = int((now - timedelta(days=age)).timestamp() * 1000)
        for partition in (0, 1):
            value = f'{{"id": {number}, "name": "n", "amount": 1.0}}'.encode()
            producer.produce(lab.topic, value=value, partition=partition, timestamp=at_ms)
    assert producer.flush(30) == 0


@pytest.fixture
def aged(batches: Batches) -> Batches:
    """Read two batches of records of ages between 0 and 60 days."""
    lab = batches.lab
    lab.create_topic(**{"retention.ms": "-1"})
    lab.write_stream(maintenance={"expire_rows": RULE})
    produce_aged(lab, 60, 45, 0, 33)
    batches.publish()
    produce_aged(lab, 1, 50, 2, 29)
    batches.publish()
    return batches


def assert_exactly_once(batches: Batches) -> None:
    """Let both audits judge the table."""
    assert batches.faults() == ()
    assert audit_stream(batches.open()).findings == ()


KEPT = {partition: [2, 4, 6, 7] for partition in (0, 1)}


@pytest.mark.core
def test_old_rows_expire_and_a_late_record_goes_with_the_next_run(aged: Batches) -> None:
    point = aged.next_offsets

    first = expire_rows(aged.open())
    produce_aged(aged.lab, 90)
    aged.publish()
    later = aged.lab.frazil("expire-rows", aged.lab.stream, "--no-dry-run", "--json")

    assert (first.rows, later.json["expire_rows"]["rows"]) == (8, 2)
    assert (aged.places(), aged.next_offsets) == (KEPT, [end + 1 for end in point])
    assert_exactly_once(aged)


@pytest.mark.storm(1)
@pytest.mark.parametrize("failpoint", ["delete.before-commit", "delete.after-commit"])
def test_a_kill_expires_wholly_or_not_at_all_and_the_next_run_finishes(
    aged: Batches, failpoint: str
) -> None:
    command = ("expire-rows", aged.lab.stream, "--no-dry-run")
    killed = aged.lab.frazil(*command, FRAZIL_FAILPOINT=failpoint)
    assert killed.code == -9, killed.err
    assert_exactly_once(aged)

    again = aged.lab.frazil(*command)

    assert again.code == 0, again.err
    assert aged.places() == KEPT
    assert_exactly_once(aged)


def test_a_batch_and_a_compaction_at_the_same_time_lose_and_revive_nothing(aged: Batches) -> None:
    for _ in range(3):
        produce_aged(aged.lab, 0, 70)
        aged.publish()
    produce_aged(aged.lab, 3)

    with ThreadPoolExecutor(max_workers=2) as others:
        compacting = others.submit(compact_table, aged.open())
        publishing = others.submit(aged.publish)
        expire_rows(aged.open())
        compacting.result()
        publishing.result()

    kept = [*KEPT[0], 8, 10, 12, 14]
    assert aged.places() == {0: kept, 1: kept}
    assert_exactly_once(aged)


def test_a_replay_brings_old_rows_back_until_the_next_run(aged: Batches) -> None:
    expire_rows(aged.open())
    work = aged.open()
    ranges = (f"{aged.lab.topic}:0:0-8",)
    request = ReplayRequest(stream=aged.lab.stream, offsets=ranges, dry_run=False)

    done = replay(work, plan_replay(work, request))

    assert (done.rows_written, aged.places()[0]) == (8, list(range(8)))
    assert_exactly_once(aged)
    aged.lab.frazil("expire-rows", aged.lab.stream, "--no-dry-run")
    assert aged.places() == KEPT
    assert_exactly_once(aged)
