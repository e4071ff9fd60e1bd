"""`make bench`: figures of one run on one machine, as JSON; nothing here is a test.

RECORDS and ROUNDS set the size (2,000,000 and 5); progress goes to standard error.
"""

import contextlib
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from frazil_demo.airflow_api import AirflowApi

HERE = Path(__file__).parent
REPO = HERE.parents[1]
FRAZIL = Path(sys.executable).with_name("frazil")
LIMITS = {
    "throughput.time_ratio_median": 1.0,
    "throughput.time_ratio_same_settings": 1.1,
    "throughput.cpu_seconds_per_million.frazil": 9.0,
    "trigger_to_visible_seconds_p50": 4,
    "trigger_to_visible_seconds_p95": 7,
    "empty_batch.seconds_p50": 0.5,
    "memory_idle_mb": 3584,
    "memory_loaded_mb": 6144,
    "parse.total_seconds": 1.0,
}
MEMORY_SECONDS = 5
LATENCY_RUNS = 20
EMPTY_RUNS = 10
LATENCY_RECORDS = 1000
NO_SPARK = json.dumps({"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": 1})


@contextlib.contextmanager
def started_stack(*options: str) -> Iterator[dict[str, str]]:
    """Start a stack of its own, whole without options; give the environment that finds it."""
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        streams = Path(folder, "streams")
        (streams / "expectations").mkdir(parents=True)
        ports = {f"FRAZIL_{name}_PORT": "0" for name in ("KAFKA", "KAFKA_CONTROLLER", "SPARK")}
        environment = {
            **os.environ,
            **ports,
            "FRAZIL_AIRFLOW_PORT": "0",
            "FRAZIL_HOME": str(Path(folder, "home")),
            "FRAZIL_STREAMS": str(streams),
            "FRAZIL_JARS": os.environ.get("FRAZIL_JARS", str(REPO / ".frazil" / "jars")),
        }
        try:
            subprocess.run([str(FRAZIL), "stack", "up", *options], env=environment, check=True)
            yield environment
        finally:
            subprocess.run([str(FRAZIL), "stack", "down"], env=environment, check=True)


def ask(environment: Mapping[str, str], *arguments: str) -> Any:
    """Run a command and give its JSON."""
    done = subprocess.run(
        [str(FRAZIL), *arguments, "--json"],
        env=dict(environment),
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def write_small_stream(environment: Mapping[str, str], schedule: str = "0 0 1 1 *") -> str:
    """Write a stream of small records; by default it runs only when triggered."""
    name = f"small{secrets.token_hex(3)}"
    document = {
        "stream": name,
        "owner": "bench@example.org",
        "source": {"topic": name},
        "value": {"convert": "json", "columns": {"id": "long!", "name": "string"}},
        "table": {"name": f"bench.{name}"},
        "batch": {"schedule": schedule},
    }
    Path(environment["FRAZIL_STREAMS"], f"{name}.yaml").write_text(yaml.safe_dump(document))
    return name


def produce(bootstrap: str, topic: str, count: int) -> None:
    """Send small records."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for index in range(count):
        producer.produce(topic, value=json.dumps({"id": index, "name": "n"}).encode())
    producer.flush(30)


def measure_latency(environment: Mapping[str, str], stack: Any) -> dict[str, Any]:
    """Measure from the DAG's trigger to visible rows, and an empty batch beside it."""
    name = write_small_stream(environment)
    bootstrap = stack["kafka"]["bootstrap"]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 4, 1)])[name].result(15)
    airflow = stack["airflow"]
    api = AirflowApi(airflow["url"], airflow["user"], Path(airflow["password_file"]))
    api.wait_for_dag(f"ingest__{name}")
    seconds = []
    for _ in range(LATENCY_RUNS + 1):
        produce(bootstrap, name, LATENCY_RECORDS)
        started = time.time()
        run = api.wait_for_run(f"ingest__{name}", api.trigger(f"ingest__{name}").run_id)
        assert run.state == "success"
        newest = ask(environment, "status", name)[0]["newest_ingest_at"]
        seconds.append(parse_instant(newest) - started)
        print(f"latency: {seconds[-1]:.2f} s", file=sys.stderr)
    return {
        "trigger_to_visible_seconds_p50": round(statistics.median(seconds[1:]), 2),
        "trigger_to_visible_seconds_p95": round(statistics.quantiles(seconds[1:], n=20)[-1], 2),
        "trigger_to_visible_seconds": [round(s, 2) for s in seconds[1:]],
        "empty_batch": measure_empty(environment, name),
    }


