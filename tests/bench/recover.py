"""How long a rollback takes on a big table with a long history; prints JSON.

    python tests/bench/recover.py

ROWS (10,000,000) in SNAPSHOTS (500) make the table. It needs a running stack (`frazil stack up
--only kafka`). The broker holds every record: a rollback asks whether it can be read again.
"""

import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from confluent_kafka import Producer
from support.broker_lake import BrokerLake
from support.lake import make_stream

from frazil.ledger.history import trace_steps
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.rollback import plan_recovery, recover

BUFFERED = 1_000_000
LIMIT_SECONDS = 5


def produce(lake: BrokerLake, count: int) -> None:
    """Send small records, packed."""
    settings = {
        "linger.ms": 50,
        "compression.type": "lz4",
        "queue.buffering.max.messages": BUFFERED,
    }
    producer = Producer({**lake.work.kafka_config, **settings})
    for number in range(count):
        while True:
            try:
                producer.produce(lake.topic, value=b'{"id": 1}', partition=number % 2)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def fill(lake: BrokerLake, rows: int, snapshots: int) -> list[int]:
    """Ingest batches of the same size; give main's head after each."""
    heads = []
    for number in range(1, snapshots + 1):
        produce(lake, rows // snapshots)
        heads.append(lake.ingest().entry.snapshot_id)
        if number % 50 == 0:
            print(f"{number} of {snapshots} snapshots", file=sys.stderr)
    return heads


def main(rows: int, snapshots: int) -> dict[str, object]:
    """Fill a table, go back half of its history, and see where the stream stands."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"recover{secrets.token_hex(3)}"
        source, batch = {"topic": name}, {"max_records": rows}
        stream = make_stream(name, source=source, table={"name": f"bench.{name}"}, batch=batch)
        lake = BrokerLake(Path(folder), stream)
        lake.create_topic(str(lake.work.kafka_config["bootstrap.servers"]))
        lake.begin()
        heads = fill(lake, rows, snapshots)
        target = str(heads[snapshots // 2 - 1])
        request = RecoverRequest(
            stream=name, to_snapshot=target, dry_run=False, by="bench", reason="bench"
        )
        work, started = lake.work, time.monotonic()
        planned = plan_recovery(work, request)
        looked = time.monotonic()
        recover(work, planned)
        ended = time.monotonic()
        assert lake.point is not None
        assert sum(lake.point.state.offsets[name]) == rows // snapshots * (snapshots // 2)
        return {
            "rows": rows,
            "snapshots": len(trace_steps(lake.history, name)),
            "load": round(os.getloadavg()[0], 1),
            "look_seconds": round(looked - started, 2),
            "recover_seconds": round(ended - looked, 2),
            "seconds": round(ended - started, 2),
            "limit_seconds": LIMIT_SECONDS,
        }


if __name__ == "__main__":
    given = (int(os.environ.get(n, d)) for n, d in (("ROWS", "10000000"), ("SNAPSHOTS", "500")))
    print(json.dumps(main(*given), indent=2))
