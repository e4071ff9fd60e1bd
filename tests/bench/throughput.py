"""Stage, check and publish beside a floor in the same session, interleaved, medians of several."""

import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import orders
import psutil
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.connections import find_kafka_config, find_spark_remote
from frazil.contracts import BatchPlan, Message, StageResult
from frazil.engine import SparkEngine
from frazil.ingest import check_batch, plan_next_batch, publish_staged, stage_batch
from frazil.workspace import Workspace, open_workspace

sys.path.insert(0, str(Path(__file__).parents[2] / "spark_jobs"))
import stage_batch as job


class SameSession(SparkEngine):
    """The product's own job in the benchmark's session, so that both sides pay the same."""

    def __init__(self, spark: SparkSession) -> None:
        """Keep the session."""
        super().__init__("")
        self.spark = spark

    def run_job(self, job_name: str, request: Message, result: type[StageResult]) -> StageResult:  # type: ignore[override]
        assert (job_name, result) == ("stage_batch", StageResult)
        return job.stage_batch(self.spark, request)


def run_floor(spark: SparkSession, plan: BatchPlan, bootstrap: str, table: str) -> None:
    """Read the same range, decode, append: no check, no letters, no offsets in a ledger."""
    topic = plan.stream
    ranges = plan.ranges[topic]
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.max.partition.fetch.bytes", "8388608")
        .option("kafka.fetch.max.bytes", "52428800")
        .option("kafka.max.poll.records", "5000")
        .option("kafka.fetch.max.wait.ms", "10")
        .option("assign", json.dumps({topic: sorted(ranges)}))
        .option("startingOffsets", json.dumps({topic: {p: r[0] for p, r in ranges.items()}}))
        .option("endingOffsets", json.dumps({topic: {p: r[1] for p, r in ranges.items()}}))
        .load()
    )
    decoded = F.from_json(F.col("value").cast("string"), orders.SPARK_SCHEMA)
    rows = frame.select(decoded.alias("d"), "topic", "partition", "offset", "timestamp")
    rows.select("d.*", "topic", "partition", "offset", "timestamp").writeTo(table).append()


def measure(
    pids: Sequence[int], action: Callable[[], object], apart: Sequence[int] = ()
) -> tuple[float, float]:
    """Give wall seconds and CPU seconds of some processes and their workers."""
    before, started = read_cpu(pids, apart), time.monotonic()
    action()
    seconds, after = time.monotonic() - started, read_cpu(pids, apart)
    # A worker that ended since is in its parent's account of children, if anywhere.
    return seconds, sum(cpu - before.get(pid, 0.0) for pid, cpu in after.items())


def read_cpu(pids: Sequence[int], apart: Sequence[int]) -> dict[int, float]:
    """Give the CPU seconds of each process, those of its ended children included."""
    return {p.pid: sum(p.cpu_times()[:4]) for p in list_family(pids, apart)}


def list_family(pids: Sequence[int], apart: Sequence[int] = ()) -> list[psutil.Process]:
    """List processes and their descendants, without some that count for themselves."""
    parents = [psutil.Process(pid) for pid in pids]
    children = [child for parent in parents for child in parent.children(recursive=True)]
    return [*parents, *(child for child in children if child.pid not in apart)]


def measured_pids(spark_pid: int | None) -> tuple[int, ...]:
    """Name this process and, where it is known, the Spark server."""
    return (os.getpid(),) if spark_pid is None else (os.getpid(), spark_pid)


def main(records: int, rounds: int, spark_pid: int | None) -> dict[str, object]:
    """Run the comparison and give its figures."""
    stream = f"bench{secrets.token_hex(3)}"
    folder = Path(os.environ["FRAZIL_HOME"]) / "bench" / stream
    (folder / "expectations").mkdir(parents=True)
    suite = {"name": stream, "expectations": orders.EXPECTATIONS}
    (folder / "expectations" / f"{stream}.json").write_text(json.dumps(suite))
    document = orders.write_document(stream, f"bench.{stream}", records)
    (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))
    os.environ["FRAZIL_STREAMS"] = str(folder)
    bootstrap = find_kafka_config("kafka_default")["bootstrap.servers"]
    orders.fill_topic(bootstrap, stream, records)
    spark = SparkSession.builder.remote(find_spark_remote()).create()
    ours: list[tuple[float, float]] = []
    floors: list[tuple[float, float]] = []
    schema = (
        f"{orders.SPARK_SCHEMA}, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP"
    )
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    pids = measured_pids(spark_pid)
    for turn in range(rounds + 1):
        table = f"bench.{stream}_{turn}"
        floor_table = f"lake.{table}_floor"
        spark.sql(f"CREATE TABLE {floor_table} ({schema}) USING iceberg")
        document["table"] = {"name": table}
        (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))
        work = open_workspace(stream, "bench")
        work.__dict__["engine"] = SameSession(spark)
        plan = plan_next_batch(work)
        assert isinstance(plan, BatchPlan)
        sides = [
            (floors, partial(run_floor, spark, plan, bootstrap, floor_table)),
            (ours, partial(run_ours, work, plan, records)),
        ]
        for side, run in sides if turn % 2 else reversed(sides):  # what the first one read is warm
            side.append(measure(pids, run))
        print(f"round {turn}: floor {floors[-1]} ours {ours[-1]}", file=sys.stderr)
    spark.stop()
    return summarize(records, floors[1:], ours[1:])


def run_ours(work: Workspace, plan: BatchPlan, records: int) -> None:
    """Take the three steps that a batch pays for."""
    staged = stage_batch(work, plan)
    verdict = check_batch(work, plan, staged)
    published = publish_staged(work, plan, staged, verdict)
    assert published.rows_written == records


def summarize(
    records: int, floors: list[tuple[float, float]], ours: list[tuple[float, float]]
) -> dict[str, object]:
    """Give medians, extremes and the ratio of each pair."""
    floor_wall = statistics.median(wall for wall, _ in floors)
    our_wall = statistics.median(wall for wall, _ in ours)
    return {
        "records": records,
        "rounds": len(ours),
        "floor_records_per_second": round(records / floor_wall),
        "frazil_records_per_second": round(records / our_wall),
        "time_ratio_median": round(our_wall / floor_wall, 3),
        "time_ratio_pairs": [round(o[0] / f[0], 3) for o, f in zip(ours, floors, strict=True)],
        "cpu_seconds_per_million": {
            "floor": round(statistics.median(c for _, c in floors) / records * 1e6, 2),
            "frazil": round(statistics.median(c for _, c in ours) / records * 1e6, 2),
        },
    }


if __name__ == "__main__":
    pid = int(os.environ["FRAZIL_SPARK_PID"]) if "FRAZIL_SPARK_PID" in os.environ else None
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), pid), indent=2))
