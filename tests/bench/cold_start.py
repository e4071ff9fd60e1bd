"""Seconds from the start of a Spark Connect process to the first commit by `frazil run`.

    python tests/bench/cold_start.py

The broker runs already; each of ROUNDS (5) has a new stream and a new table.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from run_bench import FRAZIL, REPO, ask, parse_instant, produce, write_small_stream

LIMIT_SECONDS = 15
RECORDS = 1000


def measure(rounds: int) -> list[float]:
    """Start Spark, run, stop Spark, again and again."""
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        streams = Path(folder, "streams")
        streams.mkdir()
        ports = {f"FRAZIL_{n}_PORT": "0" for n in ("KAFKA", "KAFKA_CONTROLLER", "SPARK", "AIRFLOW")}
        environment = {
            **os.environ,
            **ports,
            "FRAZIL_HOME": str(Path(folder, "home")),
            "FRAZIL_STREAMS": str(streams),
            "FRAZIL_JARS": os.environ.get("FRAZIL_JARS", str(REPO / ".frazil" / "jars")),
        }

        def stack(*arguments: str) -> None:
            command = [str(FRAZIL), "stack", *arguments]
            subprocess.run(command, env=environment, check=True, stdout=sys.stderr)

        seconds = []
        try:
            for _ in range(rounds):
                stack("up", "--only", "kafka")
                name = write_small_stream(environment)
                bootstrap = ask(environment, "stack", "status")["kafka"]["bootstrap"]
                admin = AdminClient({"bootstrap.servers": bootstrap})
                admin.create_topics([NewTopic(name, 4, 1)])[name].result(15)
                produce(bootstrap, name, RECORDS)
                started = time.time()
                stack("up", "--only", "kafka,spark")
                command = [str(FRAZIL), "run", name]
                subprocess.run(command, env=environment, check=True, stdout=sys.stderr)
                newest = ask(environment, "status", name)[0]["newest_ingest_at"]
                seconds.append(parse_instant(newest) - started)
                print(f"first commit after {seconds[-1]:.1f} s", file=sys.stderr)
                stack("down")
        finally:
            stack("down")
        return seconds


if __name__ == "__main__":
    found = measure(int(os.environ.get("ROUNDS", "5")))
    figures = {
        "seconds_p50": round(statistics.median(found), 1),
        "seconds": [round(s, 1) for s in found],
        "limit_seconds": LIMIT_SECONDS,
    }
    print(json.dumps(figures, indent=2))
    sys.exit(figures["seconds_p50"] > LIMIT_SECONDS)
