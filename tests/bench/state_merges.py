"""Merges into a large state table: seconds, CPU, bytes and the time of a scan; prints JSON.

    PYTHONPATH=tests python tests/bench/state_merges.py

ROWS (2,000,000) keys are inserted, then ROUNDS (3) times CHANGES (200,000) changes of them come:
*local* keys are those of the newest of 28 days, *scattered* ones of all rows; some keys change more
than once. Then MERGES (10) small merges of local keys follow, of a hundredth of the changes each;
after each EVERY (10) of them a compaction, as by schedule. ROUNDS=0 leaves out all but these. Scans
are compared with the same state right after its compaction. The change table is compared with an
append stream of the same records, after a second append stream has read them, whose time is left
out: who reads new records first takes longer. MODE (merge-on-read) is the `write.merge.mode` of the
state; with MODE=copy-on-write a merge writes each changed file again.

With FLINK=1 Flink's upsert sink takes the same changes (needs a JDK for `javac`). Its table, which
is never compacted, is read once after the small merges; after LIMIT (600) seconds the scan is
stopped, and the ratio is one at least. The state is read five times, the median counts. The stack
is one of its own.

It ends with 1 where a figure misses its limit. A limit whose figure was not measured, such as that
of Flink without FLINK=1 or of the hundredth merge without MERGES=100, is named and misses nothing.
"""

import json
import os
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import stamina
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from flink_upserts import FlinkUpserts
from jvm_peers import start_flink
from pyiceberg.table.snapshots import Snapshot
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from run_bench import ask, find_figure, started_stack
from throughput import measure, measured_pids, run_ours

from frazil.errors import JobFailedError
from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import plan_next_batch
from frazil.maintenance.compaction import compact_table
from frazil.state_tables.merge import merge_changes
from frazil.workspace import Workspace, open_workspace

PARTITIONS = 4
BATCH = 1_000_000
SCANS = 5
DAYS = 28
EVERY = int(os.environ.get("EVERY", "10"))
AT_LEAST = {
    "local.throughput_ratio": 0.95,
    "scattered.throughput_ratio": 0.95,
    "merges.scan_flink.ratio": 10,
}
AT_MOST = {
    "local.scan_ratio": 1.2,
    **{f"merges.scan_ratio_after_{number}": 1.2 for number in (1, 10, 100)},
    "merges.scan_ratio_after_maintenance": 1.05,
}
COLUMNS = {"id": "long!", "op": "string", "at": "long!", "day": "date", "name": "string"}


def make_changes(keys: Iterator[int], op: str, at: int, rows: int) -> Iterator[tuple[int, bytes]]:
    """Yield key and record of a change of each key, about 150 bytes."""
    for key in keys:
        day = f"2026-03-{key * DAYS // rows + 1:02d}"
        name = f"{key * 2654435761 % 2**32:08x}{at:08x}" * 5
        yield key, json.dumps({"id": key, "op": op, "at": at, "day": day, "name": name}).encode()


class Topic:
    """A topic whose records are partitioned by key."""

    def __init__(self, bootstrap: str, name: str) -> None:
        """Create the topic."""
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(15)
        settings: dict[str, str | int] = {"bootstrap.servers": bootstrap, "linger.ms": 50}
        self._producer = Producer({**settings, "queue.buffering.max.messages": 500_000})
        self._name = name

    def send(self, changes: Iterator[tuple[int, bytes]]) -> None:
        for key, value in changes:
            while True:
                try:
                    self._producer.produce(self._name, value=value, partition=key % PARTITIONS)
                except BufferError:
                    self._producer.poll(0.2)
                else:
                    break
        self._producer.flush(120)


