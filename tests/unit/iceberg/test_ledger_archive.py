"""The ledger archive outlives snapshots: expiry takes them, the archive keeps what they said."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import time_machine
from support.lake import Lake, make_stream

from frazil.errors import HistoryCutError, TableRecreatedError
from frazil.iceberg import ledger_archive
from frazil.iceberg.branches import drop_staging_branch
from frazil.iceberg.catalog import NewTable
from frazil.iceberg.commits import SnapshotRetention
from frazil.iceberg.ledger_archive import (
    archive_all_entries,
    archive_new_entries,
    find_archived,
    read_archive,
)
from frazil.ingest.bootstrap import new_table
from frazil.ledger.recovery_point import History, keys, walk_ancestors
from frazil.maintenance.expiry_rules import decide_expiry
from frazil.streams.timestamps import RetentionWindow

FAR_FUTURE = datetime(2999, 1, 1, tzinfo=UTC)


def ids(lake: Lake) -> list[int]:
    """List main's ancestors through metadata and archive."""
    return [entry.snapshot_id for entry in walk_ancestors(lake.history)]


def expire_everything(lake: Lake) -> None:
    """Expire as somebody with PyIceberg would: all but the head, lineage erased."""
    lake.table.maintenance.expire_snapshots().older_than(FAR_FUTURE).commit()


def test_an_archived_entry_is_what_the_snapshot_said(lake: Lake) -> None:
    landed = lake.ingest(3, 2)

    archive_new_entries(lake.store, lake.history)

    rows = read_archive(lake.store, "demo.orders", lake.history.table_uuid).entries
    assert rows[landed.entry.snapshot_id] == lake.history.entries[landed.entry.snapshot_id]


def test_the_archive_holds_no_values_of_partitions(tmp_path: Path) -> None:
    stream = make_stream(table={"name": "demo.orders", "partition_by": ["name"]})
    lake = Lake(tmp_path, stream)
    lake.begin()
    with lake.table.transaction() as changed:
        changed.set_properties({"write.summary.partition-limit": "10"})
    landed = lake.ingest(3, 2)

    archive_new_entries(lake.store, lake.history)

    summary = lake.history.entries[landed.entry.snapshot_id].summary
    rows = read_archive(lake.store, "demo.orders", lake.history.table_uuid).entries
    assert "partitions.name=x" in summary
    kept = {key: text for key, text in summary.items() if not key.startswith("partition")}
    assert rows[landed.entry.snapshot_id].summary == kept


def test_archiving_again_changes_what_is_read_not_at_all(lake: Lake) -> None:
    lake.ingest(3, 2)
    archive_all_entries(lake.store, lake.history)
    first = read_archive(lake.store, "demo.orders", lake.history.table_uuid)

    archive_new_entries(lake.store, lake.history)

    assert read_archive(lake.store, "demo.orders", lake.history.table_uuid) == first
    assert archive_all_entries(lake.store, lake.history) == 0


def test_a_clock_that_was_set_back_does_not_take_the_archive_back_in_time(lake: Lake) -> None:
    lake.ingest(3, 3)
    archive_new_entries(lake.store, lake.history)
    lake.ingest(4, 4)
    with time_machine.travel(datetime.now(UTC) - timedelta(hours=1)):
        archive_new_entries(lake.store, lake.history)

    metadata = lake.store.load(keys.LEDGER_TABLE).metadata
    times = [entry.timestamp_ms for entry in metadata.snapshot_log]
    assert (times, len(times)) == (sorted(times), 2)
    assert metadata.last_updated_ms == times[-1]


def test_the_archive_keeps_every_row_while_its_own_snapshots_go(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_archive, "RETAINED", SnapshotRetention(count=3, age_ms=0))
    few = {"commit.manifest.min-count-to-merge": "4"}
    lake.store.create(keys.LEDGER_TABLE, NewTable(ledger_archive.SCHEMA, properties=few))
    archive_all_entries(lake.store, lake.history)
    for end in range(1, 9):
        lake.ingest(end, 0)
        archive_new_entries(lake.store, lake.history)
        if end == 2:
            table = lake.store.load(keys.LEDGER_TABLE)
            named = table.current_snapshot().snapshot_id
            table.manage_snapshots().create_tag(named, "kept").commit()

    table = lake.store.load(keys.LEDGER_TABLE)
    rows = read_archive(lake.store, "demo.orders", lake.history.table_uuid).entries
    assert rows.keys() == lake.history.entries.keys()
    assert len(table.metadata.snapshots) == 4
    assert table.metadata.refs["kept"].snapshot_id == named
    assert table.snapshot_by_id(named) is not None
    assert len(table.current_snapshot().manifests(table.io)) < 4


def test_the_archive_forgets_no_young_snapshot_and_few_at_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_archive, "RETAINED", SnapshotRetention(count=2, age_ms=3_600_000))
    for _ in range(6):
        archive_new_entries(lake.store, lake.history)
    young = len(lake.store.load(keys.LEDGER_TABLE).metadata.snapshots)
    monkeypatch.setattr("frazil.iceberg.commits.MAX_EXPIRED_PER_COMMIT", 2)

    with time_machine.travel(datetime.now(UTC) + timedelta(hours=2)):
        archive_new_entries(lake.store, lake.history)
        archive_new_entries(lake.store, lake.history)

    assert young == 6
    assert len(lake.store.load(keys.LEDGER_TABLE).metadata.snapshots) == 4


