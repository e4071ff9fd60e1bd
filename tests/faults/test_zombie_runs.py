"""A whole run is killed or frozen while its Spark job is in flight (docs/faults.md, B1, B5, B8)."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import FRAZIL, Lab, good_values

from faults.batches import Batches
from frazil.iceberg.branches import PREFIX
from frazil.ingest.messages import NothingToRead

pytestmark = pytest.mark.stack

RECORDS = 100
WAIT_SECONDS = 120


@dataclass(frozen=True)
class InFlight:
    """A command whose Spark job has begun: the command's process and the job's client."""

    run: "subprocess.Popen[str]"
    job: int

    def send(self, number: signal.Signals) -> None:
        """Send a signal to both, as to a whole worker."""
        for pid in (self.run.pid, self.job):
            os.kill(pid, number)

    def finish(self) -> tuple[int, str, str]:
        """Wait for the command's end; give its exit code and what it printed."""
        out, error = self.run.communicate(timeout=WAIT_SECONDS)
        return self.run.returncode, out, error


@pytest.fixture
def in_flight(lab: Lab, batches: Batches) -> Iterator[InFlight]:
    """Start a run on a table with a first batch, up to the moment when its job begins."""
    lab.create_topic()
    lab.produce(good_values(10))
    batches.publish()
    lab.produce(good_values(RECORDS))
    with start_until_the_job_runs(lab, "run") as found:
        yield found


@contextmanager
def start_run(lab: Lab, command: str = "run", *options: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a command and end it with the test; the fork server would end its job with it."""
    run = subprocess.Popen(
        [str(FRAZIL), command, lab.stream, *options],
        env=lab.environment(FRAZIL_FORK_SERVER=""),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


@contextmanager
def start_until_the_job_runs(lab: Lab, command: str, *options: str) -> Iterator[InFlight]:
    """Start a command up to the moment when its job begins, and end both with the test."""
    with start_run(lab, command, *options) as run:
        found = InFlight(run, wait_for_job(run))
        try:
            yield found
        finally:
            with suppress(ProcessLookupError):
                os.kill(found.job, signal.SIGKILL)


def wait_for_job(run: "subprocess.Popen[str]") -> int:
    """Wait until the run has a child that stages, and give its pid."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline and run.poll() is None:
        for pid in Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split():
            if "stage_batch" in Path(f"/proc/{pid}/cmdline").read_text():
                return int(pid)
        time.sleep(0.005)
    pytest.fail(f"no job was seen; the run's exit code is {run.poll()}")


def wait_for_end(pid: int) -> None:
    """Wait for the end of a process that is nobody's child any more."""
    deadline = time.monotonic() + WAIT_SECONDS
    with suppress(FileNotFoundError, ProcessLookupError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z":
            assert time.monotonic() < deadline, f"process {pid} runs on"
            time.sleep(0.05)


def staged_rows(lab: Lab, batches: Batches) -> int:
    """Count the rows on the staging branch that is still there."""
    [branch] = [name for name in batches.table.refs() if name.startswith(f"{PREFIX}{lab.stream}_")]
    return len(batches.table.scan().use_ref(branch).to_arrow())


def test_b1_a_job_whose_run_was_killed_fills_its_own_branch_beside_the_next_run(
    lab: Lab, batches: Batches, in_flight: InFlight
) -> None:
    in_flight.run.kill()

    published = batches.publish()
    head = batches.table.current_snapshot()
    wait_for_end(in_flight.job)

    assert published.rows_written == RECORDS
    assert staged_rows(lab, batches) == RECORDS + 10, "the job did not live on"
    assert batches.table.current_snapshot() == head
    assert batches.next_offsets == [RECORDS // 2 + 5] * 2
    assert batches.faults() == ()


@pytest.mark.core
@pytest.mark.storm(1)
@pytest.mark.parametrize(
    ("more", "ending"), [(0, "ALREADY"), (6, "Superseded")], ids=["same range", "longer range"]
)
def test_b1_b8_a_run_that_was_frozen_with_its_job_wakes_up_fenced(
    lab: Lab, batches: Batches, in_flight: InFlight, more: int, ending: str
) -> None:
    in_flight.send(signal.SIGSTOP)
    lab.produce(good_values(more))
    published = batches.publish()
    head = batches.table.current_snapshot()

    in_flight.send(signal.SIGCONT)
    code, out, error = in_flight.finish()

    assert published.rows_written == RECORDS + more
    assert code == (0 if ending == "ALREADY" else 1)
    assert ending in (out if ending == "ALREADY" else error)
    assert batches.table.current_snapshot() == head
    assert batches.faults() == ()


def test_b5_a_run_a_backfill_and_a_retry_that_overlap_read_every_record_once(
    lab: Lab, batches: Batches
) -> None:
    lab.write_stream(source={"topic": lab.topic, "start": "latest"})
    lab.create_topic()
    lab.produce(good_values(RECORDS))
    assert isinstance(batches.run(), NothingToRead)
    lab.produce(good_values(RECORDS))

    with start_until_the_job_runs(lab, "run") as run:
        run.send(signal.SIGSTOP)
        with start_until_the_job_runs(lab, "backfill", "--no-dry-run") as backfill:
            backfill.send(signal.SIGSTOP)
            retried = batches.publish()
            run.send(signal.SIGCONT)
            backfill.send(signal.SIGCONT)
            endings = [run.finish(), backfill.finish()]

    assert retried.rows_written == RECORDS
    assert [code for code, _, _ in endings] == [0, 0], endings
    assert "ALREADY" in endings[0][1]
    assert batches.places() == {0: list(range(RECORDS)), 1: list(range(RECORDS))}
    assert batches.next_offsets == [RECORDS] * 2
    assert batches.faults() == ()
