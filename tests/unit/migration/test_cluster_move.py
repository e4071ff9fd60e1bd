"""What the ledger says after a move to another cluster: two logs, whose offsets stay apart."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.lake import Lake, load_with_history, make_state

from frazil.errors import ConfigurationError, HistoryCutError, SupersededError, TargetError
from frazil.ingest.dead_letters import resolve_dead_letters
from frazil.ledger.coordinates import NO_OFFSETS, Offsets
from frazil.ledger.history import Span, Spans, Step, list_restarts, list_spans
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import LedgerEntry, keys
from frazil.ledger.state import StreamState
from frazil.migration.cluster_move import move_cluster
from frazil.migration.messages import MovePlan, MoveRequest
from frazil.observability.audit_chain import check_chain
from frazil.observability.audit_rules import (
    BatchClaim,
    Delivered,
    PartitionView,
    Tally,
    judge_batches,
    judge_partition,
)
from frazil.recovery.backfill_rules import find_beginnings
from frazil.recovery.halt_resolution import skip
from frazil.recovery.replay_rules import require_one_incarnation
from frazil.workspace import Workspace

PLACE = ("orders", 0)


def state_of(epoch: int, next_offset: int, cluster: str = "old") -> StreamState:
    return StreamState(
        epoch, f"b{epoch}", {"orders": (next_offset,)}, {"orders": f"id-{cluster}"}, cluster
    )


def step_of(
    kind: str,
    before: StreamState,
    after: StreamState,
    read: tuple[int, int] | None = None,
    told: object = None,
) -> Step:
    summary = {keys.BATCH_ID: after.batch}
    if told is not None:
        summary[keys.MOVED] = json.dumps({"partitions": {"orders": {"0": told}}})
    ranges = {"orders": {0: OffsetRange(*read)}} if read else {}
    return Step(LedgerEntry(7, 6, 0, summary), kind, before, after, ranges)


READ = step_of(keys.INGEST, state_of(0, 0), state_of(1, 100), (0, 100))
MOVED = step_of(keys.MOVE, state_of(1, 100), state_of(2, 60, "new"), told=[100, 60, "seen"])
AGAIN = step_of(keys.INGEST, state_of(2, 60, "new"), state_of(3, 90, "new"), (60, 90))
BACK = step_of(keys.MOVE, state_of(3, 90, "new"), state_of(4, 130), told=[90, 130, "seen"])
STEPS = (READ, MOVED, AGAIN)


def test_each_log_has_spans_of_its_own() -> None:
    last = step_of(keys.INGEST, state_of(4, 130), state_of(5, 140), (130, 140))

    spans = list_spans((*STEPS, BACK, last))[PLACE]

    found = [[(span.start, span.end) for span in own] for own in spans.incarnations]
    assert found == [[(0, 100)], [(60, 90)], [(130, 140)]]
    assert [(span.start, span.end) for span in spans.current] == [(130, 140)]


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (MOVED, None),
        (BACK, None),
        (replace(MOVED, entry=replace(MOVED.entry, summary={})), r"the move records \[100, 100\]"),
        (step_of(keys.MOVE, state_of(1, 100), state_of(2, 60), told=[100, 60, ""]), "to old"),
        (
            step_of(keys.GAP, state_of(1, 100), state_of(2, 100, "new")),
            "the cluster from old to new",
        ),
        (
            step_of(keys.MOVE, state_of(1, 100), state_of(3, 60, "new"), told=[100, 60, ""]),
            "changes the epoch from 1 to 3",
        ),
    ],
    ids=["a move", "back", "no word of it", "no other cluster", "another kind", "two epochs"],
)
def test_a_move_says_what_it_did(step: Step, text: str | None) -> None:
    texts = [finding.text for finding in check_chain((READ, step))]

    if text is None:
        assert texts == []
    else:
        with pytest.raises(AssertionError, match=text):
            assert not texts, " ".join(texts)


def test_nothing_below_a_move_is_a_backfills() -> None:
    assert find_beginnings(STEPS) == {PLACE: 0}


@pytest.mark.parametrize(
    ("span", "is_clear"),
    [((20, 30), False), ((60, 90), False), ((50, 60), False), ((100, 110), True)],
    ids=["read on the old cluster", "on both", "below the move", "on the new one alone"],
)
def test_a_replay_takes_only_what_the_new_cluster_alone_had(
    span: tuple[int, int],
    is_clear: bool,  # noqa: FBT001
) -> None:
    later = step_of(keys.INGEST, state_of(3, 90, "new"), state_of(4, 120, "new"), (90, 120))
    ranges = {"orders": {0: OffsetRange(*span)}}

    if is_clear:
        require_one_incarnation("orders", ranges, (*STEPS, later))
    else:
        with pytest.raises(TargetError, match="moved to another cluster"):
            require_one_incarnation("orders", ranges, (*STEPS, later))


def test_what_the_copy_holds_below_a_move_is_no_replays_though_nobody_read_it_there() -> None:
    up = step_of(keys.MOVE, state_of(1, 100), state_of(2, 150, "new"), told=[100, 150, "seen"])

    with pytest.raises(TargetError, match="are ambiguous"):
        require_one_incarnation("orders", {"orders": {0: OffsetRange(110, 120)}}, (READ, up))
    require_one_incarnation("orders", {"orders": {0: OffsetRange(150, 160)}}, (READ, up))


@pytest.mark.parametrize(("after", "restarts"), [(60, [PLACE]), (150, [PLACE]), (100, [])])
def test_a_copy_whose_topic_kept_its_id_is_another_log_unless_offsets_are_the_same(
    after: int, restarts: list[tuple[str, int]]
) -> None:
    now = replace(state_of(2, after), cluster_id="new")

    assert list_restarts(step_of(keys.MOVE, state_of(1, 100), now)) == restarts


def offsets_of(*offsets: int) -> Offsets:
    return np.array(offsets, dtype=np.int64)


def test_letters_of_both_logs_count_at_one_offset() -> None:
    spans = list_spans(STEPS)[PLACE]

    lots = resolve_dead_letters(offsets_of(70, 70), offsets_of(0, 2), spans, {})

    assert lots.is_open.tolist() == [True, True]
    replayed = Spans((Span(0, 100, 0), Span(60, 90, 1)))
    assert resolve_dead_letters(offsets_of(70), offsets_of(0), replayed, {}).is_open.tolist() == [
        False
    ]


def claim(index: int, good: int) -> BatchClaim:
    return BatchClaim(index, f"batch {index}", good, good, 0, 0, {PLACE: (good, good)})


@pytest.mark.parametrize(
    ("old", "new", "is_whole"),
    [
        (range(100), range(60, 90), True),
        (range(100), range(60, 89), False),
        ([n for n in range(100) if n != 70], range(60, 90), False),
    ],
    ids=["all of both", "one of the new log is missing", "one of the old log is missing"],
)
def test_a_record_of_one_log_does_not_hide_that_one_of_the_other_is_missing(
    old: range,
    new: range,
    is_whole: bool,  # noqa: FBT001
) -> None:
    view = PartitionView(
        PLACE,
        list_spans(STEPS)[PLACE],
        np.sort(np.array([*old, *new], np.int64)),
        NO_OFFSETS,
        Delivered(0, np.arange(90)),
    )
    tally = Tally()

    findings = [*judge_partition(view, tally), *judge_batches([claim(0, 100), claim(2, 30)], tally)]

    assert (findings == []) is is_whole
    assert is_whole or "wrote 130 rows, the table has 129" in findings[0].text


def test_after_a_rollback_by_others_over_a_move_offsets_are_not_left_out(
    lake: Lake, work: Workspace
) -> None:
    before = lake.history.head
    table, history = load_with_history(lake.store, "demo.orders")
    moved = replace(make_state(epoch=1, batch="moved"), cluster_id="cluster-2")
    lake.mark(keys.MOVE, {"orders": moved}, table, history)
    lake.table.manage_snapshots().rollback_to_snapshot(before or 0).commit()

    with pytest.raises(HistoryCutError, match="cannot be given in offsets") as caught:
        skip(work, None)

    assert "move-cluster" in caught.value.next_step


def test_a_batch_of_the_old_cluster_that_comes_after_the_move_is_superseded(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    table, history = load_with_history(lake.store, "demo.orders")
    moved = replace(make_state(epoch=1, batch="moved"), cluster_id="cluster-2")
    lake.mark(keys.MOVE, {"orders": moved}, table, history)

    with pytest.raises(SupersededError):
        lake.publish(plan, staged)
    assert lake.coordinates() == []


def test_a_move_that_was_only_looked_at_writes_nothing(lake: Lake, work: Workspace) -> None:
    plan = MovePlan(
        stream="orders", table="demo.orders", request=MoveRequest(stream="orders"), text=""
    )
    head = lake.history.head

    with pytest.raises(ConfigurationError, match="dry run"):
        move_cluster(work, plan)
    unnamed = MoveRequest(stream="orders", dry_run=False)
    with pytest.raises(ConfigurationError, match="a name and a reason"):
        move_cluster(work, plan.model_copy(update={"request": unnamed}))
    assert lake.history.head == head
