"""How old records are when they become visible, with many streams on one box; prints JSON.

    python tests/bench/many_streams.py

STREAMS (100) with a batch a minute each get RECORDS (1,000) a minute for MINUTES (8). The first
WARM_MINUTES (3), in which all tables are made at once and that is caught up, count only in the
percentiles by minute. TASKS=one gives a batch one task of Airflow instead of four. It starts a
whole stack of its own. A record's age is its snapshot's commit less its own timestamp, for each
record of each table.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from freshness import measure_ages
from run_bench import FRAZIL, ask, started_stack

from frazil_demo.airflow_api import AirflowApi

PARTITIONS = 2
WARM_MINUTES = 3
LIMIT_P95 = 90
LINGER_MS = 500
"""Ages count from before it. Without, a hundred slow topics are a request for each record."""

PATIENCE_SECONDS = 1200


def write_streams(environment: Mapping[str, str], count: int, tasks: str) -> list[str]:
    """Write small streams with a batch a minute."""
    names = [f"many{secrets.token_hex(3)}" for _ in range(count)]
    for name in names:
        document = {
            "stream": name,
            "owner": "bench@example.org",
            "source": {"topic": name},
            "value": {"columns": {"id": "long!", "name": "string"}},
            "table": {"name": f"bench.{name}"},
            "batch": {"tasks": tasks},
        }
        path = Path(environment["FRAZIL_STREAMS"], f"{name}.yaml")
        path.write_text(yaml.safe_dump(document))
    return names


def produce(bootstrap: str, names: Sequence[str], records: int, minutes: int) -> None:
    """Send to every topic at an even rate."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS})
    begun, sent = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < minutes * 60:
        while sent < passed * records / 60:
            for name in names:
                producer.produce(name, value=b'{"id": %d, "name": "n"}' % sent)
            sent += 1
        producer.poll(0.05)
    assert producer.flush(120) == 0


def wait_until_read(environment: Mapping[str, str]) -> None:
    """Wait for the last record's snapshot."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while lag := sum(found["lag"] or 0 for found in ask(environment, "status")):
        assert time.monotonic() < deadline, f"{lag} offsets wait still"
        time.sleep(10)


def let_airflow_rest(environment: Mapping[str, str]) -> None:
    """Leave Kafka alone running: looking at every record would take turns with idle runs."""
    for command in (("down",), ("up", "--only", "kafka")):
        subprocess.run([str(FRAZIL), "stack", *command], env=dict(environment), check=True)


def main(streams: int, records: int, minutes: int) -> dict[str, Any]:
    """Let them run, and look at every record."""
    assert minutes > WARM_MINUTES
    tasks = os.environ.get("TASKS", "each_step")
    with started_stack("--only", "kafka,spark") as environment:
        bootstrap = ask(environment, "stack", "status")["kafka"]["bootstrap"]
        names = write_streams(environment, streams, tasks)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic(n, PARTITIONS, 1) for n in names]).values():
            made.result(60)
        # Airflow last: it looks at so many streams rarely, so its first look has to see them.
        subprocess.run([str(FRAZIL), "stack", "up"], env=environment, check=True)
        stack = ask(environment, "stack", "status")
        airflow = stack["airflow"]
        api = AirflowApi(airflow["url"], airflow["user"], Path(airflow["password_file"]))
        for name in names:
            api.wait_for_dag(f"ingest__{name}")
        print(f"{streams} streams are there", file=sys.stderr)
        psutil.cpu_percent()
        produce(bootstrap, names, records, minutes)
        busy, memory = psutil.cpu_percent(), ask(environment, "stack", "status")["pss_mb"]
        print(f"{busy:.0f} % busy; waiting for the rest", file=sys.stderr)
        wait_until_read(environment)
        let_airflow_rest(environment)
        found = [measure_ages(environment, stack, name) for name in names]
        verdicts = {ask(environment, "audit", name)["verdict"] for name in names}
        assert verdicts == {"holds"}
    return describe(found, busy) | {
        "streams": streams,
        "tasks": tasks,
        "records_a_minute": records,
        "minutes": minutes,
        "warm_minutes": WARM_MINUTES,
        "linger_ms": LINGER_MS,
        "memory_mb": memory,
    }


def describe(found: Sequence[tuple[Any, Any, int]], busy: float) -> dict[str, Any]:
    """Return percentiles over all records, by the minute they were sent in, and by stream."""
    sent, ages = (np.concatenate([one[part] for one in found]) for part in (0, 1))
    begin = WARM_MINUTES * 60
    warm = ages[sent >= begin]
    minutes = range(int(sent.max() // 60) + 1)
    each = sorted(percentile(ages[sent >= begin], 95) for sent, ages, _ in found)
    return {
        "batches": sum(batches for *_, batches in found),
        "cpu_percent": round(busy),
        "seconds_to_visible": {f"p{share}": percentile(warm, share) for share in (50, 95, 100)},
        "p95_by_minute": [percentile(ages[sent // 60 == minute], 95) for minute in minutes],
        "p95_of_the_best_and_the_worst_stream": [each[0], each[-1]],
        "limit_p95": LIMIT_P95,
    }


def percentile(ages: Any, share: int) -> float:
    """Return one percentile to a tenth of a second."""
    return round(float(np.percentile(ages, share)), 1)


if __name__ == "__main__":
    given = (("STREAMS", "100"), ("RECORDS", "1000"), ("MINUTES", "8"))
    figures = main(*(int(os.environ.get(name, default)) for name, default in given))
    print(json.dumps(figures, indent=2))
    sys.exit(figures["seconds_to_visible"]["p95"] > LIMIT_P95)
