"""`make demo`: start the stack, send flights to Kafka, ingest them with Airflow, show the table."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from frazil.connections.clients import find_kafka_config
from frazil.errors import FrazilError, StackError
from frazil.observability.status import StreamStatus, list_snapshots, read_status
from frazil.workspace import Workspace, open_workspace
from frazil_cli.output import console, fail, print_table, report_progress, silence_retry_logs
from frazil_demo.airflow_api import AirflowApi
from frazil_demo.events import ALL_FLIGHTS
from frazil_demo.query import run_query
from frazil_demo.topic import TOPIC, UNLIMITED, ensure_topic, send_flights

STREAM = "flights"
DAG = f"ingest__{STREAM}"
MAX_RUNS = 30
FlightCount = Annotated[
    int, typer.Option(min=1, max=ALL_FLIGHTS, help="Number of flights to send.")
]


def main(flights: FlightCount = ALL_FLIGHTS) -> None:
    """Start the stack, send flights to Kafka, ingest them with Airflow, and show the table."""
    silence_retry_logs()
    started = time.monotonic()
    subprocess.run([_frazil(), "stack", "up"], check=True)
    report_progress("the stack is up", started)
    config = find_kafka_config("kafka_default")
    ensure_topic(config, TOPIC, UNLIMITED)
    sent = send_flights(config, flights, lambda line: report_progress(line, started))
    note = f"{sent.malformed} of all records are malformed on purpose"
    if sent.now:
        report_progress(f"topic {TOPIC}: {sent.now:,} records sent; {note}", started)
    else:
        report_progress(f"topic {TOPIC}: all {sent.before:,} records are there; {note}", started)
    stack = _read_stack()
    api = AirflowApi(
        stack["airflow"]["url"], stack["airflow"]["user"], Path(stack["airflow"]["password_file"])
    )
    api.wait_for_dag(DAG)
    work = open_workspace(STREAM, f"demo-{os.getpid()}")
    ingest_all(api, work, started)
    show(work, stack, started)


def ingest_all(api: AirflowApi, work: Workspace, started: float) -> None:
    """Trigger runs of the ingest DAG until the table has no lag."""
    before = read_status(work)
    if before.lag == 0:
        report_progress(f"{DAG}: no new records; the table is at epoch {before.epoch}", started)
        return
    for _ in range(MAX_RUNS):
        run = api.wait_for_run(DAG, api.trigger(DAG).run_id)
        status = read_status(work)
        if run.state != "success" or status.problem:
            raise _build_run_error(run.run_id, run.state, status)
        report_progress(
            f"{DAG}: run {run.run_id} {run.state}: {status.rows or 0:,} rows, lag {status.lag:,}",
            started,
        )
        if status.lag == 0:
            return
    raise StackError(
        f"{DAG}: lag is still {status.lag:,} after {MAX_RUNS} runs",
        "repeat `make demo` to continue; `frazil status flights` shows the lag",
    )


def _build_run_error(run_id: str, state: str, status: StreamStatus) -> StackError:
    return StackError(
        f"run {run_id} of {DAG} ended as {state}: {status.problem or 'see its task logs'}",
        status.next_step or "open the run in Airflow and read the log of the failed task",
    )


def show(work: Workspace, stack: dict[str, dict[str, str]], started: float) -> None:
    """Print snapshots with their offsets, a query of the table, row counts, and next commands."""
    status = read_status(work)
    snapshots = list_snapshots(work)
    dead = sum(s.rows_quarantined or 0 for s in snapshots)
    rows = [
        (s.snapshot_id, s.kind, s.epoch, topic_range, s.rows_written, s.rows_quarantined)
        for s in reversed(snapshots)
        for topic_range in [_short(s.ranges)]
    ]
    columns = ("snapshot", "kind", "epoch", "offsets by partition", "rows", "dead letters")
    print_table("Snapshots and their offsets", columns, rows)
    title, names, result = run_query(stack["spark_connect"]["url"], status.table)
    print_table(title, names, result)
    report_progress("done", started)
    console.print(
        f"\n[bold]{status.rows or 0:,} rows[/bold] in {status.table}, {dead} dead letters in "
        f"{status.table}__dead_letters"
    )
    airflow = stack["airflow"]
    password = Path(airflow["password_file"]).read_text().strip()
    console.print(f"Airflow: {airflow['url']}  user {airflow['user']}  password {password}")
    console.print(
        "\nTry next:\n"
        "  .venv/bin/frazil status                                     state of all streams\n"
        "  .venv/bin/frazil where flights --partition 0 --offset 1000  snapshot of an offset\n"
        "  .venv/bin/frazil audit flights                              every record exactly once?\n"
        "  make demo                                                   again: adds no rows\n"
        "  make down                                                   stop everything",
        markup=False,
    )


def _short(ranges: dict[str, dict[int, tuple[int, int]]]) -> str:
    return "  ".join(
        f"{partition}: {start}-{end}"
        for by_partition in ranges.values()
        for partition, (start, end) in by_partition.items()
    )


def _frazil() -> str:
    return str(Path(sys.executable).with_name("frazil"))


def _read_stack() -> dict[str, dict[str, str]]:
    answer = subprocess.run(
        [_frazil(), "stack", "status", "--json"], check=True, capture_output=True, text=True
    )
    content: dict[str, dict[str, str]] = json.loads(answer.stdout)
    return content


if __name__ == "__main__":
    try:
        typer.run(main)
    except FrazilError as error:
        fail(error, as_json=False)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
