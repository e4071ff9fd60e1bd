"""Python workers may be killed at any moment; the client of their job may be stopped."""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
from conftest import Lab, Stack, good_values
from faults.judges import assert_audited
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from frazil.ingest.fast_path import MIN_RECORDS_VARIABLE
from frazil_spark.job import share_session

pytestmark = [pytest.mark.spark, pytest.mark.stack]
COLUMNS = {"id": "long!", "name": "string", "amount": "double"}


def find_server(stack: Stack) -> psutil.Process:
    """Find the Spark Connect server by the port that it listens on."""
    port = int(str(stack.facts["spark_connect"]["url"]).rpartition(":")[2])
    return next(
        psutil.Process(c.pid)
        for c in psutil.net_connections("tcp")
        if c.status == psutil.CONN_LISTEN and c.laddr.port == port and c.pid
    )


def find_workers(server: psutil.Process) -> list[psutil.Process]:
    """Find the workers: children of a daemon of the server's."""
    found = []
    for daemon in server.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # ended, or about to
            if "worker_daemon" in " ".join(daemon.cmdline()):
                found += daemon.children()
    return found


@contextlib.contextmanager
def in_thread(action: Callable[[], None]) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    yield thread
    thread.join(60)
    assert not thread.is_alive()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_worker_lets_spark_write_everything(lab: Lab) -> None:
    count = 40_000
    lab.create_topic()
    lab.produce(good_values(count))
    lab.write_stream(
        value={"convert": "json", "columns": COLUMNS},
        table={"name": lab.table},
        batch={"max_records": count},
    )
    server = find_server(lab.stack)
    killed: list[int] = []
    over = threading.Event()

    def kill_workers() -> None:
        """Kill until the run is over: one kill can hit a worker before or after its part."""
        while not over.wait(0.005):
            for worker in find_workers(server):
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.kill()
                    killed.append(worker.pid)

    with in_thread(kill_workers):
        try:
            run = lab.frazil("run", lab.stream, **{MIN_RECORDS_VARIABLE: "0"})
        finally:
            over.set()

    assert run.code == 0, run.out + run.err
    assert killed
    assert "Python workers failed" in run.out + run.err
    table = load_catalog("lake", **lab.stack.catalog_properties).load_table(lab.table)
    paths = [str(f["file_path"]).removeprefix("file://") for f in table.inspect.files().to_pylist()]
    assert not [p for p in paths if "cpp-arrow" in str(pq.read_metadata(p).created_by)]
    assert_audited(lab, lab.topic)
    assert table.scan().count() == count


def test_batches_of_a_stream_share_a_session_for_half_an_hour() -> None:
    remote = "sc://127.0.0.1:15002"

    first = share_session(remote, "flights", 1800.0)
    assert first.startswith("sc://127.0.0.1:15002/;session_id=")
    assert share_session(remote, "flights", 3599.9) == first
    assert share_session(remote, "flights", 3600.0) != first
    assert share_session(remote, "orders", 1800.0) != first
    assert share_session(remote, "flights", 1800.0, "another catalog") != first
    assert share_session(f"{remote}/;token=t", "flights", 1800.0).startswith(
        f"{remote}/;token=t;session_id="
    )


def test_a_job_that_is_stopped_ends_on_the_server_and_its_neighbour_in_the_session_goes_on(
    stack: Stack, tmp_path: Path
) -> None:
    address = share_session(
        str(stack.facts["spark_connect"]["url"]), secrets.token_hex(4), time.time()
    )
    path = tmp_path / "request.json"
    path.write_text("{}")
    long = "spark.range(10**11).selectExpr('sum(id % 7)').collect()"
    program = (
        "import sys\n"
        "from frazil.ingest.messages import Message\n"
        "from frazil_spark.job import run_job\n"
        f"run_job(lambda spark, request: {long}, Message)\n"
    )
    environment = {**os.environ, "SPARK_REMOTE": address}
    command = [sys.executable, "-c", program, str(path), str(tmp_path / "result.json")]
    neighbour = SparkSession.builder.remote(address).create()
    neighbour.release_session_on_close = False  # type: ignore[attr-defined]
    neighbour.range(10).selectExpr("sum(id % 7)").collect()
    with subprocess.Popen(command, env=environment) as job:
        server = find_server(stack)
        # Spark 4.1 leaves the stage of a query that is interrupted while it is still being planned.
        wait_for(lambda: min(server.cpu_percent(2.0) for _ in range(3)) > 60)
        answers: list[int] = []
        query = neighbour.range(10**8).selectExpr("sum(id % 11)")  # waits for the other's cores
        with in_thread(lambda: answers.append(len(query.collect()))):
            time.sleep(1)
            assert not answers
            job.send_signal(signal.SIGTERM)
            assert job.wait(30) == 128 + signal.SIGTERM
        neighbour.stop()

    assert answers == [1]
    wait_for(lambda: server.cpu_percent(1.0) < 50, 20)
