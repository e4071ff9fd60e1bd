"""Coordinates of single records: exact offsets per partition, and their compact text.

A redrive names every record that it brought back; ranges would name their neighbours too.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from frazil.offsets import OffsetRange, Runs
from frazil.state import COMPRESSED, PLAIN_LIMIT_BYTES

Partition = tuple[str, int]
"""Topic and partition number."""

Offsets = npt.NDArray[np.int64]
"""Offsets of one partition, ascending."""

Coordinates = Mapping[Partition, Offsets]
"""Records by partition."""

NO_OFFSETS: Offsets = np.empty(0, dtype=np.int64)


def find_runs(offsets: Offsets) -> list[tuple[int, int]]:
    """Write ascending offsets as half-open runs of neighbours."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = offsets[np.concatenate([[0], breaks])]
    ends = offsets[np.concatenate([breaks - 1, [len(offsets) - 1]])] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def spread_runs(runs: Iterable[tuple[int, int]]) -> Offsets:
    """Write runs as single offsets again."""
    return np.concatenate([NO_OFFSETS, *(np.arange(start, end) for start, end in runs)])


def plain_runs(coordinates: Coordinates) -> Runs:
    """Turn coordinates into what messages carry; partitions without any are left out."""
    runs: Runs = {}
    for (topic, partition), offsets in sorted(coordinates.items()):
        if len(offsets):
            runs.setdefault(topic, {})[partition] = find_runs(offsets)
    return runs


def count_coordinates(coordinates: Coordinates) -> int:
    """Count the records."""
    return sum(len(offsets) for offsets in coordinates.values())


def cover(coordinates: Coordinates) -> dict[str, dict[int, OffsetRange]]:
    """Give the narrowest range of each partition that holds all of its coordinates."""
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for (topic, partition), offsets in sorted(coordinates.items()):
        if len(offsets):
            covering = OffsetRange(int(offsets[0]), int(offsets[-1]) + 1)
            ranges.setdefault(topic, {})[partition] = covering
    return ranges


def encode_coordinates(coordinates: Coordinates) -> str:
    """Write `frazil.coordinates`; a lone offset is a number. Compressed above 4 KiB, as a state."""
    document = {
        topic: {
            str(partition): [start if end == start + 1 else [start, end] for start, end in runs]
            for partition, runs in by_partition.items()
        }
        for topic, by_partition in plain_runs(coordinates).items()
    }
    text = json.dumps(document, separators=(",", ":"))
    if len(text) <= PLAIN_LIMIT_BYTES:
        return text
    return COMPRESSED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def parse_coordinates(text: str) -> dict[Partition, Offsets]:
    """Read what `encode_coordinates` wrote."""
    if text.startswith(COMPRESSED):
        text = zlib.decompress(base64.b64decode(text.removeprefix(COMPRESSED))).decode()
    return {
        (topic, int(partition)): spread_runs(
            (each, each + 1) if isinstance(each, int) else (each[0], each[1]) for each in listed
        )
        for topic, by_partition in json.loads(text).items()
        for partition, listed in by_partition.items()
    }
