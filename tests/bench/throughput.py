"""Stage, check and publish beside two floors in the same session, by turns; prints JSON.

    python tests/bench/throughput.py RECORDS ROUNDS

EVENTS (orders) are of 365 bytes and nested, or `readings`: of 147 bytes and flat; the suite has
EXPECTATIONS (10) of them. PARTITION_BY, as `day(ts); event_type`, partitions all tables; PATTERNS,
as `currency ^[A-Z]{3}$; session ^[0-9a-f]+$`, and MEANS, as `amount; order_id`, add expectations.
One floor has default write settings, the other those of our tables. It needs a running stack
(`frazil stack up --only kafka,spark`); FRAZIL_SPARK_PID names its Spark server, whose CPU seconds
count too.
"""

import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import orders
import psutil
import readings
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.connections.clients import find_kafka_config, find_spark_remote
from frazil.iceberg.catalog import HOT_DICTIONARY, TABLE_DEFAULTS
from frazil.ingest.checking import check_batch
from frazil.ingest.messages import BatchPlan, StageRequest, StageResult
from frazil.ingest.pipeline import plan_next_batch, publish_staged
from frazil.ingest.staging import stage_batch
from frazil.messages import Message
from frazil.spark.engine import SparkEngine
from frazil.workspace import Workspace, open_workspace

sys.path.insert(0, str(Path(__file__).parents[2] / "spark_jobs"))
import stage_batch as job


def read_list(variable: str) -> list[str]:
    """Read what stands between semicolons in the environment."""
    return [part.strip() for part in os.environ.get(variable, "").split(";") if part.strip()]


PARTITION_BY = read_list("PARTITION_BY")
MEANS = read_list("MEANS")
PATTERNS = [part.split(maxsplit=1) for part in read_list("PATTERNS")]


class SameSession(SparkEngine):
    """The product's own job in the benchmark's session, so that both sides pay the same."""

    def __init__(self, spark: SparkSession) -> None:
        """Keep the session."""
        super().__init__("")
        self.spark = spark
        self._set: frozenset[str] = frozenset()

    def run_job(self, job_name: str, request: Message, result: type[StageResult]) -> StageResult:  # type: ignore[override]
        assert (job_name, result) == ("stage_batch", StageResult)
        assert isinstance(request, StageRequest)
        for key in self._set - request.session_conf.keys():  # of a batch of another size
            self.spark.conf.unset(key)
        self._set = frozenset(request.session_conf)
        return job.stage_batch(self.spark, request)


def run_floor(
    spark: SparkSession,
    plan: BatchPlan,
    bootstrap: str,
    table: str,
    schema: str = orders.SPARK_SCHEMA,
) -> None:
    """Read the same range, decode, append: no check, no letters, no offsets in a ledger."""
    spark.conf.unset("spark.sql.sources.useV1SourceList")  # ours is set; a floor has defaults
    topic = plan.stream
    ranges = plan.ranges[topic]
    frame = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("kafka.max.partition.fetch.bytes", "8388608")
        .option("kafka.fetch.max.bytes", "52428800")
        .option("kafka.max.poll.records", "5000")
        .option("kafka.fetch.max.wait.ms", "1")
        .option("assign", json.dumps({topic: sorted(ranges)}))
        .option("startingOffsets", json.dumps({topic: {p: r[0] for p, r in ranges.items()}}))
        .option("endingOffsets", json.dumps({topic: {p: r[1] for p, r in ranges.items()}}))
        .load()
    )
    decoded = F.from_json(F.col("value").cast("string"), schema)
    rows = frame.select(decoded.alias("d"), "topic", "partition", "offset", "timestamp")
    rows.select("d.*", "topic", "partition", "offset", "timestamp").writeTo(table).append()


def measure(
    pids: Sequence[int], action: Callable[[], object], apart: Sequence[int] = ()
) -> tuple[float, float]:
    """Return wall seconds and CPU seconds of some processes and their workers."""
    before, started = read_cpu(pids, apart), time.monotonic()
    action()
    seconds, after = time.monotonic() - started, read_cpu(pids, apart)
    # A worker that ended since is in its parent's account of children, if anywhere.
    return seconds, sum(cpu - before.get(pid, 0.0) for pid, cpu in after.items())


def read_cpu(pids: Sequence[int], apart: Sequence[int]) -> dict[int, float]:
    """Return the CPU seconds of each process, those of its ended children included."""
    return {p.pid: sum(p.cpu_times()[:4]) for p in list_family(pids, apart)}


def list_family(pids: Sequence[int], apart: Sequence[int] = ()) -> list[psutil.Process]:
    """List processes and their descendants, without some that count for themselves."""
    parents = [psutil.Process(pid) for pid in pids]
    children = [child for parent in parents for child in parent.children(recursive=True)]
    return [*parents, *(child for child in children if child.pid not in apart)]


def measured_pids(spark_pid: int | None) -> tuple[int, ...]:
    """Name this process and, where it is known, the Spark server."""
    return (os.getpid(),) if spark_pid is None else (os.getpid(), spark_pid)


def list_expectations(events: ModuleType, count: int) -> list[dict[str, object]]:
    """Return the suite of the events, filled up with bounds of a number, and what is added."""
    wanted = list[dict[str, object]](events.EXPECTATIONS[:count])
    number = next(name for name, kind in events.COLUMNS.items() if kind.startswith("long"))
    wanted += [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": number, "min_value": -extra, "max_value": 10**12 + extra},
        }
        for extra in range(1, count - len(wanted) + 1)
    ]
    wanted += [
        {
            "type": "expect_column_values_to_match_regex",
            "kwargs": {"column": column, "regex": pattern},
        }
        for column, pattern in PATTERNS
    ]
    wanted += [
        {
            "type": "expect_column_mean_to_be_between",
            "kwargs": {"column": column, "min_value": 0, "max_value": 10**12},
        }
        for column in MEANS
    ]
    return wanted


