"""Coordinates of single records: exact offsets per partition, and their compact text.

A redrive names every record that it brought back; ranges would name their neighbours too.
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
"""Records by partition."""


DeadLetterCoordinates = Mapping[str, Coordinates]
"""Dead letters by attempt."""


Plain = Mapping[str, Mapping[str, list[int | list[int]]]]
"""topic → partition → single offsets and half-open runs, as JSON writes them."""


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


def count_runs(coordinates: Coordinates) -> int:
    """Count the runs that these records are written as: what a summary has to hold."""
    return sum(
        1 + int(np.count_nonzero(np.diff(offsets) != 1))
        for offsets in coordinates.values()
        if len(offsets)
    )


def covering_ranges(coordinates: Coordinates) -> dict[str, dict[int, OffsetRange]]:
    """Give the narrowest range of each partition that holds all of its coordinates."""
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for (topic, partition), offsets in sorted(coordinates.items()):
        if len(offsets):
            covering = OffsetRange(int(offsets[0]), int(offsets[-1]) + 1)
            ranges.setdefault(topic, {})[partition] = covering
    return ranges


def encode_coordinates(coordinates: Coordinates) -> str:
    """Write `frazil.coordinates`; a lone offset is a number. Compressed above 4 KiB, as a state."""
    return _write(_to_plain(coordinates))


def parse_coordinates(text: str) -> dict[Partition, Offsets]:
    """Read what `encode_coordinates` wrote."""
    document: Plain = json.loads(unpack(text))
    return _from_plain(document)


def encode_dead_letters(letters: DeadLetterCoordinates) -> str:
    """Write `frazil.letters`: coordinates as above, by attempt."""
    return _write({attempt: _to_plain(held) for attempt, held in sorted(letters.items())})


def parse_dead_letters(text: str) -> dict[str, Coordinates]:
    """Read what `encode_dead_letters` wrote."""
    documents: Mapping[str, Plain] = json.loads(unpack(text))
    return {attempt: _from_plain(document) for attempt, document in documents.items()}


def join_coordinates(parts: Iterable[Coordinates]) -> dict[Partition, Offsets]:
    """Join records, each once."""
    joined: dict[Partition, list[Offsets]] = {}
    for part in parts:
        for partition, offsets in part.items():
            joined.setdefault(partition, []).append(offsets)
    return {place: np.unique(np.concatenate(offsets)) for place, offsets in joined.items()}


def join_dead_letters(parts: Iterable[DeadLetterCoordinates]) -> dict[str, Coordinates]:
    """Join letters, each once."""
    joined: dict[str, list[Coordinates]] = {}
    for part in parts:
        for attempt, held in part.items():
            joined.setdefault(attempt, []).append(held)
    return {attempt: join_coordinates(held) for attempt, held in joined.items()}


def subtract_coordinates(coordinates: Coordinates, known: Coordinates) -> dict[Partition, Offsets]:
    """Leave out what is known; partitions without any left are left out too."""
    left = {
        partition: offsets[~np.isin(offsets, known.get(partition, NO_OFFSETS))]
        for partition, offsets in coordinates.items()
    }
    return {partition: offsets for partition, offsets in left.items() if len(offsets)}


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


SHOWN_COORDINATES = 20
