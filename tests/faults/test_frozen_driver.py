"""The Spark driver freezes in the middle of a write (docs/faults.md, B8) and wakes up late.

The driver is the Connect server: frozen it keeps its connections, its tasks and its open files.
"""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlparse

import psutil
import pytest
from conftest import Lab, good_values

from faults.batches import Batches
from faults.rest_catalog import find_free_port
from faults.test_frozen_broker import frozen
from faults.test_kill_points import assert_exactly_once
from faults.test_server_kills import find_part
from faults.test_zombie_runs import WAIT_SECONDS, staged_rows, start_run

pytestmark = pytest.mark.stack

PARTITIONS = 8
RECORDS = 16_000


@pytest.fixture
def waiting(lab: Lab, batches: Batches) -> Batches:
    """Publish a first batch; the next one is written by more tasks than run at a time."""
    lab.write_stream(batch={"max_records": 10 * RECORDS})
    lab.create_topic(PARTITIONS)
    lab.produce(good_values(PARTITIONS), PARTITIONS)
    batches.publish()
    lab.produce(good_values(RECORDS), PARTITIONS)
    return batches


def list_files(batches: Batches) -> set[Path]:
    """List the data files in the table's folder, whoever refers to them."""
    folder = Path(urlparse(batches.table.location()).path)
    return set(folder.glob("data/**/*.parquet"))


def kinds_on_timeline(lab: Lab) -> list[str]:
    """List what the line of time tells; who lost to a faster run has not failed."""
    events = lab.frazil("timeline", "--stream", lab.stream, "--json").json
    assert isinstance(events, list)
    return sorted(event["kind"] for event in events)


@contextmanager
def frozen_in_its_write(batches: Batches, run: "subprocess.Popen[str]") -> Iterator[None]:
    """Freeze the driver when the first files of the run's batch are there and others are not."""
    before, driver = list_files(batches), find_part(batches.lab, "spark_connect")
    deadline = time.monotonic() + WAIT_SECONDS
    while list_files(batches) == before:
        assert time.monotonic() < deadline
        assert run.poll() is None, run.communicate()
        time.sleep(0.005)
    with frozen(driver):
        assert staged_rows(batches.lab, batches) == PARTITIONS, "the write was over"
        yield


@contextmanager
def second_server(lab: Lab, folder: Path) -> Iterator[str]:
    """Run another Spark Connect server with the settings of the first, and give its connection."""
    first = psutil.Process(find_part(lab, "spark_connect"))
    port = find_free_port()
    command = first.cmdline()
    place = command.index("--class")
    command[place:place] = ["--conf", f"spark.connect.grpc.binding.port={port}"]
    with (
        (folder / "second.log").open("w") as log,
        psutil.Popen(
            command, env=first.environ(), cwd=folder, stdout=log, stderr=subprocess.STDOUT
        ) as server,
    ):
        try:
            deadline = time.monotonic() + WAIT_SECONDS
            while not any(c.laddr.port == port for c in server.net_connections("tcp")):
                assert time.monotonic() < deadline, (folder / "second.log").read_text()
                time.sleep(0.1)
            yield json.dumps({"conn_type": "spark_connect", "host": "sc://127.0.0.1", "port": port})
        finally:
            server.kill()


@pytest.mark.long
@pytest.mark.storm(1)
@pytest.mark.parametrize(
    ("more", "ending"), [(0, "ALREADY"), (16, "Superseded")], ids=["same range", "longer range"]
)
def test_b8_a_driver_that_was_frozen_in_its_write_wakes_up_after_another_one_published(
    lab: Lab,
    waiting: Batches,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    more: int,
    ending: str,
) -> None:
    with start_run(lab) as run:
        with frozen_in_its_write(waiting, run), second_server(lab, tmp_path) as connection:
            monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", connection)
            lab.produce(good_values(more), PARTITIONS)
            published = waiting.publish()
            head = waiting.table.current_snapshot()
            monkeypatch.delenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT")
        out, error = run.communicate(timeout=WAIT_SECONDS)

    assert published.rows_written == RECORDS + more
    assert run.returncode == (0 if ending == "ALREADY" else 1)
    assert ending in (out if ending == "ALREADY" else error)
    assert waiting.table.current_snapshot() == head
    assert kinds_on_timeline(lab) == ["bootstrap", "ingest", "ingest"]
    assert_exactly_once(lab)


def test_b8_a_driver_that_wakes_up_for_a_run_that_is_gone_fills_a_branch_of_its_own(
    lab: Lab, waiting: Batches
) -> None:
    with start_run(lab) as run:
        with frozen_in_its_write(waiting, run):
            run.kill()
        published = waiting.publish()
    deadline = time.monotonic() + WAIT_SECONDS
    while staged_rows(lab, waiting) != PARTITIONS + RECORDS:
        assert time.monotonic() < deadline
        time.sleep(0.1)

    assert published.rows_written == RECORDS
    assert kinds_on_timeline(lab) == ["bootstrap", "ingest", "ingest"]
    assert_exactly_once(lab)
