"""Compare the time of a clean batch by several checkouts, by turns on one stack; prints JSON.

    python tests/bench/two_versions.py CHECKOUT CHECKOUT…

Each checkout has a `.venv`; ratios are to the first one. RECORDS (1000,10000,300000) and ROUNDS (5)
set the sizes. Each batch is staged, checked and published into a new table, with text columns and
without. The stack is one of its own, of the checkout that this file belongs to.
"""

import json
import os
import secrets
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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

WARM_ROUNDS = 2
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


def start_worker(checkout: Path) -> "subprocess.Popen[str]":
    """Start the worker of a checkout, with that checkout's code and packages."""
    # -P: the modules beside this file are not for it.
    command = [str(checkout / ".venv" / "bin" / "python"), "-P", str(Path(__file__)), "--serve"]
    paths = {**os.environ, "PYTHONPATH": str(checkout / "tests" / "bench")}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=paths, stdin=pipe, stdout=pipe, text=True)


@contextmanager
def ended(worker: "subprocess.Popen[str]") -> Iterator["subprocess.Popen[str]"]:
    """End a worker also after an error."""
    try:
        yield worker
        worker.communicate()
    finally:
        worker.kill()


def run_batch(worker: "subprocess.Popen[str]", stream: str, records: int) -> tuple[float, float]:
    """Give wall and CPU seconds of one batch."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{json.dumps([stream, records])}\n")
    worker.stdin.flush()
    wall, cpu = json.loads(worker.stdout.readline())
    return float(wall), float(cpu)


def write_suite(stream: str, columns: Mapping[str, str]) -> None:
    """Write the expectations about columns that a stream has."""
    rules = [e for e in orders.EXPECTATIONS if e["kwargs"].get("column", "ts") in columns]
    folder = Path(os.environ["FRAZIL_STREAMS"], "expectations")
    (folder / f"{stream}.json").write_text(json.dumps({"name": stream, "expectations": rules}))


def list_batches(sizes: Sequence[int], rounds: int) -> Iterator[tuple[str, int, int]]:
    """List the column set, records and round of each batch."""
    for turn in range(rounds + WARM_ROUNDS):
        for kind in COLUMN_SETS:
            for records in sizes:
                yield kind, records, turn


def main(checkouts: Sequence[Path], sizes: Sequence[int], rounds: int) -> dict[str, Any]:
    """Measure by turns, the first rounds left out."""
    found: dict[tuple[str, int], list[list[tuple[float, float]]]] = {}
    with ExitStack() as stack:
        environment = stack.enter_context(started_stack("--only", "kafka,spark"))
        facts = ask(environment, "stack", "status")
        os.environ |= environment
        os.environ["FRAZIL_SPARK_PID"] = str(facts["parts"]["spark_connect"]["pid"])
        os.environ["BENCH_REMOTE"] = facts["spark_connect"]["url"]
        topic = f"bench{secrets.token_hex(3)}"
        bootstrap = facts["kafka"]["bootstrap"]
        orders.fill_topic(bootstrap, topic, orders.iterate_values(max(sizes)))
        workers = [stack.enter_context(ended(start_worker(checkout))) for checkout in checkouts]
        for kind, records, turn in list_batches(sizes, rounds):
            figures: list[tuple[float, float]] = [(0, 0)] * len(workers)
            for place in [(turn + n) % len(workers) for n in range(len(workers))]:
                stream = f"b{secrets.token_hex(4)}"
                columns = COLUMN_SETS[kind]
                document = orders.write_document(stream, f"bench.{stream}", records, columns)
                document["source"] = {"topic": topic}
                file = Path(os.environ["FRAZIL_STREAMS"], f"{stream}.yaml")
                file.write_text(yaml.safe_dump(document))
                write_suite(stream, columns)
                figures[place] = run_batch(workers[place], stream, records)
                file.unlink()
            print(turn, kind, records, figures, file=sys.stderr)
            found.setdefault((kind, records), []).append(figures)
    return {
        f"{kind}, {records}": [
            summarize(runs[WARM_ROUNDS:], place) for place in range(len(checkouts))
        ]
        for (kind, records), runs in found.items()
    }


def summarize(rounds: Sequence[Sequence[tuple[float, float]]], place: int) -> dict[str, float]:
    """Give the medians of a checkout, and of its ratios to the first one in the same round."""
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
        print(json.dumps(main(given, asked, int(os.environ.get("ROUNDS", "5"))), indent=2))
