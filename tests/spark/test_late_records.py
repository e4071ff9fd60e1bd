"""Late records are rows like all others, and the ledger says how many came, how late (B19)."""

import json
import time

import pytest
from confluent_kafka import Producer
from conftest import Lab

from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE

pytestmark = [pytest.mark.spark, pytest.mark.stack]

MINUTE = 60_000


@pytest.mark.storm(1)
@pytest.mark.parametrize("workers_from", [0, 10**9], ids=["workers first", "Spark alone"])
def test_what_is_older_than_an_earlier_batch_allows_is_counted(lab: Lab, workers_from: int) -> None:
    lab.create_topic(partitions=1, **{"retention.ms": "-1"})
    now = int(time.time() * 1000)
    batches = [
        {1: now - 600 * MINUTE, 2: now},
        {3: now - 1, 4: now - 2 * MINUTE, 5: now - 61 * MINUTE, "bad": now - 90 * MINUTE, 6: -1},
        {7: now - 4 * MINUTE},
        {8: now + MINUTE},
    ]
    lab.write_stream(errors={"max_bad_ratio": 1.0})

    for records in batches:
        send(lab, records)
        done = lab.frazil("run", lab.stream, **{MIN_RECORDS_VARIABLE: str(workers_from)})
        assert done.code == 0, done.err

    answer = json.loads(lab.frazil("snapshots", lab.stream, "--json").out)
    found = [s for s in reversed(answer) if s["kind"] == "ingest"]
    assert [(s["rows_late"], s["late_by_ms"]) for s in found] == [
        (None, None),
        (2, 90 * MINUTE),
        (1, 4 * MINUTE),
        (None, None),
    ]
    assert [s["rows_written"] for s in found] == [2, 4, 1, 1]
    assert "2, up to 1 h 30 min" in lab.frazil("snapshots", lab.stream).out
    timeline = ("timeline", "--stream", lab.stream)
    assert "2 late records, up to 1 h 30 min" in lab.frazil(*timeline).out


def send(lab: Lab, records: dict[int | str, int]) -> None:
    """Send a record for each id, with its timestamp in ms; -1 is a record without one."""
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    for number, at_ms in records.items():
        value = json.dumps({"id": number, "name": "a"}).encode()
        producer.produce(lab.topic, value=value, partition=0, timestamp=at_ms)
    assert producer.flush(15) == 0
