"""How old records are when they become visible, in continuous mode at a steady rate; prints JSON.

    python tests/bench/freshness.py

MB_PER_SECOND (5) and MINUTES (5) set the load; the first minute, in which Spark warms up, is left
out. A record's age is its snapshot's commit less its own timestamp, for each record of the table.
"""

import itertools
import json
import os
import secrets
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orders
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import load_catalog
from run_bench import ask, parse_instant, started_stack

from frazil_demo.airflow_api import AirflowApi

WARM_SECONDS = 60
TICK_SECONDS = 0.05
LIMITS = {"p50": 10, "p95": 20}


def write_stream(environment: Mapping[str, str]) -> str:
    """Write a stream of orders, with ten expectations, that never rests."""
    name = f"fresh{secrets.token_hex(3)}"
    document = orders.write_document(name, f"bench.{name}", 1_000_000)
    document["batch"] = {"schedule": "continuous", "max_records": 1_000_000}
    folder = Path(environment["FRAZIL_STREAMS"])
    suite = {"name": name, "expectations": orders.EXPECTATIONS}
    (folder / "expectations" / f"{name}.json").write_text(json.dumps(suite))
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    return name


def produce(bootstrap: str, topic: str, rate: float, seconds: float) -> int:
    """Send so many records a second, evenly; give their number."""
    values = itertools.cycle([*orders.iterate_values(20_000)])
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "compression.type": "lz4"})
    started, sent = time.monotonic(), 0
    while (passed := time.monotonic() - started) < seconds:
        while sent < passed * rate:
            producer.produce(topic, value=next(values))
            sent += 1
        producer.poll(TICK_SECONDS)
    assert producer.flush(60) == 0
    return sent


def wait_until_read(environment: Mapping[str, str], name: str, seconds: float) -> None:
    """Wait for the last record's snapshot."""
    deadline = time.monotonic() + seconds
    while ask(environment, "status", name)[0]["lag"]:
        assert time.monotonic() < deadline
        time.sleep(2)


def measure_ages(environment: Mapping[str, str], stack: Any, name: str) -> tuple[Any, Any, int]:
    """Give when each record was sent, after the first, its age when it was committed; and batches.

    Times and ages are in seconds.
    """
    table = load_catalog("lake", **stack["catalog"]["properties"]).load_table(f"bench.{name}")
    rows = table.scan(selected_fields=("_kafka",)).to_arrow()["_kafka"].combine_chunks()
    partition, offset = (np.asarray(rows.field(n)) for n in ("partition", "offset"))
    created = np.asarray(rows.field("timestamp").cast("timestamp[ms]").cast("int64")) / 1000
    visible = np.full(len(rows), np.nan)
    batches = [s for s in ask(environment, "snapshots", name) if s["kind"] == "ingest"]
    for batch in batches:
        for number, (start, end) in batch["ranges"][name].items():
            of_batch = (partition == int(number)) & (offset >= start) & (offset < end)
            visible[of_batch] = parse_instant(batch["committed_at"])
    assert not np.isnan(visible).any()
    return created - created.min(), visible - created, len(batches)


def measure_gaps(api: AirflowApi, name: str) -> list[float]:
    """Return the seconds from the end of each publish to the beginning of the plan after it."""
    path = f"/dags/ingest__{name}/dagRuns/~/taskInstances?limit=1000&state=success"
    tasks = api.request("GET", path)["task_instances"]
    ends = sorted(parse_instant(t["end_date"]) for t in tasks if t["task_id"] == "publish")
    plans = [parse_instant(t["start_date"]) for t in tasks if t["task_id"] == "plan"]
    return [min(later) - end for end in ends if (later := [p for p in plans if p > end])]


def main(megabytes: float, minutes: float) -> dict[str, Any]:
    """Produce, wait, and look at every record."""
    with started_stack() as environment:
        stack = ask(environment, "stack", "status")
        name, bootstrap = write_stream(environment), stack["kafka"]["bootstrap"]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, orders.PARTITIONS, 1)])[name].result(15)
        airflow = stack["airflow"]
        api = AirflowApi(airflow["url"], airflow["user"], Path(airflow["password_file"]))
        api.wait_for_dag(f"ingest__{name}")
        rate = megabytes * 1e6 / orders.TARGET_BYTES
        sent = produce(bootstrap, name, rate, minutes * 60)
        print(f"{sent} records sent", file=sys.stderr)
        wait_until_read(environment, name, 300)
        sent_at, every_age, batches = measure_ages(environment, stack, name)
        ages, gaps = every_age[sent_at > WARM_SECONDS], measure_gaps(api, name)
        assert ask(environment, "audit", name)["verdict"] == "holds"
    return {
        "megabytes_per_second": megabytes,
        "records_per_second": round(rate),
        "records_sent": sent,
        "batches": batches,
        "seconds_to_visible": {
            f"p{share}": round(float(np.percentile(ages, share)), 1) for share in (50, 95, 100)
        },
        "seconds_from_publish_to_plan_p50": round(float(np.median(gaps)), 1),
        "limits": LIMITS,
    }


if __name__ == "__main__":
    given = (float(os.environ.get(n, d)) for n, d in (("MB_PER_SECOND", "5"), ("MINUTES", "5")))
    figures = main(*given)
    print(json.dumps(figures, indent=2))
    found = figures["seconds_to_visible"]
    sys.exit(any(found[share] > limit for share, limit in LIMITS.items()))
