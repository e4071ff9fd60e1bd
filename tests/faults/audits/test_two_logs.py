"""The auditor tells records of recreated topics and of two clusters apart by their topic log."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from faults.audit_values import PartitionLog
from faults.audited_table import Lake, compact, coordinates, located, redrive
from pyiceberg.table.snapshots import Operation


def recreate(lake: Lake, end: int) -> None:
    """Let the topic be created again with so many records, and have it accepted."""
    lake.topic_id = "id-2"
    lake.log = {0: PartitionLog(0, end, np.arange(end)), 1: PartitionLog(0, 0, np.arange(0))}
    lake.mark("gap", p0=0, p1=0)


@pytest.mark.parametrize("end", [5, 40], ids=["shorter", "longer"])
@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
def test_a_topic_that_was_created_again_is_counted_apart(
    lake: Lake, end: int, *, is_compacted: bool
) -> None:
    recreate(lake, end)
    lake.ingest({0: (0, 4)}, bad=(2, 3), skipped=(1,))
    lake.ingest({0: (4, end)})

    if is_compacted:
        compact(lake)

    report = lake.audit()
    assert report.findings == ()
    assert report.facts["rows_of_stream"] == 23 + end - 3
    assert report.facts["records_delivered"] == end
    assert report.facts["checked_from"] == {"flights-0": 0}


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
@pytest.mark.parametrize("is_old", [False, True], ids=["new topic first", "old one first"])
def test_letters_at_one_offset_of_two_topics_count_and_come_back_apart(
    lake: Lake, *, is_old: bool, is_compacted: bool
) -> None:
    recreate(lake, 20)
    gap = lake.head
    lake.ingest({0: (0, 20)}, bad=(3,))
    counting = lake.audit().facts["dead_letters_counting"]

    redrive(lake, 3, before=gap if is_old else None)
    if is_compacted:
        compact(lake)

    assert counting == 3
    report = lake.audit()
    assert report.findings == ()
    assert report.facts["dead_letters_counting"] == 2
    redrive(lake, 3, before=None if is_old else gap)
    assert (lake.audit().findings, lake.audit().facts["dead_letters_counting"]) == ((), 1)


@pytest.mark.parametrize("is_named", [False, True])
def test_a_letter_above_the_new_topics_end_needs_the_name_of_the_old_one(
    lake: Lake, *, is_named: bool
) -> None:
    recreate(lake, 2)
    gap = lake.head
    lake.ingest({0: (0, 2)})

    redrive(lake, 3, before=gap if is_named else None)

    assert lake.audit().found() == (set() if is_named else {"E4"})


@pytest.mark.parametrize("before", ["old", "unknown"])
def test_a_letter_of_an_old_topic_that_came_back_twice_or_from_nowhere_is_found(
    lake: Lake, before: str
) -> None:
    recreate(lake, 20)
    gap = lake.head
    lake.ingest({0: (0, 20)})
    redrive(lake, 3, before=gap)

    redrive(lake, 3, before=gap if before == "old" else 1)

    assert "E1" in lake.audit().found()


def test_a_log_that_was_cut_is_one_log_below_the_cut(lake: Lake) -> None:
    lake.mark("gap", p0=15)
    lake.ingest({0: (15, 25)}, bad=(16,))

    report = lake.audit()

    assert report.findings == ()
    assert report.facts["records_delivered"] == 31


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
@pytest.mark.parametrize(
    "offset", [2, 17, 22], ids=["before the cut", "read from both logs", "after it"]
)
def test_a_row_too_many_after_a_cut_is_found(
    lake: Lake, offset: int, *, is_compacted: bool
) -> None:
    lake.mark("gap", p0=15)
    lake.ingest({0: (15, 25)})

    lake.commit({}, lake.write(coordinates(offset)))
    if is_compacted:
        compact(lake)

    report = lake.audit()
    assert report.found() == {"E1", "E6"}
    assert located(report, "E1") == {("flights", 0, offset)}


@pytest.mark.parametrize("is_compacted", [False, True], ids=["as written", "compacted"])
@pytest.mark.parametrize("batch", [1, 2, 3], ids=["old topic", "old topic, later", "new topic"])
def test_a_batch_that_is_lost_beside_a_topic_that_was_created_again_is_found(
    lake: Lake, batch: int, *, is_compacted: bool
) -> None:
    recreate(lake, 15)
    lake.ingest({0: (0, 15)})
    compact(lake) if is_compacted and batch == 3 else None
    files = [task.file for task in lake.table.scan().plan_files()]
    gone = [f for f in files if len(lake.rows_of(f)) == {1: 13, 2: 10, 3: 15}[batch]]

    lake.commit({"frazil.kind": "carry", **lake.state()}, removed=gone or files)

    assert "E1" in lake.audit().found()


@pytest.mark.parametrize("forged", ["19", "21"])
def test_a_wrong_count_after_a_topic_was_created_again_is_found(lake: Lake, forged: str) -> None:
    recreate(lake, 20)
    lake.ingest({0: (0, 20)}, forged={"frazil.rows-read": forged, "frazil.rows-skipped": "0"})

    assert lake.audit().found() == {"E3"}


def test_a_skipped_record_of_the_new_topic_is_missed(lake: Lake) -> None:
    recreate(lake, 20)
    lake.ingest({0: (0, 20)}, files=lake.write(coordinates(*range(1, 20))))

    report = lake.audit()

    assert located(report, "E1") == {("flights", 0, 0)}


def test_a_topic_that_was_created_again_is_refused_without_a_gap(lake: Lake) -> None:
    lake.topic_id, lake.next = "id-2", [0, 0]
    lake.ingest({0: (0, 10)})

    assert {"E1", "E2", "E4"} <= lake.audit().found()


def test_partitions_that_a_new_topic_lacks_are_counted_by_the_ledger(lake: Lake) -> None:
    recreate(lake, 10)
    del lake.log[1]
    lake.next = [0]
    lake.mark("carry", rise=0)

    lake.ingest({0: (0, 10)})

    assert lake.audit().findings == ()


def moved_to_another_cluster(lake: Lake) -> None:
    """Read offsets 0 to 30 of one cluster and 10 to 40 of another, with a bad one each."""
    lake.ingest({0: (20, 30)}, bad=(22,))
    lake.move(10, 10)
    lake.ingest({0: (10, 40)}, bad=(25,))


def test_two_clusters_may_have_the_same_offsets(lake: Lake) -> None:
    moved_to_another_cluster(lake)

    assert lake.audit().findings == ()


@pytest.mark.parametrize(
    "removed", [(0, 21), (1, 21)], ids=["of the old cluster", "of the new cluster"]
)
def test_a_row_that_is_missing_is_not_hidden_by_the_other_clusters(
    lake: Lake, removed: tuple[int, int]
) -> None:
    moved_to_another_cluster(lake)
    which, offset = removed
    both = [f for f in lake.files() if offset in {row["offset"] for row in lake.rows_of(f)}]
    old = sorted(both, key=lambda file: len(lake.rows_of(file)))[which]
    rest = [row for row in lake.rows_of(old) if row["offset"] != offset]
    lake.commit({}, lake.write(rest), removed=[old])

    assert "E1" in lake.audit().found()


def test_a_compaction_of_rows_of_two_clusters_is_no_loss(lake: Lake) -> None:
    moved_to_another_cluster(lake)
    files = lake.files()
    rows = [row for file in files for row in lake.rows_of(file)]
    lake.commit({}, lake.write(rows), removed=files, operation=Operation.REPLACE)

    assert lake.audit().findings == ()


@pytest.mark.parametrize(
    ("forged", "invariant"),
    [
        ({"frazil.moved": "{}"}, "E2"),
        ({"frazil.by": ""}, "E6"),
        ({"frazil.kind": "gap"}, "E2"),
    ],
    ids=["no offsets", "no name", "another kind"],
)
def test_a_change_of_cluster_is_a_named_move_that_says_what_it_did(
    lake: Lake, forged: Mapping[str, str], invariant: str
) -> None:
    lake.move(10, 10, **forged)

    assert invariant in lake.audit().found()
