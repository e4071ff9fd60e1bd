"""The same bounded topic through Frazil and through what people use instead, by turns.

    FRAZIL_SPARK_PID=… python tests/bench/peers.py RECORDS ROUNDS [PAGE]

Needs `frazil stack up --only kafka,spark`. Frazil runs whole: stage with offsets and dead letters,
ten expectations, publish; nobody else checks, sets bad rows apart, or knows what its snapshot
holds. Each peer has the fetch settings that serve it best. One reader counts and adds up every
table that was written. Prints JSON; PAGE gets a Markdown table and a chart.
"""

import json
import os
import platform
import secrets
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orders
import psutil
import pyarrow.compute as pc
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from throughput import SameSession, measure, run_floor, run_ours

from frazil.connections import find_kafka_config, find_spark_remote
from frazil.contracts import BatchPlan
from frazil.ingest import plan_next_batch
from frazil.tables import TABLE_DEFAULTS
from frazil.workspace import Workspace, open_workspace

PLAIN_PYTHON = Path(__file__).with_name("plain_python.py")
LIMITS = {
    "bare floor": 1.0,
    "floor, our write settings": 1 / 1.1,
    "AvailableNow": 1.1,
    "plain Python": 1.25,
}
"""Frazil's records a second over the peer's, at least (issue 7)."""
MIB = 1024 * 1024


@dataclass
class Peak:
    """The most memory that some processes held while something ran, sampled."""

    pids: tuple[int, ...]
    highest: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def watch(self, action: Callable[[], None]) -> None:
        """Run an action and look five times a second."""
        watcher = threading.Thread(target=self._look, daemon=True)
        watcher.start()
        try:
            action()
        finally:
            self._over.set()
            watcher.join()

    def _look(self) -> None:
        while not self._over.wait(0.2):
            rss = 0
            for pid in self.pids:
                try:
                    parent = psutil.Process(pid)
                    family = (parent, *parent.children(recursive=True))
                    rss += sum(process.memory_info().rss for process in family)
                except psutil.NoSuchProcess:
                    continue
            self.highest = max(self.highest, rss)


@dataclass
class Contest:
    """One topic, one session, and a new table for each peer and round."""

    stream: str
    bootstrap: str
    folder: Path
    spark: SparkSession
    spark_pid: int
    records: int

    def open(self, turn: int) -> tuple[Workspace, BatchPlan]:
        """Plan Frazil's batch of a round, into a table of its own."""
        document = orders.write_document(self.stream, f"bench.{self.stream}_{turn}", self.records)
        (self.folder / f"{self.stream}.yaml").write_text(yaml.safe_dump(document))
        work = open_workspace(self.stream, "bench")
        work.__dict__["engine"] = SameSession(self.spark)
        plan = plan_next_batch(work)
        assert isinstance(plan, BatchPlan)
        return work, plan

    def create(self, turn: int, peer: str, properties: dict[str, str]) -> str:
        """Create a peer's table, and name it without the catalog."""
        name = f"bench.{self.stream}_{turn}_{peer}"
        schema = (
            f"{orders.SPARK_SCHEMA}, topic STRING, partition INT, offset BIGINT, "
            "timestamp TIMESTAMP"
        )
        written = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
        self.spark.sql(
            f"CREATE TABLE lake.{name} ({schema}) USING iceberg TBLPROPERTIES ({written})"
        )
        return name

    def run_available_now(self, table: str) -> None:
        """Let Structured Streaming read what is there, and stop."""
        records = (
            self.spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", self.bootstrap)
            .option("kafka.max.partition.fetch.bytes", "8388608")
            .option("kafka.fetch.max.bytes", "52428800")
            .option("kafka.max.poll.records", "5000")
            .option("kafka.fetch.max.wait.ms", "10")
            .option("subscribe", self.stream)
            .option("startingOffsets", "earliest")
            .load()
        )
        decoded = F.from_json(F.col("value").cast("string"), orders.SPARK_SCHEMA).alias("d")
        place = ("topic", "partition", "offset", "timestamp")
        with tempfile.TemporaryDirectory(prefix="frazil-bench-") as checkpoint:
            query = (
                records.select(decoded, *place)
                .select("d.*", *place)
                .writeStream.format("iceberg")
                .outputMode("append")
                .trigger(availableNow=True)
                .option("checkpointLocation", f"file:{checkpoint}")
                .toTable(f"lake.{table}")
            )
            query.awaitTermination()

    def run_plain_python(self, table: str) -> None:
        """Run the script as a process of its own; its start and imports count."""
        command = [sys.executable, str(PLAIN_PYTHON), self.bootstrap, self.stream, table]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run_round(contest: Contest, turn: int) -> dict[str, dict[str, Any]]:
    """Let each peer run once, another one first in each round, and read what it wrote."""
    work, plan = contest.open(turn)
    ours = dict(TABLE_DEFAULTS)
    bare = contest.create(turn, "floor", {"format-version": "2"})
    same = contest.create(turn, "same", ours)
    stream = contest.create(turn, "now", {"format-version": "2"})
    plain = contest.create(turn, "python", {"format-version": "2"})
    floor = partial(run_floor, contest.spark, plan, contest.bootstrap)
    entries: list[tuple[str, str, Callable[[], None]]] = [
        ("Frazil", plan.table, partial(run_ours, work, plan, contest.records)),
        ("bare floor", bare, partial(floor, f"lake.{bare}")),
        ("floor, our write settings", same, partial(floor, f"lake.{same}")),
        ("AvailableNow", stream, partial(contest.run_available_now, stream)),
        ("plain Python", plain, partial(contest.run_plain_python, plain)),
    ]
    first = turn % len(entries)
    found = {}
    for name, table, action in entries[first:] + entries[:first]:
        pids = (os.getpid(),) if name == "plain Python" else (os.getpid(), contest.spark_pid)
        peak = Peak(pids)
        wall, cpu = measure(contest.spark_pid, partial(peak.watch, action))
        found[name] = {"seconds": wall, "cpu": cpu, "memory_mb": round(peak.highest / MIB)}
        found[name] |= read_back(work, table)
        print(f"round {turn}: {name} {found[name]}", file=sys.stderr)
    return found


