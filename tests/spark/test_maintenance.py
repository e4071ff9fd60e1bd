"""Compaction, expiry and orphan removal on real tables: Spark does it, nothing is lost."""

import json
import os
import secrets
import threading
import time
from functools import cached_property
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from conftest import Stack
from lake import Lake, make_stream
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from sqlalchemy import text

from frazil import keys
from frazil.bootstrap import new_table
from frazil.connections import find_catalog
from frazil.contracts import TableResult
from frazil.dead_letters import ensure_dead_letters_table
from frazil.errors import JobFailedError
from frazil.expiry import DAY_MS, HOUR_MS
from frazil.ledger import walk_ancestors
from frazil.maintained_tables import new_request
from frazil.maintenance import compact_table, expire_snapshots, remove_orphans
from frazil.table_layout import read_used_files
from frazil.table_reports import TableExpiry, TableOrphans
from frazil.tables import TableStore
from frazil.workspace import Workspace

pytestmark = [pytest.mark.spark, pytest.mark.stack]

INSTANTS = {"timestamp-ms", "last-updated-ms"}


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
def lake(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StackLake:
    """Begin a stream in the running stack; PyIceberg stages, Spark maintains."""
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    name = f"m{secrets.token_hex(4)}"
    lake = StackLake(
        tmp_path,
        make_stream(name, source={"topic": "orders"}, table={"name": f"maintained.{name}"}),
    )
    lake.begin()
    return lake


def let_days_pass(lake: Lake, days: int) -> None:
    """Set back every instant in the table's metadata, as if it had stood there for days."""
    table = lake.table

    def set_back(part: object) -> object:
        match part:
            case dict():
                return {
                    key: value - days * DAY_MS if key in INSTANTS else set_back(value)
                    for key, value in part.items()
                }
            case list():
                return [set_back(each) for each in part]
        return part

    content = json.loads(table.io.new_input(table.metadata_location).open().read())
    location = table.metadata_location.replace(".metadata.json", "-aged.metadata.json")
    with table.io.new_output(location).create() as file:
        file.write(json.dumps(set_back(content)).encode())
    point_catalog_to(lake, location)


def point_catalog_to(lake: Lake, location: str) -> None:
    namespace, name = lake.stream.table.name.split(".")
    statement = text(
        "UPDATE iceberg_tables SET metadata_location = :location "
        "WHERE table_namespace = :namespace AND table_name = :name"
    )
    with cast("SqlCatalog", lake.store.catalog).engine.begin() as connection:
        given = {"location": location, "namespace": namespace, "name": name}
        assert connection.execute(statement, given).rowcount == 1


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
    assert lake.history.entries[lake.ids[0]].summary["operation"] == "replace"
    assert (lake.coordinates(), lake.point) == (rows_up_to(7), before)
    assert compact_table(lake.work).tables[0].rewritten == ()


def test_many_manifests_become_few(lake: StackLake) -> None:
    spread = make_stream(
        f"{lake.stream.stream}p",
        source={"topic": "orders"},
        table={"name": f"{lake.stream.table.name}p", "partition_by": ["id"]},
    )
    other = StackLake(lake.folder, spread)
    other.begin()
    ingest_up_to(other, *range(1, 23))
    before = other.point

    report = compact_table(other.work).tables[0]

    assert report.rewritten == ("manifests",)
    assert (report.before.manifests, report.after.manifests) == (22, 1)
    assert (other.coordinates(), other.point) == (rows_up_to(22), before)


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
    ingest_up_to(lake, 1, 2, 3)
    let_days_pass(lake, 10)
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
    ingest_up_to(lake, 1, 2)
    let_days_pass(lake, 30)
    ingest_up_to(lake, 3, 4, 5)
    let_days_pass(lake, 10)
    careful = lake.stream.maintenance.model_copy(update={"expire_hours": 24 * 20})
    stream = lake.stream.model_copy(update={"maintenance": careful})

    report = expire_snapshots(Workspace(stream, lake.folder, "test")).tables[0]

    assert len(report.expired_ids) == 2
    assert len(lake.ids) == 4


def test_files_that_only_expired_snapshots_used_are_deleted(lake: StackLake) -> None:
    ingest_up_to(lake, 1, 2, 3)
    lake.table.overwrite(lake.table.scan().to_arrow())
    let_days_pass(lake, 10)

    report = expiry_of(lake)

    assert (report.files_before, report.files_after) == (4, 1)
    assert report.bytes_after < report.bytes_before
    assert report.carried_streams == (lake.stream.stream,)
    assert lake.history.entries[lake.ids[0]].summary[keys.KIND] == keys.CARRY
    assert lake.coordinates() == rows_up_to(3)


def test_expiring_again_changes_nothing(lake: StackLake) -> None:  # I7
    ingest_up_to(lake, 1, 2, 3)
    let_days_pass(lake, 10)
    expire_snapshots(lake.work)
    before = lake.table.metadata_location

    report = expiry_of(lake)

    assert (report.expired_ids, report.abandoned_ids) == ((), ())
    assert lake.table.metadata_location == before


def test_a_dropped_attempts_files_go_and_a_fresh_one_is_published(
    lake: StackLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("lake.name_branch", name_old_branch)
        lost = lake.stage(lake.plan(1, 1))
    let_days_pass(lake, 10)
    ingest_up_to(lake, 1)
    plan = lake.plan(2, 2)
    staged = lake.stage(plan)

    report = expiry_of(lake)
    lake.publish(plan, staged)

    assert report.dropped_branches == (lost.attempt,)
    assert report.abandoned_ids == (lost.snapshot_id,)
    assert lake.coordinates() == rows_up_to(2)


def name_old_branch(stream: str, epoch: int) -> str:
    """Name a branch as it would have been named ten days ago."""
    born_ms = int(time.time() * 1000) - 10 * DAY_MS
    return f"frazil_{stream}_{epoch}_{born_ms:011x}{secrets.token_hex(4)}"


def folder_of(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"))


def backdate(table: Table, days: int) -> None:
    """Make every file of the table's folder look old."""
    then = time.time() - days * DAY_MS / 1000
    for path in folder_of(table).rglob("*"):
        os.utime(path, (then, then))


def used_paths(table: Table) -> set[Path]:
    """List the files in use; addresses are `/a`, `file:/a` (Spark's) or `file:///a`."""
    plain = (path.removeprefix("file:").lstrip("/") for path in read_used_files(table))
    return {Path("/", path) for path in plain}


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

    assert f"file:{old}" in removed.sample
    assert (listed.files, listed.bytes) == (removed.files, removed.bytes)
    assert (old.exists(), young.exists()) == (False, True)
    assert orphans_of(lake).files == 0
    lake.publish(plan, staged)
    assert lake.coordinates() == rows_up_to(3)


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

    orphans_of(other)

    assert used_paths(other.table) <= set(folder_of(other.table).rglob("*"))
    assert other.coordinates() == rows_up_to(2)


def test_spark_itself_refuses_files_younger_than_a_day(lake: StackLake) -> None:
    recent_ms = int(time.time() * 1000) - HOUR_MS
    request = new_request(lake.work, lake.stream.table.name)

    with pytest.raises(JobFailedError, match="less than 24 hours"):
        lake.work.engine.run_job(
            "remove_orphans", request.model_copy(update={"older_than_ms": recent_ms}), TableResult
        )
