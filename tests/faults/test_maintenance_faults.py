"""Maintenance beside what others do to the table (docs/faults.md, F3, F6, F9, J5), by Spark."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from conftest import Stack
from pyiceberg.transforms import IdentityTransform
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.broker_lake import BrokerLake
from support.forked import run_frazil
from support.stack_lake import StackLake, ingest_up_to, let_days_pass, make_files_old, rows_up_to

from faults.imagined_kafka import find_broken, find_faults
from faults.judges import audit_both
from frazil.errors import CommitContentionError, JobFailedError
from frazil.events import read_notes
from frazil.failpoints import FAILPOINTS
from frazil.ledger.recovery_point import keys
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.compaction_rules import MIN_INPUT_FILES
from frazil.maintenance.orphans import remove_orphans
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.maintenance.tables import read_layout
from frazil.messages import Message
from frazil.spark.engine import SparkEngine

pytestmark = [pytest.mark.spark, pytest.mark.stack]
ResultMessage = TypeVar("ResultMessage", bound=Message)
DELETE = "DELETE FROM IDENTIFIER(:name) WHERE id = :id"
ROUNDS = 40
CYCLES = 3
COMMITS = 25


@contextmanager
def deleting(
    lake: StackLake, stack: Stack, mode: str, read_end: Callable[[], int]
) -> Iterator[list[int]]:
    """Delete one id after the other from a session of its own; give the list of those gone."""
    spark = SparkSession.builder.remote(str(stack.facts["spark_connect"]["url"])).create()
    name = f"lake.{lake.stream.table.name}"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = '{mode}')")
    gone: list[int] = []
    stop = threading.Event()

    def delete() -> None:
        for number in count():
            while number >= read_end() and not stop.is_set():
                time.sleep(0.05)
            if stop.is_set():
                return
            # A deletion may lose its race too, and says so.
            with suppress(PySparkException):
                spark.sql(DELETE, {"name": name, "id": number})
                gone.append(number)

    with ThreadPoolExecutor(max_workers=1) as executor:
        running = executor.submit(delete)
        try:
            yield gone
        finally:
            stop.set()
            running.result()
            spark.stop()


@dataclass
class CountingEngine(SparkEngine):
    """The real engine; it counts the jobs that ended with an error."""

    remote: str
    failures: int = 0

    def __post_init__(self) -> None:
        """Begin as every engine does."""
        super().__init__(self.remote)

    def run_job(self, job: str, request: Message, result: type[ResultMessage]) -> ResultMessage:
        """Run the job, and count it if it fails."""
        try:
            return super().run_job(job, request, result)
        except (CommitContentionError, JobFailedError):
            self.failures += 1
            raise


@pytest.mark.storm(1)
@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_f3_compaction_brings_no_row_back_that_was_deleted_meanwhile(
    stack_lake: StackLake, stack: Stack, mode: str
) -> None:
    lake, work, end = stack_lake, stack_lake.work, 100
    engine = work.__dict__["engine"] = CountingEngine(work.engine.remote)
    ingest_up_to(lake, end)

    with deleting(lake, stack, mode, lambda: end) as gone:
        for _ in range(ROUNDS):
            if engine.failures:
                break
            # PyIceberg's staging append stands in for Spark's here and may lose its own race.
            with suppress(ValueError, CommitContentionError):
                for _ in range(MIN_INPUT_FILES):
                    ingest_up_to(lake, end + 1)
                    end += 1
                compact_table(work)
    assert engine.failures, "they never met"
    before = lake.point
    compact_table(lake.work)

    assert lake.coordinates() == [place for place in rows_up_to(end) if place[1] not in gone]
    assert lake.point == before


@pytest.mark.core
def test_f6_expiry_and_orphan_removal_at_once_take_nothing_that_is_needed(
    stack_lake: StackLake,
) -> None:
    lake = stack_lake
    ingest_up_to(lake, 1, 2, 3)
    lake.table.overwrite(lake.table.scan().to_arrow())
    let_days_pass(lake, 10)
    ingest_up_to(lake, 4)
    plan = lake.plan(5, 5)
    staged = lake.stage(plan)
    stray = Path(lake.table.location().removeprefix("file://"), "data", "stray.parquet")
    stray.write_bytes(b"stray")
    make_files_old(stray.parents[1])

    with ThreadPoolExecutor(max_workers=2) as executor:
        expiry = executor.submit(expire_snapshots, lake.work)
        orphans = executor.submit(remove_orphans, lake.work)
        expired, removed = expiry.result().tables[0], orphans.result().tables[0]

    assert expired.expired_ids
    assert removed.files > 0
    assert not stray.exists()
    told = [event.text for event in read_notes() if event.stream == lake.stream.stream]
    assert sorted(text.partition(":")[0] for text in told) == ["expire_snapshots", "remove_orphans"]
    lake.publish(plan, staged)
    assert lake.coordinates() == rows_up_to(5)
    assert find_broken(lake, 5, 5) == {"E6"}  # the rewrite was another writer's
    assert expire_snapshots(lake.work).tables[0].expired_ids == ()


def test_f7_maintenance_that_is_killed_at_each_line_is_finished_by_the_next(
    broker_lake: BrokerLake,
) -> None:
    lake = broker_lake
    for _ in range(3):
        lake.load(4)
    compact_table(lake.work, rewrite_all=True)
    let_days_pass(lake, 10)
    stray = Path(lake.table.location().removeprefix("file://"), "data", "stray.parquet")
    stray.write_bytes(b"stray")
    make_files_old(stray.parents[1])
    before, places = lake.point, lake.places()
    command = ["maintain", lake.stream.stream, "--no-dry-run", "--json"]

    for line in (name for name in FAILPOINTS if name.startswith(("expire.", "orphans."))):
        killed = run_frazil(command, {**os.environ, "FRAZIL_FAILPOINT": line}, timeout=240)
        assert killed.code == -9, (line, killed.out, killed.err)
        audit_both(lake)
    finished = run_frazil(command, os.environ, timeout=240)

    assert finished.code == 0, finished.err
    assert lake.kinds.count(keys.CARRY) == 1
    assert len(lake.kinds) < 3, "nothing expired"
    assert not stray.exists()
    assert before is not None
    assert lake.point is not None
    assert (lake.point.state, lake.places()) == (before.state, places)
    audit_both(lake)


def test_f9_files_of_two_partition_specs_are_compacted_and_batches_go_on(
    stack_lake: StackLake,
) -> None:
    lake = stack_lake
    ingest_up_to(lake, *range(1, 7))
    with lake.table.update_spec() as update:
        update.add_field("name", IdentityTransform())
    ingest_up_to(lake, 7, 8)
    before = lake.point

    report = compact_table(lake.work).tables[0]

    assert report.rewritten == ("files",)
    assert report.after.files < report.before.files
    assert (lake.coordinates(), lake.point) == (rows_up_to(8), before)
    ingest_up_to(lake, 9)
    assert find_faults(lake, 9, 9) == ()


def test_j5_with_maintenance_the_metadata_of_a_busy_table_stays_as_small_as_it_was(
    stack_lake: StackLake,
) -> None:
    lake = stack_lake
    grown, settled = [], []

    for cycle in range(CYCLES):
        first = cycle * COMMITS + 1
        ingest_up_to(lake, *range(first, first + COMMITS))
        grown.append(weigh_metadata(lake))
        let_days_pass(lake, 10)
        compact_table(lake.work)
        expire_snapshots(lake.work)
        settled.append(weigh_metadata(lake))

    assert all(heavy.snapshots > COMMITS <= heavy.manifests for heavy in grown)
    # The log of former metadata files fills in the first two cycles, and then stays as long.
    assert settled[-1].metadata_bytes < 1.01 * settled[-2].metadata_bytes
    assert replace(settled[-1], metadata_bytes=0) == replace(settled[0], metadata_bytes=0)
    assert find_faults(lake, CYCLES * COMMITS, CYCLES * COMMITS) == ()


@dataclass(frozen=True)
class Weight:
    """What a reader and a writer of a table must load."""

    metadata_bytes: int
    snapshots: int
    manifests: int
    files: int


def weigh_metadata(lake: StackLake) -> Weight:
    table = lake.table
    layout = read_layout(table)
    return Weight(
        len(table.io.new_input(table.metadata_location)),
        len(table.metadata.snapshots),
        len(layout.manifest_bytes),
        len(layout.files),
    )
