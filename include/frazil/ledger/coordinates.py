"""Coordinates of single records: exact offsets by partition, and their compact JSON.

Redrives, erasures and row expiry list exact records; a range would include their neighbours.
"""

import json
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

from frazil.ledger.keys import pack, unpack
from frazil.ledger.offsets import OffsetRange, Runs

Partition = tuple[str, int]
"""Topic and partition number."""

Offsets = npt.NDArray[np.int64]
"""Offsets of one partition, ascending."""

Coordinates = Mapping[Partition, Offsets]
"""Partition → offsets of records."""

DeadLetterCoordinates = Mapping[str, Coordinates]
"""Attempt id → coordinates of its dead letters."""

Plain = Mapping[str, Mapping[str, list[int | list[int]]]]
"""The JSON form: topic → partition → single offsets and half-open runs."""

FIRST_TIMESTAMP_MS, LAST_TIMESTAMP_MS = -12_219_292_800_000, 253_402_300_799_999
"""Record timestamps that tables hold, in ms since 1970: 1582-10-15 to 9999. Others become null."""
NO_OFFSETS: Offsets = np.empty(0, dtype=np.int64)

SHOWN_COORDINATES = 20
"""Most coordinates that a report lists."""


def find_runs(offsets: Offsets) -> list[tuple[int, int]]:
    """Group ascending offsets into half-open runs of consecutive offsets."""
    if not len(offsets):
        return []
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    starts = offsets[np.concatenate([[0], breaks])]
    ends = offsets[np.concatenate([breaks - 1, [len(offsets) - 1]])] + 1
    return list(zip(starts.tolist(), ends.tolist(), strict=True))


def spread_runs(runs: Iterable[tuple[int, int]]) -> Offsets:
    """Return the single offsets of half-open runs."""
    return np.concatenate([NO_OFFSETS, *(np.arange(start, end) for start, end in runs)])


def plain_runs(coordinates: Coordinates) -> Runs:
    """Return coordinates as runs for a message; partitions without offsets are left out."""
    runs: Runs = {}
    for (topic, partition), offsets in sorted(coordinates.items()):
        if len(offsets):
            runs.setdefault(topic, {})[partition] = find_runs(offsets)
    return runs


def count_coordinates(coordinates: Coordinates) -> int:
    """Count the records."""
    return sum(len(offsets) for offsets in coordinates.values())


def count_runs(coordinates: Coordinates) -> int:
    """Count the runs of consecutive offsets, which determine the size of the JSON."""
    return sum(
        1 + int(np.count_nonzero(np.diff(offsets) != 1))
        for offsets in coordinates.values()
        if len(offsets)
    )


def covering_ranges(coordinates: Coordinates) -> dict[str, dict[int, OffsetRange]]:
    """Return the smallest range of each partition that contains all of its offsets."""
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for (topic, partition), offsets in sorted(coordinates.items()):
        if len(offsets):
            covering_range = OffsetRange(int(offsets[0]), int(offsets[-1]) + 1)
            ranges.setdefault(topic, {})[partition] = covering_range
    return ranges


def encode_coordinates(coordinates: Coordinates) -> str:
    """Encode `frazil.coordinates`: a single offset is a number, a run is a pair.

    Above 4 KiB the JSON is compressed.
    """
    return _write(_to_plain(coordinates))


def parse_coordinates(text: str) -> dict[Partition, Offsets]:
    """Parse what `encode_coordinates` wrote."""
    document: Plain = json.loads(unpack(text))
    return _from_plain(document)


def encode_dead_letters(dead_letters: DeadLetterCoordinates) -> str:
    """Encode `frazil.letters`: coordinates by attempt."""
    return _write({attempt: _to_plain(held) for attempt, held in sorted(dead_letters.items())})


def parse_dead_letters(text: str) -> dict[str, Coordinates]:
    """Parse what `encode_dead_letters` wrote."""
    documents: Mapping[str, Plain] = json.loads(unpack(text))
    return {attempt: _from_plain(document) for attempt, document in documents.items()}


def join_coordinates(parts: Iterable[Coordinates]) -> dict[Partition, Offsets]:
    """Return the union of several sets of coordinates."""
    joined: dict[Partition, list[Offsets]] = {}
    for part in parts:
        for partition, offsets in part.items():
            joined.setdefault(partition, []).append(offsets)
    return {partition: np.unique(np.concatenate(parts)) for partition, parts in joined.items()}


def join_dead_letters(parts: Iterable[DeadLetterCoordinates]) -> dict[str, Coordinates]:
    """Return the union of several sets of dead letters."""
    joined: dict[str, list[Coordinates]] = {}
    for part in parts:
        for attempt, held in part.items():
            joined.setdefault(attempt, []).append(held)
    return {attempt: join_coordinates(held) for attempt, held in joined.items()}


def subtract_coordinates(
    coordinates: Coordinates, removed: Coordinates
) -> dict[Partition, Offsets]:
    """Return the coordinates that are not in `removed`; empty partitions are left out."""
    rest = {
        partition: offsets[~np.isin(offsets, removed.get(partition, NO_OFFSETS))]
        for partition, offsets in coordinates.items()
    }
    return {partition: offsets for partition, offsets in rest.items() if len(offsets)}


def _to_plain(coordinates: Coordinates) -> Plain:
    return {
        topic: {
            str(partition): [start if end == start + 1 else [start, end] for start, end in runs]
            for partition, runs in by_partition.items()
        }
        for topic, by_partition in plain_runs(coordinates).items()
    }


def _from_plain(document: Plain) -> dict[Partition, Offsets]:
    return {
        (topic, int(partition)): spread_runs(
            (each, each + 1) if isinstance(each, int) else (each[0], each[1]) for each in listed
        )
        for topic, by_partition in document.items()
        for partition, listed in by_partition.items()
    }


def _write(document: Mapping[str, object]) -> str:
    return pack(json.dumps(document, separators=(",", ":")))
