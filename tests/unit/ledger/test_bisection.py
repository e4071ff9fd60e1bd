"""Halving finds exactly the records that fail, within the limit of jobs, and blames no other."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.ledger.bisection import (
    EMPTY,
    LAST_JOBS,
    MAX_JOBS,
    Bisection,
    begin_search,
    note_outcomes,
)
from frazil.ledger.offsets import OffsetRange

BATCH = 1_000_000
"""The largest batch of a stream file without `max_records`."""
Passes = Callable[[OffsetRange], bool]


def passes_without(failing: frozenset[int]) -> Passes:
    """Describe a job that fails for each span with one of these positions."""
    return lambda span: not any(span.holds(position) for position in failing)


def search(count: int, passes: Passes, *, ends_at_failure: bool = False) -> Bisection:
    """Run jobs until the search knows enough; a server that ends tests no further part."""
    found = begin_search(count)
    while found.untested and not found.has_other_cause and not found.is_exhausted:
        outcomes = [passes(span) for span in found.next_spans]
        if ends_at_failure and False in outcomes:
            outcomes = outcomes[: outcomes.index(False) + 1]
        found = note_outcomes(found, outcomes)
    return found


def list_failing(count: int, most: int) -> st.SearchStrategy[frozenset[int]]:
    return st.frozensets(st.integers(0, count - 1), min_size=0, max_size=most)


@given(st.data(), st.sampled_from([2, 3, 100, 4097, BATCH]), st.booleans())
def test_a_search_finds_exactly_the_failing_records_or_names_a_range_that_holds_one(
    data: st.DataObject,
    count: int,
    ends_at_failure: bool,  # noqa: FBT001
) -> None:
    failing = data.draw(list_failing(count, min(count, 60)))

    found = search(count, passes_without(failing), ends_at_failure=ends_at_failure)

    assert found.jobs < MAX_JOBS
    assert set(found.found) <= failing
    if not found.untested and not found.has_other_cause:
        assert sorted(found.found) == sorted(failing)
        return
    assert found.is_exhausted, "some records pass: the records are the cause"
    assert len(failing) > 1
    suspects = found.suspects
    assert all(any(span.holds(position) for span in suspects) for position in failing)
    if found.smallest_failing is not None:
        assert any(found.smallest_failing.holds(position) for position in failing)


@given(list_failing(BATCH, 12))
def test_a_dozen_records_of_a_full_batch_are_found_within_the_limit(
    failing: frozenset[int],
) -> None:
    found = search(BATCH, passes_without(failing))

    assert not found.untested
    assert sorted(found.found) == sorted(failing)
    assert found.jobs < MAX_JOBS


@given(st.integers(1, BATCH), st.data())
def test_one_record_that_ends_the_server_is_found_in_a_batch_of_any_size(
    count: int, data: st.DataObject
) -> None:
    failing = frozenset({data.draw(st.integers(0, count - 1))})

    found = search(count, passes_without(failing), ends_at_failure=True)

    assert found.found == tuple(failing)
    assert not found.has_other_cause


@pytest.mark.parametrize("good", [(), (1,)])
@pytest.mark.parametrize("count", [2, 7, 100, BATCH])
def test_a_job_that_fails_with_every_part_but_not_without_records_is_searched(
    count: int, good: tuple[int, ...]
) -> None:
    found = search(count, lambda span: not span.width or (span.start in good and span.width == 1))

    assert not found.has_other_cause
    if count < BATCH:
        assert sorted(found.found) == [each for each in range(count) if each not in good]
        return
    assert found.is_exhausted
    assert found.jobs <= 8
    assert found.smallest_failing is not None
    assert sum(span.width for span in found.suspects) == count


def test_the_jobs_before_and_after_a_search_count_in_its_limit() -> None:
    found = begin_search(BATCH, jobs=30, is_proved=True)
    while not found.is_exhausted:
        outcomes = [not span.width or span.width > 1000 for span in found.next_spans]
        found = note_outcomes(found, outcomes[: 1 if found.jobs < 31 else 0])

    assert found.jobs + LAST_JOBS == MAX_JOBS


def test_a_job_that_fails_without_any_record_is_noticed_by_the_first_run() -> None:
    found = search(BATCH, lambda _: False)

    assert found.has_other_cause
    assert found.jobs == 1


def test_a_record_that_is_the_whole_batch_is_blamed() -> None:
    assert search(1, lambda span: not span.width).found == (0,)


@given(st.integers(0, 40))
def test_a_single_failure_with_another_cause_blames_no_record(at: int) -> None:
    tests = iter(range(1000))

    found = search(8, lambda span: span == EMPTY or next(tests) != at)

    assert found.found == ()
    assert not found.untested


def test_no_position_is_tested_twice_in_different_parts() -> None:
    seen: list[OffsetRange] = []
    failing = passes_without(frozenset({3, 70, 71}))

    def passes(span: OffsetRange) -> bool:
        seen.append(span)
        return failing(span)

    search(100, passes)

    repeated = {span for span in seen if seen.count(span) > 1}
    assert {(span.start, span.end) for span in repeated} == {(3, 4), (70, 71), (71, 72)}


@pytest.mark.parametrize("distance", [100, 20_000], ids=["one of a hundred", "fifty in all"])
def test_many_failing_records_are_the_cause_although_every_large_part_fails(distance: int) -> None:
    found = search(BATCH, lambda span: -(-span.start // distance) * distance >= span.end)

    assert not found.has_other_cause
    assert found.is_exhausted
    assert found.smallest_failing is not None
    assert found.smallest_failing.width < BATCH // 32
