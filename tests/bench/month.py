"""What a batch costs after a month of a batch a minute, beside a table of the same day; JSON.

    python tests/bench/month.py

DAYS (30) of 1,440 commits each, maintained every MAINTAIN_HOURS (6), EXPIRE_HOURS (24) of snapshots
kept; it starts a stack of its own. The commits of the month are made as a publish makes them, with
a file and a manifest each, but without Spark and many to one write of the metadata: time passes by
setting back what the table's metadata says. Then RUNS (40) real batches go into the old table and
into one of the same day, by turns, so that whatever else the machine does meets both.
"""

import gc
import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

sys.path.insert(0, str(Path(__file__).parents[1]))

import yaml
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, TableUpdate, update_table_metadata
from run_bench import started_stack
from support.broker_lake import BrokerLake
from support.lake import passed, rows_of
from support.stack_lake import let_days_pass

from frazil.iceberg import commits
from frazil.iceberg.branches import name_branch
from frazil.ingest.messages import BatchPlan, PartitionCount, Staged
from frazil.ingest.planning import PlanInput, TableFacts, plan_batch
from frazil.ingest.snapshot_summaries import summarize_batch
from frazil.kafka.cluster import PartitionOffsets
from frazil.ledger.state import hint_properties
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.maintenance.tables import summarize_table
from frazil.observability.timeline import derive_events
from frazil.workspace import open_workspace
from frazil_cli.steps import run_one_batch

MINUTE_MS = 60_000
PER_HOUR = 60
RECORDS = 100
PHASES = ("plan_ms", "stage_ms", "check_ms", "publish_ms")
LIMIT = 1.5


def open_lake(folder: Path, expire_hours: int) -> BrokerLake:
    """Write a stream, make its topic, and let a first real batch make its table."""
    name = f"month{secrets.token_hex(3)}"
    document = {
        "stream": name,
        "owner": "bench@example.org",
        "source": {"topic": name},
        "value": {"columns": {"id": "long!", "name": "string"}},
        "table": {"name": f"bench.{name}"},
        "batch": {"max_records": RECORDS},
        "maintenance": {"expire_hours": expire_hours, "rollback_hours": min(24, expire_hours)},
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(document))
    lake = BrokerLake(folder, open_workspace(name, "bench").stream)
    lake.create_topic(str(lake.work.kafka_config["bootstrap.servers"]))
    ingest(lake)
    return lake


def ingest(lake: BrokerLake) -> dict[str, int]:
    """Send records and run one real batch; give its milliseconds by phase."""
    lake.produce(RECORDS)
    run_one_batch(lake.stream.stream)
    newest = max(derive_events(lake.history, lake.stream.stream), key=lambda event: event.at)
    return {name: int(newest.facts[name]) for name in PHASES}


def plan_minutes(lake: BrokerLake, table: Table, count: int) -> Iterator[BatchPlan]:
    """Plan batches of one record each, one upon the other."""
    point, topic = lake.point, lake.facts
    assert point is not None
    state, ends = point.state, list(point.state.offsets[lake.topic])
    metadata = table.metadata
    facts = TableFacts(
        str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id
    )
    for number in range(count):
        ends[number % len(ends)] += 1
        seen = replace(topic, partitions=tuple(PartitionOffsets(0, end) for end in ends))
        plan = cast("BatchPlan", plan_batch(PlanInput(lake.stream, state, [seen], facts, "")))
        yield plan
        state = plan.state_after


def count_staged(plan: BatchPlan) -> Staged:
    """Say of a plan's one record what a stage would."""
    counts = tuple(
        PartitionCount(topic=topic, partition=p, rows_read=end - start, rows_good=end - start)
        for topic, parts in plan.ranges.items()
        for p, (start, end) in parts.items()
    )
    return Staged(
        stream=plan.stream,
        batch_id=plan.batch_id,
        attempt=name_branch(plan.stream, plan.base_epoch),
        snapshot_id=None,
        base_head=0,
        rows_read=1,
        rows_written=1,
        rows_quarantined=0,
        rows_skipped=0,
        partitions=counts,
    )


