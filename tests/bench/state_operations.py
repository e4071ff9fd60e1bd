"""Redrive one dead letter and erase one key of a large state table; prints JSON.

    PYTHONPATH=tests python tests/bench/state_operations.py

CHANGES (10,000,000) changes of KEYS (1,000,000) keys are ingested and merged, a merge after each
PORTION (5,000,000). Where a merge waits for a compaction, all tables are compacted. One record has
a number beyond its column, which is widened afterwards. It gives seconds, CPU seconds, the bytes
that the processes read, and those that the snapshots added. Keys are erased before and after a
compaction, with the number of row groups whose bounds contain the key. The stack is one of its own.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml
from pyiceberg.table import Table
from run_bench import ask, started_stack
from state_merges import PARTITIONS, Topic, take_all
from throughput import measure, measured_pids

from frazil.errors import MergeHaltedError
from frazil.ingest.pipeline import plan_next_batch
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.recovery.messages import DeadLetterChoice
from frazil.recovery.redrive import redrive_dead_letters
from frazil.state_tables.merge import merge_changes
from frazil.workspace import Workspace, open_workspace

STREAM = "state"
BATCH = 1_000_000


def make_changes(first: int, count: int, keys: int) -> Iterator[tuple[int, bytes]]:
    """Yield changes of random keys, about 60 bytes each; the very first has a large number."""
    dice = random.Random(first)
    for at in range(first, first + count):
        key = at if at < keys else dice.randrange(keys)
        number = 2**40 if at == 0 else key * 2654435761 % 2**31
        yield key, b'{"id":%d,"op":"u","at":%d,"number":%d}' % (key, at, number)


def write_stream(kind: str) -> None:
    """Write the stream file; `kind` is the type of the column that one record's number exceeds."""
    document = {
        "stream": STREAM,
        "owner": "bench@example.org",
        "source": {"topic": STREAM},
        "value": {
            "convert": "json",
            "columns": {"id": "long!", "op": "string", "at": "long!", "number": kind},
        },
        "errors": {"max_bad_ratio": 1.0},
        "batch": {"max_records": BATCH},
        "order": {"sequence_by": ["at"]},
        "table": {
            "name": f"bench.{STREAM}",
            "mode": "upsert",
            "id_columns": ["id"],
            "cdc_field": "op",
            "partition_by": [f"bucket(id, {PARTITIONS})"],
            "sort_by": ["id"],
        },
    }
    Path(os.environ["FRAZIL_STREAMS"], f"{STREAM}.yaml").write_text(yaml.safe_dump(document))


def open_stream(run_id: str = "bench") -> Workspace:
    """Open the stream as its file is now."""
    return open_workspace(STREAM, run_id)


def load_tables() -> list[Table]:
    """Load the change table and the state table."""
    store = open_stream().store
    tables = (store.find(f"bench.{STREAM}{end}") for end in ("__changes", ""))
    return [table for table in tables if table is not None]


def read_bytes(pids: tuple[int, ...]) -> int:
    """Return the bytes that processes and their children have read so far, also from the cache."""
    parents = [psutil.Process(pid) for pid in pids]
    children = [child for parent in parents for child in parent.children(recursive=True)]
    return sum(process.io_counters().read_chars for process in [*parents, *children])


def time_action(pids: tuple[int, ...], action: Callable[[], object]) -> dict[str, float]:
    """Measure seconds, bytes read, and the bytes that new snapshots of both tables added."""
    seen = {each.snapshot_id for table in load_tables() for each in table.metadata.snapshots}
    before = read_bytes(pids)
    seconds, cpu = measure(pids, action)
    read = read_bytes(pids) - before
    added = [
        int((each.summary and each.summary["added-files-size"]) or 0)
        for table in load_tables()
        for each in table.metadata.snapshots
        if each.snapshot_id not in seen
    ]
    figures: dict[str, float] = {
        "seconds": round(seconds, 2),
        "cpu_seconds": round(cpu, 2),
        "read_megabytes": round(read / 1e6, 1),
        "written_megabytes": round(sum(added) / 1e6, 2),
        "snapshots": len(added),
    }
    print(json.dumps(figures), file=sys.stderr)
    return figures


