"""`batch.max_bytes_per_second`: a lower bound of time, which no busy machine can break."""

import json
import time

import pytest
from conftest import Lab

pytestmark = pytest.mark.stack
LIMIT = 100_000
RECORDS, BYTES = 1_000, 1_100
SHORTEST_SECONDS = 0.75 * RECORDS * BYTES / LIMIT
"""Which of the small records sleep for the others, a hash decides: the same ones each time."""


def test_a_replay_reads_no_faster_than_the_stream_file_allows(lab: Lab) -> None:
    lab.write_stream(value={"convert": "json", "columns": {"id": "long!", "text": "string"}})
    lab.create_topic(3)
    text = "x" * (BYTES - 28)
    lab.produce([json.dumps({"id": i, "text": text}).encode() for i in range(RECORDS)], 3)
    lab.drain()
    lab.write_stream(batch={"max_bytes_per_second": LIMIT})

    began = time.monotonic()
    replay = lab.frazil("replay", lab.stream, "--since", "2020-01-01T00:00:00Z", "--json")
    took = time.monotonic() - began

    assert replay.code == 0, replay.out + replay.err
    assert replay.json["differences"]["same"] == RECORDS
    assert took > SHORTEST_SECONDS


def test_throttled_batches_read_every_record_once(lab: Lab) -> None:
    lab.write_stream(
        value={"convert": "json", "columns": {"id": "long!", "text": "string"}},
        batch={"max_bytes_per_second": 5_000_000},
        errors={"max_bad_ratio": 1.0},
    )
    lab.create_topic(3)
    bad: list[bytes | None] = [None, b"", b"{"]
    good = [json.dumps({"id": i, "text": "x" * (i % 3000)}).encode() for i in range(RECORDS)]
    lab.produce([*bad, *good], 3)

    lab.drain()

    assert lab.rows == RECORDS
    assert lab.frazil("audit", lab.stream).code == 0