def write_streams(folder: Path, topic: str) -> tuple[str, str, str]:
    """Write an upsert stream and two append streams of the topic; give their names."""
    common = {
        "owner": "bench@example.org",
        "source": {"topic": topic},
        "value": {"convert": "json", "columns": COLUMNS},
        "batch": {"max_records": BATCH},
    }
    upsert = {
        "name": "bench.state",
        "mode": "upsert",
        "id_columns": ["id"],
        "cdc_field": "op",
        "partition_by": ["month(day)"],
        "sort_by": ["id"],
        "properties": {"write.merge.mode": os.environ.get("MODE", "merge-on-read")},
    }
    files = {
        "state": {**common, "order": {"sequence_by": ["at"]}, "table": upsert},
        "plain": {**common, "table": {"name": "bench.plain"}},
        "first": {**common, "table": {"name": "bench.first"}},
    }
    for name, document in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump({"stream": name, **document}))
    return "state", "plain", "first"


def take_all(work: Workspace, bad: int = 0) -> int:
    """Publish batches until nothing is left; give the number of records.

    `bad` records of the first batch become dead letters. A failed job is run again, as by Airflow.
    """
    taken = 0
    while isinstance(plan := plan_next_batch(work), BatchPlan):
        count = sum(end - start for r in plan.ranges.values() for start, end in r.values())
        for attempt in stamina.retry_context(on=JobFailedError, attempts=3):
            with attempt:
                run_ours(work, plan, count - bad)
        taken, bad = taken + count, 0
    return taken


