"""Resource usage of the steps of a batch: CPU time, and requests of Frazil's own processes.

Counters run from the start of the process and are reset when they are read. So imports are
included and nothing is counted twice, whether Airflow runs each step in its own process or
`frazil run` runs all of them in one.
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
    """The usage of one step; CPU time in ms, `spark_cpu_ms` is None if it was not measured.

    `kafka` counts calls of the admin client, `catalog` loads and commits of tables, `files` files
    opened, written or deleted in the warehouse. Requests by Spark are not included.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)

    cpu_ms: int = Field(0, alias="cpu-ms")
    spark_cpu_ms: int | None = Field(None, alias="spark-cpu-ms")
    kafka: int = 0
    catalog: int = 0
    files: int = 0


class _Counters:
    """What this process used since its counters were last reset."""

    def __init__(self) -> None:
        """Start all counters at zero."""
        self.requests: Counter[Request] = Counter()
        self.reported_cpu_seconds = 0.0
        self.jobs_ms = 0
        self.spark_ms: int | None = None


_counters = _Counters()


def _reset() -> None:
    """Reset the counters; a fork must not report what its parent used."""
    global _counters  # noqa: PLW0603 - one set of counters per process
    _counters = _Counters()


os.register_at_fork(after_in_child=_reset)


def count_request(kind: Request, number: int = 1) -> None:
    """Count requests to another system."""
    _counters.requests[kind] += number


def count_job(cpu_ms: int, spark_cpu_ms: int | None) -> None:
    """Add a Spark job: CPU time of its process, and of the Spark server if it was measured."""
    _counters.jobs_ms += cpu_ms
    if spark_cpu_ms is not None:
        _counters.spark_ms = (_counters.spark_ms or 0) + spark_cpu_ms


def read_usage() -> Usage:
    """Return the usage since the start of the process or the last reset."""
    own_ms = (time.process_time() - _counters.reported_cpu_seconds) * 1000
    return Usage(
        cpu_ms=round(own_ms) + _counters.jobs_ms,
        spark_cpu_ms=_counters.spark_ms,
        kafka=_counters.requests["kafka"],
        catalog=_counters.requests["catalog"],
        files=_counters.requests["files"],
    )


def read_and_reset_usage() -> Usage:
    """Return the usage since the last reset, and reset the counters."""
    used = read_usage()
    _reset()
    _counters.reported_cpu_seconds = time.process_time()
    return used


def cpu_facts(used: Usage) -> dict[str, str | int]:
    """Return the CPU time as facts of an event."""
    own: dict[str, str | int] = {"cpu_ms": used.cpu_ms}
    return own if used.spark_cpu_ms is None else {**own, "spark_cpu_ms": used.spark_cpu_ms}


def encode_usage(steps: Mapping[str, Usage | None]) -> str:
    """Encode usage by step for a snapshot's summary."""
    document = {
        step: used.model_dump(by_alias=True, exclude_defaults=True)
        for step, used in steps.items()
        if used is not None
    }
    return json.dumps(document, separators=(",", ":"))


def parse_usage(summary: Mapping[str, str]) -> dict[str, Usage]:
    """Parse the usage by step of a summary; empty if an older release wrote the summary."""
    steps = json.loads(summary.get(keys.USAGE, "{}"))
    return {step: Usage.model_validate(used) for step, used in steps.items()}


def add_publish_usage(summary: Mapping[str, str]) -> dict[str, str]:
    """Add the usage of the publish step to a summary; the commit itself is not included."""
    steps = {**parse_usage(summary), "publish": read_usage()}
    return {**summary, keys.USAGE: encode_usage(steps)}
