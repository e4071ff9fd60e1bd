"""Are the staged offsets exactly those of the plan: inside the ranges, none twice?"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from frazil.commits import read_added_files
from frazil.contracts import BatchPlan, PartitionCount
from frazil.errors import ConservationError
from frazil.offsets import OffsetRange
from frazil.tables import translated_errors

_COLUMNS = ["_kafka.topic", "_kafka.partition", "_kafka.offset"]


def refuse_wrong_offsets(
    table: Table, snapshot_id: int, plan: BatchPlan, counts: Sequence[PartitionCount]
) -> None:
    """Accept counters that leave no room for doubt; else scan the staged coordinates.

    Raises:
        ConservationError: an offset lies outside its range or is there twice.
    """
    ranges = plan.offset_ranges
    for count in counts:
        refuse_outside(plan.batch_id, count, ranges[count.topic][count.partition])
    if counts and all(is_dense(c, ranges[c.topic][c.partition]) for c in counts):
        return
    refuse_doubled(table, snapshot_id, plan)


def refuse_outside(batch_id: str, count: PartitionCount, planned: OffsetRange) -> None:
    """See that what was read lies inside the planned range."""
    if count.min_offset is None or count.max_offset is None:
        return
    if planned.holds(count.min_offset) and planned.holds(count.max_offset):
        return
    raise ConservationError(
        f"batch {batch_id}: {count.topic}-{count.partition} was planned as [{planned.start}, "
        f"{planned.end}), but offsets {count.min_offset} to {count.max_offset} were read",
        "nothing is visible; run again, and report this if it comes back",
    )


def is_dense(count: PartitionCount, planned: OffsetRange) -> bool:
    """Say whether count, ends and sum show every offset of the range read once, without holes."""
    if count.rows_read != planned.width or count.offset_sum is None:
        return False
    expected_sum = (planned.start + planned.end - 1) * planned.width // 2
    ends = (count.min_offset, count.max_offset)
    return ends == (planned.start, planned.end - 1) and count.offset_sum == expected_sum


def refuse_doubled(table: Table, snapshot_id: int, plan: BatchPlan) -> None:
    """Read the coordinates of the staged rows and refuse what is outside or there twice."""
    coordinates = read_coordinates(table, snapshot_id)
    for topic in coordinates["topic"].unique().to_pylist():
        by_partition = plan.offset_ranges.get(topic, {})
        own = coordinates.filter(pa.compute.equal(coordinates["topic"], topic))
        partitions = own["partition"].to_numpy()
        offsets = own["offset"].to_numpy()
        for partition in np.unique(partitions):
            mine = offsets[partitions == partition]
            planned = by_partition.get(int(partition), OffsetRange(0, 0))
            doubled = len(mine) - len(np.unique(mine))
            if doubled or mine.min() < planned.start or mine.max() >= planned.end:
                raise ConservationError(
                    f"batch {plan.batch_id}: {topic}-{partition} planned as [{planned.start}, "
                    f"{planned.end}) holds offsets {mine.min()} to {mine.max()}, {doubled} twice",
                    "nothing is visible; run again, and report this if it comes back",
                )


def read_coordinates(table: Table, snapshot_id: int) -> pa.Table:
    """Read topic, partition and offset of the rows that one snapshot added."""
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        io = PyArrowFileIO(io.properties)
    parts = []
    with translated_errors(f"reading staged rows of {table.name()}"):
        for file in read_added_files(table, snapshot_id):
            with io.new_input(file.file_path).open() as source:
                struct = pq.ParquetFile(source).read(_COLUMNS)["_kafka"].combine_chunks()
            parts.append(pa.table({n: struct.field(n) for n in ("topic", "partition", "offset")}))
    empty = pa.table({"topic": pa.array([], pa.string()), "partition": [], "offset": []})
    return pa.concat_tables(parts) if parts else empty
