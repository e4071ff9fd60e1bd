"""One module holds PyIceberg's private parts: its shape, and the traps that it keeps us from."""

from contextlib import nullcontext

import pytest
from pydantic import ValidationError
from pyiceberg.exceptions import CommitFailedException, ServerError, ValidationException
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, AssertTableUUID
from requests.exceptions import ReadTimeout
from support.lake import Lake, rows_of
from support.stack_lake import let_days_pass

from frazil.errors import ClockBehindError
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch


def test_build_append_gives_one_snapshot_on_mains_head_and_commits_nothing(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    table, head = lake.table, lake.history.head
    files = commits.read_added_files(table, staged.snapshot_id or 0)

    added = commits.build_append(table, {"frazil.kind": "ingest"}, files)

    assert type(added) is AddSnapshotUpdate
    assert added.snapshot.parent_snapshot_id == head
    assert added.snapshot.summary is not None
    assert added.snapshot.summary["frazil.kind"] == "ingest"
    assert added.snapshot.summary["added-records"] == "5"
    assert added.snapshot.snapshot_id not in {s.snapshot_id for s in lake.table.metadata.snapshots}
    assert lake.history.head == head


def test_an_empty_append_keeps_every_row(lake: Lake) -> None:
    lake.ingest(3, 2)

    added = commits.build_append(lake.table, {})

    assert added.snapshot.summary is not None
    assert added.snapshot.summary["total-records"] == "5"


def test_a_clock_that_was_set_back_takes_no_table_back_in_time(lake: Lake) -> None:
    lake.ingest(3, 2)
    let_days_pass(lake, -1)
    table = lake.table

    added = commits.build_append(table, {})
    main = commits.set_branch(commits.MAIN, added.snapshot.snapshot_id)
    commits.commit(lake.catalog, table, commits.require_uuid(table), [added, main])

    metadata = lake.table.metadata
    assert metadata.last_updated_ms > table.metadata.last_updated_ms
    times = [entry.timestamp_ms for entry in metadata.snapshot_log]
    assert times == sorted(times)
    assert metadata.last_updated_ms == times[-1]


@pytest.mark.parametrize("seconds", [50, 3600])
def test_a_commit_that_would_take_its_time_from_a_clock_behind_is_refused(
    lake: Lake, seconds: int
) -> None:
    let_days_pass(lake, -seconds / 86_400)
    before = lake.table.metadata_location
    is_refused = seconds > commits.CLOCK_TOLERANCE_MS / 1000

    with pytest.raises(ClockBehindError, match="behind") if is_refused else nullcontext():
        create_branch(lake.store, "demo.orders", "aside")

    assert (lake.table.metadata_location == before) is is_refused


def test_a_commit_changes_nothing_of_metadata_that_was_loaded_before(lake: Lake) -> None:
    lake.ingest(1, 0)
    table = lake.table
    before, snapshots = table.metadata.model_dump_json(), list(table.metadata.snapshots)

    lake.ingest(2, 1)

    assert table.metadata.model_dump_json() == before
    assert lake.table.metadata.model_dump_json() != before
    assert all(a is b for a, b in zip(table.metadata.snapshots, snapshots, strict=True))


def test_the_staged_files_are_those_of_the_staged_snapshot_alone(lake: Lake) -> None:
    lake.ingest(3, 2)
    staged = lake.stage(lake.plan(4, 2))

    files = commits.read_added_files(lake.table, staged.snapshot_id or 0)

    assert sum(file.record_count for file in files) == 1
    assert commits.read_added_files(lake.table, 1) == []


def test_a_required_head_names_table_and_ref(lake: Lake) -> None:
    table = lake.table

    assert commits.require_head(table, "main", 7) == [
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertRefSnapshotId(ref="main", snapshot_id=7),
    ]


@pytest.mark.parametrize(
    ("error", "definite"),
    [
        (CommitFailedException("branch main has changed"), True),
        (ValidationException("Cannot find starting snapshot 5"), True),
        (KeyError("frazil_orders_0_x"), True),
        (ValueError("Cannot add snapshot with sequence number 3 older than last 4"), True),
        (ValueError("Snapshot with id 5 already exists"), True),
        (ValueError("invalid literal"), False),
        (ServerError("500"), False),
        (ReadTimeout("no answer"), False),
        (OSError("disk"), False),
    ],
    ids=str,
)
def test_a_lost_race_has_many_names_and_everything_else_is_unknown(
    error: Exception,
    definite: bool,  # noqa: FBT001
) -> None:
    assert commits.is_definite_conflict(error) is definite


def test_a_copy_of_the_metadata_shares_its_snapshots_which_nobody_can_change(lake: Lake) -> None:
    lake.ingest(1, 1)
    metadata = lake.table.metadata

    copied = metadata.model_copy(deep=True)

    assert copied.snapshots is not metadata.snapshots
    assert [*map(id, copied.snapshots)] == [*map(id, metadata.snapshots)]
    assert [*map(id, copied.snapshot_log)] == [*map(id, metadata.snapshot_log)]
    assert copied.schemas[0] is not metadata.schemas[0]
    for frozen in (copied.snapshots[0], copied.snapshot_log[0]):
        with pytest.raises(ValidationError, match="frozen"):
            frozen.timestamp_ms = 0


def test_a7_trap_pyicebergs_own_append_doubles_a_range_and_publish_does_not(
    lake: Lake,
) -> None:  # A7
    plan = lake.plan(3, 2)
    one, other = lake.table, lake.table
    one.append(rows_of(one, plan))
    other.append(rows_of(other, plan))
    assert len(lake.coordinates()) == 10, "the trap: it re-based by itself"

    staged, late = lake.stage(plan), lake.stage(plan)
    lake.publish(plan, staged)

    assert lake.publish(plan, late).already_published
    assert len(lake.coordinates()) == 15


def test_trap_a_branch_that_pyiceberg_makes_has_no_parent_and_ours_has(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    table, head = lake.table, lake.history.head
    table.append(rows_of(table, plan), branch="parentless")
    made = lake.table.metadata.refs["parentless"].snapshot_id
    assert lake.history.entries[made].parent_id is None, "the trap: it starts from nothing"

    staged = lake.stage(plan)

    assert staged.base_head == head
    assert lake.history.entries[staged.snapshot_id or 0].parent_id == head


def test_trap_moving_main_drops_what_others_committed_unless_the_head_is_asserted(
    lake: Lake,
) -> None:
    staged = lake.stage(lake.plan(3, 2))
    lake.append_foreign(100)
    move = commits.set_branch(commits.MAIN, staged.snapshot_id or 0)
    head = commits.require_head(lake.table, commits.MAIN, staged.base_head)

    with pytest.raises(CommitFailedException):
        commits.commit(lake.catalog, lake.table, head, [move])
    assert 100 in lake.table.scan().to_arrow()["id"].to_pylist()

    commits.commit(lake.catalog, lake.table, commits.require_uuid(lake.table), [move])
    assert 100 not in lake.table.scan().to_arrow()["id"].to_pylist(), "the trap: no ancestry check"


def test_trap_one_transaction_keeps_one_requirement_per_type(lake: Lake) -> None:
    staged = lake.stage(lake.plan(3, 2))
    table = lake.table
    requirements = commits.require_head(table, commits.MAIN, staged.base_head)
    requirements += commits.require_head(table, staged.attempt, 1)[1:]

    with pytest.raises(CommitFailedException, match=staged.attempt):
        commits.commit(
            lake.catalog, table, requirements, [commits.set_properties({"both": "asserted"})]
        )
