"""From nothing to a published batch: the commands of docs/airflow.md, as they are written there.

An empty virtual environment, an empty home directory, the wheel of this checkout, Airflow as its
package brings it. Only addresses are this test's own, because other programs may have the usual
ones, and the folder of jars, which are fetched once for all tests.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import FREE_PORTS, REPO
from faults.rest_catalog import find_free_port

pytestmark = [pytest.mark.stack, pytest.mark.long]

PAGE = REPO / "docs" / "airflow.md"
TITLE = "## From nothing to a published batch"
READY_SECONDS, PUBLISH_SECONDS = 1800, 600
SOURCES = ("include", "spark_jobs", "dags")


def read_commands() -> list[str]:
    """Return the lines of the page's block of commands."""
    section = PAGE.read_text().partition(TITLE)[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def build_wheel(folder: Path) -> None:
    """Build `dist/` in a folder from a copy, because setuptools writes beside what it builds."""
    copy = folder / "checkout"
    for name in SOURCES:
        unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(REPO / name, copy / name, ignore=unwanted)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(REPO / name, copy)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", folder / "dist", copy], check=True)


@pytest.fixture
def beginning(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the environment of a user who has nothing but the wheel and Java."""
    build_wheel(tmp_path)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    (tmp_path / "home").mkdir()
    port = find_free_port()
    kept = {
        k: v for k, v in os.environ.items() if k.startswith(("PIP_", "JAVA_HOME", "FRAZIL_JARS"))
    }
    yield {
        **kept,
        **FREE_PORTS,
        "PATH": f"{tmp_path}/venv/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": f"{tmp_path}/home",
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://localhost:{port}",
    }
    stop = [tmp_path / "venv" / "bin" / "frazil", "stack", "down"]
    home = {"PATH": os.environ["PATH"], "FRAZIL_HOME": str(tmp_path / ".frazil")}
    subprocess.run(stop, env=home, check=True)


@contextmanager
def run_shell(script: str, folder: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Run a script in a shell with its output in a file; end it with all that it started."""
    with (folder / "output.txt").open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-ec", script],
            cwd=folder,
            env=dict(environment),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
        assert shell.poll() in {None, 0}, (folder / "output.txt").read_text()[-3000:]
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, number)
            time.sleep(5)
        shell.wait()


def test_six_commands_lead_from_nothing_to_a_published_batch(
    beginning: Mapping[str, str], tmp_path: Path
) -> None:
    *first, ask = read_commands()
    assert len(first) + 1 == 6
    told = tmp_path / "status.json"
    asking = f"{ask.partition('#')[0].strip()} --json > {told}.new && mv {told}.new {told}"
    script = "\n".join([*first, f"while sleep 5; do {asking}; done"])

    with run_shell(script, tmp_path, beginning):
        deadline = time.monotonic() + READY_SECONDS + PUBLISH_SECONDS
        status: dict[str, object] = {}
        while status.get("rows") != 1:
            assert time.monotonic() < deadline, (tmp_path / "output.txt").read_text()[-5000:]
            time.sleep(5)
            if told.exists():
                [status] = json.loads(told.read_text())

    assert (status["stream"], status["rows"], status["epoch"]) == ("flights", 1, 1)
