"""Slices of a merge: whole batches, each up to a snapshot of the change table."""

import numpy as np
import pytest
from support.merge_model import NONE, STREAM

from frazil.ledger import keys
from frazil.ledger.coordinates import encode_coordinates
from frazil.ledger.offsets import OffsetRange, encode_ranges
from frazil.ledger.recovery_point import History, LedgerEntry
from frazil.state_tables.merge_rules import CAME_LATE, MergePlan, Rest, hash_rules, plan_merge
from frazil.state_tables.merge_slices import take_slice
from frazil.state_tables.messages import MergePosition

Summary = dict[str, str]


def batch(start: int, end: int, rows: int | None = None) -> Summary:
    written = {} if rows is None else {keys.ROWS_WRITTEN: str(rows)}
    ranges = encode_ranges({"t": {0: OffsetRange(start, end)}})
    return {keys.KIND: keys.INGEST, keys.RANGES: ranges, **written}


BEGIN = {keys.KIND: keys.BOOTSTRAP}
COMPACTED = {"operation": "replace"}
REPLAYED = {keys.KIND: keys.REPLAY, keys.ROWS_WRITTEN: "10"}
ERASED = {keys.KIND: keys.ERASE}
REDRIVEN = {
    keys.KIND: keys.REDRIVE,
    keys.COORDINATES: encode_coordinates({("t", 0): np.array([3])}),
}


def make_history(*summaries: Summary) -> History:
    """Return a table whose snapshots have the numbers from 1 on."""
    entries = {
        number: LedgerEntry(number, number - 1 or None, number, summary)
        for number, summary in enumerate(summaries, 1)
    }
    return History("shop.c__changes", "uuid", len(summaries), entries, {})


def position_at(snapshot_id: int, erased: tuple[int, ...] = ()) -> MergePosition:
    rules = hash_rules(STREAM)
    return MergePosition(
        snapshot_id=snapshot_id,
        table_uuid="uuid",
        rules=rules,
        id_columns=("id",),
        memory="m",
        counts=NONE,
        erased=erased,
    )


def slice_merge(history: History, most: int, before: MergePosition | None = None) -> MergePlan:
    plan = plan_merge(history, STREAM, before)
    assert plan is not None
    return take_slice(history, plan, before, most)


def at(*runs: tuple[int, int]) -> dict[str, dict[int, list[tuple[int, int]]]]:
    return {"t": {0: [*runs]}}


BATCHES = make_history(BEGIN, batch(0, 4), COMPACTED, batch(4, 8), batch(8, 12))


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (12, MergePlan(5, at((0, 12)))),
        (11, MergePlan(4, at((0, 8)), rest=Rest(5, at((8, 12)), 4))),
        (8, MergePlan(4, at((0, 8)), rest=Rest(5, at((8, 12)), 4))),
        (7, MergePlan(2, at((0, 4)), rest=Rest(5, at((4, 12)), 8))),
        (1, MergePlan(2, at((0, 4)), rest=Rest(5, at((4, 12)), 8))),
    ],
)
def test_a_slice_has_at_most_so_many_changes_but_a_whole_batch(
    most: int, expected: MergePlan
) -> None:
    assert slice_merge(BATCHES, most, position_at(1)) == expected


def test_the_slices_of_a_first_merge_go_on_from_each_other() -> None:
    first = slice_merge(BATCHES, 4)
    second = slice_merge(BATCHES, 4, position_at(first.head))
    third = slice_merge(BATCHES, 4, position_at(second.head))

    assert first == MergePlan(2, None, "first merge", Rest(5, at((4, 12)), 8))
    assert second == MergePlan(4, at((4, 8)), "", Rest(5, at((8, 12)), 4))
    assert third == MergePlan(5, at((8, 12)))


def test_changes_are_counted_by_the_rows_that_were_written() -> None:
    history = make_history(BEGIN, batch(0, 1000, 2), batch(1000, 2000, 2))

    assert slice_merge(history, 4).rest is None
    assert slice_merge(history, 3).head == 2


def test_what_did_more_than_add_is_in_the_first_slice() -> None:
    history = make_history(BEGIN, batch(0, 4), REPLAYED, batch(4, 8), batch(8, 12))

    assert slice_merge(history, 1) == MergePlan(3, None, "first merge", Rest(5, at((4, 12)), 8))
    assert slice_merge(history, 18).head == 4
    assert slice_merge(make_history(BEGIN, batch(0, 4), REPLAYED), 1).rest is None


def test_batches_without_a_row_are_not_left_to_a_further_slice() -> None:
    history = make_history(BEGIN, batch(0, 50, 50), batch(50, 60, 0), batch(60, 70, 0))
    further = make_history(BEGIN, batch(0, 50, 50), batch(50, 60, 0), batch(60, 70, 9))

    assert slice_merge(history, 10, position_at(1)) == MergePlan(4, at((0, 70)))
    assert slice_merge(further, 10, position_at(1)).rest == Rest(4, at((60, 70)), 9)


def test_a_restored_dead_letter_stays_out_of_the_slice_of_its_batch() -> None:
    history = make_history(BEGIN, batch(0, 4), batch(4, 8), REDRIVEN)

    assert slice_merge(history, 4, position_at(1)).rest == Rest(4, at((3, 8)), 5)


def test_a_slice_has_a_change() -> None:
    nothing = {keys.KIND: keys.REDRIVE, keys.COORDINATES: encode_coordinates({})}
    history = make_history(BEGIN, nothing, batch(0, 4), batch(4, 8))

    assert slice_merge(history, 1, position_at(1)).added == at((0, 4))


def test_an_erasure_that_the_state_has_followed_stays_known_until_it_is_passed() -> None:
    history = make_history(BEGIN, batch(0, 4), batch(4, 8), ERASED, batch(8, 12))
    first = slice_merge(history, 4, position_at(1, erased=(4,)))

    assert first.rest is not None
    assert first.rest.erased == (4,)
    second = slice_merge(history, 4, position_at(first.head, first.rest.erased))
    assert second == MergePlan(3, at((4, 8)), "", Rest(5, at((8, 12)), 4, (4,)))
    assert slice_merge(history, 8, position_at(3, (4,))) == MergePlan(5, at((8, 12)))


def rebuild(reason: str) -> MergePlan:
    plan = plan_merge(BATCHES, STREAM, position_at(2), rebuild=reason)
    assert plan is not None
    return take_slice(BATCHES, plan, position_at(2), 1)


def test_a_rebuild_has_no_slices() -> None:
    assert rebuild("by request") == MergePlan(5, None, "by request")


def test_for_a_late_change_all_changes_up_to_the_end_of_its_slice_are_folded() -> None:
    assert rebuild(CAME_LATE) == MergePlan(4, None, CAME_LATE, Rest(5, at((8, 12)), 4))


def test_slices_with_late_changes_double_what_is_folded() -> None:
    batches = [batch(start, start + 4) for start in range(0, 64, 4)]
    history, position, folds = make_history(BEGIN, *batches), position_at(2), 0

    while True:
        plan = plan_merge(history, STREAM, position, rebuild=CAME_LATE)
        assert plan is not None
        plan, folds = take_slice(history, plan, position, 4), folds + 1
        if plan.rest is None:
            break
        position = position_at(plan.head)

    assert folds == 4, "of 4 changes, 8, 16 and 32 become 8, 16, 32 and 64"
