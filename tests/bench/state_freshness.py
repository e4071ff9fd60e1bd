"""How old changes are when they are in a state table, at a steady rate; prints JSON.

    PYTHONPATH=tests python tests/bench/state_freshness.py

ROWS (1,000,000) keys are inserted first; then RATE (5,000) changes a second follow for MINUTES (5),
of the newest fiftieth of the keys. The stream is continuous, so Airflow merges behind each publish.
The first minute is left out. A change's age is the commit of the merge that folded it, less the
change's own timestamp.
"""

import json
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from confluent_kafka import Producer
from freshness import TICK_SECONDS, WARM_SECONDS, wait_until_read
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from run_bench import ask, started_stack
from state_merges import COLUMNS, PARTITIONS, Topic, make_changes

from frazil_demo.airflow_api import AirflowApi

LIMIT_P95 = 60
LOCAL_SHARE = 50
"""Changes are of the keys of one newest part of so many."""


def write_stream(environment: Mapping[str, str]) -> str:
    """Write a stream with a state table that never rests."""
    name = f"state{secrets.token_hex(3)}"
    document = {
        "stream": name,
        "owner": "bench@example.org",
        "source": {"topic": name},
        "value": {"convert": "json", "columns": COLUMNS},
        "batch": {"schedule": "continuous", "max_records": 1_000_000},
        "order": {"sequence_by": ["at"]},
        "table": {
            "name": f"bench.{name}",
            "mode": "upsert",
            "id_columns": ["id"],
            "cdc_field": "op",
            "partition_by": ["month(day)"],
            "sort_by": ["id"],
        },
    }
    (Path(environment["FRAZIL_STREAMS"]) / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return name


def draw_changes(rows: int) -> Iterator[tuple[int, bytes]]:
    """Yield changes of the newest keys, each later than the one before."""
    dice, clock = random.Random(7), 1
    while True:
        clock += 1
        key = dice.randrange(rows - rows // LOCAL_SHARE, rows)
        yield from make_changes(iter([key]), "u", clock, rows)


def produce(bootstrap: str, topic: str, rows: int, rate: float, seconds: float) -> int:
    """Send so many changes a second, evenly; give their number."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    changes, started, sent = draw_changes(rows), time.monotonic(), 0
    while (passed := time.monotonic() - started) < seconds:
        while sent < passed * rate:
            key, value = next(changes)
            producer.produce(topic, value=value, partition=key % PARTITIONS)
            sent += 1
        producer.poll(TICK_SECONDS)
    assert producer.flush(60) == 0
    return sent


def list_merges(changes: Table, state: Table, stream: str) -> list[tuple[float, int]]:
    """List each merge's commit in seconds, and the place of the last change snapshot it folded."""
    places = {s.snapshot_id: place for place, s in enumerate(changes.metadata.snapshots)}
    found = []
    for snapshot in state.metadata.snapshots:
        text = snapshot.summary and snapshot.summary[f"frazil.merge.{stream}"]
        if text:
            place = places[json.loads(text)["snapshot_id"]]
            found.append((snapshot.timestamp_ms / 1000, place))
    return sorted(found)


def measure_ages(
    environment: Mapping[str, str], stack: Any, name: str, since: float
) -> tuple[Any, int]:
    """Return the age in seconds of each change that was sent since an instant, and the merges."""
    catalog = load_catalog("lake", **stack["catalog"]["properties"])
    changes, state = (catalog.load_table(f"bench.{name}{end}") for end in ("__changes", ""))
    rows = changes.scan(selected_fields=("_kafka",)).to_arrow()["_kafka"].combine_chunks()
    partition, offset = (np.asarray(rows.field(n)) for n in ("partition", "offset"))
    created = np.asarray(rows.field("timestamp").cast("timestamp[ms]").cast("int64")) / 1000
    places = {str(s.snapshot_id): place for place, s in enumerate(changes.metadata.snapshots)}
    merges = list_merges(changes, state, name)
    visible = np.full(len(rows), np.nan)
    for batch in ask(environment, "snapshots", name):
        if batch["kind"] == "ingest":
            place = places[str(batch["snapshot_id"])]
            at = next(at for at, folded in merges if folded >= place)
            for number, (start, end) in batch["ranges"][name].items():
                of_batch = (partition == int(number)) & (offset >= start) & (offset < end)
                visible[of_batch] = at
    counted = created >= since
    assert not np.isnan(visible[counted]).any()
    return (visible - created)[counted], sum(at > since for at, _ in merges)


def main(rows: int, rate: float, minutes: float) -> dict[str, Any]:
    """Insert, send changes, wait for the last merge, and look at every change."""
    with started_stack() as environment:
        stack = ask(environment, "stack", "status")
        name, bootstrap = write_stream(environment), stack["kafka"]["bootstrap"]
        topic = Topic(bootstrap, name)
        airflow = stack["airflow"]
        api = AirflowApi(airflow["url"], airflow["user"], Path(airflow["password_file"]))
        api.wait_for_dag(f"ingest__{name}")
        topic.send(make_changes(iter(range(rows)), "c", 1, rows))
        wait_until_read(environment, name, 600)
        print(f"{rows} rows", file=sys.stderr)
        since = time.time() + WARM_SECONDS
        sent = produce(bootstrap, name, rows, rate, minutes * 60)
        print(f"{sent} changes sent", file=sys.stderr)
        wait_until_read(environment, name, 300)
        time.sleep(30)  # the merge behind the last publish
        ages, merges = measure_ages(environment, stack, name, since)
        assert ask(environment, "audit", name)["verdict"] == "holds"
    return {
        "rows": rows,
        "changes_per_second": rate,
        "changes": len(ages),
        "merges": merges,
        "seconds_to_state": {
            f"p{share}": round(float(np.percentile(ages, share)), 1) for share in (50, 95, 100)
        },
        "limit_p95": LIMIT_P95,
    }


if __name__ == "__main__":
    names = {"ROWS": "1000000", "RATE": "5000", "MINUTES": "5"}
    size, changes_per_second, length = (float(os.environ.get(n, d)) for n, d in names.items())
    figures = main(int(size), changes_per_second, length)
    print(json.dumps(figures, indent=2))
    sys.exit(figures["seconds_to_state"]["p95"] > LIMIT_P95)