def read_back(work: Workspace, table: str) -> dict[str, Any]:
    """Count and add up what stands in a table, with PyIceberg and Arrow alone."""
    found = work.store.load(table)
    rows = found.scan(selected_fields=("order_id", "amount")).to_arrow()
    return {
        "rows": rows.num_rows,
        "distinct": pc.count_distinct(rows["order_id"]).as_py(),
        "amount": pc.sum(rows["amount"]).as_py(),
        "snapshots": len(found.metadata.snapshots),
    }


def main(records: int, rounds: int, spark_pid: int) -> dict[str, Any]:
    """Run the contest and give its figures."""
    stream = f"peers{secrets.token_hex(3)}"
    folder = Path(os.environ["FRAZIL_HOME"]) / "bench" / stream
    (folder / "expectations").mkdir(parents=True)
    suite = {"name": stream, "expectations": orders.EXPECTATIONS}
    (folder / "expectations" / f"{stream}.json").write_text(json.dumps(suite))
    os.environ["FRAZIL_STREAMS"] = str(folder)
    bootstrap = find_kafka_config("kafka_default")["bootstrap.servers"]
    orders.fill_topic(bootstrap, stream, records)
    amount = sum(
        (Decimal(str(json.loads(v)["amount"])) for v in orders.iterate_values(records)), Decimal(0)
    )
    spark = SparkSession.builder.remote(find_spark_remote()).create()
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    contest = Contest(stream, bootstrap, folder, spark, spark_pid, records)
    found = [run_round(contest, turn) for turn in range(rounds + 1)]
    spark.stop()
    wrong = [
        (name, figures)
        for turn in found
        for name, figures in turn.items()
        if (figures["rows"], figures["distinct"], figures["amount"]) != (records, records, amount)
    ]
    assert not wrong, f"tables that are not the topic: {wrong}"
    return {"records": records, "rounds": rounds, "peers": summarize(records, found[1:])}


def summarize(records: int, found: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Give medians with extremes, and Frazil's speed over each peer's of the same round."""
    summary = {}
    for name in found[0]:
        walls = sorted(turn[name]["seconds"] for turn in found)
        ratios = [turn[name]["seconds"] / turn["Frazil"]["seconds"] for turn in found]
        cpu = statistics.median(turn[name]["cpu"] for turn in found)
        summary[name] = {
            "records_per_second": round(records / statistics.median(walls)),
            "records_per_second_min": round(records / walls[-1]),
            "records_per_second_max": round(records / walls[0]),
            "cpu_seconds_per_million": round(cpu / records * 1e6, 2),
            "memory_mb": max(turn[name]["memory_mb"] for turn in found),
            "frazil_is_faster_by": round(statistics.median(ratios), 2),
            "at_least": round(LIMITS[name], 2) if name in LIMITS else None,
        }
    return summary


def write_page(figures: dict[str, Any]) -> str:
    """Write the figures as a page: what was run where, a table, a chart."""
    peers = figures["peers"]
    packages = ", ".join(f"{p} {version(p)}" for p in ("pyspark", "pyiceberg", "pyarrow"))
    memory = psutil.virtual_memory().total // (1024 * MIB)
    where = (
        f"{figures['records']:,} JSON events of {orders.TARGET_BYTES} bytes in {orders.PARTITIONS} "
        f"partitions, medians of {figures['rounds']} warm rounds, by turns; broker, Spark and all "
        f"peers on one machine: {os.cpu_count()} cores ({platform.machine()}), {memory} GiB. "
        f"{packages}, Python {platform.python_version()}. {datetime.now(UTC):%Y-%m-%d}. "
        "`tests/bench/peers.py` wrote this page."
    )
    what = (
        "Frazil stages with offsets and dead letters, checks ten expectations and publishes by "
        "compare-and-set; nobody else checks, sets bad rows apart, or says what a snapshot holds."
    )
    lines = [
        *("# Benchmarks", "", where, "", what, ""),
        "| | records/s (min to max) | CPU s per million | MB | Frazil is faster by | at least |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in peers.items():
        spread = f"{one['records_per_second_min']:,} to {one['records_per_second_max']:,}"
        lines.append(
            f"| {name} | {one['records_per_second']:,} ({spread}) | "
            f"{one['cpu_seconds_per_million']} | {one['memory_mb']:,} | "
            f"{one['frazil_is_faster_by']} | {one['at_least'] or ''} |"
        )
    names = ", ".join(f'"{name}"' for name in peers)
    rates = ", ".join(str(one["records_per_second"] // 1000) for one in peers.values())
    chart = ["", "```mermaid", "xychart-beta", '  title "thousand records a second"']
    return "\n".join([*lines, *chart, f"  x-axis [{names}]", f"  bar [{rates}]", "```", ""])


if __name__ == "__main__":
    count, rounds = int(sys.argv[1]), int(sys.argv[2])
    result = main(count, rounds, int(os.environ["FRAZIL_SPARK_PID"]))
    print(json.dumps(result, indent=2))
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(write_page(result))
