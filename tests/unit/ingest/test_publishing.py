"""PUBLISH on real tables: rows and offsets land together, once, or not at all."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyiceberg.types import StringType
from support.lake import Lake, append, load_with_history, make_state, make_stream, rows_of
from support.publish_steps import FIVE, empty_stage, roll_back
from support.scripted_catalog import overtaken_by

from frazil.errors import (
    ForeignRollbackError,
    StageLostError,
    StageStaleError,
    SupersededError,
    TableRecreatedError,
)
from frazil.iceberg.branches import (
    create_branch,
    drop_branches,
    drop_staging_branch,
    name_branch,
)
from frazil.iceberg.commit_retry import CommitConflictError
from frazil.iceberg.table_view import TableView
from frazil.ingest.bootstrap import new_table
from frazil.ledger.recovery_point import keys
from frazil.ledger.state import parse_hint

FAR_FUTURE = datetime(2999, 1, 1, tzinfo=UTC)


def test_rows_and_offsets_become_visible_in_one_snapshot(lake: Lake) -> None:  # I4
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    before = lake.history.head

    landed = lake.publish(plan, staged)

    head = lake.table.current_snapshot()
    assert head is not None
    assert (head.snapshot_id, head.parent_snapshot_id) == (landed.entry.snapshot_id, before)
    assert (landed.already_published, lake.coordinates()) == (False, FIVE)
    assert lake.point is not None
    assert lake.point.state == plan.state_after


def test_staged_rows_are_invisible(lake: Lake) -> None:
    head = lake.history.head

    lake.stage(lake.plan(3, 2))

    assert lake.history.head == head
    assert lake.coordinates() == []


def test_a_batch_is_already_there_below_later_ones(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    first = lake.publish(plan, staged)
    lake.ingest(4, 4)

    again = lake.publish(plan, staged)

    assert again.already_published
    assert again.entry.snapshot_id == first.entry.snapshot_id


def test_b7_of_two_overlapping_plans_the_slower_is_superseded(lake: Lake) -> None:  # B5, B7
    slow, fast = lake.plan(3, 2), lake.plan(5, 2)
    staged = lake.stage(slow)
    lake.publish(fast, lake.stage(fast))

    with pytest.raises(SupersededError, match="was planned on epoch 0"):
        lake.publish(slow, staged)

    assert lake.coordinates() == [(0, n) for n in range(5)] + [(1, 0), (1, 1)]


def test_a_superseded_stage_is_dropped_and_main_stays(lake: Lake) -> None:
    slow = lake.plan(3, 2)
    staged = lake.stage(slow)
    landed = lake.ingest(5, 2)

    drop_staging_branch(lake.store, slow.table, staged.attempt)
    drop_staging_branch(lake.store, slow.table, staged.attempt)

    assert staged.attempt not in lake.table.metadata.refs
    assert lake.history.head == landed.entry.snapshot_id


def test_the_branch_of_an_empty_stage_is_dropped_too(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    empty = staged.model_copy(update={"snapshot_id": None, "base_head": staged.snapshot_id})

    drop_staging_branch(lake.store, plan.table, empty.attempt)

    assert staged.attempt not in lake.table.metadata.refs


def test_the_summary_says_everything_about_the_batch(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)

    summary = lake.publish(plan, staged).entry.summary

    assert summary[keys.KIND] == keys.INGEST
    assert summary[keys.BATCH_ID] == plan.batch_id
    assert summary[keys.RANGES] == '{"orders":{"0":[0,3],"1":[0,2]}}'
    assert (summary[keys.ROWS_READ], summary[keys.ROWS_WRITTEN]) == ("5", "5")
    assert summary[keys.ATTEMPT] == staged.attempt
    assert summary[keys.SOURCE_SNAPSHOT_ID] == str(staged.snapshot_id)
    found = lake.history.entries[lake.history.head or 0].summary
    assert summary.items() <= found.items()


def test_the_hint_names_what_was_published(lake: Lake) -> None:
    landed = lake.ingest(3, 2)

    hint = parse_hint(lake.table.properties[keys.hint_key("orders")])

    assert (hint.epoch, hint.snapshot_id) == (1, landed.entry.snapshot_id)


def test_branch_and_staged_snapshot_are_forgotten_and_the_files_stay(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.publish(plan, staged)

    table = lake.table
    assert list(table.metadata.refs) == ["main"]
    assert staged.snapshot_id is not None
    assert table.snapshot_by_id(staged.snapshot_id) is None
    table.maintenance.expire_snapshots().older_than(FAR_FUTURE).commit()
    assert lake.coordinates() == FIVE


@pytest.mark.parametrize("kind", ["as Spark leaves it", "untouched", "gone"])
def test_an_empty_batch_moves_the_offsets_and_takes_its_branch(lake: Lake, kind: str) -> None:  # D9
    plan = lake.plan(3, 2)
    branch = name_branch(plan.stream, plan.base_epoch)
    head = create_branch(lake.store, plan.table, branch)
    if kind == "as Spark leaves it":  # it commits even where no row was written
        append(lake.catalog, lake.table, rows_of(lake.table, plan).slice(0, 0), branch)
        assert lake.table.metadata.refs[branch].snapshot_id != head
    if kind == "gone":
        drop_branches(TableView(lake.store, plan.table), [branch])

    lake.publish(plan, empty_stage(plan, branch, head))

    assert list(lake.table.metadata.refs) == ["main"]
    assert len(lake.table.metadata.snapshots) == 2
    assert lake.coordinates() == []
    assert lake.point is not None
    assert lake.point.state.offsets == {"orders": (3, 2)}


def test_a_lost_branch_is_told_and_nothing_is_written(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    drop_staging_branch(lake.store, plan.table, staged.attempt)

    with pytest.raises(StageLostError, match=f"branch {staged.attempt} .* is gone"):
        lake.publish(plan, staged)

    assert lake.coordinates() == []


def test_a_branch_that_somebody_moved_is_a_lost_stage(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    table = lake.table
    table.append(rows_of(table, plan), branch=staged.attempt)

    with pytest.raises(StageLostError, match="gone or was moved"):
        lake.publish(plan, staged)


def test_a_new_optional_column_does_not_make_the_stage_stale(lake: Lake) -> None:  # E12
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    with lake.table.update_schema() as update:
        update.add_column("note", StringType())

    lake.publish(plan, staged)

    assert lake.coordinates() == FIVE


def _rename(lake: Lake) -> None:
    with lake.table.update_schema() as update:
        update.rename_column("name", "title")


def _drop(lake: Lake) -> None:
    with lake.table.update_schema() as update:
        update.delete_column("name")


def _partition(lake: Lake) -> None:
    with lake.table.update_spec() as update:
        update.add_identity("id")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (_rename, "the schema of demo.orders changed"),
        (_drop, "the schema of demo.orders changed"),
        (_partition, "is partitioned by spec 1 now"),
    ],
    ids=["a renamed column", "a dropped column", "another partition spec"],
)
def test_a_stage_for_another_layout_is_stale(
    lake: Lake, change: Callable[[Lake], None], word: str
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    change(lake)

    with pytest.raises(StageStaleError, match=word):
        lake.publish(plan, staged)

    assert lake.coordinates() == []


def test_a_layout_that_changes_between_look_and_commit_is_noticed(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [overtaken_by(lambda: _partition(lake))]

    with pytest.raises(StageStaleError):
        lake.publish(plan, staged)


def test_a_foreign_rollback_stops_a_publish(lake: Lake) -> None:  # HALT writes nothing
    first = lake.history.head
    lake.ingest(3, 2)
    plan = lake.plan(4, 2)
    staged = lake.stage(plan)
    roll_back(lake, first)

    with pytest.raises(ForeignRollbackError):
        lake.publish(plan, staged)

    assert lake.history.head == first


def test_a_table_that_was_created_again_takes_no_old_batch(lake: Lake) -> None:  # C6
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.drop_table("demo.orders")
    lake.store.create("demo.orders", new_table(lake.stream))

    with pytest.raises(TableRecreatedError):
        lake.publish(plan, staged)


def test_two_streams_move_side_by_side_in_one_table(lake: Lake) -> None:
    other = make_stream("sales")
    lake.begin(other)

    lake.ingest(3, 2)

    second = Lake(lake.folder, other)
    assert second.point is not None
    assert second.point.state == make_state(batch="bootstrap of sales")
    assert lake.coordinates() == FIVE
    second.catalog.close()


def test_a_marker_is_committed_on_exactly_the_head_it_was_decided_on(lake: Lake) -> None:  # I5
    table, history = load_with_history(lake.store, "demo.orders")
    landed = lake.ingest(3, 2)

    with pytest.raises(CommitConflictError, match="conflict"):
        lake.mark(keys.GAP, {"orders": make_state(epoch=5)}, table, history)

    assert lake.history.head == landed.entry.snapshot_id
