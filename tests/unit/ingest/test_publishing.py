"""PUBLISH on real tables: rows and offsets land together, once, or not at all."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
    ServiceUnavailableError,
    ValidationException,
)
from pyiceberg.types import StringType
from requests.exceptions import ConnectionError as NoConnectionError
from requests.exceptions import ReadTimeout
from support.lake import Lake, append, make_state, make_stream, rows_of
from support.scripted_catalog import Answer, delayed, honest, landed_then, overtaken_by, refused

from frazil.errors import (
    BatchBlockedError,
    CommitContentionError,
    ForeignRollbackError,
    FrazilError,
    StageLostError,
    StageStaleError,
    SupersededError,
    TableRecreatedError,
)
from frazil.iceberg.branches import (
    create_branch,
    drop_abandoned_branch,
    drop_staging_branch,
    name_branch,
)
from frazil.iceberg.commit_retry import MAX_ATTEMPTS, CommitConflictError
from frazil.iceberg.ledger_archive import load_with_history
from frazil.ingest.blocked_batches import BlockedBatch, Waiver, encode_blocked, encode_waiver
from frazil.ingest.bootstrap import new_table
from frazil.ingest.messages import BatchPlan, Staged
from frazil.ledger.recovery_point import keys
from frazil.ledger.state import parse_hint

RACE = CommitFailedException("Requirement failed: branch main has changed")
FAR_FUTURE = datetime(2999, 1, 1, tzinfo=UTC)
FIVE = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)]


def put(lake: Lake, properties: dict[str, str]) -> None:
    """Set table properties through a transaction of its own, as a person would."""
    with lake.table.transaction() as transaction:
        transaction.set_properties(properties)


def block(lake: Lake, plan: BatchPlan, waiver: Waiver | None = None) -> None:
    """Record that a plan failed its check."""
    blocked = BlockedBatch(
        plan=plan, error="e", failures=("f",), branch="b", blocked_at="2026-01-31", waiver=waiver
    )
    put(lake, encode_blocked(blocked))


def empty_stage(plan: BatchPlan, branch: str, head: int) -> Staged:
    """Stage a batch of offsets that hold no record."""
    return Staged(
        stream=plan.stream,
        batch_id=plan.batch_id,
        attempt=branch,
        snapshot_id=None,
        base_head=head,
        rows_read=0,
        rows_written=0,
        rows_quarantined=0,
        rows_skipped=0,
        partitions=(),
    )


def roll_back(lake: Lake, snapshot_id: int | None) -> None:
    """Move main back, as somebody with another tool would."""
    lake.table.manage_snapshots().rollback_to_snapshot(snapshot_id or 0).commit()


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


def test_publishing_again_changes_nothing(lake: Lake) -> None:  # I7
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    first = lake.publish(plan, staged)
    metadata = lake.table.metadata_location

    again = lake.publish(plan, staged)

    assert again.already_published
    assert again.entry.snapshot_id == first.entry.snapshot_id
    assert lake.table.metadata_location == metadata


def test_a_batch_is_already_there_below_later_ones(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    first = lake.publish(plan, staged)
    lake.ingest(4, 4)

    again = lake.publish(plan, staged)

    assert again.already_published
    assert again.entry.snapshot_id == first.entry.snapshot_id


def test_of_two_attempts_at_one_batch_the_second_finds_it_there(lake: Lake) -> None:  # B1
    plan = lake.plan(3, 2)
    one, other = lake.stage(plan), lake.stage(plan)
    lake.publish(plan, one)

    assert lake.publish(plan, other).already_published
    assert lake.coordinates() == FIVE


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
        drop_abandoned_branch(lake.store, plan.table, branch)

    lake.publish(plan, empty_stage(plan, branch, head))

    assert list(lake.table.metadata.refs) == ["main"]
    assert len(lake.table.metadata.snapshots) == 2
    assert lake.coordinates() == []
    assert lake.point is not None
    assert lake.point.state.offsets == {"orders": (3, 2)}


@pytest.mark.parametrize(
    "error",
    [
        RACE,
        CommitStateUnknownException("500 Internal Server Error"),
        ServerError("500 Internal Server Error"),
        ServiceUnavailableError("503"),
        ReadTimeout("no answer"),
        NoConnectionError("connection reset"),
    ],
    ids=["409", "500 unknown", "500", "503", "timeout", "reset"],
)
def test_a_commit_that_landed_without_an_answer_is_found(lake: Lake, error: Exception) -> None:
    plan = lake.plan(3, 2)  # A2, A3
    staged = lake.stage(plan)
    lake.catalog.script = [landed_then(error)]

    landed = lake.publish(plan, staged)

    assert landed.already_published
    assert lake.coordinates() == FIVE
    assert len(lake.table.metadata.snapshots) == 2, "the bootstrap and one batch"


@pytest.mark.parametrize(
    "error",
    [
        RACE,
        ServerError("500"),
        ReadTimeout("no answer"),
        ValueError("Cannot add snapshot with sequence number 3"),
        ValidationException("Cannot find starting snapshot"),
        KeyError("frazil_orders_0_x"),
    ],
    ids=["409", "500", "timeout", "sequence number", "starting snapshot", "branch gone"],
)
def test_a4_a_commit_that_did_not_land_is_tried_again(lake: Lake, error: Exception) -> None:  # A4
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [refused(error), refused(error), honest]

    landed = lake.publish(plan, staged)

    assert not landed.already_published
    assert lake.coordinates() == FIVE


def test_a_commit_that_lands_after_the_next_turn_looked_counts_once(lake: Lake) -> None:  # A5
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = list(delayed())

    landed = lake.publish(plan, staged)

    assert landed.already_published
    assert lake.coordinates() == FIVE
    assert len(lake.table.metadata.snapshots) == 2


@pytest.mark.parametrize("first", [landed_then(ReadTimeout("?")), refused(ReadTimeout("?"))])
def test_an_unknown_outcome_is_not_forgotten_behind_a_conflict(  # A10
    lake: Lake, first: Answer
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [first, refused(RACE), refused(ServerError("500"))]

    lake.publish(plan, staged)

    assert lake.coordinates() == FIVE


def test_the_commit_of_another_writer_between_two_turns_survives(lake: Lake) -> None:  # A12, F2
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [overtaken_by(lambda: lake.append_foreign(100, 101))]

    landed = lake.publish(plan, staged)

    assert not landed.already_published
    assert lake.coordinates() == FIVE
    assert sorted(lake.table.scan().to_arrow()["id"].to_pylist()) == [0, 0, 1, 1, 2, 100, 101]


def test_a_writer_that_overtakes_again_and_again_does_not_starve_the_batch(lake: Lake) -> None:
    plan = lake.plan(3, 2)  # A8
    staged = lake.stage(plan)
    lake.catalog.script = [overtaken_by(lambda: lake.append_foreign(7))] * 5

    lake.publish(plan, staged)

    assert lake.coordinates() == FIVE


def test_a_rival_that_lands_between_look_and_commit_supersedes(lake: Lake) -> None:  # B8
    slow, fast = lake.plan(3, 2), lake.plan(5, 2)
    staged, rival = lake.stage(slow), lake.stage(fast)
    lake.catalog.script = [overtaken_by(lambda: lake.publish(fast, rival))]

    with pytest.raises(SupersededError):
        lake.publish(slow, staged)

    assert lake.coordinates() == [(0, n) for n in range(5)] + [(1, 0), (1, 1)]


def test_a_rollback_between_look_and_commit_is_not_undone(lake: Lake) -> None:  # I5
    first = lake.history.head
    lake.ingest(3, 2)
    plan = lake.plan(4, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [overtaken_by(lambda: roll_back(lake, first))]

    with pytest.raises(ForeignRollbackError):
        lake.publish(plan, staged)

    assert lake.history.head == first


def test_losing_every_turn_ends_with_the_stage_intact(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [refused(RACE)] * MAX_ATTEMPTS

    with pytest.raises(CommitContentionError, match=r"publishing batch .* branch main has changed"):
        lake.publish(plan, staged)

    assert lake.coordinates() == []
    assert lake.publish(plan, staged).already_published is False


def test_a_forbidden_commit_writes_nothing_and_names_the_reason(lake: Lake) -> None:  # J2
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [refused(ForbiddenError("no WRITE on demo.orders"))] * MAX_ATTEMPTS

    with pytest.raises(FrazilError, match="no WRITE"):
        lake.publish(plan, staged)

    assert lake.coordinates() == []


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


def test_a_blocked_batch_is_not_published(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    block(lake, plan)

    with pytest.raises(BatchBlockedError):
        lake.publish(plan, staged)

    assert lake.coordinates() == []


def test_a_longer_batch_cannot_pass_in_place_of_the_blocked_one(lake: Lake) -> None:
    longer = lake.plan(30, 2)
    staged = lake.stage(longer)
    block(lake, lake.plan(3, 2))

    with pytest.raises(BatchBlockedError):
        lake.publish(longer, staged)


def test_a_block_counts_only_for_batches_that_put_the_same_aside(lake: Lake) -> None:
    blocked, longer, other = (
        lake.plan(*ends).model_copy(update={"put_aside": columns})
        for ends, columns in (((3, 2), ("city",)), ((30, 2), ("city",)), ((3, 2), ()))
    )
    block(lake, blocked)

    with pytest.raises(BatchBlockedError):
        lake.publish(longer, lake.stage(longer))
    lake.publish(other, lake.stage(other))

    assert lake.coordinates() == FIVE


WAIVER = Waiver(by="jane", reason="known", at="2026-01-31T00:00:00+00:00")


def test_a_waived_batch_is_published_and_its_record_removed(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    block(lake, plan)
    put(lake, encode_waiver(plan, WAIVER))

    lake.publish(plan, staged)

    assert lake.coordinates() == FIVE
    left = {keys.blocked_key("orders"), keys.waiver_key("orders")} & {*lake.table.properties}
    assert left == set()


def test_a_waiver_lets_only_its_own_batch_pass(lake: Lake) -> None:
    longer = lake.plan(30, 2)
    staged = lake.stage(longer)
    block(lake, lake.plan(3, 2), WAIVER)

    with pytest.raises(BatchBlockedError):
        lake.publish(longer, staged)


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
