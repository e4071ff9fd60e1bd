"""What a snapshot says of its batch, without payloads and in the words of the protocol."""

import json

import pytest
from support.lake import make_state, make_stream

from frazil.ingest.messages import BatchPlan, ExpectationOutcome, PartitionCount, Staged, Verdict
from frazil.ingest.snapshot_summaries import (
    describe_late,
    find_late_bound,
    summarize_batch,
    summarize_marker,
    summarize_partitions,
    summarize_ranges,
    summarize_verdict,
)
from frazil.ledger.recovery_point import keys
from frazil.ledger.state import hint_properties, parse_hint, parse_state

HOUR = 3_600_000
LATENESS = (keys.NEWEST_TIMESTAMP_MS, keys.ROWS_LATE, keys.LATE_BY_MS)

PLAN = BatchPlan(
    stream="orders",
    table="demo.orders",
    table_uuid="uuid-1",
    base_epoch=4,
    base_batch="b4",
    batch_id="b5",
    ranges={"orders": {0: (5, 8)}},
    topic_ids={"orders": "topic-id-1"},
    cluster_id="cluster-1",
    next_offsets={"orders": (8, 9)},
    schema_id=0,
    spec_id=0,
    suite_hash="",
    stream_hash="",
    transform_version="t",
)
STAGED = Staged(
    stream="orders",
    batch_id="b5",
    attempt="frazil_orders_4_x",
    snapshot_id=77,
    base_head=1,
    rows_read=3,
    rows_written=1,
    rows_quarantined=2,
    rows_skipped=0,
    partitions=(PartitionCount(topic="orders", partition=0, rows_read=3, rows_good=1),),
)
ABSENT = (keys.MIN_TIMESTAMP_MS, keys.MAX_TIMESTAMP_MS, keys.SOURCE_SNAPSHOT_ID)


def judged(*results: ExpectationOutcome, **changes: object) -> Verdict:
    """Make a verdict."""
    plain = {"stream": "orders", "batch_id": "b5", "attempt": "a", "outcome": "passed"}
    return Verdict.model_validate(
        plain | {"suite": "s", "suite_hash": "h", "results": results} | changes
    )


def test_a_batch_carries_the_state_after_it() -> None:
    summary = summarize_batch(PLAN, STAGED, judged(), "run-1")

    state = parse_state(summary[keys.state_key("orders")])
    assert (state.epoch, state.batch, state.offsets) == (5, "b5", {"orders": (8, 9)})
    assert summary[keys.RANGES] == '{"orders":{"0":[5,8]}}'
    assert summary[keys.COUNTS] == '{"orders":{"0":[3,1]}}'
    assert summary[keys.RUN_ID] == "run-1"


def test_what_a_batch_does_not_know_it_does_not_say() -> None:
    nothing = STAGED.model_copy(update={"snapshot_id": None})

    summary = summarize_batch(PLAN, nothing, judged(), "run-1")

    assert [key for key in ABSENT if key in summary] == []


def test_every_value_of_a_summary_is_text() -> None:
    timed = STAGED.model_copy(update={"min_timestamp_ms": 1, "max_timestamp_ms": 2})

    summary = summarize_batch(PLAN, timed, judged(), "run-1")

    assert all(isinstance(value, str) for value in summary.values())
    assert (summary[keys.MIN_TIMESTAMP_MS], summary[keys.MAX_TIMESTAMP_MS]) == ("1", "2")


