"""The page that shows the contest of peers."""

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import orders
import psutil
from jvm_peers import COMMIT_SECONDS

MIB = 1024 * 1024


def write_page(figures: dict[str, Any]) -> str:
    """Write the figures as a page: what was run where, a table, a chart."""
    peers, tools = figures["peers"], figures["versions"]
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
        "compare-and-set; nobody else checks, sets bad rows apart, or says what a snapshot holds. "
        f"Flink {tools['Flink']} streams at parallelism 2 in a warm JVM, with a checkpoint each "
        f"{COMMIT_SECONDS} s, and ends where the topic ends; it writes through Iceberg's newer "
        "sink (`table.exec.iceberg.use-v2-sink`), since the default one lost rows. "
        f"Kafka Connect with Iceberg's sink {tools['Kafka Connect']} is one warm worker with 2 "
        f"tasks that commits each {COMMIT_SECONDS} s; it has no end, so that its time is that of "
        "the commit that completed the table, and a small topic waits for the clock. Plain "
        "Python's time holds the start of its process. A reader that is none of them found every "
        "table whole, its amounts right to the cent."
    )
    terms = (
        "The table has no sort order and stands on a file system that the workers share, one pass "
        "counts all ten expectations, and no record is bad: there Python workers write the rows. "
        "[Decision record 10](decisions/0010-python-workers-write-what-is-sure.md) says where, and "
        "what else costs; [record 27](decisions/0027-workers-part-the-rows.md) has tables with "
        "partitions."
    )
    lines = [
        *("# Benchmarks", "", where, "", what, "", terms, ""),
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
