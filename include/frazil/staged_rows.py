"""Are the staged offsets exactly those of the plan: inside the ranges, none twice?"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from frazil.commits import read_added_files
from frazil.contracts import BatchPlan
from frazil.coordinates import Coordinates, Offsets, Partition
from frazil.errors import ConservationError
from frazil.offsets import OffsetRange
from frazil.tables import translated_errors

_COLUMNS = ["_kafka.topic", "_kafka.partition", "_kafka.offset"]
_NOTHING_PLANNED = OffsetRange(0, 0)

Seen = dict[tuple[str, int], NDArray[np.bool_]]
"""Per partition one flag for each planned offset: is it staged?"""


def refuse_wrong_offsets(table: Table, snapshot_id: int, plan: BatchPlan) -> None:
    """Read the coordinates of the staged rows and refuse what is outside or there twice.

    Counters cannot prove it: offsets 0, 0, 3, 3 have the count, ends and sum of 0, 1, 2, 3.

    Raises:
        ConservationError: an offset lies outside its range or is there twice.
    """
    seen: Seen = {}
    with translated_errors(f"reading staged rows of {table.name()}"):
        for coordinates in iterate_coordinates(table, snapshot_id):
            for topic, partition, offsets in split_coordinates(coordinates):
                _mark(seen, plan, (topic, partition), offsets)


def split_coordinates(coordinates: pa.StructArray) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Split a file's coordinates by topic and partition."""
    topics, partitions = coordinates.field("topic"), coordinates.field("partition")
    offsets = coordinates.field("offset")
    for topic in pc.unique(topics).to_pylist():
        of_topic = pc.equal(topics, topic)
        for partition in pc.unique(partitions.filter(of_topic)).to_pylist():
            own = pc.and_(of_topic, pc.equal(partitions, partition))
            yield topic, partition, offsets.filter(own).to_numpy(zero_copy_only=False)


def _mark(seen: Seen, plan: BatchPlan, place: tuple[str, int], offsets: NDArray[np.int64]) -> None:
    """Mark offsets as seen; refuse them outside the range or where a mark is already."""
    topic, partition = place
    ranges: Mapping[int, OffsetRange] = plan.offset_ranges.get(topic, {})
    planned = ranges.get(partition, _NOTHING_PLANNED)
    outside = int(offsets.min()) < planned.start or int(offsets.max()) >= planned.end
    doubled = 0
    if not outside:
        flags = seen.setdefault(place, np.zeros(planned.width, dtype=np.bool_))
        before = int(np.count_nonzero(flags))
        flags[offsets - planned.start] = True
        doubled = before + len(offsets) - int(np.count_nonzero(flags))
    if outside or doubled:
        raise ConservationError(
            f"batch {plan.batch_id}: {topic}-{partition} planned as [{planned.start}, "
            f"{planned.end}) holds offsets {offsets.min()} to {offsets.max()}, {doubled} twice",
            "nothing is visible; run again, and report this if it comes back",
        )


def read_coordinates(table: Table, snapshot_id: int) -> Coordinates:
    """Read the coordinates of the rows that one snapshot added, ascending, doubled ones kept."""
    parts: dict[Partition, list[Offsets]] = {}
    with translated_errors(f"reading staged rows of {table.name()}"):
        for coordinates in iterate_coordinates(table, snapshot_id):
            for topic, partition, offsets in split_coordinates(coordinates):
                parts.setdefault((topic, partition), []).append(offsets)
    return {place: np.sort(np.concatenate(offsets)) for place, offsets in parts.items()}


def iterate_coordinates(table: Table, snapshot_id: int) -> Iterator[pa.StructArray]:
    """Read topic, partition and offset of the rows that one snapshot added, file by file."""
    io = table.io
    if not isinstance(io, PyArrowFileIO):
        io = PyArrowFileIO(io.properties)
    for file in read_added_files(table, snapshot_id):
        with io.new_input(file.file_path).open() as source:
            yield pq.ParquetFile(source).read(_COLUMNS)["_kafka"].combine_chunks()
