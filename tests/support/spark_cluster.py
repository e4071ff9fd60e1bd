"""A standalone Spark cluster of a test's own: a master and workers, each a process group."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil  # type: ignore[import-untyped]

SPARK_CLASS = Path(sys.executable).with_name("spark-class")
SOON = 240.0
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For processes that live for seconds."""
SURROUNDINGS = {
    "PATH": f"{SPARK_CLASS.parent}:{os.environ['PATH']}",  # `spark-class` asks its `python3`
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_DAEMON_JAVA_OPTS": QUICK,
}


def wait_until(seen: Callable[[], object], what: str, seconds: float = SOON) -> None:
    """Look again and again; machines may be slow, but not for ever."""
    deadline = time.monotonic() + seconds
    while not seen():
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.1)


@dataclass
class Cluster:
    """Processes of `spark-class`; workers get one core and the memory of a small executor."""

    folder: Path
    master: str = ""
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    _jobs: set[str] = field(default_factory=set)

    def start(self, workers: int) -> None:
        """Start a master on a free port, and its workers."""
        log = self._launch("master", "master.Master", "--port", "0")
        found: list[str] = []

        def read_address() -> bool:
            assert self.processes["master"].poll() is None, log.read_text()
            found[:] = re.findall(r"Starting Spark master at (spark://\S+)", log.read_text())
            return bool(found)

        wait_until(read_address, "a master")
        self.master = found[0]
        for number in range(workers):
            self.add_worker(f"worker{number}")

    def add_worker(self, name: str) -> None:
        """Start a worker and wait until the master knows it."""
        options = ("--cores", "1", "--memory", "600M", "--work-dir", str(self.folder / name))
        log = self._launch(name, "worker.Worker", *options, self.master)

        def is_registered() -> bool:
            assert self.processes[name].poll() is None, log.read_text()
            return "Successfully registered" in log.read_text()

        wait_until(is_registered, name)

    def kill(self, name: str) -> None:
        """Kill a worker with its executors, as a power cut would."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Kill what still runs."""
        for name in list(self.processes):
            self.kill(name)

    def executors(self, name: str) -> list[psutil.Process]:
        """List the executors that a worker runs."""
        children = psutil.Process(self.processes[name].pid).children(recursive=True)
        return [child for child in children if "CoarseGrainedExecutorBackend" in _words(child)]

    def find_drivers(self) -> list[str]:
        """List what runs of the jobs that were submitted to this cluster."""
        for words in find_commands(f"--master {self.master}"):
            self._jobs |= set(re.findall(r"/frazil-job-\w+/", words))
        return [words for job in self._jobs for words in find_commands(job)]

    def list_applications(self, name: str) -> set[Path]:
        """List the applications that a worker has had executors for."""
        return set((self.folder / name).glob("app-*"))

    def read_logs(self, name: str) -> str:
        """Read what the executors of a worker's newest application have said."""
        applications = sorted(self.list_applications(name))
        return read_all(applications[-1]) if applications else ""

    def connection(self, **extra: str) -> str:
        """Write the connection `spark_default`, as Airflow's JSON."""
        host, port = self.master.rsplit(":", 1)
        given = {
            "spark.executor.memory": "512m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": QUICK,
            "spark.executor.extraJavaOptions": QUICK,
            "spark.sql.shuffle.partitions": "2",
            **extra,
        }
        return json.dumps({"conn_type": "spark", "host": host, "port": int(port), "extra": given})

    def _launch(self, name: str, program: str, *options: str) -> Path:
        log = self.folder / f"{name}.log"
        local = ("--host", "127.0.0.1", "--webui-port", "0")
        with log.open("wb") as output:
            self.processes[name] = subprocess.Popen(
                [str(SPARK_CLASS), f"org.apache.spark.deploy.{program}", *local, *options],
                stdout=output,
                stderr=output,
                env={**os.environ, **SURROUNDINGS},
                process_group=0,
            )
        return log


def read_all(folder: Path) -> str:
    """Read every small file of a folder as text."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".jar")
    return "".join(path.read_text(errors="replace") for path in files)


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def find_commands(text: str) -> list[str]:
    """List the command lines of this machine that hold a text."""
    return [words for process in psutil.process_iter() if text in (words := _words(process))]
