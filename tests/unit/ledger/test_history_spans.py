"""Spans of a long history: the results of the definition, in a linear number of steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.steps import count_steps

from frazil.ledger import keys
from frazil.ledger.coordinates import Offsets
from frazil.ledger.history import (
    UNCLAIMED,
    Span,
    Spans,
    Step,
    count_covers,
    find_deleted,
    find_owners,
)
from frazil.ledger.recovery_point import LedgerEntry

PLACE = ("orders", 0)
OFFSETS = np.arange(20)
KINDS = (keys.INGEST, keys.REPLAY, keys.BACKFILL, keys.ERASE, keys.EXPIRE_ROWS)
Change = tuple[str, int, int, bool]

changes = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(0, 19), st.integers(0, 8), st.booleans())
)


def make_history(given_changes: list[Change]) -> tuple[tuple[Step, ...], Spans]:
    """Make the steps of one partition and the spans that they published."""
    steps: list[Step] = []
    spans: list[Span] = []
    for kind, start, width, is_dead in given_changes:
        entry = LedgerEntry(len(steps), None, 0, {})
        listed = {PLACE: np.arange(start, start + width)}
        if kind not in keys.ROW_KINDS:
            dead = {"attempt": listed} if is_dead else {}
            rows = {} if is_dead else listed
            steps.append(Step(entry, kind, None, None, {}, deleted=rows, deleted_dead_letters=dead))
            continue
        spans.append(Span(start, start + width, len(steps)))
        steps.append(Step(entry, kind, None, None, {}))
    return tuple(steps), Spans(tuple(spans))


def list_deleted(steps: tuple[Step, ...], spans: Spans) -> list[int]:
    """List what was deleted and not restored, one offset and one deletion at a time."""
    found: set[int] = set()
    for index, step in enumerate(steps):
        held = [step.deleted, *step.deleted_dead_letters.values()]
        for offset in (int(o) for each in held for o in each.get(PLACE, ())):
            restored = any(
                span.index > index
                and span.start <= offset < span.end
                and (step.kind == keys.EXPIRE_ROWS or steps[span.index].kind == keys.INGEST)
                for span in spans.all
            )
            found |= set() if restored else {offset}
    return sorted(found)


@given(changes)
def test_deleted_offsets_are_those_of_the_definition(given_changes: list[Change]) -> None:
    steps, spans = make_history(given_changes)

    assert find_deleted(steps, spans, PLACE).tolist() == list_deleted(steps, spans)


@given(changes, st.sets(st.integers(0, 30)))
def test_owners_and_covers_are_those_of_the_definition(
    given_changes: list[Change], chosen: set[int]
) -> None:
    _, spans = make_history(given_changes)
    offsets: Offsets = np.array(sorted(chosen), dtype=np.int64)

    covering = [[s.index for s in spans.all if s.start <= o < s.end] for o in offsets.tolist()]
    owners = [found[-1] if found else UNCLAIMED for found in covering]
    assert find_owners(offsets, spans.all).tolist() == owners
    assert count_covers(offsets, spans.all).tolist() == [len(found) for found in covering]


def make_expiries(batches: int) -> tuple[tuple[Step, ...], Spans]:
    """Make a history whose every fourth step expires half of the rows of three batches."""
    ingests: list[Change] = [(keys.INGEST, i * 10, 10, False) for i in range(batches)]
    listed: list[Change] = []
    for number, each in enumerate(ingests):
        listed.append(each)
        if number % 3 == 2:
            listed.append((keys.EXPIRE_ROWS, (number - 2) * 10, 15, False))
    return make_history(listed)


@pytest.mark.parametrize("batches", [60, 120])
def test_deletions_are_not_compared_with_every_batch(batches: int) -> None:
    small, large = make_expiries(batches), make_expiries(batches * 2)

    few = count_steps(lambda: find_deleted(*small, PLACE))
    many = count_steps(lambda: find_deleted(*large, PLACE))

    assert many < 2.5 * few


def test_spans_without_any_of_the_offsets_cost_next_to_nothing() -> None:
    _, spans = make_expiries(400)

    few = count_steps(lambda: find_owners(np.arange(10), spans.all))
    many = count_steps(lambda: find_owners(np.arange(4000), spans.all))

    assert few < many / 2
