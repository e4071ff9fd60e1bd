"""Which processes belong to a stack: the mark decides, not a pid that was written down."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from frazil_stack import control
from frazil_stack.control import end_processes, stop_stack
from frazil_stack.processes import find_processes, measure_memory, wait_until_gone
from frazil_stack.settings import load_settings
from frazil_stack.supervisor import Supervisor, socket_path

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start small programs under a given environment; end them after the test."""
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str = "import time; time.sleep(60)", **mark: str) -> "subprocess.Popen[bytes]":
        plain = {k: v for k, v in os.environ.items() if not k.startswith("FRAZIL")}
        command = [sys.executable, "-c", code + "\n"]
        process = subprocess.Popen(command, env=plain | mark, stdout=subprocess.PIPE)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def mark(home: Path, service: str = "kafka") -> dict[str, str]:
    """Return the environment of a service of a home."""
    return {"FRAZIL_HOME": str(home), "FRAZIL_STACK_SERVICE": service}


def test_a_marked_process_is_found_with_its_service(tmp_path: Path, start: Start) -> None:
    process = start(
        "import time; print(flush=True); time.sleep(60)", **mark(tmp_path, "spark_connect")
    )
    assert process.stdout is not None
    process.stdout.readline()  # before, the kernel may not have counted a page yet

    found = find_processes(tmp_path)

    assert [(p.pid, p.service) for p in found] == [(process.pid, "spark_connect")]
    assert measure_memory(found).rss_mb > 0


def test_a_users_own_shell_in_the_same_home_is_no_process_of_the_stack(
    tmp_path: Path, start: Start
) -> None:
    start(FRAZIL_HOME=str(tmp_path))

    assert find_processes(tmp_path) == ()


def test_the_stack_of_another_home_is_left_alone(tmp_path: Path, start: Start) -> None:
    other = start(**mark(tmp_path / "other"))
    own = start(**mark(tmp_path / "own"))

    end_processes(tmp_path / "own", lambda _: None)

    assert own.wait(5) is not None
    assert other.poll() is None


def test_a_child_that_dropped_the_mark_is_found_below_its_parent(
    tmp_path: Path, start: Start
) -> None:
    code = (
        "import subprocess, time; c = subprocess.Popen(['sleep', '60'], env={});"
        "print(c.pid, flush=True); time.sleep(60)"
    )
    parent = start(code, **mark(tmp_path))
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())

    found = find_processes(tmp_path)

    assert {p.pid for p in found} == {parent.pid, child_pid}
    end_processes(tmp_path, lambda _: None)


def test_a_process_that_ignores_the_polite_signal_is_killed(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_TERMINATE_SECONDS", 0.3)
    code = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "print('deaf', flush=True); time.sleep(60)"
    )
    process = start(code, **mark(tmp_path))
    assert process.stdout is not None
    process.stdout.readline()

    said: list[str] = []
    end_processes(tmp_path, said.append)

    assert [line.split()[2] for line in said] == ["SIGTERM", "SIGKILL"]
    assert find_processes(tmp_path) == ()


def test_down_ends_processes_whose_home_was_removed_under_them(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "removed"
    monkeypatch.setenv("FRAZIL_HOME", str(home))
    start(**mark(home))

    assert stop_stack(load_settings({}), lambda _: None) == 1
    assert find_processes(home) == ()


def test_a_reused_pid_is_neither_signalled_nor_counted(tmp_path: Path, start: Start) -> None:
    process = start(**mark(tmp_path))
    (found,) = find_processes(tmp_path)
    earlier = replace(found, create_time=found.create_time - 100)

    earlier.send(signal.SIGKILL)

    time.sleep(0.1)
    assert process.poll() is None
    assert wait_until_gone([earlier], 0.1)


def test_a_zombie_counts_as_ended(tmp_path: Path, start: Start) -> None:
    process = start(**mark(tmp_path))
    found = find_processes(tmp_path)

    process.kill()

    assert wait_until_gone(found, 5)
    assert find_processes(tmp_path) == ()


def test_a_supervisor_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(str(socket_path(tmp_path)))
        frozen.listen()

        with pytest.raises(TimeoutError):
            Supervisor(tmp_path, timeout_seconds=0.1).services()
