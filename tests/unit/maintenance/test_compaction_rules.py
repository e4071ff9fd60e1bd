"""Compaction asks Spark only when it would do something, and distrusts what it did."""

from contextlib import nullcontext
from dataclasses import replace

import pytest

from frazil.errors import ConservationError
from frazil.ledger.recovery_point import History, LedgerEntry
from frazil.maintenance.compaction_rules import (
    MEBIBYTE,
    FileSize,
    TableLayout,
    choose_inputs,
    count_small,
    decide_rewrites,
    needs_partial_progress,
    plan_first_passes,
    require_same_row_count,
)

TARGET = 128 * MEBIBYTE


def files(*groups: tuple[str, int, float]) -> tuple[FileSize, ...]:
    """Make `count` files of a size, in units of the target, for each (partition, count, size)."""
    return tuple(
        FileSize(partition, int(size * TARGET))
        for partition, count, size in groups
        for _ in range(count)
    )


@pytest.mark.parametrize(
    ("layout", "inputs"),
    [
        ((), 0),
        ((("a", 4, 0.1),), 0),
        ((("a", 5, 0.1),), 5),
        ((("a", 4, 0.1), ("b", 4, 0.1)), 0),
        ((("a", 2, 0.6),), 2),
        ((("a", 1, 0.6),), 0),
        ((("a", 1, 1.9),), 1),
        ((("a", 9, 1.0), ("b", 9, 0.75)), 0),
        ((("a", 9, 1.0), ("a", 5, 0.1)), 5),
    ],
    ids=[
        "an empty table",
        "too few small files",
        "enough small files",
        "small files of two partitions do not add up",
        "two files that fill a target",
        "one file of middling size",
        "one oversized file",
        "files of the right size",
        "small ones among files of the right size",
    ],
)
def test_a_partition_is_rewritten_when_it_has_enough_to_gain(
    layout: tuple[tuple[str, int, float], ...], inputs: int
) -> None:
    chosen = choose_inputs(files(*layout), TARGET)

    assert len(chosen) == inputs
    assert decide_rewrites(TableLayout(files(*layout), ()), TARGET) == (
        ("files",) if inputs else ()
    )


@pytest.mark.parametrize(
    ("count", "size_bytes", "is_rewritten"),
    [(21, 8000, False), (22, 8000, True), (300, 8 * MEBIBYTE, False)],
    ids=["few", "many small ones", "many of the right size"],
)
def test_manifests_are_rewritten_when_there_are_too_many(
    count: int,
    size_bytes: int,
    is_rewritten: bool,  # noqa: FBT001 - a column of the table above
) -> None:
    layout = TableLayout((), (size_bytes,) * count)

    assert decide_rewrites(layout, TARGET) == (("manifests",) if is_rewritten else ())


def test_only_a_large_rewrite_commits_in_parts() -> None:
    small, large = files(("a", 100, 0.5)), files(("a", 200, 0.5))

    assert not needs_partial_progress(TableLayout(small, ()), TARGET)
    assert needs_partial_progress(TableLayout(large, ()), TARGET)


GIBIBYTE = 1024 * MEBIBYTE


def hide(*files: tuple[float, float]) -> tuple[FileSize, ...]:
    """Make a file of a partition of its own for each (GiB, share of hidden rows)."""
    return tuple(
        FileSize(str(number), int(size * GIBIBYTE), 1000, int(share * 1000))
        for number, (size, share) in enumerate(files)
    )


@pytest.mark.parametrize(
    ("layout", "shares"),
    [
        (((4, 0.2), (4, 0.9)), ()),
        (((4, 0.2), (4, 0.9), (4, 0.5)), (0.5,)),
        (((4, 0.2), (4, 0.9), (9, 0.5), (9, 0.7)), (0.9, 0.7, 0.5)),
        (((30, 0.2), (1, 0.9)), (0.9, 0.2)),
        (((30, 0.0), (4, 0.9), (4, 0.4)), (0.4,)),
        (((6, 0.3), (6, 0.3), (6, 0.3)), (0.3,)),
        (((30, 0.05),), ()),
    ],
    ids=[
        "all of it is one pass",
        "the worst first, then the rest",
        "a pass for each",
        "a file larger than a pass",
        "files with deletes before those that are only large",
        "files that are equally bad",
        "too few deletes",
    ],
)
def test_a_large_rewrite_begins_with_the_files_with_most_deletes(
    layout: tuple[tuple[float, float], ...], shares: tuple[float, ...]
) -> None:
    assert plan_first_passes(hide(*layout), TARGET) == shares


@pytest.mark.parametrize(("hidden", "is_bad"), [(0, False), (2, False), (3, True), (30, True)])
def test_a_tenth_of_hidden_rows_is_many(
    hidden: int,
    is_bad: bool,  # noqa: FBT001 - a column of the table above
) -> None:
    assert FileSize("", TARGET, 30, hidden).has_many_deletes == is_bad


def test_small_files_are_counted_against_the_target() -> None:
    assert count_small(files(("a", 3, 0.1), ("b", 2, 0.8)), TARGET) == 3


def history_of(*steps: tuple[str, int]) -> History:
    """Make a chain of snapshots 1, 2, 3 … from operations and total rows."""
    entries = {
        i: LedgerEntry(i, i - 1 or None, i, {"operation": operation, "total-records": str(rows)})
        for i, (operation, rows) in enumerate(steps, start=1)
    }
    return History("t", "u", len(steps), entries, {})


def test_a_rewrite_that_keeps_its_parents_rows_passes_whatever_lands_around_it() -> None:  # I8
    history = history_of(("append", 5), ("append", 9), ("replace", 9), ("append", 12))

    assert require_same_row_count(1, history) is None


def test_a_rewrite_that_loses_a_row_is_an_error() -> None:  # I8
    history = history_of(("append", 5), ("append", 9), ("replace", 8), ("append", 12))

    with pytest.raises(ConservationError, match="snapshot 3 has 8 rows, its parent 2 has 9"):
        require_same_row_count(1, history)


def test_a_rewrite_of_an_earlier_run_is_not_judged_again() -> None:
    history = history_of(("append", 5), ("append", 9), ("replace", 8), ("append", 9))

    assert require_same_row_count(3, history) is None
    with pytest.raises(ConservationError):
        require_same_row_count(2, history)


@pytest.mark.parametrize(
    ("hidden", "rows", "is_kept"),
    [
        ({"total-position-deletes": "2"}, 7, True),
        ({"total-position-deletes": "2"}, 6, False),
        ({"total-position-deletes": "2"}, 10, False),
        ({"total-equality-deletes": "1"}, 1, True),
    ],
    ids=["rows that were deleted", "one more", "rows from nowhere", "rows deleted by value"],
)
def test_a_rewrite_may_leave_out_only_rows_that_delete_files_hid(
    hidden: dict[str, str],
    rows: int,
    is_kept: bool,  # noqa: FBT001 - a column of the table above
) -> None:
    history = history_of(("append", 5), ("delete", 9), ("replace", rows))
    before = history.entries[2]
    entries = {**history.entries, 2: replace(before, summary={**before.summary, **hidden})}

    with nullcontext() if is_kept else pytest.raises(ConservationError):
        require_same_row_count(1, replace(history, entries=entries))
