"""Bytes of a table after its compaction, beside those of plain Spark's default write; prints JSON.

    python tests/bench/compacted.py RECORDS BATCHES

The same events of 365 bytes, in BATCHES, also go into a table that its stream file sorts. It needs
a running stack (`frazil stack up --only kafka,spark`).
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import orders
import yaml
from pyspark.sql import SparkSession
from throughput import create_floor, run_floor, run_ours, write_stream

from frazil.connections.clients import find_kafka_config, find_spark_remote
from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import plan_next_batch
from frazil.maintenance.compaction import compact_table
from frazil.workspace import Workspace, open_workspace

LIMIT = 1.0
SORTED_BY = ["ts"]


def measure_bytes(work: Workspace, table: str) -> dict[str, int]:
    """Return the bytes and the number of a table's data files."""
    head = work.store.load(table).current_snapshot()
    assert head is not None
    assert head.summary is not None
    named = {"bytes": "total-files-size", "files": "total-data-files", "rows": "total-records"}
    return {name: int(head.summary[key] or 0) for name, key in named.items()}


def open_stream(
    folder: Path, stream: str, table: str, records: int, extra: Mapping[str, object]
) -> Workspace:
    """Write the stream's file for one table."""
    document = orders.write_document(stream, table, records, orders.COLUMNS)
    document["table"] = {**document["table"], **extra}
    (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))
    return open_workspace(stream, "bench")


def fill_and_compact(work: Workspace, records: int) -> dict[str, object]:
    """Take batches until nothing is left, then compact."""
    while isinstance(plan := plan_next_batch(work), BatchPlan):
        run_ours(work, plan, records)
    table = work.stream.table.name
    hot, begun = measure_bytes(work, table), time.monotonic()
    compact_table(work, rewrite_all=True)
    return {
        "written": hot,
        "compacted": measure_bytes(work, table),
        "seconds": round(time.monotonic() - begun, 1),
    }


def main(records: int, batches: int) -> dict[str, object]:
    """Write the floor and both tables; give bytes and ratios."""
    stream, folder = write_stream(orders, records, 10)
    table = f"bench.{stream}"
    work = open_stream(folder, stream, f"{table}_floor_plan", records, {})
    spark = SparkSession.builder.remote(find_spark_remote()).create()
    spark.sql("CREATE NAMESPACE IF NOT EXISTS lake.bench")
    floor = create_floor(spark, orders, f"lake.{table}_floor", {})
    plan = plan_next_batch(work)
    assert isinstance(plan, BatchPlan)
    run_floor(spark, plan, find_kafka_config("kafka_default")["bootstrap.servers"], floor)
    spark.stop()
    found: dict[str, object] = {"records": records, "batches": batches}
    found["floor"] = default = measure_bytes(work, f"{table}_floor")
    for name, extra in (("as_it_came", {}), ("sorted", {"sort_by": SORTED_BY})):
        work = open_stream(folder, stream, f"{table}_{name}", records // batches, extra)
        found[name] = made = fill_and_compact(work, records // batches)
        assert made["compacted"]["rows"] == default["rows"]  # type: ignore[index]
        found[f"{name}_beside_floor"] = round(made["compacted"]["bytes"] / default["bytes"], 3)  # type: ignore[index]
    return found


if __name__ == "__main__":
    os.environ.setdefault("FRAZIL_DIRECT_MIN_RECORDS", "1")
    figures = main(int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(figures, indent=2))
    sys.exit(float(str(figures["as_it_came_beside_floor"])) > LIMIT)
