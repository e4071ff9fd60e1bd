"""Staged offsets are exactly those of the plan: inside the ranges, none twice (E1)."""

from dataclasses import dataclass

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from support.lake import Lake

from frazil.errors import ConservationError
from frazil.iceberg.commits import build_append, commit, read_added_files, set_branch
from frazil.iceberg.data_files import iterate_coordinates, read_staged_frame
from frazil.ingest.staging import require_exact_offsets


def stage_offsets(lake: Lake, *offsets: int, topic: str = "orders", partition: int = 0) -> int:
    """Stage rows with these offsets, whatever the plan says, and give the snapshot."""
    table = lake.table
    kafka = [{"topic": topic, "partition": partition, "offset": offset} for offset in offsets]
    rows = [{"id": 1, "name": "x", "_kafka": coordinate} for coordinate in kafka]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()), branch="staged")
    return lake.table.metadata.refs["staged"].snapshot_id


@pytest.mark.parametrize(
    ("offsets", "passes"),
    [
        ((0, 2), True),
        ((3, 1, 0, 2), True),
        ((0, 0, 3, 3), False),
        ((1, 4), False),
    ],
    ids=["holes", "every offset", "twos with the sum of all four", "an offset at the end"],
)
def test_holes_are_fine_and_doubles_are_not(
    lake: Lake,
    offsets: tuple[int, ...],
    passes: bool,  # noqa: FBT001
) -> None:
    plan = lake.plan(4, 0)
    snapshot_id = stage_offsets(lake, *offsets)

    if passes:
        require_exact_offsets(lake.table, snapshot_id, plan)
        return
    with pytest.raises(ConservationError):
        require_exact_offsets(lake.table, snapshot_id, plan)


def test_a_partition_that_was_not_planned_is_refused(lake: Lake) -> None:
    plan = lake.plan(3, 0)
    snapshot_id = stage_offsets(lake, 0, partition=1)

    with pytest.raises(ConservationError, match="orders:1:"):
        require_exact_offsets(lake.table, snapshot_id, plan)


def test_a_topic_that_was_not_planned_is_refused(lake: Lake) -> None:
    plan = lake.plan(3, 0)
    snapshot_id = stage_offsets(lake, 0, topic="elsewhere")

    with pytest.raises(ConservationError, match="elsewhere"):
        require_exact_offsets(lake.table, snapshot_id, plan)


def test_an_offset_in_two_files_of_one_snapshot_is_found(lake: Lake) -> None:
    plan = lake.plan(4, 0)
    table = lake.table
    kafka = {"topic": "orders", "partition": 0, "offset": 2}
    rows = pa.Table.from_pylist(
        [{"id": 1, "name": "x", "_kafka": kafka}], schema=table.schema().as_arrow()
    )
    files = [
        file
        for name in ("one", "two")
        for file in read_added_files(*append_aside(lake, rows, name))
    ]
    added = build_append(lake.table, {}, files)
    commit(lake.catalog, lake.table, [], [added, set_branch("both", added.snapshot.snapshot_id)])

    with pytest.raises(ConservationError, match="offsets 2 to 2; duplicates: 1"):
        require_exact_offsets(lake.table, added.snapshot.snapshot_id, plan)


def append_aside(lake: Lake, rows: pa.Table, branch: str) -> tuple[Table, int]:
    """Append to a branch; give the table and the snapshot."""
    lake.table.append(rows, branch=branch)
    table = lake.table
    return table, table.metadata.refs[branch].snapshot_id


def test_coordinates_are_those_of_one_snapshot(lake: Lake) -> None:
    lake.ingest(3, 2)
    snapshot_id = stage_offsets(lake, 7, 8)

    (found,) = iterate_coordinates(lake.table, snapshot_id)

    assert found.field("offset").to_pylist() == [7, 8]
    assert list(iterate_coordinates(lake.table, 1)) == []


def test_a_check_that_needs_rows_reads_the_staged_ones_alone(lake: Lake) -> None:
    lake.ingest(3, 2)
    staged = lake.stage(lake.plan(5, 2))

    frame = read_staged_frame(lake.table, staged.snapshot_id, [Needs(("id", "name"))])

    assert frame.to_pylist() == [{"id": 3, "name": "x"}, {"id": 4, "name": "x"}]


@dataclass(frozen=True)
class Needs:
    """A question that names its columns."""

    columns: tuple[str, ...]