def test_counts_are_kept_per_topic_and_partition() -> None:
    parts = tuple(
        PartitionCount(topic=topic, partition=p, rows_read=9, rows_good=8)
        for topic, p in (("a", 0), ("a", 3), ("b", 0))
    )

    text = summarize_partitions(STAGED.model_copy(update={"partitions": parts}))

    assert json.loads(text) == {"a": {"0": [9, 8], "3": [9, 8]}, "b": {"0": [9, 8]}}


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (judged(outcome="empty"), "empty"),
        (
            judged(),
            {"outcome": "passed", "suite": "s", "suite-hash": "h", "passed": 0, "failed": 0},
        ),
        (
            judged(
                ExpectationOutcome(type="expect_unique", column="id", success=False, line="x"),
                ExpectationOutcome(type="expect_rows", success=False),
                ExpectationOutcome(type="expect_set", column="c", success=True),
                outcome="waived",
                waived="jane: known",
            ),
            {
                "outcome": "waived",
                "suite": "s",
                "suite-hash": "h",
                "passed": 1,
                "failed": 2,
                "failures": ["expect_unique(id)", "expect_rows"],
                "waived": "jane: known",
            },
        ),
    ],
    ids=["an empty batch", "a passed batch", "a waived batch"],
)
def test_the_verdict_stays_with_the_snapshot(verdict: Verdict, expected: object) -> None:
    text = summarize_verdict(verdict)

    assert (text if verdict.outcome == "empty" else json.loads(text)) == expected


def test_a_marker_carries_the_states_of_all_its_streams() -> None:
    states = {"orders": make_state(epoch=3), "sales": make_state(epoch=8)}

    summary = summarize_marker(keys.REWIND, states, "run-1", {keys.BY: "jane"})

    assert (summary[keys.KIND], summary[keys.BY]) == (keys.REWIND, "jane")
    assert {s: parse_state(summary[keys.state_key(s)]) for s in states} == states


def test_every_stream_that_a_snapshot_carries_gets_its_hint() -> None:
    states = {"orders": make_state(epoch=3), "sales": make_state(epoch=8)}

    properties = hint_properties(states, 99)

    hints = {key: parse_hint(text) for key, text in properties.items()}
    assert hints.keys() == {keys.hint_key("orders"), keys.hint_key("sales")}
    assert {(h.epoch, h.snapshot_id) for h in hints.values()} == {(3, 99), (8, 99)}


def test_a_record_is_late_below_what_the_watch_would_warn_of() -> None:
    stream = make_stream(freshness={"warn_seconds": 60, "fail_seconds": 60})
    plan = PLAN.model_copy(update={"newest_timestamp_ms": HOUR})

    assert find_late_bound(stream, plan) == HOUR - 60_000
    assert find_late_bound(stream, PLAN) is None, "nothing is known yet: nothing is late"


@pytest.mark.parametrize(
    ("known", "least", "most", "late", "told"),
    [
        (None, None, None, 0, (None, None, None)),
        (5 * HOUR, None, None, 0, (5 * HOUR, None, None)),
        (None, 1, 2, 0, (2, None, None)),
        (5 * HOUR, 4 * HOUR, 6 * HOUR, 0, (6 * HOUR, None, None)),
        (5 * HOUR, 2 * HOUR, 4 * HOUR, 9, (5 * HOUR, 9, 3 * HOUR)),
        (None, 1, 99 * HOUR, 0, (8 * HOUR, None, None)),
    ],
    ids=["nothing", "no timestamps", "first", "in order", "late", "a clock ahead"],
)
def test_a_summary_says_what_was_late(
    known: int | None,
    least: int | None,
    most: int | None,
    late: int,
    told: tuple[int | None, ...],
) -> None:
    plan = PLAN.model_copy(update={"newest_timestamp_ms": known, "reads_all": True})
    changes = {"min_timestamp_ms": least, "max_timestamp_ms": most, "rows_late": late}
    staged = STAGED.model_copy(update={**changes, "ended_at_ms": 8 * HOUR})

    summary = summarize_batch(plan, staged, judged(), "run-1")

    assert tuple(summary.get(key) for key in LATENESS) == tuple(n and str(n) for n in told)
    backlog = summarize_batch(
        plan.model_copy(update={"reads_all": False}), staged, judged(), "run-1"
    )
    assert backlog.get(keys.NEWEST_TIMESTAMP_MS) == (known and str(known)), "it waits for the end"
    other = summarize_ranges(keys.BACKFILL, plan, staged, judged(), "run-1")
    assert keys.NEWEST_TIMESTAMP_MS not in other, "what is read again says nothing of progress"


def test_late_records_are_told_in_words_and_nothing_is_said_of_none() -> None:
    assert describe_late(1200, 2 * HOUR + 60_000) == "1,200, up to 2 h 1 min"
    assert describe_late(None, None) == ""