def test_what_expired_long_ago_is_not_looked_for_again(lake: Lake) -> None:
    for end in (1, 2, 3):
        lake.ingest(end, 0)
    archive_all_entries(lake.store, lake.history)
    whole = find_archived(lake.store, lake.history)

    expire_everything(lake)

    assert len(whole) == 4
    assert find_archived(lake.store, lake.history) == {lake.history.head}
    assert archive_all_entries(lake.store, lake.history) == 0


def test_an_expiry_of_a_table_with_nothing_beside_main_reads_no_archive(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for end in (1, 2, 3):
        lake.ingest(end, 0)
    archive_all_entries(lake.store, lake.history)
    expire_everything(lake)
    lake.ingest(4, 0)
    monkeypatch.setattr(
        "frazil.iceberg.ledger_archive.read_archive", lambda *_: pytest.fail("was read")
    )
    window = RetentionWindow(expire_ms=0, rollback_ms=0)

    plan = decide_expiry(lake.history, {}, int(FAR_FUTURE.timestamp() * 1000), window)

    assert len(plan.ancestor_ids) == 1


def test_a_young_table_reads_no_archive(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.ingest(3, 2)
    archive_all_entries(lake.store, lake.history)
    monkeypatch.setattr(
        "frazil.iceberg.ledger_archive.read_archive", lambda *_: pytest.fail("was read")
    )

    assert len(ids(lake)) == 2


def test_each_publish_archives_down_to_the_state_before_it(lake: Lake) -> None:
    lake.append_foreign(1)
    lake.append_foreign(2)
    lake.ingest(3, 2)

    assert archive_new_entries(lake.store, lake.history) == 3


def test_what_a_crash_left_out_is_archived_before_expiry(lake: Lake) -> None:
    for end in (1, 2, 3):
        lake.ingest(end, 0)

    archive_new_entries(lake.store, lake.history)

    assert archive_all_entries(lake.store, lake.history) == 3
    assert ids(lake) == [e.snapshot_id for e in walk_ancestors(lake.history)]


def test_after_an_expiry_by_others_ancestry_and_batches_are_complete(lake: Lake) -> None:  # C1
    plan = lake.plan(1, 0)
    staged = lake.stage(plan)
    first = lake.publish(plan, staged)
    lake.ingest(2, 0)
    before = ids(lake)
    archive_all_entries(lake.store, lake.history)

    expire_everything(lake)

    assert len(lake.table.metadata.snapshots) == 1
    assert ids(lake) == before
    assert lake.publish(plan, staged).entry.snapshot_id == first.entry.snapshot_id


def test_c1_the_recovery_point_is_found_when_its_snapshot_is_gone(lake: Lake) -> None:
    lake.ingest(3, 2)
    point = lake.point
    archive_all_entries(lake.store, lake.history)
    lake.append_foreign(1)
    archive_new_entries(lake.store, lake.history)

    expire_everything(lake)

    assert lake.point == point


def test_an_expiry_that_took_the_state_without_an_archive_halts(lake: Lake) -> None:
    lake.ingest(3, 2)
    lake.append_foreign(1)

    expire_everything(lake)

    with pytest.raises(HistoryCutError):
        _ = lake.point


def erase_lineage(history: History) -> History:
    """Show a history as it looks after an expiry with PyIceberg: only the head, without parent."""
    head = history.entries[history.head or 0]
    return replace(history, entries={head.snapshot_id: replace(head, parent_id=None)})


@pytest.mark.parametrize("erased_first", [True, False])
def test_a_row_with_its_lineage_wins_over_one_where_others_erased_it(
    lake: Lake,
    erased_first: bool,  # noqa: FBT001
) -> None:
    for end in (1, 2):
        lake.ingest(end, 0)
    history, before = lake.history, ids(lake)
    for erased in (erased_first, not erased_first):
        archive_new_entries(lake.store, erase_lineage(history) if erased else history)
    archive_all_entries(lake.store, history)

    expire_everything(lake)

    assert ids(lake) == before


def test_a_table_of_the_same_name_finds_the_old_one_in_the_archive(lake: Lake) -> None:  # C6
    archive_all_entries(lake.store, lake.history)
    lake.catalog.drop_table("demo.orders")
    lake.store.create("demo.orders", new_table(lake.stream))

    with pytest.raises(TableRecreatedError):
        _ = lake.point


def test_a_staged_snapshot_never_enters_the_archive(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)

    archive_all_entries(lake.store, lake.history)
    drop_staging_branch(lake.store, plan.table, staged.attempt)

    rows = read_archive(lake.store, "demo.orders", lake.history.table_uuid).entries
    assert staged.snapshot_id not in rows
    assert [e.summary.get(keys.KIND) for e in rows.values()] == [keys.BOOTSTRAP]


def test_without_an_archive_table_there_is_nothing_in_it(lake: Lake) -> None:
    assert read_archive(lake.store, "demo.orders", "uuid").entries == {}
