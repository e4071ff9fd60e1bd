"""Settings of the embedded stack from the environment, and the folders of its home."""

import fcntl
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from frazil.environment import home_dir, shipped_path, streams_dir
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

# Other characters have a meaning for supervisor, Ivy, Java class paths or JDBC addresses.
_PLAIN_PATH = re.compile(r"[\w./@+=~-]+")
_MEMORY = re.compile(r"[1-9][0-9]*[mg]")
_SECONDS = re.compile(r"[1-9][0-9]{0,3}")


class StackSettings(BaseModel):
    """Folders and sizes of one stack; each stack has a `home` of its own."""

    model_config = ConfigDict(frozen=True)

    home: Path
    streams: Path
    jars: Path
    ivy_settings: Path | None = None
    spark_memory: str = "3g"
    dag_scan_seconds: str = "20"
    bin: Path

    @property
    def stack(self) -> Path:
        """Return the folder of rendered configuration, start scripts and ports."""
        return self.home / "stack"

    @property
    def logs(self) -> Path:
        """Return the folder of the services' logs."""
        return self.home / "logs"

    @property
    def templates(self) -> Path:
        """Return the folder of the configuration templates."""
        return shipped_path("include/stack")

    @property
    def kafka(self) -> Path:
        """Return the folder of Kafka's data."""
        return self.home / "kafka"

    @property
    def spark(self) -> Path:
        """Return the folder of Spark's scratch files."""
        return self.home / "spark"

    @property
    def registry(self) -> Path:
        """Return the folder of the schema registry's data."""
        return self.home / "registry"

    @property
    def airflow(self) -> Path:
        """Return AIRFLOW_HOME."""
        return self.home / "airflow"

    @property
    def catalog_file(self) -> Path:
        """Return the SQLite file of the catalog, which Spark and PyIceberg share."""
        return self.home / "lake" / "catalog.db"

    @property
    def warehouse(self) -> str:
        """Return the URI of the warehouse."""
        return f"file://{self.home}/lake/warehouse"


def load_settings(environment: Mapping[str, str] = os.environ) -> StackSettings:
    """Read the settings from the environment.

    Raises:
        StackError: a path, a memory size or a number of seconds is invalid.
    """
    home = home_dir().resolve()
    settings = StackSettings(
        home=home,
        streams=streams_dir(),
        jars=Path(environment.get(JARS_VARIABLE) or home / "jars").absolute(),
        ivy_settings=_optional_path(environment.get(IVY_SETTINGS_VARIABLE)),
        spark_memory=environment.get(SPARK_MEMORY_VARIABLE) or "3g",
        dag_scan_seconds=environment.get(DAG_SCAN_VARIABLE) or choose_scan_seconds(streams_dir()),
        bin=Path(sys.executable).parent,
    )
    for variable, path in (
        (HOME_VARIABLE, settings.home),
        (JARS_VARIABLE, settings.jars),
        ("the project", settings.templates),
    ):
        _validate_path(variable, path)
    if not _MEMORY.fullmatch(settings.spark_memory):
        raise StackError(
            f"{SPARK_MEMORY_VARIABLE}={settings.spark_memory} is not a memory size",
            "set it to a size such as 3g or 2048m",
        )
    if not _SECONDS.fullmatch(settings.dag_scan_seconds):
        raise StackError(
            f"{DAG_SCAN_VARIABLE}={settings.dag_scan_seconds} is not a number from 1 to 9999",
            "set it to a number such as 60",
        )
    return settings


def choose_scan_seconds(streams: Path) -> str:
    """Return the seconds between two scans of the DAG files: longer with more stream files."""
    files = sum(1 for path in streams.glob("*") if path.suffix.lower() in {".yaml", ".yml"})
    return str(min(max(20, 3 * files), 300))


def parse_parts(
    only: str | None, without: str | None, additional: str | None = None
) -> tuple[PartName, ...]:
    """Return the parts to start, from comma-separated lists, in the order of starting.

    Raises:
        StackError: a part is unknown, or no part is left.
    """
    wanted = (_split(only) or frozenset(DEFAULT_PARTS)) | _split(additional)
    unwanted = _split(without)
    unknown = sorted((wanted | unwanted) - frozenset(PARTS))
    chosen = tuple(part for part in PARTS if part in wanted - unwanted)
    if unknown or not chosen:
        problem = (
            f"unknown part {unknown[0]!r}"
            if unknown
            else "no part is left: --without excludes all of them"
        )
        raise StackError(problem, f"the parts are {', '.join(PARTS)}")
    return chosen


def _split(text: str | None) -> frozenset[str]:
    return frozenset(word.strip() for word in (text or "").split(",") if word.strip())


def _optional_path(text: str | None) -> Path | None:
    return Path(text).absolute() if text else None


def _validate_path(variable: str, path: Path) -> None:
    """Raise if a path has characters that a service cannot take, such as a space or a comma."""
    if not _PLAIN_PATH.fullmatch(str(path)):
        raise StackError(
            f"path of {variable}: {str(path)!r} has characters other than letters, digits and"
            " . _ - + = @ ~ /, which Java class paths and service configurations cannot take",
            "move it, or set FRAZIL_HOME (and FRAZIL_JARS) to another path",
        )


ReportProgress = Callable[[str], None]
"""A function that prints one progress line."""


@contextmanager
def lock_home(stack: Path, report: ReportProgress) -> Iterator[None]:
    """Hold the lock of this home; wait while another `frazil stack` command holds it."""
    with (stack / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("stack: waiting for another `frazil stack` command on this home")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
