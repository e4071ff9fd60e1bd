"""Compaction and expiry on real tables: Spark does it, nothing is lost."""

import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from support.foreign_deletes import delete_by_value, remove_as_java
from support.lake import make_stream
from support.planted_values import lists_removed_files
from support.stack_lake import StackLake, ingest_up_to, let_days_pass, rows_up_to

from frazil.iceberg.data_files import list_equality_deletes
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.recovery_point import keys, walk_ancestors
from frazil.maintenance.compaction import compact_table
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest, TableExpiry
from frazil.maintenance.snapshot_expiry import expire_snapshots
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace

pytestmark = [pytest.mark.spark, pytest.mark.stack]


def expiry_of(lake: StackLake) -> TableExpiry:
    """Expire, and give what was done to the stream's own table."""
    return expire_snapshots(lake.work).tables[0]


def test_compaction_merges_files_and_leaves_rows_and_state_alone(lake: StackLake) -> None:  # I8
    ingest_up_to(lake, *range(1, 8))
    before = lake.point

    report = compact_table(lake.work).tables[0]

    assert (report.before.files, report.after.files) == (7, 1)
    assert report.rewritten == ("files",)
    assert lake.history.entries[lake.ids[0]].summary["operation"] == "replace"
    assert (lake.coordinates(), lake.point) == (rows_up_to(7), before)
    assert compact_table(lake.work).tables[0].rewritten == ()


def test_a_compacted_file_is_in_the_tables_order(lake: StackLake) -> None:
    ordered = make_stream(
        f"{lake.stream.stream}s",
        source={"topic": "orders"},
        table={"name": f"{lake.stream.table.name}s", "sort_by": ["id"]},
    )
    other = StackLake(lake.folder, ordered)
    other.begin()
    ingest_up_to(other, *range(5, 26, 5))

    compact_table(other.work)

    ids = other.table.scan().to_arrow()["id"].to_pylist()
    assert (ids, len(other.coordinates())) == (sorted(ids), 50)


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


def test_f2_a_batch_staged_before_a_compaction_is_published_after_it(lake: StackLake) -> None:
    ingest_up_to(lake, 1, 2, 3, 4, 5)
    plan = lake.plan(6, 6)
    staged = lake.stage(plan)

    compact_table(lake.work)
    lake.publish(plan, staged)

    assert lake.coordinates() == rows_up_to(6)


@pytest.mark.core
def test_compaction_and_publishing_race_without_loss(lake: StackLake) -> None:  # F1, F2
    ingest_up_to(lake, *range(1, 9))
    stop, published = threading.Event(), [8]

    def publish_on_and_on() -> None:
        while not stop.wait(0.2):  # a writer without any pause leaves nobody else a turn
            # PyIceberg's staging append stands in for Spark's here and may lose its own race.
            with suppress(ValueError):
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


@pytest.mark.core
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
    settled = lake.table.metadata_location
    again = expiry_of(lake)  # I7
    assert (again.expired_ids, again.abandoned_ids) == ((), ())
    assert lake.table.metadata_location == settled


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


def test_a_dropped_attempts_files_go_and_a_fresh_one_is_published(
    lake: StackLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("support.lake.name_branch", name_old_branch)
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


def run_erase(lake: StackLake, run_id: str) -> str:
    """Erase the rows of id 2 in a run of its own; return the report."""
    work = Workspace(lake.stream, lake.folder, run_id)
    name = lake.stream.stream
    wanted = ErasureRequest(stream=name, keys=("id=2",), by="jane", reason="r", dry_run=False)
    return erase(work, plan_erasure(work, wanted), wanted).text


def test_equality_deletes_that_an_erasure_names_are_removed_by_the_command_that_it_names(
    lake: StackLake,
) -> None:
    ingest_up_to(lake, 4, 8)
    delete_by_value(lake, "id", [2, 5])
    (deletes,) = list_equality_deletes(lake.table, lake.table.current_snapshot())
    delete_by_value(lake, "id", [777])
    remove_as_java(
        lake,
        *{
            each.file_path
            for each in list_equality_deletes(lake.table, lake.table.current_snapshot())
        }
        - {deletes.file_path},
    )

    before = run_erase(lake, "run-1")
    compact_table(lake.work, rewrite_all=True)
    after = run_erase(lake, "run-2")
    lake.ingest(9, 9)
    let_days_pass(lake, 10)
    expire_snapshots(lake.work)

    assert ("--rewrite-all" in before, "equality delete" in after) == (True, False)
    assert not lists_removed_files(lake.table)
    assert not Path(urlparse(deletes.file_path).path).exists()
    assert lake.coordinates() == [(p, o) for p, o in rows_up_to(9) if o not in {2, 5}]
