"""Compaction, expiry and orphan removal on real tables: Spark does it, nothing is lost."""

import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pytest
import stamina
from conftest import Stack
from lake import Lake, make_stream
from pyiceberg.table import Table

from frazil import keys
from frazil.bootstrap import new_table
from frazil.branches import name_branch
from frazil.connections import find_catalog
from frazil.contracts import TableRequest, TableResult
from frazil.dead_letters import ensure_dead_letters_table
from frazil.errors import FrazilError, JobFailedError
from frazil.expiry import DAY_MS, HOUR_MS
from frazil.ledger import walk_ancestors
from frazil.maintained_tables import new_request
from frazil.maintenance import compact_table, expire_snapshots, remove_orphans, summarize_table
from frazil.publishing import load_with_history
from frazil.table_layout import read_used_files
from frazil.table_reports import TableExpiry, TableOrphans
from frazil.tables import TableStore
from frazil.workspace import Workspace

pytestmark = [pytest.mark.spark, pytest.mark.stack]


class StackLake(Lake):
    """A stream of a test's own in the embedded stack's catalog."""

    @cached_property
    def store(self) -> TableStore:
        return TableStore(find_catalog("iceberg_default"))

    @property
    def work(self) -> Workspace:
        return Workspace(self.stream, self.folder, "test")

    @property
    def ids(self) -> list[int]:
        """List main's ancestors in the metadata, newest first."""
        return [e.snapshot_id for e in walk_ancestors(self.history, beyond_metadata=False)]


@pytest.fixture
def lake(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StackLake]:
    """Begin a stream in the running stack; PyIceberg stages, Spark maintains."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    name = f"m{secrets.token_hex(4)}"
    lake = StackLake(
        tmp_path,
        make_stream(name, source={"topic": "orders"}, table={"name": f"maintained.{name}"}),
    )
    with stamina.set_testing(False):
        lake.begin()
        yield lake


@contextmanager
def days_ago(days: int) -> Iterator[None]:
    """Let what happens inside have happened some days ago."""
    with pytest.MonkeyPatch.context() as patch:
        true_time = time.time
        patch.setattr(time, "time", lambda: true_time() - days * DAY_MS / 1000)
        yield


def rows_up_to(end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(end)]


def ingest_up_to(lake: Lake, *ends: int) -> None:
    for end in ends:
        lake.ingest(end, end)


def expiry_of(lake: StackLake) -> TableExpiry:
    """Expire, and give what was done to the stream's own table."""
    return expire_snapshots(lake.work).tables[0]


def orphans_of(lake: StackLake, *, dry_run: bool = False) -> TableOrphans:
    return remove_orphans(lake.work, dry_run=dry_run).tables[0]


def test_compaction_merges_files_and_leaves_rows_and_state_alone(lake: StackLake) -> None:  # I8
    ingest_up_to(lake, *range(1, 8))
    before = lake.point

    report = compact_table(lake.work).tables[0]

    assert (report.before.files, report.after.files) == (7, 1)
    assert report.rewritten == ("files",)
    assert lake.table.current_snapshot().summary.operation.value == "replace"
    assert (lake.coordinates(), lake.point) == (rows_up_to(7), before)
    assert compact_table(lake.work).tables[0].rewritten == ()


def test_many_manifests_become_few(lake: StackLake) -> None:
    ingest_up_to(lake, *range(1, 24))
    before = lake.point

    report = compact_table(lake.work).tables[0]

    assert report.rewritten == ("files", "manifests")
    assert (report.before.manifests, report.after.manifests) == (23, 1)
    assert (lake.coordinates(), lake.point) == (rows_up_to(23), before)


def test_dead_letters_are_compacted_too(lake: StackLake) -> None:
    name = f"{lake.stream.table.name}__dead_letters"
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    letters = lake.store.load(name)
    for number in range(5):
        letters.append(one_letter(letters, number))

    report = compact_table(lake.work).tables[1]

    assert (report.before.table, report.before.files, report.after.files) == (name, 5, 1)


def one_letter(table: Table, number: int) -> pa.Table:
    row = {
        "_kafka": {"topic": "orders", "partition": 0, "offset": number},
        "reason": "malformed_json",
        "batch_id": "b",
        "attempt": "a",
        "stream": "s",
        "quarantined_at": 0,
    }
    return pa.Table.from_pylist([row], schema=table.schema().as_arrow())


def test_a_batch_staged_before_a_compaction_is_published_after_it(lake: StackLake) -> None:
    ingest_up_to(lake, 1, 2, 3, 4, 5)
    plan = lake.plan(6, 6)
    staged = lake.stage(plan)

    compact_table(lake.work)
    lake.publish(plan, staged)

    assert lake.coordinates() == rows_up_to(6)


def test_compaction_and_publishing_race_without_loss(lake: StackLake) -> None:  # F1, F2
    ingest_up_to(lake, *range(1, 9))
    stop, published = threading.Event(), [8]

    def publish_on_and_on() -> None:
        while not stop.is_set():
            ingest_up_to(lake, published[-1] + 1)
            published.append(published[-1] + 1)

    publisher = threading.Thread(target=publish_on_and_on)
    publisher.start()
    reports = [compact_table(lake.work).tables[0] for _ in range(2)]
    stop.set()
    publisher.join()

    assert reports[0].rewritten == ("files",)
    assert len(published) > 2
    assert lake.coordinates() == rows_up_to(published[-1])
    assert lake.point is not None
    assert lake.point.state.epoch == published[-1]


