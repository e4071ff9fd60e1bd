"""A rollout that makes every record bad: the budget stops it, and no process grows with it.

FRAZIL_HOME names a running stack. Prints the peak memory of `frazil run` with its Spark client for
a small batch and for one of RECORDS (1,000,000), both all bad, as JSON.
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

from frazil.connections import find_kafka_config
from frazil.workspace import open_workspace

FRAZIL = Path(sys.executable).with_name("frazil")
MIB = 1024 * 1024


def run_batch(stream: str) -> dict[str, object]:
    """Run one batch and watch the memory of its processes on this side."""
    started = time.monotonic()
    process = subprocess.Popen(
        [str(FRAZIL), "run", stream], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    peak = 0
    while process.poll() is None:
        peak = max(peak, read_rss(process.pid))
        time.sleep(0.05)
    output, _ = process.communicate()
    return {
        "exit": process.returncode,
        "seconds": round(time.monotonic() - started, 1),
        "peak_mib": round(peak / MIB),
        "error": next((line for line in output.splitlines() if "BudgetExceeded" in line), output),
    }


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
    orders.fill_topic(find_kafka_config("kafka_default")["bootstrap.servers"], stream, records)
    outcome = run_batch(stream)
    work = open_workspace(stream, "bench")
    letters = work.store.load(work.stream.dead_letters_table)
    rows = [t.scan().count() for t in (work.store.load(work.stream.table.name), letters)]
    return {"records": records, **outcome, "rows": rows[0], "letters": rows[1]}


if __name__ == "__main__":
    large = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    print(json.dumps([measure(1000), measure(large)], indent=2))