def ingest(topic: Topic, changes: int, keys: int, portion: int) -> dict[str, float]:
    """Send, publish and merge portions; return the seconds of publishing and of merging."""
    seconds = {"publish": 0.0, "merge": 0.0, "compact": 0.0, "compactions": 0.0}
    for first in range(0, changes, portion):
        topic.send(make_changes(first, min(portion, changes - first), keys))
        begun = time.monotonic()
        take_all(open_stream(), bad=int(first == 0))
        seconds["publish"] += time.monotonic() - begun
        merge_all(seconds)
        print(json.dumps({"changes": first + portion, **seconds}), file=sys.stderr)
    return {name: round(value, 1) for name, value in seconds.items()}


def merge_all(seconds: dict[str, float]) -> None:
    """Merge what is not merged, and compact where a merge waits for that; add the seconds."""
    while True:
        begun = time.monotonic()
        try:
            merge_changes(open_stream())
        except MergeHaltedError:
            halted = time.monotonic()
            compact_table(open_stream())
            seconds["compact"] += time.monotonic() - halted
            seconds["compactions"] += 1
            seconds["merge"] += halted - begun
        else:
            seconds["merge"] += time.monotonic() - begun
            return


def erase_key(pids: tuple[int, ...], key: int) -> dict[str, Any]:
    """Erase a key; count the row groups of the change table that may contain it."""
    request = ErasureRequest(
        stream=STREAM, keys=(f"id={key}",), by="bench@example.org", reason="bench", dry_run=False
    )
    groups = count_row_groups(load_tables()[0], key)
    work = open_stream(f"bench-{key}")
    found: list[int] = []

    def act() -> None:
        found.append(erase(work, plan_erasure(work, request), request).rows)

    return {**time_action(pids, act), "changes": found, **groups}


def count_row_groups(table: Table, key: int) -> dict[str, int]:
    """Count the row groups of the live files, and those whose bounds contain a key."""
    total = containing = 0
    for task in table.scan().plan_files():
        data = pq.read_metadata(task.file.file_path.removeprefix("file:"))
        place = data.schema.names.index("id")
        for number in range(data.num_row_groups):
            bounds = data.row_group(number).column(place).statistics
            total += 1
            containing += bounds.min <= key <= bounds.max
    return {"row_groups": total, "row_groups_of_key": containing}


def main(changes: int, keys: int, portion: int) -> Mapping[str, Any]:
    """Run all parts; progress goes to standard error."""
    with started_stack("--only", "kafka,spark") as environment:
        os.environ |= environment
        facts = ask(environment, "stack", "status")
        pids = measured_pids(int(facts["parts"]["spark_connect"]["pid"]))
        topic = Topic(facts["kafka"]["bootstrap"], STREAM)
        write_stream("int")
        found: dict[str, Any] = {"changes": changes, "keys": keys}
        found["seconds"] = ingest(topic, changes, keys, portion)
        write_stream("long")
        plan_next_batch(open_stream())  # widens the column
        choice = DeadLetterChoice(stream=STREAM, dry_run=False)
        found["redrive"] = time_action(pids, lambda: redrive_dead_letters(open_stream(), choice))
        found["merge"] = time_action(pids, lambda: merge_changes(open_stream()))
        found["erase"] = erase_key(pids, keys // 3)
        found["compaction"] = time_action(
            pids, lambda: compact_table(open_stream(), rewrite_all=True)
        )
        found["erase_after_compaction"] = erase_key(pids, keys // 5)
        [_, state] = load_tables()
        found["state_rows"] = state.scan().count()
        assert found["state_rows"] == keys - 2, found["state_rows"]
    return found


if __name__ == "__main__":
    names = {"CHANGES": 10_000_000, "KEYS": 1_000_000, "PORTION": 5_000_000}
    sizes = [int(os.environ.get(name, str(size))) for name, size in names.items()]
    print(json.dumps(main(*sizes), indent=2))
