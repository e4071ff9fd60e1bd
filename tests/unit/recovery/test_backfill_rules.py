"""Windows of a backfill: all that is free, nothing twice, and never what the live stream has."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import ConfigurationError, TargetError
from frazil.ledger.coordinates import Partition
from frazil.ledger.history import Span, Spans, Step, trace_steps
from frazil.ledger.offsets import OffsetRange, count_offsets, iterate_ranges
from frazil.ledger.recovery_point import History, LedgerEntry
from frazil.ledger.state import StreamState, encode_state
from frazil.recovery.backfill_rules import (
    MAX_WINDOWS,
    choose_windows,
    count_missing,
    cut_windows,
    find_beginnings,
    list_missing,
    require_below_beginning,
    validate_one_selection,
)
from frazil.streams.timestamps import read_span

offsets = st.integers(0, 300)
ranges = st.tuples(offsets, offsets).map(lambda pair: OffsetRange(min(pair), max(pair)))
places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 3))
free_spans = st.dictionaries(
    places,
    st.lists(st.integers(1, 40), min_size=1, max_size=4).map(
        lambda widths: [OffsetRange(50 * n, 50 * n + width) for n, width in enumerate(widths)]
    ),
)


def list_offsets(spans: list[OffsetRange]) -> set[int]:
    return {offset for span in spans for offset in range(span.start, span.end)}


@given(ranges, st.lists(ranges, max_size=5))
def test_free_is_what_was_asked_for_and_not_published(
    wanted: OffsetRange, published: list[OffsetRange]
) -> None:
    spans = Spans(tuple(Span(span.start, span.end, 0) for span in published))

    free = list_missing({"a": {0: wanted}}, {("a", 0): spans}).get(("a", 0), [])

    assert list_offsets(free) == list_offsets([wanted]) - list_offsets(published)
    assert sum(span.width for span in free) == len(list_offsets(free))
    assert all(span.width for span in free)


@given(
    free_spans,
    st.integers(1, 60),
    st.sampled_from(["oldest", "newest"]),
    st.none() | st.integers(1, 200),
)
def test_windows_cover_what_is_free_once_within_their_size_and_the_limit(
    free: dict[Partition, list[OffsetRange]], size: int, order: str, limit: int | None
) -> None:
    windows = list(cut_windows(free, size, limit=limit, newest_first=order == "newest"))

    taken = Counter(
        (topic, number, offset)
        for window in windows
        for topic, number, span in iterate_ranges(window)
        for offset in range(span.start, span.end)
    )
    every = {(*place, offset) for place, spans in free.items() for offset in list_offsets(spans)}
    assert set(taken) <= every
    assert set(taken.values()) <= {1}
    assert len(taken) == min(len(every), limit if limit is not None else len(every))
    assert all(0 < count_offsets(window) <= size for window in windows)


@pytest.mark.parametrize(("order", "starts"), [("oldest", [0, 40, 80]), ("newest", [80, 40, 0])])
def test_windows_come_in_order_and_partitions_give_in_proportion(
    order: str, starts: list[int]
) -> None:
    free = {("a", 0): [OffsetRange(0, 120)], ("a", 1): [OffsetRange(0, 60)]}

    windows = list(cut_windows(free, 60, newest_first=order == "newest"))

    assert [window["a"][0].start for window in windows] == starts
    assert [window["a"][1].width for window in windows] == [20, 20, 20]


def test_one_run_has_at_most_as_many_windows_as_airflow_maps() -> None:
    free = {("a", 0): [OffsetRange(0, 5000)]}

    assert len(choose_windows(cut_windows(free, 2))) == MAX_WINDOWS
    assert count_missing(free) == 5000


def steps_of(*states: tuple[str, dict[str, tuple[int, ...]], str]) -> tuple[Step, ...]:
    """Build a chain of snapshots: kind, next offsets after it, id of the topic."""
    entries = {
        number: LedgerEntry(
            number,
            number - 1 or None,
            number,
            {
                "frazil.kind": kind,
                "frazil.state.s": encode_state(
                    StreamState(number, "b", offsets, dict.fromkeys(offsets, topic_id), "c")
                ),
            },
        )
        for number, (kind, offsets, topic_id) in enumerate(states, 1)
    }
    history = History("t", "u", len(states), entries, {})
    return trace_steps(history, "s")


def test_a_stream_begins_where_its_first_state_does_and_again_where_its_topic_does() -> None:
    steps = steps_of(
        ("bootstrap", {"a": (100, 200)}, "one"),
        ("ingest", {"a": (150, 250, 10)}, "one"),
    )
    assert find_beginnings(steps) == {("a", 0): 100, ("a", 1): 200, ("a", 2): 0}

    steps = steps_of(
        ("bootstrap", {"a": (100,)}, "one"),
        ("gap", {"a": (30,)}, "two"),
        ("ingest", {"a": (90,)}, "two"),
    )
    assert find_beginnings(steps) == {("a", 0): 30}


def test_the_live_stream_is_refused_with_where_it_begins() -> None:
    begins = {("a", 0): 100}

    require_below_beginning("s", {"a": {0: OffsetRange(0, 100)}}, begins)
    with pytest.raises(TargetError, match=r"a:0:50-101 reaches .* a:0:100"):
        require_below_beginning("s", {"a": {0: OffsetRange(50, 101)}}, begins)
    with pytest.raises(TargetError, match=r"s has not read topic b; its topics: a"):
        require_below_beginning("s", {"b": {0: OffsetRange(0, 1)}}, begins)
    with pytest.raises(TargetError, match=r"a:1:0-1"):
        require_below_beginning("s", {"a": {1: OffsetRange(0, 1)}}, begins)


def test_a_time_that_ends_before_it_begins_is_refused() -> None:
    early, late = "2026-01-31T00:00:00Z", "2026-02-01T00:00:00Z"

    assert read_span(early, None) == (1_769_817_600_000, None)
    for until in (early, "2026-01-30T00:00:00Z"):
        with pytest.raises(ConfigurationError, match=f"--since {early} is not before --until"):
            read_span(early, until)
    assert read_span(early, late)[1] == 1_769_904_000_000


def test_offsets_and_instants_at_once_are_refused() -> None:
    validate_one_selection((), None, None)
    with pytest.raises(ConfigurationError, match="both"):
        validate_one_selection(("a:0:0-1",), "2026-01-31T00:00:00Z", None)
