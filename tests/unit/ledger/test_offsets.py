"""Ranges are half-open, and moving past them loses no offset."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import ConfigurationError
from frazil.ledger.offsets import (
    OFFSET_LOCATIONS_PATTERN,
    RANGE_PATTERN,
    OffsetLocation,
    OffsetRange,
    PlainRanges,
    Ranges,
    Runs,
    advance,
    choose_offset,
    count_offsets,
    describe_next_offsets,
    describe_ranges,
    encode_ranges,
    iterate_ranges,
    merge_offsets,
    parse_offset_locations,
    parse_offset_ranges,
    parse_ranges,
    remove_runs,
    slice_ranges,
    unpack_ranges,
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


@pytest.mark.parametrize(
    ("text", "facts", "step"),
    [
        ("flights:0:9-5", "'flights:0:9-5' ends before it starts", "flights:0:5-9"),
        ("flights:0:5-5", "'flights:0:5-5' is an empty range", "flights:0:5 for"),
        ("flights:0:0-10 flights:0:20-30", "flights:0 has two ranges", "one range for each part"),
        ("flights-0 [0, 10), flights:0:20-30", "flights:0 has two ranges", "one range for each"),
        ("flights:0:0-10;", "is not a range of offsets", "topic:partition:start-end"),
    ],
)
def test_ranges_that_cannot_be_read_name_what_to_write(text: str, facts: str, step: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_offset_ranges((text,))

    assert facts in refusal.value.facts
    assert step in refusal.value.next_step


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("flights:0:7", "flights:0:7-8"),
        ("flights:0:7, flights:1:0-3, flights:0:8", "flights:0:7-9, flights:1:0-3"),
        ("flights:0:20-30 flights:0:0-10 flights:0:10-20", "flights:0:0-30"),
        ("flights:0:0-10, flights:0:5, flights-0 [9, 12)", "flights:0:0-12"),
    ],
)
def test_single_offsets_and_ranges_that_touch_make_one_range(text: str, same: str) -> None:
    assert describe_ranges(parse_offset_ranges((text,))) == same
    assert re.fullmatch(RANGE_PATTERN, text)


ONLY = OffsetLocation("flights", 0, 4711)


@pytest.mark.parametrize(
    ("offset", "partition", "topic"),
    [
        ("4711", 0, ""),
        ("4711", 0, "flights"),
        ("flights:0:4711", None, ""),
        (" flights:0:4711,", 0, "flights"),
        ("flights:0:4711-4712", None, ""),
    ],
)
def test_a_record_is_named_by_numbers_or_as_it_is_shown(
    offset: str, partition: int | None, topic: str
) -> None:
    assert choose_offset(offset, partition, topic, lambda: "flights") == ONLY


@pytest.mark.parametrize(
    ("offset", "partition", "topic", "facts"),
    [
        ("4711", None, "flights", "offset 4711 needs a partition"),
        ("-5", 0, "", "'-5'"),
        ("x", 0, "", "'x'"),
        ("٤٧", 0, "", "'٤٧'"),
        ("9" * 5000, 0, "", "999"),
        ("", 0, "", "is neither a number nor topic:partition:offset"),
        ("flights:0", 0, "", "'flights:0' is not topic:partition:offset"),
        ("flights:0:7-9", None, "", "is not topic:partition:offset"),
        ("flights:0:7", 1, "", "of another topic or partition"),
        ("flights:0:7", None, "trains", "of another topic or partition"),
    ],
)
def test_what_names_no_record_or_two_is_refused(
    offset: str, partition: int | None, topic: str, facts: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        choose_offset(offset, partition, topic, lambda: "flights")

    assert facts in refusal.value.facts
    assert refusal.value.next_step


def test_next_offsets_that_are_shown_can_be_pasted() -> None:
    shown = describe_next_offsets({"orders": (5, 0), "flights.v1": (7,)})

    found = [*parse_offset_locations(shown), *parse_offset_locations(" orders:2:1,")]

    assert re.fullmatch(OFFSET_LOCATIONS_PATTERN, shown)
    assert found == [
        OffsetLocation("flights.v1", 0, 7),
        OffsetLocation("orders", 0, 5),
        OffsetLocation("orders", 1, 0),
        OffsetLocation("orders", 2, 1),
    ]


@pytest.mark.parametrize("text", ["flights:0:0-10,", " flights:0:0-10 ,", "flights:0:0-10, \n"])
def test_a_comma_may_follow_the_last_range(text: str) -> None:
    assert parse_offset_ranges((text,)) == {"flights": {0: OffsetRange(0, 10)}}


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


PLAIN = st.dictionaries(
    TOPIC,
    st.dictionaries(
        st.integers(0, 3),
        st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda pair: (min(pair), max(pair))),
        min_size=1,
        max_size=3,
    ),
    min_size=1,
    max_size=2,
)


def list_offsets(ranges: PlainRanges) -> list[tuple[str, int, int]]:
    """List every offset in the order in which positions are numbered."""
    return [
        (topic, partition, offset)
        for topic, partition, span in iterate_ranges(unpack_ranges(ranges))
        for offset in range(span.start, span.end)
    ]


@given(PLAIN, st.data())
def test_a_slice_of_ranges_holds_the_offsets_at_its_positions(
    ranges: PlainRanges, data: st.DataObject
) -> None:
    offsets = list_offsets(ranges)
    start = data.draw(st.integers(0, len(offsets)))
    end = data.draw(st.integers(start, len(offsets)))

    part = slice_ranges(ranges, OffsetRange(start, end))

    assert list_offsets(part) == offsets[start:end]
    assert part, "a job cannot read no partition at all"


@given(PLAIN, st.data())
def test_ranges_without_some_offsets_hold_all_others_once(
    ranges: PlainRanges, data: st.DataObject
) -> None:
    offsets = list_offsets(ranges)
    removed = data.draw(st.sets(st.sampled_from(offsets))) if offsets else set()
    runs: Runs = {}
    for topic, partition, offset in sorted(removed):
        runs.setdefault(topic, {}).setdefault(partition, []).append((offset, offset + 1))

    layers = remove_runs(ranges, runs)

    left = [offset for layer in layers for offset in list_offsets(layer)]
    assert sorted(left) == sorted(set(offsets) - removed)
    assert {topic: set(parts) for topic, parts in layers[0].items()} == {
        topic: set(parts) for topic, parts in ranges.items()
    }


@given(st.sets(st.integers(0, 60), max_size=30).map(sorted), st.integers(1, 8))
def test_merged_offsets_are_held_by_few_ranges_split_at_the_widest_gaps(
    offsets: list[int], most: int
) -> None:
    spans = merge_offsets(offsets, most)

    assert len(spans) <= most
    assert all(any(span.holds(offset) for span in spans) for offset in offsets)
    assert all(span.start in offsets and span.end - 1 in offsets for span in spans)
    between = [after.start - before.end for before, after in pairwise(spans)]
    gaps = sorted((after - before - 1 for before, after in pairwise(offsets)), reverse=True)
    assert sorted(between, reverse=True) == [gap for gap in gaps if gap][: most - 1]
