"""What a second core gives: seconds of a batch by records and cores, and the model that fits; JSON.

    python tests/bench/slope.py

Stage, check and publish of RECORDS (500000,2000000) each, ROUNDS (5) times, with the Spark server
and its Python workers on one core and on two; Kafka and this process stay where they are. The model
is: seconds = fixed seconds + core seconds per million * millions / cores, by least squares over the
medians. It starts a stack of its own.
"""

import contextlib
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import orders
import yaml
from pyspark.sql import SparkSession
from run_bench import ask, started_stack
from throughput import SameSession, list_family, measure, run_ours, write_stream

from frazil.connections.clients import find_spark_remote
from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import plan_next_batch
from frazil.workspace import open_workspace

CORES = (1, 2)
EXPECTATIONS = 10


def keep_on(pid: int, cores: int) -> None:
    """Keep a process, its children and all of their threads on the first cores."""
    for process in list_family((pid,)):
        for thread in Path(f"/proc/{process.pid}/task").glob("*"):
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.sched_setaffinity(int(thread.name), range(cores))


def measure_batch(
    spark: SparkSession, stream: str, folder: Path, records: int, table: str
) -> float:
    """Return the seconds of one batch of so many records into a table of its own."""
    document = orders.write_document(stream, table, records)
    (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))
    work = open_workspace(stream, "bench")
    work.__dict__["engine"] = SameSession(spark)
    plan = plan_next_batch(work)
    assert isinstance(plan, BatchPlan)
    return measure((), partial(run_ours, work, plan, records))[0]


def fit(medians: Mapping[tuple[int, int], float]) -> dict[str, float]:
    """Fit the model; the error is the largest share by which it misses a median."""
    shape = np.array([(1.0, records / 1e6 / cores) for records, cores in medians])
    seconds = np.array(list(medians.values()))
    found = np.linalg.lstsq(shape, seconds, rcond=None)[0]
    return {
        "fixed_seconds": round(float(found[0]), 2),
        "core_seconds_per_million": round(float(found[1]), 2),
        "largest_error": round(float(np.max(np.abs(shape @ found / seconds - 1))), 3),
    }


def main(sizes: Sequence[int], rounds: int) -> dict[str, object]:
    """Measure by turns, the first round left out, and fit."""
    found: dict[tuple[int, int], list[float]] = {(n, cores): [] for n in sizes for cores in CORES}
    with started_stack("--only", "kafka,spark") as environment:
        os.environ |= environment
        pid = int(ask(environment, "stack", "status")["parts"]["spark_connect"]["pid"])
        stream, folder = write_stream(orders, max(sizes), EXPECTATIONS)
        spark = SparkSession.builder.remote(find_spark_remote()).create()
        for turn in range(rounds + 1):
            for (records, cores), seconds in found.items():
                keep_on(pid, cores)
                table = f"bench.{stream}_{turn}_{records}_{cores}"
                seconds.append(measure_batch(spark, stream, folder, records, table))
                print(f"{records} on {cores}: {seconds[-1]:.2f} s", file=sys.stderr)
        spark.stop()
    medians = {key: statistics.median(seconds[1:]) for key, seconds in found.items()}
    return {
        "rounds": rounds,
        "seconds": {
            str(records): {str(cores): round(medians[records, cores], 2) for cores in CORES}
            for records in sizes
        },
        "speedup": {str(n): round(medians[n, CORES[0]] / medians[n, CORES[-1]], 2) for n in sizes},
        "model": fit(medians),
    }


if __name__ == "__main__":
    asked = [int(n) for n in os.environ.get("RECORDS", "500000,2000000").split(",")]
    print(json.dumps(main(asked, int(os.environ.get("ROUNDS", "5"))), indent=2))