def add_minutes(lake: BrokerLake, count: int) -> None:
    """Add a commit for each of the last minutes, all in one write of the metadata."""
    lake.produce(count)
    table = lake.table
    grown, updates = table, list[TableUpdate]()
    begin_ms = int(time.time() * 1000) - count * MINUTE_MS
    for number, plan in enumerate(plan_minutes(lake, table, count)):
        staged = count_staged(plan)
        summary = summarize_batch(plan, staged, passed(plan, staged), "bench")
        files = [*_dataframe_to_data_files(grown.metadata, rows_of(grown, plan), grown.io)]
        added = commits.build_append(grown, summary, files)
        at_ms = begin_ms + number * MINUTE_MS
        snapshot = added.snapshot.model_copy(update={"timestamp_ms": at_ms})
        states = {plan.stream: plan.state_after}
        own: list[TableUpdate] = [
            AddSnapshotUpdate(snapshot=snapshot),
            commits.set_branch(commits.MAIN, snapshot.snapshot_id),
            commits.set_properties(hint_properties(states, snapshot.snapshot_id)),
        ]
        metadata = update_table_metadata(grown.metadata, tuple(own))
        grown = Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)
        updates += own
    commits.commit(lake.catalog, table, commits.require_uuid(table), updates)


def live_through(lake: BrokerLake, days: int, hours: int) -> None:
    """Let the days pass: the clock, then the commits of its hours, and maintenance."""
    for number in range(1, days * 24 // hours + 1):
        begun = time.monotonic()
        let_days_pass(lake, hours / 24)
        add_minutes(lake, hours * PER_HOUR)
        compact_table(lake.work)
        expire_snapshots(lake.work)
        passed_days, seconds = number * hours / 24, time.monotonic() - begun
        told = f"{len(lake.table.metadata.snapshots)} snapshots, {seconds:.0f} s"
        print(f"day {passed_days:.2f} of {days}: {told}", file=sys.stderr)


def describe(lake: BrokerLake) -> dict[str, int]:
    """Say how big the table and its metadata are."""
    report = summarize_table(lake.work)
    return {
        "rows": report.rows,
        "files": report.files,
        "small_files": report.small_files,
        "snapshots": report.snapshots,
        "manifests": report.manifests,
        "metadata_bytes": len(lake.table.io.new_input(lake.table.metadata_location)),
    }


def compare(old: list[dict[str, int]], new: list[dict[str, int]]) -> dict[str, Any]:
    """Return medians and 95th percentiles by phase, and how the old table's compare."""
    shown: dict[str, Any] = {}
    for name in (*PHASES, "whole_ms"):
        both = [[sum(r.values()) if name == "whole_ms" else r[name] for r in s] for s in (old, new)]
        p50 = [statistics.median(each) for each in both]
        p95 = [statistics.quantiles(each, n=20)[-1] for each in both]
        shown[name] = {
            "old_p50": round(p50[0]),
            "new_p50": round(p50[1]),
            "old_p95": round(p95[0]),
            "new_p95": round(p95[1]),
            "p50_ratio": round(p50[0] / p50[1], 2),
            "p95_ratio": round(p95[0] / p95[1], 2),
        }
    return shown


def main(days: int, hours: int, expire_hours: int, runs: int) -> dict[str, Any]:
    """Fill a table for a month, and let it race one that is new."""
    with started_stack("--only", "kafka,spark") as environment:
        os.environ.update(environment)
        folder = Path(environment["FRAZIL_STREAMS"])
        lake = open_lake(folder, expire_hours)
        live_through(lake, days, hours)
        fresh = open_lake(folder, expire_hours)
        ingest(lake)  # both are warm: the new one's first batch made its table
        gc.freeze()  # as in a task, which is a fork of what has imported all
        found: dict[str, list[dict[str, int]]] = {"old": [], "new": []}
        sides = [("old", lake), ("new", fresh)]
        for turn in range(runs):
            for name, side in sides if turn % 2 else reversed(sides):
                found[name].append(ingest(side))
        phases = compare(found["old"], found["new"])
        return {
            "days": days,
            "commits": days * 24 * PER_HOUR,
            "expire_hours": expire_hours,
            "maintained_every_hours": hours,
            "runs": runs,
            "old": describe(lake),
            "new": describe(fresh),
            "phases": phases,
            "p95_limit": LIMIT,
        }


if __name__ == "__main__":
    defaults = (("DAYS", "30"), ("MAINTAIN_HOURS", "6"), ("EXPIRE_HOURS", "24"), ("RUNS", "40"))
    figures = main(*(int(os.environ.get(n, d)) for n, d in defaults))
    print(json.dumps(figures, indent=2))
    sys.exit(figures["phases"]["publish_ms"]["p95_ratio"] > LIMIT)
