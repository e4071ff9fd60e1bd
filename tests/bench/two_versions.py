"""Compare the time of a clean batch by several checkouts, by turns; prints JSON.

    python tests/bench/two_versions.py CHECKOUT CHECKOUT…

Each checkout has a `.venv`; ratios are to the first one. RECORDS (1000,10000,300000) and ROUNDS (5)
set the sizes. Each batch is staged, checked and published into a new table, with text columns and
without. Each checkout has a stack of its own, since in one Spark server the code that Java compiled
for one version serves the other too. What Java compiles differs from start to start: STARTS (1)
repeats all. The first WARM (2) rounds of each start are left out. All stacks are of the checkout
that this file belongs to, so changes of a stack's settings are not compared.
"""

import json
import os
import secrets
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orders
import yaml
from run_bench import ask, started_stack
from throughput import SameSession, measure, measured_pids, run_ours

from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import plan_next_batch
from frazil.workspace import open_workspace

DEFAULTS = {"rounds": 5, "starts": 1, "warm": 2}
COLUMN_SETS: Mapping[str, Mapping[str, str]] = {
    "with texts": orders.COLUMNS,
    "without texts": {
        "ts": "timestamp!",
        "order_id": "long!",
        "user": "struct<id: long>",
        "amount": "decimal(18,2)",
        "items": "list<struct<qty: int, price: double>>",
    },
}


@dataclass(frozen=True)
class Worker:
    """A process with the code of one checkout, and the topic and stream files of its stack."""

    process: "subprocess.Popen[str]"
    topic: str
    streams: Path


def serve() -> None:
    """Run the batches that standard input names in one warm process; write their seconds."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the worker's own

    spark = SparkSession.builder.remote(os.environ["BENCH_REMOTE"]).create()
    pids = measured_pids(int(os.environ["FRAZIL_SPARK_PID"]))
    for line in sys.stdin:
        stream, records = json.loads(line)
        work = open_workspace(stream, "bench")
        work.__dict__["engine"] = SameSession(spark)
        plan = plan_next_batch(work)
        assert isinstance(plan, BatchPlan)
        print(json.dumps(measure(pids, partial(run_ours, work, plan, records))), flush=True)
    spark.stop()


@contextmanager
def started_worker(checkout: Path, records: int) -> Iterator[Worker]:
    """Start a stack with a filled topic, and a process with the checkout's code and packages."""
    with started_stack("--only", "kafka,spark") as environment:
        facts = ask(environment, "stack", "status")
        topic = f"bench{secrets.token_hex(3)}"
        bootstrap = facts["kafka"]["bootstrap"]
        orders.fill_topic(bootstrap, topic, orders.iterate_values(records))
        paths = {
            **environment,
            "FRAZIL_SPARK_PID": str(facts["parts"]["spark_connect"]["pid"]),
            "BENCH_REMOTE": facts["spark_connect"]["url"],
            "PYTHONPATH": str(checkout / "tests" / "bench"),
        }
        # -P: the modules beside this file are not for it.
        python = str(checkout / ".venv" / "bin" / "python")
        command = [python, "-P", str(Path(__file__)), "--serve"]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=paths, stdin=pipe, stdout=pipe, text=True)
        try:
            yield Worker(process, topic, Path(environment["FRAZIL_STREAMS"]))
            process.communicate()
        finally:
            process.kill()


def run_batch(worker: Worker, kind: str, records: int) -> tuple[float, float]:
    """Return wall and CPU seconds of one batch into a new table."""
    stream = f"b{secrets.token_hex(4)}"
    columns = COLUMN_SETS[kind]
    document = orders.write_document(stream, f"bench.{stream}", records, columns)
    document["source"] = {"topic": worker.topic}
    file = worker.streams / f"{stream}.yaml"
    file.write_text(yaml.safe_dump(document))
    rules = [e for e in orders.EXPECTATIONS if e["kwargs"].get("column", "ts") in columns]
    suite = worker.streams / "expectations" / f"{stream}.json"
    suite.write_text(json.dumps({"name": stream, "expectations": rules}))
    assert worker.process.stdin is not None
    assert worker.process.stdout is not None
    worker.process.stdin.write(f"{json.dumps([stream, records])}\n")
    worker.process.stdin.flush()
    wall, cpu = json.loads(worker.process.stdout.readline())
    file.unlink()
    return float(wall), float(cpu)


def list_batches(sizes: Sequence[int], rounds: int) -> Iterator[tuple[str, int, int]]:
    """List the column set, records and round of each batch."""
    for turn in range(rounds):
        for kind in COLUMN_SETS:
            for records in sizes:
                yield kind, records, turn


def main(
    checkouts: Sequence[Path], sizes: Sequence[int], rounds: int, starts: int, warm: int
) -> dict[str, Any]:
    """Measure by turns, the first rounds of each start left out."""
    found: dict[tuple[str, int], list[list[tuple[float, float]]]] = {}
    for start in range(starts):
        with ExitStack() as stack:
            enter = stack.enter_context
            workers = [enter(started_worker(each, max(sizes))) for each in checkouts]
            for kind, records, turn in list_batches(sizes, warm + rounds):
                figures: list[tuple[float, float]] = [(0, 0)] * len(workers)
                for place in [(turn + n) % len(workers) for n in range(len(workers))]:
                    figures[place] = run_batch(workers[place], kind, records)
                print(start, turn, kind, records, figures, file=sys.stderr)
                if turn >= warm:
                    found.setdefault((kind, records), []).append(figures)
    return {
        f"{kind}, {records}": [summarize(runs, place) for place in range(len(checkouts))]
        for (kind, records), runs in found.items()
    }


def summarize(rounds: Sequence[Sequence[tuple[float, float]]], place: int) -> dict[str, float]:
    """Return the medians of a checkout, and of its ratios to the first one in the same round."""
    wall, cpu = ([each[place][n] for each in rounds] for n in (0, 1))
    to_wall, to_cpu = ([each[place][n] / each[0][n] for each in rounds] for n in (0, 1))
    return {
        "wall_seconds": round(statistics.median(wall), 3),
        "cpu_seconds": round(statistics.median(cpu), 3),
        "wall_ratio": round(statistics.median(to_wall), 3),
        "cpu_ratio": round(statistics.median(to_cpu), 3),
        "cpu_ratio_of_means": round(sum(cpu) / sum(each[0][1] for each in rounds), 3),
    }


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    else:
        asked = [int(n) for n in os.environ.get("RECORDS", "1000,10000,300000").split(",")]
        given = [Path(each).resolve() for each in sys.argv[1:]]
        counts = {n: int(os.environ.get(n.upper(), each)) for n, each in DEFAULTS.items()}
        print(json.dumps(main(given, asked, **counts), indent=2))
