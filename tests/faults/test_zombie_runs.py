"""A whole run is killed or frozen while its Spark job is in flight (docs/faults.md, B1, B8)."""

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
from frazil.branches import PREFIX

pytestmark = pytest.mark.stack

RECORDS = 100
WAIT_SECONDS = 120


@dataclass(frozen=True)
class InFlight:
    """A `frazil run` whose Spark job has begun: the run's process and the job's client."""

    run: "subprocess.Popen[str]"
    job: int

    def send(self, number: signal.Signals) -> None:
        """Send a signal to both, as to a whole worker."""
        for pid in (self.run.pid, self.job):
            os.kill(pid, number)


@pytest.fixture
def in_flight(lab: Lab, batches: Batches) -> Iterator[InFlight]:
    """Start a run on a table with a first batch, up to the moment when its job begins."""
    lab.create_topic()
    lab.produce(good_values(10))
    batches.publish()
    lab.produce(good_values(RECORDS))
    with start_run(lab) as run:
        found = InFlight(run, wait_for_job(run))
        try:
            yield found
        finally:
            with suppress(ProcessLookupError):
                os.kill(found.job, signal.SIGKILL)


@contextmanager
def start_run(lab: Lab) -> Iterator["subprocess.Popen[str]"]:
    """Start `frazil run` and end it with the test; the fork server would end its job with it."""
    run = subprocess.Popen(
        [str(FRAZIL), "run", lab.stream],
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
    out, error = in_flight.run.communicate(timeout=WAIT_SECONDS)

    assert published.rows_written == RECORDS + more
    assert in_flight.run.returncode == (0 if ending == "ALREADY" else 1)
    assert ending in (out if ending == "ALREADY" else error)
    assert batches.table.current_snapshot() == head
    assert batches.faults() == ()
