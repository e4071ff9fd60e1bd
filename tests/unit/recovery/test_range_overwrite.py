"""A replay's commit: exactly the range gives way, whatever files its rows share with others."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from pyiceberg.exceptions import CommitFailedException, ServerError
from requests.exceptions import ReadTimeout
from support.lake import Lake, Molds, load_with_history, make_stream, passed
from support.scripted_catalog import Answer, ScriptedCatalog, landed_then, overtaken_by, refused

from frazil.errors import StageLostError, StageStaleError, TargetError
from frazil.iceberg.ledger_archive import archive_new_entries
from frazil.ingest.messages import BatchPlan
from frazil.ingest.publishing import publish_batch
from frazil.ledger.offsets import parse_offset_ranges
from frazil.ledger.recovery_point import PublishedBatch, keys
from frazil.recovery.range_overwrite import publish_replacement
from frazil.recovery.replay_rules import require_below_recovery_point
from frazil.workspace import Workspace


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    """Begin a stream whose table is partitioned by name."""
    table = {"name": "demo.orders", "partition_by": ["name"]}
    with molds.begin(make_stream(table=table)) as lake:
        yield lake


def plan_replay(lake: Lake, start: int, end: int, batch_id: str = "replay") -> BatchPlan:
    """Plan a replay of partition 0 as `replaying` would."""
    ahead = lake.plan(100, 100)
    return ahead.model_copy(update={"batch_id": batch_id, "ranges": {"orders": {0: (start, end)}}})


def replay(lake: Lake, work: Workspace, plan: BatchPlan) -> PublishedBatch:
    """Stage and publish a replay."""
    staged = lake.stage(plan)
    return publish_replacement(work, plan, staged, passed(plan, staged))


def live_files(lake: Lake) -> list[tuple[object, int]]:
    """Return partition and number of rows of every live file."""
    files = [task.file for task in lake.table.scan().plan_files()]
    return sorted((file.partition[0], file.record_count) for file in files)


def test_rows_that_share_a_file_with_the_range_stay_in_their_partition(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(6, 3)

    landed = replay(lake, work, plan_replay(lake, 2, 4))

    assert landed.entry.summary[keys.ROWS_DELETED] == "2"
    assert lake.coordinates() == [(0, o) for o in range(6)] + [(1, o) for o in range(3)]
    assert {partition for partition, _ in live_files(lake)} == {"x"}
    assert lake.table.scan(row_filter="name = 'x'").to_arrow().num_rows == 9


def test_a_file_of_the_range_alone_is_left_out_whole(lake: Lake, work: Workspace) -> None:
    lake.ingest(3, 0)
    lake.ingest(6, 0)

    replay(lake, work, plan_replay(lake, 3, 6))

    assert live_files(lake) == [("x", 3), ("x", 3)]
    assert lake.coordinates() == [(0, offset) for offset in range(6)]


@pytest.mark.parametrize(
    "answer",
    [
        landed_then(CommitFailedException("409")),
        landed_then(ServerError("502")),
        landed_then(ReadTimeout()),
        refused(CommitFailedException("409")),
        refused(ServerError("502")),
    ],
)
def test_whatever_the_catalog_answers_a_replay_lands_once(
    lake: Lake, work: Workspace, answer: Answer
) -> None:
    lake.ingest(6, 3)
    plan = plan_replay(lake, 1, 5)
    staged = lake.stage(plan)
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    catalog.script = [answer]

    publish_replacement(work, plan, staged, passed(plan, staged))

    kinds = [e.summary.get(keys.KIND) for e in lake.history.entries.values()]
    assert kinds.count(keys.REPLAY) == 1
    assert lake.coordinates() == [(0, o) for o in range(6)] + [(1, o) for o in range(3)]


def test_another_replay_of_the_same_rows_between_look_and_commit_doubles_nothing(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(6, 3)
    plan, other = plan_replay(lake, 1, 5), plan_replay(lake, 2, 6, "other")
    staged = lake.stage(plan)
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    catalog.script = [overtaken_by(lambda: replay(lake, later(work), other))]

    publish_replacement(work, plan, staged, passed(plan, staged))

    assert lake.coordinates() == [(0, o) for o in range(6)] + [(1, o) for o in range(3)]


def later(work: Workspace) -> Workspace:
    """Open the same stream in another process."""
    return Workspace(work.stream, work.directory, "run-2")


def test_a_range_that_a_rewind_took_above_the_recovery_point_is_refused(
    lake: Lake, work: Workspace
) -> None:
    first = lake.ingest(2, 0).entry.snapshot_id
    lake.ingest(6, 0)
    plan = plan_replay(lake, 1, 5)
    staged = lake.stage(plan)
    with lake.table.transaction() as transaction:
        transaction.remove_properties(keys.hint_key("orders"))
    lake.table.manage_snapshots().rollback_to_snapshot(first).commit()

    with pytest.raises(TargetError, match=r"orders:0:1-5"):
        publish_replacement(work, plan, staged, passed(plan, staged))
    assert lake.coordinates() == [(0, 0), (0, 1)]


def create_topic_again(lake: Lake, end: int) -> None:
    """Record that the topic was created again, and read its first records."""
    assert lake.point is not None
    known, ids = lake.point.state, {"orders": "topic-id-2"}
    state = replace(known, epoch=2, batch="accepted", offsets={"orders": (0, 0)}, topic_ids=ids)
    read = {
        "base_epoch": 2,
        "base_batch": "accepted",
        "batch_id": "again",
        "ranges": {"orders": {0: (0, end)}},
        "next_offsets": {"orders": (end, 0)},
        "topic_ids": ids,
    }
    plan = lake.plan(100, 100).model_copy(update=read)
    lake.mark(keys.GAP, {"orders": state}, *load_with_history(lake.store, "demo.orders"))
    staged = lake.stage(plan)
    publish_batch(lake.store, plan, staged, passed(plan, staged), "run-1")


def test_rows_of_a_topic_that_was_created_again_are_not_taken_for_those_of_the_old_one(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(6, 0)
    old = plan_replay(lake, 1, 5)
    staged_before = lake.stage(old)
    create_topic_again(lake, 8)
    before = lake.coordinates()
    new = old.model_copy(update={"batch_id": "new", "topic_ids": {"orders": "topic-id-2"}})

    with pytest.raises(StageStaleError, match="topic-id-2"):
        publish_replacement(work, old, staged_before, passed(old, staged_before))
    with pytest.raises(TargetError, match=r"orders:0:1-5 was published before the topic was"):
        replay(lake, work, new)
    assert lake.coordinates() == before

    beyond = new.model_copy(update={"ranges": {"orders": {0: (6, 8)}}})
    assert replay(lake, work, beyond).entry.summary[keys.ROWS_DELETED] == "2"
    assert lake.coordinates() == before


def test_each_replay_archives_itself_alone(lake: Lake, work: Workspace) -> None:
    lake.ingest(6, 0)
    archive_new_entries(lake.store, lake.history)

    for number in range(3):
        replay(lake, work, plan_replay(lake, 1, 5, f"replay {number}"))
        assert archive_new_entries(lake.store, lake.history) == 1


def test_what_was_staged_before_a_rollback_is_stale(lake: Lake, work: Workspace) -> None:
    lake.ingest(6, 0)
    plan = plan_replay(lake, 1, 5)
    staged = lake.stage(plan)
    assert lake.point is not None
    state = replace(lake.point.state, epoch=lake.point.state.epoch + 1, batch="rewound")
    lake.mark(keys.REWIND, {"orders": state}, *load_with_history(lake.store, "demo.orders"))

    with pytest.raises(StageStaleError, match="was rolled back"):
        publish_replacement(work, plan, staged, passed(plan, staged))


def test_a_replay_whose_branch_is_gone_is_refused(lake: Lake, work: Workspace) -> None:
    lake.ingest(6, 0)
    plan = plan_replay(lake, 1, 5)
    staged = lake.stage(plan)
    lake.table.manage_snapshots().remove_branch(staged.attempt).commit()

    with pytest.raises(StageLostError):
        publish_replacement(work, plan, staged, passed(plan, staged))


def test_a_replay_keeps_the_other_rows_of_a_file_of_an_older_partition_spec(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(6, 0)
    with lake.table.update_spec() as update:
        update.remove_field("name")

    replay(lake, work, plan_replay(lake, 1, 5))

    assert lake.coordinates() == [(0, offset) for offset in range(6)]
    assert {task.file.spec_id for task in lake.table.scan().plan_files()} == {0, 1}


def test_a_range_of_another_streams_topic_is_refused_by_that_reason(lake: Lake) -> None:
    lake.ingest(6, 3)
    point = lake.point
    assert point is not None

    with pytest.raises(TargetError, match=r"refunds:0:1-5 .* topics: orders") as refused:
        require_below_recovery_point("orders", parse_offset_ranges(("refunds:0:1-5",)), point.state)

    assert "recovery point" not in str(refused.value)
