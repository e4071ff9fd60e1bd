"""The same bounded topic through Frazil and through what people use instead, by turns.

    PYTHONPATH=tests python tests/bench/peers.py RECORDS ROUNDS [PAGE]     (`make bench-peers`)

Starts a stack of its own, unless FRAZIL_SPARK_PID names the Spark server of the one in FRAZIL_HOME
(`frazil stack up --only kafka,spark`). Frazil runs whole: stage with offsets and dead letters,
ten expectations, publish; nobody else checks, sets bad rows apart, or knows what its snapshot
holds. Each peer has the fetch settings that serve it best. One reader counts and adds up every
table that was written. Prints JSON; PAGE gets a Markdown table and a chart. It ends with 1 where
Frazil is not as fast as it must be.
"""

import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import orders
import pyarrow.compute as pc
import yaml
from jvm_peers import CONNECT_COORDINATES, ConnectPeer, FlinkPeer, start_connect, start_flink
from peak import Peak
from peers_page import MIB, write_page
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from run_bench import ask, started_stack
from throughput import SameSession, measure, run_floor, run_ours

from frazil.connections.clients import find_kafka_config, find_spark_remote
from frazil.iceberg.catalog import HOT_DICTIONARY, TABLE_DEFAULTS
from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import plan_next_batch
from frazil.workspace import Workspace, open_workspace

PLAIN_PYTHON = Path(__file__).with_name("plain_python.py")
LIMITS = {
    "bare floor": 1.0,
    "floor, our write settings": 1 / 1.1,
    "AvailableNow": 1.1,
    "plain Python": 1.25,
    "Flink": 0.95,
    "Kafka Connect": 2.2,
}
"""Frazil's records a second over the peer's, at least (issue 7)."""
PLAIN = {"format-version": "2"}
COORDINATES = "topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"


@dataclass
class Contest:
    """One topic, one session, and a new table for each peer and round."""

    stream: str
    bootstrap: str
    folder: Path
    spark: SparkSession
    spark_pid: int
    records: int
    flink: FlinkPeer
    connect: ConnectPeer

    def open(self, turn: int) -> tuple[Workspace, BatchPlan]:
        """Plan Frazil's batch of a round, into a table of its own."""
        document = orders.write_document(self.stream, f"bench.{self.stream}_{turn}", self.records)
        (self.folder / f"{self.stream}.yaml").write_text(yaml.safe_dump(document))
        work = open_workspace(self.stream, "bench")
        work.__dict__["engine"] = SameSession(self.spark)
        plan = plan_next_batch(work)
        assert isinstance(plan, BatchPlan)
        return work, plan

    def create(
        self,
        turn: int,
        peer: str,
        properties: Mapping[str, str] = PLAIN,
        coordinates: str = COORDINATES,
    ) -> str:
        """Create a peer's table, and name it without the catalog."""
        name = f"bench.{self.stream}_{turn}_{peer}"
        schema = f"{orders.SPARK_SCHEMA}, {coordinates}"
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
            .option("kafka.fetch.max.wait.ms", "1")
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


@dataclass(frozen=True)
class Entry:
    """One peer of one round: it fills a new table, and tells the seconds if it knows better."""

    name: str
    table: str
    run: Callable[[], float | None]
    pids: Sequence[int]


def list_entries(contest: Contest, turn: int, work: Workspace, plan: BatchPlan) -> list[Entry]:
    """Create the tables of a round and say who fills which."""
    bare = contest.create(turn, "floor")
    same = contest.create(turn, "same", {**TABLE_DEFAULTS, **HOT_DICTIONARY})
    stream = contest.create(turn, "now")
    plain = contest.create(turn, "python")
    flink = contest.create(turn, "flink")
    connect = contest.create(turn, "connect", coordinates=CONNECT_COORDINATES)
    floor = partial(run_floor, contest.spark, plan, contest.bootstrap)
    python, spark = (os.getpid(),), (os.getpid(), contest.spark_pid)
    topic, records = contest.stream, contest.records
    run_flink = partial(contest.flink.run, topic, flink)
    run_connect = partial(contest.connect.run, topic, connect, records)
    return [
        Entry("Frazil", plan.table, partial(run_ours, work, plan, records), spark),
        Entry("bare floor", bare, partial(floor, f"lake.{bare}"), spark),
        Entry("floor, our write settings", same, partial(floor, f"lake.{same}"), spark),
        Entry("AvailableNow", stream, partial(contest.run_available_now, stream), spark),
        Entry("plain Python", plain, partial(contest.run_plain_python, plain), python),
        Entry("Flink", flink, run_flink, (contest.flink.process.pid,)),
        Entry("Kafka Connect", connect, run_connect, (contest.connect.process.pid,)),
    ]