def write_stream(events: ModuleType, records: int, expectations: int) -> tuple[str, Path]:
    """Fill a topic, and write the stream's suite; give its name and the folder of its file."""
    stream = f"bench{secrets.token_hex(3)}"
    folder = Path(os.environ["FRAZIL_HOME"]) / "bench" / stream
    (folder / "expectations").mkdir(parents=True)
    suite = {"name": stream, "expectations": list_expectations(events, expectations)}
    (folder / "expectations" / f"{stream}.json").write_text(json.dumps(suite))
    os.environ["FRAZIL_STREAMS"] = str(folder)
    bootstrap = find_kafka_config("kafka_default")["bootstrap.servers"]
    orders.fill_topic(bootstrap, stream, events.iterate_values(records))
    return stream, folder


def main(
    events: ModuleType, expectations: int, records: int, rounds: int, spark_pid: int | None
) -> dict[str, object]:
    """Run the comparison and give its figures."""
    stream, folder = write_stream(events, records, expectations)
    bootstrap = find_kafka_config("kafka_default")["bootstrap.servers"]
    spark = SparkSession.builder.remote(find_spark_remote()).create()
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    pids = measured_pids(spark_pid)
    found: dict[str, list[tuple[float, float]]] = {"ours": [], "floor": [], "same": []}
    for turn in range(rounds + 1):
        table = f"bench.{stream}_{turn}"
        document = orders.write_document(stream, table, records, events.COLUMNS)
        document["table"] = {"name": table, "partition_by": PARTITION_BY}
        (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))
        work = open_workspace(stream, "bench")
        work.__dict__["engine"] = SameSession(spark)
        plan = plan_next_batch(work)
        assert isinstance(plan, BatchPlan)
        sides: list[tuple[str, Callable[[], object]]] = [
            ("ours", partial(run_ours, work, plan, records))
        ]
        for name, properties in (("floor", {}), ("same", {**TABLE_DEFAULTS, **HOT_DICTIONARY})):
            floor = create_floor(spark, events, f"lake.{table}_{name}", properties)
            run = partial(run_floor, spark, plan, bootstrap, floor, events.SPARK_SCHEMA)
            sides.append((name, run))
        first = turn % len(sides)  # what the first one read is warm
        for name, run in sides[first:] + sides[:first]:
            found[name].append(measure(pids, run))
            print(f"round {turn}: {name} {found[name][-1]}", file=sys.stderr)
    spark.stop()
    warm = {name: runs[1:] for name, runs in found.items()}
    figures = summarize(records, warm["floor"], warm["ours"], warm["same"])
    asked = expectations + len(PATTERNS) + len(MEANS)
    return {"bytes": events.TARGET_BYTES, "expectations": asked, **figures}


def create_floor(
    spark: SparkSession, events: ModuleType, table: str, properties: Mapping[str, str]
) -> str:
    """Create a floor's table, and name it."""
    schema = f"{events.SPARK_SCHEMA}, topic STRING, partition INT, offset BIGINT, "
    written = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    said = f" TBLPROPERTIES ({written})" if written else ""
    parts = f" PARTITIONED BY ({', '.join(PARTITION_BY)})" if PARTITION_BY else ""
    spark.sql(f"CREATE TABLE {table} ({schema} timestamp TIMESTAMP) USING iceberg{parts}{said}")
    return table


def run_ours(work: Workspace, plan: BatchPlan, records: int) -> None:
    """Take the three steps that a batch pays for."""
    staged = stage_batch(work, plan)
    verdict = check_batch(work, plan, staged)
    published = publish_staged(work, plan, staged, verdict)
    assert published.rows_written == records


def summarize(
    records: int,
    floors: list[tuple[float, float]],
    ours: list[tuple[float, float]],
    same: list[tuple[float, float]],
) -> dict[str, object]:
    """Return medians, extremes and the ratio of each round."""
    floor_wall = statistics.median(wall for wall, _ in floors)
    our_wall = statistics.median(wall for wall, _ in ours)
    pairs = [o[0] / f[0] for o, f in zip(ours, floors, strict=True)]
    alike = [o[0] / s[0] for o, s in zip(ours, same, strict=True)]
    sides = (("floor", floors), ("same_settings", same), ("frazil", ours))
    return {
        "records": records,
        "rounds": len(ours),
        "floor_records_per_second": round(records / floor_wall),
        "frazil_records_per_second": round(records / our_wall),
        "time_ratio_median": round(our_wall / floor_wall, 3),
        "time_ratio_pairs": [round(ratio, 3) for ratio in pairs],
        "time_ratio_same_settings": round(statistics.median(alike), 3),
        "cpu_seconds_per_million": {
            name: round(statistics.median(c for _, c in side) / records * 1e6, 2)
            for name, side in sides
        },
    }


if __name__ == "__main__":
    pid = int(os.environ["FRAZIL_SPARK_PID"]) if "FRAZIL_SPARK_PID" in os.environ else None
    kind = {"orders": orders, "readings": readings}[os.environ.get("EVENTS", "orders")]
    asked = int(os.environ.get("EXPECTATIONS", "10"))
    print(json.dumps(main(kind, asked, int(sys.argv[1]), int(sys.argv[2]), pid), indent=2))
