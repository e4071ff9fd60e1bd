"""Which batches lack records: as each summary's counts claim, read once for all partitions."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets, Partition
from frazil.ledger.history import Step
from frazil.ledger.keys import pack, unpack
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import LedgerEntry
from frazil.recovery.lost_rows import find_missing

Batch = dict[Partition, tuple[int, int, int]]
"""By partition how many records a batch read, how many were good, and how many main has."""

PARTITIONS = [("orders", 0), ("orders", 1), ("refunds", 0)]
WIDTH = 5
counts = st.tuples(st.integers(1, WIDTH), st.integers(0, WIDTH), st.integers(0, WIDTH))
batches = st.lists(st.dictionaries(st.sampled_from(PARTITIONS), counts), max_size=8)


def make_step(number: int, batch: Batch, skipped: str) -> Step:
    """Make a batch that read the offsets from `number` times `WIDTH` on."""
    ranges: dict[str, dict[int, OffsetRange]] = {}
    told: dict[str, dict[str, tuple[int, int]]] = {}
    for (topic, partition), (read, good, _) in batch.items():
        ranges.setdefault(topic, {})[partition] = OffsetRange(number * WIDTH, (number + 1) * WIDTH)
        told.setdefault(topic, {})[str(partition)] = (read, min(read, good))
    summary = {keys.COUNTS: pack(json.dumps(told)), keys.ROWS_SKIPPED: skipped}
    return Step(LedgerEntry(number, None, 0, summary), keys.INGEST, None, None, ranges)


def list_missing(lived: list[Batch], skipped: str) -> dict[str, dict[int, OffsetRange]]:
    """Find what is missing one partition and one batch at a time."""
    missing: dict[str, dict[int, OffsetRange]] = {}
    for topic, partition in PARTITIONS:
        lacking = [
            number
            for number, batch in enumerate(lived)
            if (held := batch.get((topic, partition)))
            and held[2] < (held[0] if skipped == "0" else min(held[:2]))
        ]
        if lacking:
            found = OffsetRange(lacking[0] * WIDTH, (lacking[-1] + 1) * WIDTH)
            missing.setdefault(topic, {})[partition] = found
    return missing


def list_present(lived: list[Batch]) -> dict[Partition, Offsets]:
    """List the offsets that main has: the first ones of each batch."""
    return {
        place: np.array(
            [
                number * WIDTH + n
                for number, batch in enumerate(lived)
                for n in range(batch.get(place, (0, 0, 0))[2])
            ],
            dtype=np.int64,
        )
        for place in PARTITIONS
    }


@given(batches, st.sampled_from(["0", "1"]))
def test_batches_lack_records_as_their_counts_claim(lived: list[Batch], skipped: str) -> None:
    steps = tuple(make_step(number, batch, skipped) for number, batch in enumerate(lived))

    found = find_missing(steps, list_present(lived), lambda spans: spans.current)

    assert found == list_missing(lived, skipped)


def test_the_counts_of_a_batch_are_parsed_once_for_all_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lived: list[Batch] = [dict.fromkeys(PARTITIONS, (WIDTH, WIDTH, WIDTH))] * 4
    steps = tuple(make_step(number, batch, "0") for number, batch in enumerate(lived))
    parsed: list[str] = []

    def count(text: str) -> str:
        parsed.append(text)
        return unpack(text)

    monkeypatch.setattr("frazil.recovery.lost_rows.unpack", count)
    assert find_missing(steps, list_present(lived), lambda spans: spans.current) == {}

    assert len(parsed) == len(lived)