def parse_instant(text: str) -> float:
    """Read an ISO instant as seconds."""
    from datetime import datetime  # noqa: PLC0415 - one use

    return datetime.fromisoformat(text).timestamp()


def measure_empty(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    """Time the plan of an idle stream where no Spark server is; see that it makes no snapshot."""
    before = len(ask(environment, "snapshots", name))
    script = (
        "import time, json, sys\n"
        "from frazil.ingest.pipeline import plan_next_batch\n"
        "from frazil.workspace import open_workspace\n"
        "times = []\n"
        f"for _ in range({EMPTY_RUNS}):\n"
        "    t = time.monotonic()\n"
        f"    plan_next_batch(open_workspace({name!r}, 'bench'))\n"
        "    times.append(time.monotonic() - t)\n"
        "print(json.dumps(times))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**environment, "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": NO_SPARK},
        check=True,
        capture_output=True,
        text=True,
    )
    times = json.loads(done.stdout)
    return {
        "seconds_p50": round(statistics.median(times), 3),
        "spark_server": "unreachable",
        "snapshots_made": len(ask(environment, "snapshots", name)) - before,
    }


def measure_throughput(environment: Mapping[str, str], stack: Any) -> Any:
    """Run the comparison with the floor in a process of its own."""
    command = [
        sys.executable,
        str(HERE / "throughput.py"),
        os.environ.get("RECORDS", "2000000"),
        os.environ.get("ROUNDS", "5"),
    ]
    pid = str(stack["parts"]["spark_connect"]["pid"])
    done = subprocess.run(
        command,
        env={**environment, "FRAZIL_SPARK_PID": pid},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return json.loads(done.stdout)


@contextlib.contextmanager
def sampled_memory(environment: Mapping[str, str]) -> Iterator[list[float]]:
    """Sample the stack's memory, in MB, until the end of the block."""
    samples: list[float] = []
    over = threading.Event()

    def sample() -> None:
        while True:
            samples.append(ask(environment, "stack", "status")["pss_mb"])
            if over.wait(MEMORY_SECONDS):
                return

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        over.set()
        thread.join()


def measure_parse() -> Any:
    """Time the DAG files with 100 streams; a missed limit is told and hides no other figure."""
    command = [sys.executable, str(HERE / "parse_dags.py")]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def find_figure(figures: Mapping[str, Any], path: str) -> Any:
    """Follow a path of keys and places."""
    found: Any = figures
    for word in path.split("."):
        found = found[int(word)] if isinstance(found, list) else found[word]
    return found


def list_missed(figures: Mapping[str, Any]) -> list[str]:
    """List the limits that a figure is above."""
    missed = []
    for path, limit in LIMITS.items():
        found = find_figure(figures, path)
        missed += [f"{path}: {found}, limit {limit}"] if found > limit else []
    return missed


def main() -> None:
    """Measure and print; exit 1 where a limit is missed."""
    figures: dict[str, Any] = {"parse": measure_parse()}
    with started_stack() as environment:
        stack = ask(environment, "stack", "status")
        figures["memory_idle_mb"] = stack["pss_mb"]
        figures |= measure_latency(environment, stack)
        with sampled_memory(environment) as samples:
            figures["throughput"] = measure_throughput(environment, stack)
        figures["memory_loaded_mb"] = max(samples)
    figures["limits"] = LIMITS
    figures["missed"] = list_missed(figures)
    print(json.dumps(figures, indent=2))
    sys.exit(1 if figures["missed"] else 0)


if __name__ == "__main__":
    main()
