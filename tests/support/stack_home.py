"""The embedded stack of a folder, driven through the command line as a user does."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from confluent_kafka.admin import AdminClient, NewTopic

from frazil_stack.processes import find_processes

REPO = Path(__file__).parents[2]
COMMAND = (sys.executable, "-m", "frazil_cli.main")
PORTS = {f"FRAZIL_{name}_PORT": "0" for name in ("KAFKA", "KAFKA_CONTROLLER", "SPARK", "AIRFLOW")}

Json = dict[str, object]


@dataclass(frozen=True)
class Home:
    """A stack and its folder; the stream files are in a folder beside it."""

    path: Path

    def frazil(self, *words: str, **extra: str) -> "subprocess.CompletedProcess[str]":
        """Run `frazil stack …` in a process of its own."""
        environment = {
            **os.environ,
            **PORTS,
            "FRAZIL_HOME": str(self.path),
            "FRAZIL_STREAMS": str(self.path.parent / "streams"),
            "FRAZIL_JARS": os.environ.get("FRAZIL_JARS", str(REPO / ".frazil" / "jars")),
            "PYTHONPATH": str(REPO / "include"),
        }
        return subprocess.run(
            [*COMMAND, "stack", *words],
            env=environment | extra,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def up(self, *words: str, **extra: str) -> str:
        """Bring the stack up and give the progress that it told."""
        done = self.frazil("up", *words, **extra)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def status(self) -> Json:
        """Read `status --json`."""
        return cast("Json", json.loads(self.frazil("status", "--json").stdout))

    def at(self, *keys: str) -> str:
        """Follow keys into what `up` wrote, else into the status, and give the text there."""
        written = json.loads((self.path / "stack" / "stack.json").read_text())
        found: object = written if keys[0] in written else self.status()
        for key in keys:
            found = cast("Json", found)[key]
        return str(found)

    def services(self) -> dict[str, object]:
        """Return each service's own pid; parsers and tasks below it come and go."""
        parts = cast("dict[str, Json]", self.status()["parts"])
        return {name: part["pid"] for name, part in parts.items()}

    def pids(self) -> set[int]:
        """Return the pids of all processes of this stack."""
        return {process.pid for process in find_processes(self.path)}


def create_topic(config: dict[str, str], name: str) -> None:
    """Create a topic of one partition."""
    admin = AdminClient(config)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
