"""The Spark server and the broker die in the middle of a batch."""

import json
import os
import signal
import subprocess
import threading
import time

import pytest
from conftest import FRAZIL, Lab, good_values

from faults.test_kill_points import assert_exactly_once

pytestmark = pytest.mark.stack


def find_part(lab: Lab, name: str) -> int:
    """Find the pid of a part of the stack."""
    answer = lab.frazil("stack", "status", "--json")
    pid = json.loads(answer.out)["parts"][name]["pid"]
    assert isinstance(pid, int)
    return pid


def revive(lab: Lab) -> None:
    """Bring the stack back, as its operator would."""
    command = [str(FRAZIL), "stack", "up", "--only", "kafka,spark"]
    subprocess.run(command, env=lab.environment(), check=True, timeout=120)


@pytest.mark.parametrize("part", ["spark_connect", "kafka"])
def test_a_server_killed_in_the_middle_of_a_batch_costs_nothing(lab: Lab, part: str) -> None:
    lab.write_stream(batch={"max_records": 40_000})
    lab.create_topic()
    lab.produce(good_values(40_000))
    victim = find_part(lab, part)
    killer = threading.Timer(4.0, os.kill, (victim, signal.SIGKILL))

    killer.start()
    first = lab.frazil("run", lab.stream, timeout=300)
    killer.join()
    time.sleep(1)
    revive(lab)
    lab.drain()

    assert first.code in {0, 1}
    assert "Traceback" not in first.err, first.err
    assert_exactly_once(lab)
