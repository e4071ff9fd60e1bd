"""What travels with a record: timestamps that nothing can hold, keys and headers of any kind."""

from datetime import UTC, datetime

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from faults.batches import Batches
from frazil.recovery.messages import ReplayRequest
from frazil.recovery.replay import plan_replay

pytestmark = pytest.mark.stack
NANOSECONDS = 1_764_000_000_000_000_000
TIMES = {
    1_764_000_000_000: datetime(2025, 11, 24, 16, tzinfo=UTC),
    NANOSECONDS: None,
    1_764_000_000_000_000: None,  # microseconds
    -5: datetime(1969, 12, 31, 23, 59, 59, 995_000, tzinfo=UTC),
    -12_219_292_800_000: datetime(1582, 10, 15, tzinfo=UTC),
    -12_219_292_800_001: None,
    253_402_300_799_999: datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    253_402_300_800_000: None,
    2**63 - 1: None,
    -(2**62): None,
}
"""Record timestamps in ms, and what tables hold of them."""
KEYS = (None, b"", b"k", b"\xff\x00")
HEADERS = (
    None,
    [("h", None)],
    [("h", b""), ("h", b"\xff"), ("h", b"\xff")],
    [("", b"x"), ("\u00e4\U0001f600", b"\x00")],
)
ANY_TIME = {
    "retention.ms": "-1",
    "message.timestamp.after.max.ms": str(2**63 - 1),
    "message.timestamp.before.max.ms": str(2**63 - 1),
}


def test_no_timestamp_key_or_header_stops_a_stream_or_changes(batches: Batches) -> None:
    lab, sent = batches.lab, [*TIMES, *[NANOSECONDS + number for number in range(5)]]
    lab.write_stream(errors={"max_bad_ratio": 0.5})
    lab.create_topic(partitions=1, **ANY_TIME)
    producer = Producer({"bootstrap.servers": lab.stack.bootstrap})
    for number, time_ms in enumerate(sent):
        value = b"{" if number == len(sent) - 1 else b'{"id": %d}' % number
        key, headers = KEYS[number % 4], HEADERS[number % 3 + number % 2]
        producer.produce(lab.topic, value, key, 0, timestamp=time_ms, headers=headers)
    assert producer.flush(30) == 0

    published = batches.publish()

    assert (published.rows_written, published.rows_quarantined) == (len(sent) - 1, 1)
    # As the files have them: PyIceberg's reader shows null headers as none.
    paths = [task.file.file_path for task in batches.table.scan().plan_files()]
    rows = [row for path in paths for row in pq.read_table(path.split("://")[-1]).to_pylist()]
    found = {row["_kafka"]["offset"]: row["_kafka"] for row in rows}
    assert sorted(found) == [row["id"] for row in sorted(rows, key=lambda row: int(row["id"]))]
    for number, kafka in found.items():
        assert kafka["timestamp"] == TIMES.get(sent[number])
        assert kafka["key"] == KEYS[number % 4]
        headers = kafka["headers"] and [(each["key"], each["value"]) for each in kafka["headers"]]
        assert headers == HEADERS[number % 3 + number % 2]
    assert batches.faults() == ()
    request = ReplayRequest(stream=lab.stream, offsets=(f"{lab.topic}:0:0-{len(sent)}",))
    differences = plan_replay(batches.open(), request).differences
    assert (differences.same, differences.now_bad) == (len(sent) - 1, 0)
