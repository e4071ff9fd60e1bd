"""A second Kafka broker for a drill: another cluster, or one that may be killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

from frazil.connections.clients import find_spark_remote
from frazil.errors import DrillError, KafkaUnavailableError
from frazil.kafka.cluster import KafkaLog
from frazil_stack.jars import has_jars
from frazil_stack.ports import PORT_VARIABLES
from frazil_stack.settings import HOME_VARIABLE, JARS_VARIABLE, load_settings

_TIMEOUT_SECONDS = 180


@dataclass(frozen=True)
class Broker:
    """A running broker; supervisor restarts it when it dies."""

    home: Path
    cluster: dict[str, str]

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        found = json.loads(_run_stack(self.home, "status", "--json").stdout)
        os.kill(found["parts"]["kafka"]["pid"], signal.SIGKILL)

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            DrillError: it does not answer within the time limit.
        """
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(KafkaUnavailableError):
                KafkaLog(self.cluster).fetch_cluster_id()
                return
        raise DrillError("the second broker does not answer", "run the drill again")


def explain_no_broker() -> str | None:
    """Return why no broker can be started from which the stream's Spark could read, or None."""
    settings = load_settings()
    if not has_jars(settings):
        return f"the drill needs a second broker, but {settings.jars} has no jars of Kafka"
    host = urlparse(find_spark_remote()).hostname
    if host not in {"127.0.0.1", "localhost", "::1"}:
        return f"the drill needs a second broker on this machine, but Spark runs on {host}"
    return None


@contextlib.contextmanager
def opened_broker(folder: Path) -> Iterator[Broker]:
    """Run a broker as an embedded stack with its own folder and ports.

    Raises:
        DrillError: it did not start.
    """
    home = folder / "broker"
    try:
        done = _run_stack(home, "up", "--only", "kafka", "--json")
        if done.returncode:
            raise DrillError(
                f"the second broker did not start: {done.stderr.strip()[-300:]}",
                "`frazil doctor` checks this machine",
            )
        yield Broker(home, {"bootstrap.servers": json.loads(done.stdout)["kafka"]["bootstrap"]})
    finally:
        _run_stack(home, "down")


def _run_stack(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    own = {HOME_VARIABLE: str(home), JARS_VARIABLE: str(load_settings().jars)}
    return subprocess.run(
        [sys.executable, "-m", "frazil_cli.main", "stack", *words],
        env={**os.environ, **dict.fromkeys(PORT_VARIABLES.values(), "0"), **own},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
