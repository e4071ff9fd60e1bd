"""Coordinates of records survive their compact text, and the text stays small."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.ledger.coordinates import (
    NO_OFFSETS,
    Coordinates,
    covering_ranges,
    encode_coordinates,
    find_runs,
    parse_coordinates,
    plain_runs,
    spread_runs,
)
from frazil.ledger.offsets import OffsetRange
from frazil.recovery.redrive_rules import MAX_DEAD_LETTERS

ONE_MIB = 1024 * 1024
OFFSETS = st.sets(st.integers(0, 10**12), max_size=50).map(
    lambda found: np.array(sorted(found), dtype=np.int64)
)


def offsets_of(*offsets: int) -> Coordinates:
    """Name records of one partition."""
    return {("orders", 3): np.array(offsets, dtype=np.int64)}


def test_neighbours_are_written_as_one_run() -> None:
    assert find_runs(np.array([3, 4, 5, 9, 11, 12])) == [(3, 6), (9, 10), (11, 13)]
    assert find_runs(NO_OFFSETS) == []


def test_the_text_is_plain_where_it_is_short() -> None:
    assert encode_coordinates(offsets_of(3, 4, 5, 9)) == '{"orders":{"3":[[3,6],9]}}'


@given(OFFSETS)
def test_offsets_survive_their_runs(offsets: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> None:
    assert spread_runs(find_runs(offsets)).tolist() == offsets.tolist()


@given(st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 9)), OFFSETS))
def test_coordinates_survive_their_text(coordinates: Coordinates) -> None:
    parsed = parse_coordinates(encode_coordinates(coordinates))

    held = {place: found.tolist() for place, found in coordinates.items() if len(found)}
    assert {place: found.tolist() for place, found in parsed.items()} == held


@pytest.mark.parametrize("spread", [2, 20, 10**7], ids=["every second", "5 %", "far apart"])
def test_the_largest_redrive_leaves_metadata_readable(spread: int) -> None:  # C15
    rnd = random.Random(spread)
    places = np.cumsum([rnd.randrange(1, spread * 2) for _ in range(MAX_DEAD_LETTERS)])

    text = encode_coordinates({("orders", 0): places.astype(np.int64)})

    assert text.startswith("z:")
    assert len(text) < ONE_MIB


def test_ranges_cover_and_empty_partitions_are_left_out() -> None:
    coordinates = {**offsets_of(3, 9), ("orders", 4): NO_OFFSETS}

    assert covering_ranges(coordinates) == {"orders": {3: OffsetRange(3, 10)}}
    assert plain_runs(coordinates) == {"orders": {3: [(3, 4), (9, 10)]}}
