"""Staged offsets are exactly those of the plan: inside the ranges, none twice (E1)."""

import pyarrow as pa
import pytest
from lake import Lake

from frazil.contracts import BatchPlan, PartitionCount
from frazil.errors import ConservationError
from frazil.offsets import OffsetRange
from frazil.staged_rows import (
    is_dense,
    read_coordinates,
    refuse_outside,
    refuse_wrong_offsets,
)

PLANNED = OffsetRange(10, 14)
DENSE = PartitionCount(
    topic="orders", partition=0, rows_read=4, rows_good=4, min_offset=10, max_offset=13,
    offset_sum=46,
)  # fmt: skip


def stage_offsets(lake: Lake, *offsets: int, topic: str = "orders", partition: int = 0) -> int:
    """Stage rows with these offsets, whatever the plan says, and give the snapshot."""
    table = lake.table
    kafka = [{"topic": topic, "partition": partition, "offset": offset} for offset in offsets]
    rows = [{"id": 1, "name": "x", "_kafka": coordinate} for coordinate in kafka]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()), branch="staged")
    return lake.table.metadata.refs["staged"].snapshot_id


def sparse(plan: BatchPlan) -> list[PartitionCount]:
    """Count as the reader of a topic with holes would: less than the range is wide."""
    return [
        PartitionCount(topic=topic, partition=p, rows_read=1, rows_good=1, min_offset=start)
        for topic, parts in plan.ranges.items()
        for p, (start, _) in parts.items()
    ]


@pytest.mark.parametrize(
    ("changes", "dense"),
    [
        ({}, True),
        ({"rows_read": 3, "offset_sum": 33}, False),
        ({"offset_sum": 47}, False),
        ({"offset_sum": None}, False),
        ({"min_offset": 11}, False),
        ({"max_offset": 12}, False),
    ],
    ids=[
        "every offset once",
        "a hole",
        "one twice and one missing",
        "an unknown sum",
        "the first one missing",
        "the last one missing",
    ],
)
def test_counters_prove_a_range_only_if_it_is(changes: dict[str, int], dense: bool) -> None:  # noqa: FBT001
    assert is_dense(DENSE.model_copy(update=changes), PLANNED) is dense


@pytest.mark.parametrize(("low", "high"), [(9, 13), (10, 14), (14, 14)])
def test_a_record_outside_the_plan_is_refused(low: int, high: int) -> None:
    count = DENSE.model_copy(update={"min_offset": low, "max_offset": high})

    with pytest.raises(ConservationError, match=r"orders-0 was planned as \[10, 14\)"):
        refuse_outside("b1", count, PLANNED)


@pytest.mark.parametrize(("low", "high"), [(10, 13), (12, 12), (None, None)])
def test_records_inside_the_plan_pass(low: int | None, high: int | None) -> None:
    refuse_outside("b1", DENSE.model_copy(update={"min_offset": low, "max_offset": high}), PLANNED)


@pytest.mark.parametrize(
    ("offsets", "passes"),
    [((0, 2), True), ((0, 1, 2), True), ((0, 0), False), ((1, 3), False)],
    ids=["holes", "every offset", "one offset twice", "an offset at the end"],
)
def test_where_counters_leave_doubt_the_rows_decide(
    lake: Lake,
    offsets: tuple[int, ...],
    passes: bool,  # noqa: FBT001
) -> None:
    plan = lake.plan(3, 0)
    snapshot_id = stage_offsets(lake, *offsets)

    if passes:
        refuse_wrong_offsets(lake.table, snapshot_id, plan, sparse(plan))
        return
    with pytest.raises(ConservationError):
        refuse_wrong_offsets(lake.table, snapshot_id, plan, sparse(plan))


def test_a_partition_that_was_not_planned_is_refused(lake: Lake) -> None:
    plan = lake.plan(3, 0)
    snapshot_id = stage_offsets(lake, 0, partition=1)

    with pytest.raises(ConservationError, match="orders-1"):
        refuse_wrong_offsets(lake.table, snapshot_id, plan, sparse(plan))


def test_a_topic_that_was_not_planned_is_refused(lake: Lake) -> None:
    plan = lake.plan(3, 0)
    snapshot_id = stage_offsets(lake, 0, topic="elsewhere")

    with pytest.raises(ConservationError, match="elsewhere"):
        refuse_wrong_offsets(lake.table, snapshot_id, plan, sparse(plan))


def test_coordinates_are_those_of_one_snapshot(lake: Lake) -> None:
    lake.ingest(3, 2)
    snapshot_id = stage_offsets(lake, 7, 8)

    found = read_coordinates(lake.table, snapshot_id)

    assert found["offset"].to_pylist() == [7, 8]
    assert read_coordinates(lake.table, 1).num_rows == 0
