"""How a job's process gets its request: by files that only its user can read."""

import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from frazil.spark.engine import Engine, find_local_server, read_cpu_ms
from frazil.spark.messages import ProbeRequest, ProbeResult


class ReadingEngine(Engine):
    """An engine whose job notes who may read its files."""

    modes: tuple[str, ...] = ()

    def _require_reachable(self) -> None:
        """Need no server."""

    def _describe(self) -> str:
        return "nowhere"

    def _run(self, command: list[str]) -> tuple[int, str]:
        request, result = Path(command[2]), Path(command[3])
        self.modes = tuple(stat.filemode(p.stat().st_mode) for p in (request.parent, request))
        result.write_text(ProbeResult().encode())
        return 0, ""


def test_a_request_with_secrets_is_readable_by_its_user_only() -> None:
    engine = ReadingEngine()
    options = {"kafka.sasl.jaas.config": "s3cret"}
    request = ProbeRequest(catalog="lake", table=None, kafka_options=options, ranges={})

    engine.run_job("probe_connections", request, ProbeResult)

    assert engine.modes == ("drwx------", "-rw-------")


LISTENER = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
for line in sys.stdin:
    sum(range(3_000_000))
    print("done", flush=True)
"""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process named `java` that listens and uses CPU time for each line that it reads."""
    java = tmp_path / "java"
    java.symlink_to(sys.executable)
    pipe = subprocess.PIPE
    with subprocess.Popen([java, "-c", LISTENER], stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


def test_a_local_server_is_found_by_its_port_and_its_cpu_time_grows(
    listener: subprocess.Popen[str],
) -> None:
    assert listener.stdout is not None
    assert listener.stdin is not None
    port = int(listener.stdout.readline())

    server = find_local_server(f"sc://127.0.0.1:{port}/;token=x")
    before = read_cpu_ms(server)
    listener.stdin.write("go\n")
    listener.stdin.flush()
    assert listener.stdout.readline() == "done\n"
    after = read_cpu_ms(server)

    assert server is not None
    assert server.pid == listener.pid
    assert before is not None
    assert after is not None
    assert after > before


def test_of_a_server_elsewhere_or_ended_no_cpu_time_is_known(
    listener: subprocess.Popen[str],
) -> None:
    assert listener.stdout is not None
    port = int(listener.stdout.readline())
    server = find_local_server(f"sc://localhost:{port}")
    assert isinstance(server, psutil.Process)
    listener.kill()
    listener.wait()

    assert read_cpu_ms(server) is None
    assert find_local_server(f"sc://localhost:{port}") is None
    assert find_local_server(f"sc://spark.example.org:{port}") is None
