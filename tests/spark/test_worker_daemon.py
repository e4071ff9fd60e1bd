"""PySpark's daemon of workers, with an end: a real process, spoken to as Spark does."""

import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from frazil_spark import worker_daemon

SPARK_JOBS = Path(__file__).parents[2] / "spark_jobs"
IDLE_SECONDS = 0.8
SECRET = "a-secret-of-this-test"  # noqa: S105 - the daemon wants one


@pytest.fixture
def daemon() -> Iterator[subprocess.Popen[bytes]]:
    program = f"from frazil_spark.worker_daemon import main; main({IDLE_SECONDS})"
    environment = {
        **os.environ,
        "PYTHONPATH": str(SPARK_JOBS),
        "PYTHON_WORKER_FACTORY_SECRET": SECRET,
        "SPARK_REUSE_WORKER": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        yield process
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def read_number(stream: socket.SocketIO | object) -> int:
    number: int = struct.unpack("!i", stream.read(4))[0]  # type: ignore[attr-defined]
    return number


def ask_for_worker(port: int) -> tuple[socket.socket, int]:
    connection = socket.create_connection(("127.0.0.1", port), 10)
    with connection.makefile("rb") as answers:
        return connection, read_number(answers)


def test_a_daemon_that_nobody_uses_ends(daemon: subprocess.Popen[bytes]) -> None:
    assert read_number(daemon.stdout) > 0

    assert daemon.wait(30) != 0


def test_a_daemon_stays_as_long_as_a_worker_does(daemon: subprocess.Popen[bytes]) -> None:
    port = read_number(daemon.stdout)
    connection, worker = ask_for_worker(port)

    with pytest.raises(subprocess.TimeoutExpired):
        daemon.wait(4 * IDLE_SECONDS)
    assert psutil.Process(worker).ppid() == daemon.pid

    connection.close()
    daemon.wait(30)
    assert not psutil.pid_exists(worker)


def test_a_daemon_ends_when_spark_closes_its_input(daemon: subprocess.Popen[bytes]) -> None:
    read_number(daemon.stdout)
    assert daemon.stdin is not None
    daemon.stdin.close()

    daemon.wait(30)


@pytest.mark.parametrize(
    ("installed", "left"), [(["site"], ["site"]), (["other"], ["a.zip", "b.jar", "other"])]
)
def test_pyspark_comes_from_where_it_is_installed_if_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: list[str], left: list[str]
) -> None:
    (tmp_path / "site" / "pyspark").mkdir(parents=True)
    (tmp_path / "site" / "pyspark" / "__init__.py").touch()
    (tmp_path / "other").mkdir()
    entries = [str(tmp_path / name) for name in ("a.zip", "b.jar", *installed)]
    monkeypatch.setattr(sys, "path", entries)

    worker_daemon.import_outside_archives()

    assert [Path(entry).name for entry in sys.path] == left
