"""A rollout that makes every record bad: the budget stops it, and no process grows with it.

FRAZIL_HOME names a running stack, FRAZIL_SPARK_PID its Spark server, which is the driver. Prints,
for a small batch and for one of RECORDS (1,000,000), both all bad: the peak memory of `frazil run`
with its Spark client, and how far the driver's old generation grew, where objects go that stay.
"""

import json
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path

import orders
import psutil
import yaml

from frazil.connections.clients import find_kafka_config
from frazil.workspace import open_workspace

FRAZIL = Path(sys.executable).with_name("frazil")
MIB = 1024 * 1024
GROWTH_LIMIT_MIB = 200


def run_batch(stream: str) -> dict[str, object]:
    """Run one batch and watch the memory of its processes, and of the driver."""
    driver = int(os.environ["FRAZIL_SPARK_PID"])
    subprocess.run(["jcmd", str(driver), "GC.run"], check=True, stdout=subprocess.DEVNULL)
    before = highest = read_old_generation(driver)
    started = time.monotonic()
    process = subprocess.Popen(
        [str(FRAZIL), "run", stream], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, read_rss(process.pid))
        highest = max(highest, read_old_generation(driver))
    output, _ = process.communicate()
    return {
        "exit": process.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "client_peak_mib": round(peak / MIB),
        "driver_growth_mib": round((highest - before) / MIB),
        "driver_growth_limit_mib": GROWTH_LIMIT_MIB,
        "error": next((line for line in output.splitlines() if "BudgetExceeded" in line), output),
    }


def read_old_generation(pid: int) -> float:
    """Read how much of a JVM's old generation is used, bytes; takes a few tenths of a second."""
    told = subprocess.run(
        ["jstat", "-gc", str(pid)], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    return float(dict(zip(told[0].split(), told[1].split(), strict=True))["OU"]) * 1024


def read_rss(pid: int) -> int:
    """Sum the resident memory of a process and its children."""
    try:
        parent = psutil.Process(pid)
        return sum(p.memory_info().rss for p in (parent, *parent.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def measure(records: int) -> dict[str, object]:
    """Fill a topic with records that lack a required column, and run a batch of them all."""
    stream = f"bench{secrets.token_hex(3)}"
    folder = Path(os.environ["FRAZIL_HOME"]) / "bench" / stream
    folder.mkdir(parents=True)
    document = orders.write_document(stream, f"bench.{stream}", records)
    document["value"] = {"convert": "json", "columns": {**orders.COLUMNS, "channel": "string!"}}
    del document["quality"]
    (folder / f"{stream}.yaml").write_text(yaml.safe_dump(document))
    os.environ["FRAZIL_STREAMS"] = str(folder)
    orders.fill_topic(
        find_kafka_config("kafka_default")["bootstrap.servers"],
        stream,
        orders.iterate_values(records),
    )
    outcome = run_batch(stream)
    work = open_workspace(stream, "bench")
    letters = work.store.load(work.stream.dead_letters_table)
    rows = [t.scan().count() for t in (work.store.load(work.stream.table.name), letters)]
    assert (outcome["exit"], *rows) == (1, 0, 0), "the budget stops it, and nothing is visible"
    return {"records": records, **outcome, "rows": rows[0], "letters": rows[1]}


if __name__ == "__main__":
    large = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(json.dumps([measure(1000), measure(large)], indent=2))
