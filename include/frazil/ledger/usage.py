"""What a step of a batch used: CPU time, and requests of Frazil's own processes.

A process counts from its beginning, or from when it was last asked: so imports are counted, and
nothing twice, whether Airflow runs each step in a process of its own or `frazil run` all in one.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from frazil.ledger import keys

Request = Literal["kafka", "catalog", "files"]


class Usage(BaseModel):
    """What was used; CPU in milliseconds, `None` where nobody could measure Spark's.

    `kafka` are calls of the admin client, `catalog` loads and commits of tables, `files` what was
    opened, written or deleted in the warehouse; what Spark asks for itself is not among them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    cpu_ms: int = Field(0, alias="cpu-ms")
    spark_cpu_ms: int | None = Field(None, alias="spark-cpu-ms")
    kafka: int = 0
    catalog: int = 0
    files: int = 0


class _Counters:
    """What this process used and has not told yet."""

    def __init__(self) -> None:
        """Begin at nothing: a process that has just begun."""
        self.requests: Counter[Request] = Counter()
        self.told_seconds = 0.0
        self.jobs_ms = 0
        self.spark_ms: int | None = None


_counters = _Counters()


def _begin() -> None:
    """Forget what the process used of which this one is a fork."""
    global _counters  # noqa: PLW0603 - one set of counters per process is what is meant
    _counters = _Counters()


os.register_at_fork(after_in_child=_begin)


def count_request(kind: Request, number: int = 1) -> None:
    """Count requests to another system."""
    _counters.requests[kind] += number


def count_job(cpu_ms: int, spark_cpu_ms: int | None) -> None:
    """Count a Spark job: its process, and what the Spark server did meanwhile if that is known."""
    _counters.jobs_ms += cpu_ms
    if spark_cpu_ms is not None:
        _counters.spark_ms = (_counters.spark_ms or 0) + spark_cpu_ms


def read_usage() -> Usage:
    """Give what this process used since it began or was last asked by `read_and_reset_usage`."""
    own_ms = (time.process_time() - _counters.told_seconds) * 1000
    return Usage(
        cpu_ms=round(own_ms) + _counters.jobs_ms,
        spark_cpu_ms=_counters.spark_ms,
        kafka=_counters.requests["kafka"],
        catalog=_counters.requests["catalog"],
        files=_counters.requests["files"],
    )


def read_and_reset_usage() -> Usage:
    """Give what this process used, and begin to count anew."""
    used = read_usage()
    _begin()
    _counters.told_seconds = time.process_time()
    return used


def cpu_facts(used: Usage) -> dict[str, str | int]:
    """Give the CPU time as facts of an event."""
    own: dict[str, str | int] = {"cpu_ms": used.cpu_ms}
    return own if used.spark_cpu_ms is None else {**own, "spark_cpu_ms": used.spark_cpu_ms}


def encode_usage(steps: Mapping[str, Usage | None]) -> str:
    """Write usage by step as the summary of a snapshot keeps it."""
    told = {
        step: used.model_dump(by_alias=True, exclude_defaults=True)
        for step, used in steps.items()
        if used is not None
    }
    return json.dumps(told, separators=(",", ":"))


def parse_usage(summary: Mapping[str, str]) -> dict[str, Usage]:
    """Read what `encode_usage` wrote into a summary; nothing where an older version wrote it."""
    steps = json.loads(summary.get(keys.USAGE, "{}"))
    return {step: Usage.model_validate(used) for step, used in steps.items()}


def add_publish_usage(summary: Mapping[str, str]) -> dict[str, str]:
    """Add to a summary what publishing has used so far; the commit itself comes after it."""
    steps = {**parse_usage(summary), "publish": read_usage()}
    return {**summary, keys.USAGE: encode_usage(steps)}
