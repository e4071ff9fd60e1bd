"""Ranges are half-open, and moving past them loses no offset."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.ledger.offsets import (
    OffsetRange,
    Ranges,
    advance,
    count_offsets,
    describe_ranges,
    encode_ranges,
    iterate_ranges,
    parse_offset_ranges,
    parse_ranges,
)

OFFSET = st.integers(0, 10**12)
RANGE = st.tuples(OFFSET, OFFSET).map(lambda pair: OffsetRange(min(pair), max(pair)))
TOPIC = st.sampled_from(["orders", "flights.v1", "a-b_c"])
RANGES = st.dictionaries(TOPIC, st.dictionaries(st.integers(0, 40), RANGE, max_size=5), max_size=3)


@pytest.mark.parametrize(
    ("start", "end"), [(-1, 3), (4, 3)], ids=["a negative start", "an end before the start"]
)
def test_what_is_no_range_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a half-open range"):
        OffsetRange(start, end)


@pytest.mark.parametrize(
    ("offset", "inside"),
    [(9, False), (10, True), (19, True), (20, False)],
    ids=["below the start", "the start itself", "the last before the end", "the end itself"],
)
def test_a_range_holds_its_start_and_not_its_end(offset: int, inside: bool) -> None:  # noqa: FBT001
    assert OffsetRange(10, 20).holds(offset) is inside


def test_an_empty_range_holds_nothing() -> None:
    empty = OffsetRange(7, 7)

    assert empty.width == 0
    assert not empty.holds(7)


@given(RANGES)
def test_ranges_survive_their_text(ranges: Ranges) -> None:
    assert parse_ranges(encode_ranges(ranges)) == ranges


@given(RANGES)
def test_ranges_that_are_shown_can_be_pasted_into_an_option(ranges: Ranges) -> None:
    wanted = {t: {p: r for p, r in parts.items() if r.width} for t, parts in ranges.items()}
    wanted = {topic: parts for topic, parts in wanted.items() if parts}
    shown = describe_ranges(wanted)

    assert parse_offset_ranges((shown,) if shown else ()) == wanted
    assert parse_offset_ranges(tuple(shown.split(", ")) if shown else ()) == wanted


def test_ranges_as_older_versions_showed_them_can_be_pasted_too() -> None:
    pasted = parse_offset_ranges(("orders-0 [0, 100), a-b_c-12 [5,7)", "flights.v1:0:1-2"))

    assert describe_ranges(pasted) == "a-b_c:12:5-7, flights.v1:0:1-2, orders:0:0-100"


def test_the_text_of_ranges_does_not_depend_on_their_order() -> None:
    one = {"b": {1: OffsetRange(0, 2), 0: OffsetRange(3, 4)}, "a": {}}
    other = {"a": {}, "b": {0: OffsetRange(3, 4), 1: OffsetRange(0, 2)}}

    assert encode_ranges(one) == encode_ranges(other) == '{"a":{},"b":{"0":[3,4],"1":[0,2]}}'


@given(RANGES)
def test_as_many_offsets_are_counted_as_the_ranges_are_wide(ranges: Ranges) -> None:
    widths = [r.end - r.start for parts in ranges.values() for r in parts.values()]

    assert count_offsets(ranges) == sum(widths)


@given(RANGES, st.dictionaries(TOPIC, st.lists(OFFSET, max_size=6).map(tuple)))
def test_advancing_moves_exactly_the_partitions_of_the_ranges(
    ranges: Ranges, offsets: dict[str, tuple[int, ...]]
) -> None:
    moved = advance(offsets, ranges)

    ends = {(topic, p): r.end for topic, p, r in iterate_ranges(ranges)}
    for topic, values in moved.items():
        before = offsets.get(topic, ())
        for partition, value in enumerate(values):
            stayed = before[partition] if partition < len(before) else 0
            assert value == ends.get((topic, partition), stayed)
    assert {(t, p) for t, p in ends} <= {(t, p) for t, v in moved.items() for p in range(len(v))}


def test_a_new_partition_is_added_and_those_between_begin_at_0() -> None:
    moved = advance({"orders": (5,)}, {"orders": {2: OffsetRange(0, 9)}})

    assert moved == {"orders": (5, 0, 9)}
