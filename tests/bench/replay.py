"""How long a replay takes beside a plain ingest of the same records, on a warm stack.

    python tests/bench/replay.py --records 1000000

It needs a running stack (`frazil stack up --only kafka,spark`) and prints one JSON document:
seconds for the ingest (the floor), the comparison, and stage, check and publish of the replay.
"""

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from frazil.observability.audit import audit_stream
from frazil.recovery.messages import ReplayRequest
from frazil.recovery.replay import plan_replay, replay
from frazil.workspace import Workspace, open_workspace
from frazil_cli.steps import run_one_batch

PARTITIONS = 2


def write_stream(folder: Path, stream: str, records: int) -> None:
    """Write a stream file that takes all records in one batch."""
    document = {
        "stream": stream,
        "owner": "bench@example.org",
        "source": {"topic": stream},
        "value": {"columns": {"id": "long!", "name": "string", "amount": "double"}},
        "table": {"name": f"bench.{stream}"},
        "batch": {"max_records": records},
    }
    (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))


def fill_topic(work: Workspace, records: int) -> None:
    """Create the topic and send the records."""
    topic = work.stream.source.names[0]
    admin = AdminClient(work.kafka_config)
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    producer = Producer({**work.kafka_config, "linger.ms": 20, "queue.buffering.max.kbytes": 65536})
    for number in range(records):
        value = b'{"id": %d, "name": "n%d", "amount": %d.25}' % (number, number, number % 100)
        while True:
            try:
                producer.produce(topic, value=value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        producer.poll(0)
    assert producer.flush(120) == 0


def timed(results: dict[str, float], name: str, started: float) -> float:
    """Note the seconds since `started`; give the present."""
    now = time.monotonic()
    results[name] = round(now - started, 2)
    return now


def measure(stream: str, records: int) -> dict[str, float]:
    """Ingest, compare and replay; see that the audit holds."""
    results: dict[str, float] = {"records": records, "load_1m": round(os.getloadavg()[0], 1)}
    work = open_workspace(stream, "bench")
    fill_topic(work, records)
    started = time.monotonic()
    run_one_batch(stream)
    started = timed(results, "ingest_seconds", started)
    half = records // PARTITIONS
    offsets = tuple(f"{stream}:{p}:0-{half}" for p in range(PARTITIONS))
    planned = plan_replay(work, ReplayRequest(stream=stream, offsets=offsets, dry_run=False))
    started = timed(results, "compare_seconds", started)
    done = replay(work, planned)
    timed(results, "replay_seconds", started)
    assert (planned.differences.same, done.rows_written) == (2 * half, 2 * half)
    assert audit_stream(work).findings == ()
    results["total_seconds"] = round(results["compare_seconds"] + results["replay_seconds"], 2)
    return results


def main() -> None:
    """Measure once and print the seconds."""
    parser = argparse.ArgumentParser(description="Measure a replay.")
    parser.add_argument("--records", type=int, default=1_000_000)
    records = parser.parse_args().records
    stream = f"r{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FRAZIL_STREAMS"] = folder
        write_stream(Path(folder), stream, records)
        results = measure(stream, records)
    sys.stdout.write(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
