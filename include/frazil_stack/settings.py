"""What the embedded stack is told from outside, and where everything of it lies."""

import fcntl
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from frazil.connections import home_dir, streams_dir
from frazil.errors import StackError

PartName = Literal["kafka", "registry", "spark", "airflow"]


PARTS: tuple[PartName, ...] = ("kafka", "registry", "spark", "airflow")


DEFAULT_PARTS: tuple[PartName, ...] = ("kafka", "spark", "airflow")


CATALOG_NAME = "lake"


HOME_VARIABLE = "FRAZIL_HOME"


STREAMS_VARIABLE = "FRAZIL_STREAMS"


JARS_VARIABLE = "FRAZIL_JARS"


IVY_SETTINGS_VARIABLE = "FRAZIL_IVY_SETTINGS"


SPARK_MEMORY_VARIABLE = "FRAZIL_SPARK_MEMORY"


DAG_SCAN_VARIABLE = "FRAZIL_DAG_SCAN_SECONDS"


_PROJECT = Path(__file__).parents[2]


# Supervisor, Ivy, Java class paths and JDBC addresses each give other characters a meaning.
_PLAIN_PATH = re.compile(r"[\w./@+=~-]+")


_MEMORY = re.compile(r"[1-9][0-9]*[mg]")


_SECONDS = re.compile(r"[1-9][0-9]{0,3}")


class StackSettings(BaseModel):
    """Folders and sizes of one stack; two stacks differ in `home` and share nothing else."""

    model_config = ConfigDict(frozen=True)

    home: Path
    project: Path
    streams: Path
    jars: Path
    ivy_settings: Path | None = None
    spark_memory: str = "3g"
    dag_scan_seconds: str = "20"
    bin: Path

    @property
    def stack(self) -> Path:
        """Hold what `up` renders: configs, scripts, ports."""
        return self.home / "stack"

    @property
    def logs(self) -> Path:
        """Hold one log per service."""
        return self.home / "logs"

    @property
    def templates(self) -> Path:
        """Hold the sources of everything rendered."""
        return self.project / "include" / "stack"

    @property
    def kafka(self) -> Path:
        """Hold Kafka's data."""
        return self.home / "kafka"

    @property
    def spark(self) -> Path:
        """Hold Spark's scratch files."""
        return self.home / "spark"

    @property
    def registry(self) -> Path:
        """Hold the schema registry's data."""
        return self.home / "registry"

    @property
    def airflow(self) -> Path:
        """Be AIRFLOW_HOME."""
        return self.home / "airflow"

    @property
    def catalog_file(self) -> Path:
        """Be the SQLite file that Spark and PyIceberg share."""
        return self.home / "lake" / "catalog.db"

    @property
    def warehouse(self) -> str:
        """Name the warehouse as a URI, the same for Spark and PyIceberg."""
        return f"file://{self.home}/lake/warehouse"


def load_settings(environment: Mapping[str, str] = os.environ) -> StackSettings:
    """Read the settings from the environment.

    Raises:
        StackError: a path or a size that one of the services could not take.
    """
    home = home_dir().resolve()
    settings = StackSettings(
        home=home,
        project=_PROJECT,
        streams=streams_dir(),
        jars=Path(environment.get(JARS_VARIABLE) or home / "jars").absolute(),
        ivy_settings=_optional_path(environment.get(IVY_SETTINGS_VARIABLE)),
        spark_memory=environment.get(SPARK_MEMORY_VARIABLE) or "3g",
        dag_scan_seconds=environment.get(DAG_SCAN_VARIABLE) or choose_pace(streams_dir()),
        bin=Path(sys.executable).parent,
    )
    for variable, path in (
        (HOME_VARIABLE, settings.home),
        (JARS_VARIABLE, settings.jars),
        ("the project", settings.project),
    ):
        _refuse_unusual_path(variable, path)
    if not _MEMORY.fullmatch(settings.spark_memory):
        raise StackError(
            f"{SPARK_MEMORY_VARIABLE}={settings.spark_memory} is no size",
            f"write it like {SPARK_MEMORY_VARIABLE}=3g or 2048m",
        )
    if not _SECONDS.fullmatch(settings.dag_scan_seconds):
        raise StackError(
            f"{DAG_SCAN_VARIABLE}={settings.dag_scan_seconds} is no number of seconds up to 9999",
            f"write it like {DAG_SCAN_VARIABLE}=60",
        )
    return settings


def choose_pace(streams: Path) -> str:
    """Choose how often Airflow reads the stream files: each makes DAGs that it writes anew."""
    return str(min(max(20, 3 * sum(1 for _ in streams.glob("*.yaml"))), 300))


def parse_parts(
    only: str | None, without: str | None, additional: str | None = None
) -> tuple[PartName, ...]:
    """Choose parts from comma-separated lists; `additional` adds what is not started by default.

    Raises:
        StackError: an unknown part, or none left.
    """
    wanted = (_split(only) or frozenset(DEFAULT_PARTS)) | _split(additional)
    unwanted = _split(without)
    unknown = sorted((wanted | unwanted) - frozenset(PARTS))
    chosen = tuple(part for part in PARTS if part in wanted - unwanted)
    if unknown or not chosen:
        problem = f"unknown part {unknown[0]!r}" if unknown else "no part is left to start"
        raise StackError(problem, f"choose among {', '.join(DEFAULT_PARTS)} and registry")
    return chosen


def _split(text: str | None) -> frozenset[str]:
    """Read `a, b` as a set."""
    return frozenset(word.strip() for word in (text or "").split(",") if word.strip())


def _optional_path(text: str | None) -> Path | None:
    """Read a path that may be absent."""
    return Path(text).absolute() if text else None


def _refuse_unusual_path(variable: str, path: Path) -> None:
    """Refuse spaces, commas, colons and the like before a service trips over them."""
    if not _PLAIN_PATH.fullmatch(str(path)):
        raise StackError(
            f"{variable} lies at {str(path)!r}; Java class paths and service configs need a path"
            " of letters, digits and . _ - + = @ ~ /",
            "move it, or point FRAZIL_HOME (and FRAZIL_JARS) to such a path",
        )


Say = Callable[[str], None]
"""Takes one line of progress for a person."""


@contextmanager
def lock_home(stack: Path, say: Say) -> Iterator[None]:
    """Wait for another `frazil stack` command on this home, then hold it."""
    with (stack / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("stack: waiting for another `frazil stack` command in this home")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
