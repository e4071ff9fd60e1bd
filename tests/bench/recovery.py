"""How long a stream that Airflow schedules each minute needs to go on after a fault; prints JSON.

It ends with 1 if one took longer than a cycle and 15 s after a kill, or than three cycles
after an outage of the catalog.

KILLS (3) and OUTAGE_MINUTES (10) set the size. A kill takes the task and its Spark client with
SIGKILL while a batch is staged; an outage is a catalog that nobody can open, by a lock on its file.
"""

import contextlib
import json
import os
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from run_bench import ask, parse_instant, started_stack, write_small_stream

from frazil_demo.airflow_api import AirflowApi

CYCLE_SECONDS = 60
AFTER_A_KILL = CYCLE_SECONDS + 15
AFTER_AN_OUTAGE = 3 * CYCLE_SECONDS


@contextlib.contextmanager
def producing(bootstrap: str, topic: str) -> Iterator[None]:
    """Send ten records a second until the end."""
    over = threading.Event()

    def produce() -> None:
        producer = Producer({"bootstrap.servers": bootstrap})
        number = 0
        while not over.wait(0.1):
            producer.produce(topic, value=json.dumps({"id": number}).encode())
            producer.poll(0)
            number += 1
        producer.flush(30)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def find_stage(api: AirflowApi, name: str) -> int | None:
    """Find the process of the stream's stage task, where one runs."""
    path = f"/dags/ingest__{name}/dagRuns/~/taskInstances?task_id=stage&state=running"
    tasks = api.request("GET", path)["task_instances"]
    return next((int(task["pid"]) for task in tasks if task["pid"]), None)


def find_job(home: str) -> psutil.Process | None:
    """Find the client of a staging job, which the fork server of this stack began."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            title = " ".join(process.cmdline())
            parent = process.parent()
            if "stage_batch.py" in title and parent and home in " ".join(parent.cmdline()):
                return process
    return None


def wait_for(find: Callable[[], Any], seconds: float) -> Any:
    """Ask until there is an answer."""
    deadline = time.monotonic() + seconds
    while not (found := find()):
        if time.monotonic() > deadline:
            message = f"nothing within {seconds:.0f} s"
            raise TimeoutError(message)
        time.sleep(0.05)
    return found


def measure_next_batch(environment: Mapping[str, str], name: str, since: float) -> float:
    """Return the seconds from an instant until a batch is published after it."""

    def find_later() -> float | None:
        newest = ask(environment, "status", name)[0]["newest_ingest_at"]
        return parse_instant(newest) if newest and parse_instant(newest) > since else None

    return float(wait_for(find_later, 900)) - since


def kill_a_batch(environment: Mapping[str, str], api: AirflowApi, name: str) -> float:
    """Kill a task and its job in mid-stage; give the seconds until the next batch is visible."""
    task = wait_for(lambda: find_stage(api, name), 180)
    job = wait_for(lambda: find_job(environment["FRAZIL_HOME"]), 60)
    os.kill(task, signal.SIGKILL)
    with contextlib.suppress(psutil.NoSuchProcess):
        job.kill()
    return measure_next_batch(environment, name, time.time())


def lock_catalog(path: str, minutes: float) -> float:
    """Let nobody open the catalog for so long; give the instant at which it is back."""
    catalog = sqlite3.connect(path, isolation_level=None, timeout=60)
    catalog.execute("BEGIN EXCLUSIVE")
    time.sleep(minutes * 60)
    catalog.execute("ROLLBACK")
    catalog.close()
    return time.time()


def main(kills: int, outage_minutes: float) -> dict[str, object]:
    """Measure both and audit afterwards."""
    with started_stack() as environment:
        stack = ask(environment, "stack", "status")
        name = write_small_stream(environment, "* * * * *")
        bootstrap = stack["kafka"]["bootstrap"]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, 4, 1)])[name].result(15)
        airflow = stack["airflow"]
        api = AirflowApi(airflow["url"], airflow["user"], Path(airflow["password_file"]))
        api.wait_for_dag(f"ingest__{name}")
        with producing(bootstrap, name):
            measure_next_batch(environment, name, time.time())
            after_kills = []
            for _ in range(kills):
                after_kills.append(kill_a_batch(environment, api, name))
                print(f"kill: {after_kills[-1]:.1f} s", file=sys.stderr)
            path = stack["catalog"]["properties"]["uri"].partition("sqlite:///")[2]
            after_outage = measure_next_batch(environment, name, lock_catalog(path, outage_minutes))
        audit = ask(environment, "audit", name)
    return {
        "schedule_seconds": CYCLE_SECONDS,
        "seconds_after_a_kill": [round(seconds, 1) for seconds in after_kills],
        "limit_after_a_kill": AFTER_A_KILL,
        "outage_minutes": outage_minutes,
        "seconds_after_the_outage": round(after_outage, 1),
        "limit_after_the_outage": AFTER_AN_OUTAGE,
        "holds": max(after_kills, default=0.0) <= AFTER_A_KILL and after_outage <= AFTER_AN_OUTAGE,
        "audit": audit,
    }


if __name__ == "__main__":
    given = int(os.environ.get("KILLS", "3")), float(os.environ.get("OUTAGE_MINUTES", "10"))
    found = main(*given)
    print(json.dumps(found, indent=2))
    sys.exit(not found["holds"])