def run_round(contest: Contest, turn: int) -> dict[str, dict[str, Any]]:
    """Let each peer run once, another one first in each round, and read what it wrote."""
    work, plan = contest.open(turn)
    entries = list_entries(contest, turn, work, plan)
    first = turn % len(entries)
    # They are children of this process, and idle while it or Spark runs.
    apart = (contest.flink.process.pid, contest.connect.process.pid)
    found = {}
    for entry in entries[first:] + entries[:first]:
        peak = Peak(entry.pids, apart)
        wall, cpu = measure(entry.pids, partial(peak.watch, entry.run), apart)
        memory = round(peak.highest / MIB)
        found[entry.name] = {"seconds": peak.told or wall, "cpu": cpu, "memory_mb": memory}
        found[entry.name] |= read_back(work, entry.table)
        print(f"round {turn}: {entry.name} {found[entry.name]}", file=sys.stderr)
    return {entry.name: found[entry.name] for entry in entries}


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
    orders.fill_topic(bootstrap, stream, orders.iterate_values(records))
    with ExitStack() as opened:
        spark = SparkSession.builder.remote(find_spark_remote()).create()
        opened.callback(spark.stop)  # else it looks for its server long after that is gone
        spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
        scratch = opened.enter_context(tempfile.TemporaryDirectory(prefix="frazil-bench-"))
        flink = opened.enter_context(start_flink(bootstrap, Path(scratch)))
        connect = opened.enter_context(start_connect(bootstrap, Path(scratch)))
        contest = Contest(stream, bootstrap, folder, spark, spark_pid, records, flink, connect)
        found = [run_round(contest, turn) for turn in range(rounds + 1)]
        tools = {"Flink": flink.version, "Kafka Connect": connect.version}
    check_tables(records, found)
    peers = summarize(records, found[1:])
    return {"records": records, "rounds": rounds, "peers": peers, "versions": tools}


def check_tables(records: int, found: list[dict[str, dict[str, Any]]]) -> None:
    """See that each table is the topic, to the cent."""
    amount = sum(
        (Decimal(str(json.loads(v)["amount"])) for v in orders.iterate_values(records)), Decimal(0)
    )
    wrong = [
        (name, figures)
        for turn in found
        for name, figures in turn.items()
        if (figures["rows"], figures["distinct"], figures["amount"]) != (records, records, amount)
    ]
    assert not wrong, f"tables that are not the topic: {wrong}"


def summarize(records: int, found: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return medians with extremes, and Frazil's speed over each peer's of the same round."""
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


@contextmanager
def found_stack() -> Iterator[int]:
    """Return the Spark server's process: that FRAZIL_SPARK_PID names, or of a new stack."""
    if known := os.environ.get("FRAZIL_SPARK_PID"):
        yield int(known)
        return
    with started_stack("--only", "kafka,spark") as environment:
        os.environ |= environment
        yield int(ask(environment, "stack", "status")["parts"]["spark_connect"]["pid"])


if __name__ == "__main__":
    # An ordered end also when somebody stops it: the JVMs and the stack are ended on the way out.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with found_stack() as server:
        result = main(int(sys.argv[1]), int(sys.argv[2]), server)
    print(json.dumps(result, indent=2))
    if len(sys.argv) > 3:
        Path(sys.argv[3]).write_text(write_page(result))
    sys.exit(any(p["frazil_is_faster_by"] < (p["at_least"] or 0) for p in result["peers"].values()))