class Bench:
    """A state table, with FLINK=1 Flink's table of the same changes, and a session for scans."""

    def __init__(self, environment: Mapping[str, str], rows: int, stack: ExitStack) -> None:
        """Open the streams."""
        facts = ask(environment, "stack", "status")
        self.rows, self.clock = rows, 0
        self.pids = measured_pids(int(facts["parts"]["spark_connect"]["pid"]))
        self.topic = Topic(facts["kafka"]["bootstrap"], "benchstate")
        names = write_streams(Path(os.environ["FRAZIL_STREAMS"]), "benchstate")
        works = (open_workspace(name, "bench") for name in names)
        self.state, self.plain, self.first = works
        self.spark = SparkSession.builder.remote(facts["spark_connect"]["url"]).create()
        stack.callback(self.spark.stop)
        self.flink: FlinkUpserts | None = None
        if os.environ.get("FLINK"):
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="frazil-bench-")))
            flink = stack.enter_context(start_flink(facts["kafka"]["bootstrap"], folder))
            name = "bench.flink"
            self.flink = FlinkUpserts(flink, self.spark, "benchstate", PARTITIONS, name)

    def send(self, keys: Iterator[int], op: str = "u") -> None:
        self.clock += 1
        self.topic.send(make_changes(keys, op, self.clock, self.rows))

    def time(self, action: Callable[[], object]) -> dict[str, float]:
        seconds, cpu = measure(self.pids, action)
        return {"seconds": round(seconds, 2), "cpu_seconds": round(cpu, 2)}

    def take(self) -> dict[str, Any]:
        """Let all streams take the records, two by turns; compare the throughputs of these."""
        take_all(self.first)
        sides = [("append_stream", self.plain), ("change_table", self.state)]
        figures: dict[str, Any] = {
            name: self.time(partial(take_all, work))
            for name, work in sides[:: 1 - self.clock % 2 * 2]
        }
        seconds = [figures[name]["seconds"] for name, _ in sides]
        return {**figures, "throughput_ratio": round(seconds[0] / seconds[1], 3)}

    def merge(self) -> dict[str, Any]:
        """Merge; give time, and what its snapshots added."""
        before = {snapshot.snapshot_id for snapshot in self.list_snapshots()}
        figures: dict[str, Any] = self.time(lambda: merge_changes(self.state))
        added = [each.summary for each in self.list_snapshots() if each.snapshot_id not in before]
        named = {"bytes": "added-files-size", "deletes": "added-position-deletes"}
        return figures | {
            name: sum(int(summary[key] or 0) for summary in added if summary is not None)
            for name, key in named.items()
        }

    def upsert(self) -> dict[str, float]:
        """Let Flink take the records."""
        if self.flink is None:
            return {}
        if not self.flink.offsets:
            self.flink.create()
        seconds, cpu = measure([self.flink.flink.process.pid], self.flink.run)
        return {"flink_seconds": round(seconds, 2), "flink_cpu_seconds": round(cpu, 2)}

    def list_snapshots(self) -> list[Snapshot]:
        table = self.state.store.find("bench.state")
        return [] if table is None else table.metadata.snapshots

    def find_snapshot(self) -> str:
        """Return the state as it is now, as a table in SQL."""
        snapshot = self.state.store.load("bench.state").current_snapshot()
        assert snapshot is not None
        return f"lake.bench.state VERSION AS OF {snapshot.snapshot_id}"

    def scan(self, table: str) -> float:
        """Return the time of a scan of all columns of a table, and see that no row lacks."""
        begun = time.monotonic()
        query = f"SELECT count(*), sum(hash(id, at, day, name)) FROM {table}"  # noqa: S608
        [(count, _checksum)] = self.spark.sql(query).collect()
        assert count == self.rows, count
        return time.monotonic() - begun

    def scan_flink(self, limit: float) -> dict[str, Any]:
        """Return the time of one scan of Flink's table, and its ratio to one of the state.

        A scan that is stopped at the limit would have taken longer, so its ratio is larger. Spark
        holds equality deletes in memory; where that is not enough, which may end Spark's server,
        there is no ratio.
        """
        assert self.flink is not None
        state, is_late = self.find_snapshot(), threading.Event()
        ours = statistics.median([self.scan(state) for _ in range(SCANS)])

        def stop() -> None:
            is_late.set()
            self.spark.interruptTag("flink")

        timer = threading.Timer(limit, stop)
        timer.daemon = True
        self.spark.addTag("flink")
        timer.start()
        try:
            theirs = self.scan(f"lake.{self.flink.table}")
        except PySparkException as error:
            if any(text in str(error) for text in ("OutOfMemoryError", "stopped SparkContext")):
                return {"state_seconds": round(ours, 2), "flink_error": "OutOfMemoryError"}
            if not is_late.is_set() or "OPERATION_CANCELED" not in str(error):
                raise
            found = {"state_seconds": round(ours, 2), "ratio": round(limit / ours, 1)}
            return {**found, "ratio_is_least": True}
        finally:
            timer.cancel()
            self.spark.removeTag("flink")
        seconds = {"state_seconds": round(ours, 2), "flink_seconds": round(theirs, 1)}
        return {**seconds, "ratio": round(theirs / ours, 1)}

    def compare_scans(self, table: str, with_table: str) -> float:
        """Divide the median times of scans of two tables, by turns."""
        for each in (table, with_table):
            self.spark.sql(f"REFRESH TABLE {each.split()[0]}")
        times = [(self.scan(table), self.scan(with_table)) for _ in range(SCANS + 1)][1:]
        ours, theirs = (statistics.median(each) for each in zip(*times, strict=True))
        return round(ours / theirs, 3)


def draw(kind: str, rows: int, changes: int, dice: random.Random) -> Iterator[int]:
    """Yield the key of each change of a round; some change several times."""
    first = rows - rows // DAYS if kind == "local" else 0
    return (dice.randrange(first, rows) for _ in range(changes))