def test_expiry_takes_what_is_old_and_keeps_the_ledger_whole(lake: StackLake) -> None:  # I9, C1
    with days_ago(10):
        ingest_up_to(lake, 1, 2, 3)
    ingest_up_to(lake, 4)
    head, before = lake.history.head, lake.point
    lineage = [e.snapshot_id for e in walk_ancestors(lake.history)]

    report = expiry_of(lake)

    assert report.expired_ids == tuple(lineage[2:])
    assert (report.snapshots_before, report.snapshots_after) == (5, 2)
    assert (lake.history.head, lake.point) == (head, before)
    assert lake.ids == lineage[:2]
    assert [e.snapshot_id for e in walk_ancestors(lake.history)] == lineage
    assert lake.coordinates() == rows_up_to(4)


def test_expiry_asks_for_ids_and_takes_nothing_else_that_is_old(lake: StackLake) -> None:
    with days_ago(40):
        ingest_up_to(lake, 1, 2)
    with days_ago(10):
        ingest_up_to(lake, 3, 4, 5)
    careful = lake.stream.maintenance.model_copy(update={"expire_hours": 24 * 20})
    stream = lake.stream.model_copy(update={"maintenance": careful})

    report = expire_snapshots(Workspace(stream, lake.folder, "test")).tables[0]

    assert len(report.expired_ids) == 2
    assert len(lake.ids) == 4


def test_compacted_files_are_deleted_once_no_snapshot_needs_them(lake: StackLake) -> None:
    with days_ago(10):
        ingest_up_to(lake, 1, 2, 3, 4, 5)
    compact_table(lake.work)
    with days_ago(-10):
        report = expiry_of(lake)

    assert (report.files_before, report.files_after) == (6, 1)
    assert report.carried_streams == (lake.stream.stream,)
    assert report.bytes_after < report.bytes_before
    assert lake.coordinates() == rows_up_to(5)
    assert lake.table.current_snapshot().summary[keys.KIND] == keys.CARRY


def test_expiring_again_changes_nothing(lake: StackLake) -> None:  # I7
    with days_ago(10):
        ingest_up_to(lake, 1, 2, 3)
    expire_snapshots(lake.work)
    before = lake.table.metadata_location

    report = expiry_of(lake)

    assert (report.expired_ids, report.abandoned_ids) == ((), ())
    assert lake.table.metadata_location == before


def test_a_dropped_attempts_files_go_and_a_fresh_one_is_published(lake: StackLake) -> None:
    with days_ago(10):
        lost = lake.stage(lake.plan(1, 1))
        ingest_up_to(lake, 1)
    plan = lake.plan(2, 2)
    staged = lake.stage(plan)

    report = expiry_of(lake)
    lake.publish(plan, staged)

    assert report.dropped_branches == (lost.attempt,)
    assert report.abandoned_ids == (lost.snapshot_id,)
    assert lake.coordinates() == rows_up_to(2)


def folder_of(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"))


def backdate(table: Table, days: int) -> None:
    """Make every file of the table's folder look old."""
    then = time.time() - days * DAY_MS / 1000
    for path in folder_of(table).rglob("*"):
        os.utime(path, (then, then))


def used_paths(table: Table) -> set[Path]:
    return {Path(path.removeprefix("file://")) for path in read_used_files(table)}


def test_orphan_removal_takes_old_strays_and_no_file_in_use(lake: StackLake) -> None:  # F4, F5
    ingest_up_to(lake, 1, 2)
    plan = lake.plan(3, 3)
    staged = lake.stage(plan)
    old, young = (folder_of(lake.table) / "data" / f"{age}.parquet" for age in ("old", "young"))
    old.write_bytes(b"stray")
    backdate(lake.table, 5)
    young.write_bytes(b"stray")

    listed = orphans_of(lake, dry_run=True)
    assert old.exists()
    removed = orphans_of(lake)

    assert (listed.files, listed.bytes) == (removed.files, removed.bytes) == (1, 5)
    assert (old.exists(), young.exists()) == (False, True)
    lake.publish(plan, staged)
    assert lake.coordinates() == rows_up_to(3)
    assert orphans_of(lake).files == 0


def test_metadata_files_that_left_the_log_are_orphans(lake: StackLake) -> None:
    with lake.table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    ingest_up_to(lake, 1, 2, 3)
    backdate(lake.table, 5)
    metadata = folder_of(lake.table) / "metadata"
    before = len(list(metadata.glob("*.metadata.json")))

    orphans_of(lake)

    assert before > 3
    assert len(list(metadata.glob("*.metadata.json"))) == 3
    assert used_paths(lake.table) <= set(folder_of(lake.table).rglob("*"))
    assert lake.coordinates() == rows_up_to(3)


def test_paths_without_a_scheme_are_never_taken_for_orphans(lake: StackLake, stack: Stack) -> None:
    bare = make_stream(
        f"{lake.stream.stream}x",
        source={"topic": "orders"},
        table={"name": f"{lake.stream.table.name}x"},
    )
    other = StackLake(lake.folder, bare)
    other.store.catalog.create_table(
        bare.table.name,
        schema=new_table(bare).schema,
        location=f"{stack.home}/lake/bare/{bare.stream}",
    )
    other.begin()
    ingest_up_to(other, 1, 2)
    backdate(other.table, 5)

    try:
        assert orphans_of(other).files == 0
    except FrazilError as error:
        assert isinstance(error, JobFailedError)

    assert used_paths(other.table) <= set(folder_of(other.table).rglob("*"))
    assert other.coordinates() == rows_up_to(2)


def test_spark_itself_refuses_files_younger_than_a_day(lake: StackLake) -> None:
    recent_ms = int(time.time() * 1000) - HOUR_MS
    request = new_request(lake.work, lake.stream.table.name)

    with pytest.raises(JobFailedError, match="less than 24 hours"):
        lake.work.engine.run_job(
            "remove_orphans", request.model_copy(update={"older_than_ms": recent_ms}), TableResult
        )
