"""Which offsets a comparison judges, and its verdict."""

import pytest

from frazil.errors import ConfigurationError
from frazil.ledger.history import Span
from frazil.ledger.offsets import OffsetRange, parse_offset_ranges
from frazil.migration.comparison_rules import (
    Claim,
    Claims,
    choose_ranges,
    claim_range,
    complete_reports,
    decide_verdict,
    describe_comparison,
)
from frazil.migration.messages import PartitionExtent, PartitionReport

SAME = PartitionReport(topic="t", partition=0, judged=(0, 9), matched=9)
APART = PartitionReport(topic="t", partition=1, judged=None, left_ahead=3)


def claims(*ranges: tuple[int, int] | None) -> Claims:
    """Claim these ranges of partition 0, 1 …, ten rows in each."""
    return {
        ("t", number): Claim(10, OffsetRange(*span) if span else None)
        for number, span in enumerate(ranges)
    }


@pytest.mark.parametrize(
    ("rows", "start", "end", "expected"),
    [
        pytest.param((3, 7), None, None, (3, 8), id="without a ledger: its rows"),
        pytest.param(None, None, None, None, id="no rows and no ledger"),
        pytest.param(None, 2, 9, (2, 9), id="a ledger without rows: all are missing"),
        pytest.param((3, 7), 2, 10, (2, 10), id="rows inside of what the ledger has read"),
        pytest.param((0, 19), 2, 10, (0, 20), id="rows outside of it"),
        pytest.param(None, 5, 5, None, id="nothing read yet"),
    ],
)
def test_a_side_claims_what_its_ledger_or_its_rows_say(
    rows: tuple[int, int] | None,
    start: int | None,
    end: int | None,
    expected: tuple[int, int] | None,
) -> None:
    extent = (
        PartitionExtent(topic="t", partition=0, rows=2, first=rows[0], last=rows[1])
        if rows
        else None
    )

    claimed = claim_range(extent, start, end)

    assert claimed == (OffsetRange(*expected) if expected else None)


@pytest.mark.parametrize(
    ("windows", "start"),
    [
        ([(0, 10)], 50),
        ([(0, 10), (20, 50)], 20),
        ([(30, 50), (10, 30), (0, 5)], 10),
        ([(0, 50)], 0),
    ],
)
def test_what_lies_below_a_hole_of_a_backfill_is_not_judged(
    windows: list[tuple[int, int]], start: int
) -> None:
    spans = tuple(Span(low, high, index) for index, (low, high) in enumerate([(50, 90), *windows]))
    rows = PartitionExtent(topic="t", partition=0, rows=9, first=0, last=89)

    assert claim_range(rows, 50, 90, spans) == OffsetRange(start, 90)


def test_only_what_both_sides_have_read_is_judged() -> None:
    ranges = choose_ranges(claims((0, 5), (0, 4), (0, 3)), claims((2, 9), (5, 8)), {})

    assert ranges == {("t", 0): OffsetRange(2, 5), ("t", 1): None, ("t", 2): None}


def test_only_the_chosen_offsets_are_judged() -> None:
    chosen = parse_offset_ranges(("t:0:3-4",))

    assert choose_ranges(claims((0, 5), (0, 4)), claims((2, 9)), chosen) == {
        ("t", 0): OffsetRange(3, 4)
    }


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("t:0",), "is not a range of offsets"),
        (("t:0:5-5",), "its end is exclusive"),
        (("t:0:1-2", "t:0:3-4"), "has two ranges"),
        (("t:0:0-5", "t:1:2-5"), r"have read t:1:0-4, not all of t:1:2-5"),
        (("t:7:1-2",), "both sides have read nothing, not all of t:7"),
        (("other:0:1-2",), "both sides have read nothing, not all of other:0"),
    ],
)
def test_offsets_that_a_side_has_not_read_are_refused(asked: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        choose_ranges(claims((0, 5), (0, 4)), claims((0, 5), (0, 4)), parse_offset_ranges(asked))


def test_every_partition_is_reported() -> None:
    left, right = claims((0, 9), (0, 9), (0, 9)), claims((0, 9), (20, 29), (0, 9))
    ranges = choose_ranges(left, right, {})

    found = complete_reports(ranges, left, right, [SAME])

    assert found[0] == SAME
    assert (found[1].judged, found[1].left_ahead, found[1].right_ahead) == (None, 10, 10)
    assert (found[2].judged, found[2].matched) == ((0, 9), 0)


@pytest.mark.parametrize(
    ("reports", "facts", "verdict"),
    [
        ([SAME, APART], {}, "equal"),
        ([APART], {}, "nothing in common"),
        ([SAME.model_copy(update={"missing": 1})], {}, "different"),
        ([SAME.model_copy(update={"extra": 1})], {}, "different"),
        ([SAME.model_copy(update={"doubled_left": 1})], {}, "different"),
        ([SAME.model_copy(update={"doubled_right": 1})], {}, "different"),
        ([SAME.model_copy(update={"changed": 1})], {}, "different"),
        ([SAME.model_copy(update={"right_ahead": 1})], {}, "equal"),
        ([SAME], {"unplaced": 1, "rows_only": True}, "different"),
        ([SAME], {"layout": ("column a: only on the left: int",)}, "different"),
        ([SAME], {"layout": ("column a",), "rows_only": True}, "equal"),
    ],
)
def test_the_verdict_names_a_difference(
    reports: list[PartitionReport], facts: dict[str, object], verdict: str
) -> None:
    given: dict[str, object] = {"unplaced": 0, "layout": (), "rows_only": False, **facts}

    assert decide_verdict(reports, **given) == verdict  # type: ignore[arg-type]


def test_the_sentence_counts_what_differs() -> None:
    changed = SAME.model_copy(update={"changed": 2, "missing": 1})

    text = describe_comparison([changed, APART], 3, (), ("t:0:0-9",))

    assert text == (
        "9 records of the offsets t:0:0-9 once on both sides in 1 partition; 1 missing on the "
        "right, 2 with other values, 3 without a coordinate"
    )