def main(rows: int, changes: int, rounds: int, merges: int) -> dict[str, Any]:
    """Run all parts; progress goes to standard error."""
    dice = random.Random(7)
    with ExitStack() as stack:
        environment = stack.enter_context(started_stack("--only", "kafka,spark"))
        os.environ |= environment
        bench = Bench(environment, rows, stack)
        bench.send(iter(range(1000)), "c")
        bench.take()  # warm
        bench.send(iter(range(rows)), "c")
        found: dict[str, Any] = {"rows": rows, "changes": changes}
        found["inserts"] = {**bench.take(), "first_merge": bench.merge(), **bench.upsert()}
        report(found["inserts"])
        for kind in ("local", "scattered") if rounds else ():
            found[kind] = measure_kind(bench, kind, changes, rounds, dice)
        found["merges"] = measure_merges(bench, changes // 100, merges, dice)
    return found


def measure_kind(
    bench: Bench, kind: str, changes: int, rounds: int, dice: random.Random
) -> dict[str, Any]:
    """Change keys and merge, by rounds; compare scans before and after a compaction."""
    runs = []
    for _ in range(rounds):
        bench.send(draw(kind, bench.rows, changes, dice))
        taken, merged = bench.take(), bench.merge()
        merged_state = bench.find_snapshot()
        compacted = bench.time(lambda: compact_table(bench.state, rewrite_all=True))
        ratio = bench.compare_scans(merged_state, bench.find_snapshot())
        runs.append(
            {
                **taken,
                "merge": merged,
                **bench.upsert(),
                "compaction": compacted,
                "scan_ratio": ratio,
            }
        )
        report({kind: runs[-1]})
    flink = ("flink_seconds", "flink_cpu_seconds") if bench.flink else ()
    return {
        **{name: statistics.median(run[name] for run in runs) for name in flink},
        "throughput_ratio": statistics.median(run["throughput_ratio"] for run in runs),
        "merge_seconds": statistics.median(run["merge"]["seconds"] for run in runs),
        "merge_cpu_seconds": statistics.median(run["merge"]["cpu_seconds"] for run in runs),
        "merge_bytes": statistics.median(run["merge"]["bytes"] for run in runs),
        "scan_ratio": statistics.median(run["scan_ratio"] for run in runs),
    }


def measure_merges(bench: Bench, changes: int, merges: int, dice: random.Random) -> dict[str, Any]:
    """Compare scans after one and after many merges with those of the compacted state.

    Flink's table, which was never compacted, is compared right after the last merge.
    """
    compact_table(bench.state, rewrite_all=True)
    compacted = bench.find_snapshot()
    scans: dict[str, Any] = {}
    for number in range(1, merges + 1):
        bench.send(draw("local", bench.rows, changes, dice))
        take_all(bench.state)
        bench.merge()
        bench.upsert()
        if number in {1, 10, 100, merges}:
            ratio = bench.compare_scans(bench.find_snapshot(), compacted)
            scans[f"scan_ratio_after_{number}"] = ratio
            report(scans)
        if number % EVERY == 0 and number < merges:
            compact_table(bench.state)
    if bench.flink is not None:
        scans["scan_flink"] = bench.scan_flink(float(os.environ.get("LIMIT", "600")))
        report(scans)
    compact_table(bench.state)
    ratio = bench.compare_scans(bench.find_snapshot(), compacted)
    return {**scans, "scan_ratio_after_maintenance": ratio}


def judge(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits, which of them are missed, and which have no figure."""
    missed, unmeasured = [], []
    for limits, sign, words in ((AT_MOST, 1, "at most"), (AT_LEAST, -1, "at least")):
        for path, limit in limits.items():
            try:
                found = find_figure(figures, path)
            except KeyError:
                unmeasured.append(path)
                continue
            missed += (
                [f"{path}: {found}, limit {words} {limit}"] if sign * found > sign * limit else []
            )
    limits = {"at_least": AT_LEAST, "at_most": AT_MOST}
    return {"limits": limits, "missed": missed, "unmeasured": unmeasured}


def report(figures: object) -> None:
    """Show progress."""
    print(json.dumps(figures), file=sys.stderr)


if __name__ == "__main__":
    names = {"ROWS": 2_000_000, "CHANGES": 200_000, "ROUNDS": 3, "MERGES": 10}
    sizes = [int(os.environ.get(name, str(size))) for name, size in names.items()]
    measured = main(*sizes)
    judged = judge(measured)
    print(json.dumps(measured | judged, indent=2))
    sys.exit(1 if judged["missed"] else 0)
