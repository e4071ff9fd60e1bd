"""Orphan removal on real folders: old strays go, nothing in use does."""

import time
from pathlib import Path

import pytest
from conftest import Stack
from pyiceberg.table import Table
from support.lake import make_stream
from support.stack_lake import StackLake, ingest_up_to, make_files_old, rows_up_to

from frazil.errors import JobFailedError
from frazil.ingest.bootstrap import new_table
from frazil.maintenance.messages import TableOrphans, TableResult
from frazil.maintenance.orphans import remove_orphans
from frazil.maintenance.tables import new_request, read_used_files
from frazil.streams.timestamps import HOUR_MS

pytestmark = [pytest.mark.spark, pytest.mark.stack]


def orphans_of(lake: StackLake, *, dry_run: bool = False) -> TableOrphans:
    return remove_orphans(lake.work, dry_run=dry_run).tables[0]


def folder_of(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"))


def used_paths(table: Table) -> set[Path]:
    """List the files in use; addresses are `/a`, `file:/a` (Spark's) or `file:///a`."""
    plain = (path.removeprefix("file:").lstrip("/") for path in read_used_files(table))
    return {Path("/", path) for path in plain}


@pytest.mark.core
def test_f4_f5_orphan_removal_takes_old_strays_and_no_file_in_use(
    lake: StackLake,
) -> None:  # F4, F5
    ingest_up_to(lake, 1, 2)
    plan = lake.plan(3, 3)
    staged = lake.stage(plan)
    old, young = (folder_of(lake.table) / "data" / f"{age}.parquet" for age in ("old", "young"))
    old.write_bytes(b"stray")
    make_files_old(folder_of(lake.table))
    young.write_bytes(b"stray")

    listed = orphans_of(lake, dry_run=True)
    assert old.exists()
    removed = orphans_of(lake)

    assert f"file:{old}" in removed.sample
    assert (listed.files, listed.bytes) == (removed.files, removed.bytes)
    assert (old.exists(), young.exists()) == (False, True)
    lake.publish(plan, staged)
    assert lake.coordinates() == rows_up_to(3)


def test_metadata_files_that_left_the_log_are_orphans(lake: StackLake) -> None:
    with lake.table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "2"})
    ingest_up_to(lake, 1, 2, 3)
    make_files_old(folder_of(lake.table))
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
    make_files_old(folder_of(other.table))

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
