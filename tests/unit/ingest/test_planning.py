"""PLAN is a pure function: the same facts give the same batch, and doubt gives a typed refusal."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lake import make_state, make_stream, make_topic

from frazil import errors
from frazil.ingest import planning
from frazil.ingest.messages import BatchPlan, NothingToRead
from frazil.ingest.planning import (
    PlanInput,
    TableFacts,
    batch_id,
    list_gaps,
    marker_batch_id,
    plan_batch,
    share_fairly,
    transform_version,
)
from frazil.kafka.cluster import PartitionOffsets
from frazil.ledger.offsets import NextOffsets, OffsetRange
from frazil.ledger.state import StreamState

TABLE = TableFacts("uuid-1", 0, 0)
PARTITIONS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1)


def given_facts(offsets: tuple[int, ...] = (5, 5), ends: tuple[int, ...] = (8, 9)) -> PlanInput:
    """Describe a stream that has read to `offsets` of a topic that ends at `ends`."""
    state = make_state({"orders": offsets}, epoch=4, batch="b4")
    return PlanInput(make_stream(), state, [make_topic(ends)], TABLE, "suite-1")


def test_a_plan_starts_where_the_ledger_ends_and_ends_where_kafka_ends() -> None:
    plan = plan_batch(given_facts())

    assert isinstance(plan, BatchPlan)
    assert plan.ranges == {"orders": {0: (5, 8), 1: (5, 9)}}
    assert plan.next_offsets == {"orders": (8, 9)}
    assert (plan.base_epoch, plan.base_batch, plan.state_after.epoch) == (4, "b4", 5)
    assert (plan.suite_hash, plan.topic_ids) == ("suite-1", {"orders": "topic-id-1"})


def test_a_plan_survives_its_text() -> None:
    plan = plan_batch(given_facts())

    assert BatchPlan.parse(plan.encode()) == plan


def test_nothing_new_is_no_plan() -> None:
    answer = plan_batch(given_facts((8, 9), (8, 9)))

    assert answer == NothingToRead(
        stream="orders", table="demo.orders", epoch=4, next_offsets={"orders": (8, 9)}
    )


def test_only_partitions_that_move_are_in_the_ranges() -> None:
    plan = plan_batch(given_facts((8, 5), (8, 9)))

    assert isinstance(plan, BatchPlan)
    assert plan.ranges == {"orders": {1: (5, 9)}}
    assert plan.next_offsets == {"orders": (8, 9)}


def test_a_new_partition_is_read_from_0() -> None:  # D7
    plan = plan_batch(given_facts((8,), (8, 3)))

    assert isinstance(plan, BatchPlan)
    assert plan.ranges == {"orders": {1: (0, 3)}}


@pytest.mark.parametrize(("end", "read"), [(15, 10), (16, 11), (99, 40)])
def test_far_behind_a_batch_may_be_bigger(end: int, read: int) -> None:
    stream = make_stream(batch={"max_records": 10, "catch_up_records": 40})

    plan = plan_batch(replace(given_facts((5,), (end,)), stream=stream))

    assert isinstance(plan, BatchPlan)
    assert plan.ranges == {"orders": {0: (5, 5 + read)}}


def test_several_topics_are_one_batch_and_share_the_cap() -> None:
    both = [make_topic((8, 9)), make_topic((4,), topic="sales")]
    facts = replace(given_facts(), topics=both, stream=make_stream(batch={"max_records": 6}))

    plan = plan_batch(facts)

    assert isinstance(plan, BatchPlan)
    assert plan.ranges == {"orders": {0: (5, 7), 1: (5, 7)}, "sales": {0: (0, 2)}}
    assert plan.next_offsets == {"orders": (7, 7), "sales": (2,)}
    assert set(plan.topic_ids) == {"orders", "sales"}


def test_a_topic_that_joins_the_list_is_read_from_0_or_is_a_gap() -> None:
    joined = make_topic((4,), topic="sales")
    aged = replace(joined, partitions=(PartitionOffsets(1, 4),))
    facts = given_facts()

    plan = plan_batch(replace(facts, topics=[*facts.topics, joined]))
    with pytest.raises(errors.RetentionGapError, match=r"sales:0:0-1"):
        plan_batch(replace(facts, topics=[*facts.topics, aged]))

    assert isinstance(plan, BatchPlan)
    assert plan.ranges["sales"] == {0: (0, 4)}


def test_a_topic_that_left_the_list_keeps_its_offsets() -> None:
    facts = given_facts()
    state = make_state({"orders": (5, 5), "sales": (3,)}, epoch=4, batch="b4")

    plan = plan_batch(replace(facts, state=state))

    assert isinstance(plan, BatchPlan)
    assert plan.next_offsets == {"orders": (8, 9), "sales": (3,)}


def test_the_cap_is_shared_by_the_partitions() -> None:
    facts = given_facts((0, 0), (1000, 1000))
    capped = make_stream(batch={"max_records": 10})

    plan = plan_batch(replace(facts, stream=capped))

    assert isinstance(plan, BatchPlan)
    assert plan.ranges == {"orders": {0: (0, 5), 1: (0, 5)}}


def test_a_plan_says_whether_more_waits_behind_it() -> None:
    facts = given_facts((5, 0), (8, 4))
    joined = replace(facts, topics=[*facts.topics, make_topic((0,), topic="empty")])
    capped = replace(facts, stream=make_stream(batch={"max_records": 6}))

    plans = [plan_batch(each) for each in (facts, joined, capped)]

    assert [isinstance(p, BatchPlan) and p.reads_all for p in plans] == [True, True, False]


@pytest.mark.parametrize(
    ("changes", "error", "word"),
    [
        ({"cluster_id": "other"}, errors.ClusterChangedError, "cluster other"),
        ({"topic": "other"}, errors.TopicChangedError, "the table was filled from orders"),
        ({"topic_id": "other"}, errors.TopicRecreatedError, "deleted and created again"),
        ({"partitions": (PartitionOffsets(0, 8),)}, errors.PartitionsShrankError, "1 partition,"),
        (
            {"partitions": (PartitionOffsets(0, 8), PartitionOffsets(0, 4))},
            errors.OffsetsWentBackError,
            "orders:1: Kafka ends at offset 4, earlier batches read to 5",
        ),
        (
            {"partitions": (PartitionOffsets(5, 8), PartitionOffsets(7, 9))},
            errors.RetentionGapError,
            "orders:1:5-7, 2 offsets",
        ),
        (
            {"partitions": tuple(PartitionOffsets(e, 9) for e in (0, 0, 2))},
            errors.RetentionGapError,
            "orders:2:0-2, 2 offsets",
        ),
    ],
    ids=[
        "another cluster",
        "another topic",
        "a topic that was created again",
        "fewer partitions",
        "an end before the recovery point",
        "records that aged out",
        "a new partition that lost its first records",
    ],
)
def test_i4_a_source_that_does_not_fit_the_ledger_is_refused(
    changes: dict[str, object], error: type[errors.FrazilError], word: str
) -> None:
    facts = given_facts()
    topic = replace(facts.topics[0], **changes)  # type: ignore[arg-type]

    with pytest.raises(error) as caught:
        plan_batch(replace(facts, topics=[topic]))

    assert word in caught.value.facts
    assert "stream orders" in caught.value.facts


def test_d2_one_aged_partition_does_not_touch_the_others() -> None:  # D2
    gaps = list_gaps([5, 5, 0], [PartitionOffsets(e, 99) for e in (5, 6, 0)])

    assert gaps == {1: OffsetRange(5, 6)}


@given(PARTITIONS, st.integers(0, 10**6))
def test_d20_a_fair_share_never_exceeds_the_cap_and_wastes_none_of_it(
    pairs: list[tuple[int, int]], limit: int
) -> None:
    starts = [start for start, _ in pairs]
    ends = [start + width for start, width in pairs]

    cut = share_fairly(starts, ends, limit)

    taken = [c - s for c, s in zip(cut, starts, strict=True)]
    assert all(0 <= t <= width for t, (_, width) in zip(taken, pairs, strict=True))
    assert sum(taken) == min(limit, sum(width for _, width in pairs))


@given(PARTITIONS, st.integers(0, 10**6))
def test_a_partition_that_waits_got_no_less_than_any_other(
    pairs: list[tuple[int, int]], limit: int
) -> None:  # D20
    cut = share_fairly([0] * len(pairs), [width for _, width in pairs], limit)

    waiting = [c for c, (_, width) in zip(cut, pairs, strict=True) if c < width]
    assert not waiting or min(waiting) >= max(cut) - 1


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=7, max_size=7), min_size=20, max_size=20),
    st.integers(1, 9),
    st.sampled_from([None, 9]),
    st.integers(0, 50),
)
def test_no_partition_waits_longer_than_a_round_if_a_batch_cannot_read_of_each(
    produced: list[list[int]], limit: int, catch_up: int | None, epoch: int
) -> None:  # D20
    stream = make_stream(batch={"max_records": limit, "catch_up_records": catch_up})
    offsets, ends, waited = [0] * 7, [1] * 7, [0] * 7
    for number, new in enumerate(produced):
        state = make_state({"orders": tuple(offsets)}, epoch=epoch + number)
        given_input = PlanInput(stream, state, [make_topic(tuple(ends))], TABLE, "")
        plan = plan_batch(given_input)
        if isinstance(plan, BatchPlan):
            assert plan_batch(given_input) == plan
            for partition in range(7):
                start, end = plan.ranges["orders"].get(partition, (0, 0))
                is_passed = ends[partition] > offsets[partition] and end == start
                waited[partition] = waited[partition] + 1 if is_passed else 0
                offsets[partition] = max(end, offsets[partition])
        ends = [end + count for end, count in zip(ends, new, strict=True)]

        assert max(waited) < -(-7 // limit)


BASE = make_state(epoch=4, batch="b4")
RANGES = {"orders": {0: OffsetRange(0, 3)}}


@pytest.mark.parametrize(
    ("uuid", "stream", "base", "ranges", "transform"),
    [
        ("other", "orders", BASE, RANGES, "t1"),
        ("uuid-1", "other", BASE, RANGES, "t1"),
        ("uuid-1", "orders", BASE.moved(5, "b4", BASE.offsets), RANGES, "t1"),
        ("uuid-1", "orders", BASE.moved(4, "b5", BASE.offsets), RANGES, "t1"),
        ("uuid-1", "orders", BASE, {"orders": {0: OffsetRange(0, 4)}}, "t1"),
        ("uuid-1", "orders", BASE, RANGES, "t2"),
    ],
    ids=["table", "stream", "base epoch", "base batch", "ranges", "transform version"],
)
def test_the_batch_id_depends_on(
    uuid: str, stream: str, base: StreamState, ranges: dict[str, NextOffsets], transform: str
) -> None:
    plain = batch_id("uuid-1", "orders", BASE, RANGES, "t1")

    assert batch_id("uuid-1", "orders", BASE, RANGES, "t1") == plain
    assert len(plain) == 32
    assert batch_id(uuid, stream, base, ranges, transform) != plain  # type: ignore[arg-type]


def test_a_batch_that_puts_records_aside_is_another_batch_and_says_so() -> None:
    plain, aside = (
        plan_batch(given_facts()),
        plan_batch(replace(given_facts(), quarantined_columns=["city"])),
    )

    assert isinstance(plain, BatchPlan)
    assert isinstance(aside, BatchPlan)
    assert aside.batch_id != plain.batch_id
    assert (plain.quarantined_columns, aside.quarantined_columns) == ((), ("city",))


@pytest.mark.parametrize(
    ("sections", "same"),
    [
        ({"errors": {"max_bad_ratio": 1}}, True),
        ({"batch": {"max_records": 5}}, True),
        ({"value": {"columns": {"id": "long"}}}, False),
        ({"source": {"topic": "orders", "isolation": "read_uncommitted"}}, False),
    ],
    ids=["the budget", "the cap", "a column", "the isolation level"],
)
def test_only_how_bytes_become_rows_moves_the_transform_version(
    sections: dict[str, object],
    same: bool,  # noqa: FBT001
) -> None:
    changed = transform_version(make_stream(**sections))

    assert (changed == transform_version(make_stream())) is same


@pytest.mark.parametrize(
    ("value", "is_flattened"),
    [
        ({"columns": {"id": "long"}}, False),
        ({"columns": {"id": "long"}, "rest": "others"}, True),
        ({"columns": {"id": "long"}, "transform": "flatten_debezium"}, True),
    ],
    ids=["plain", "a rest", "change events"],
)
def test_the_code_of_workers_that_flatten_moves_the_batches_that_they_read(
    value: dict[str, object], *, is_flattened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream(value={"convert": "json", **value})
    before = transform_version(stream)
    monkeypatch.setattr(planning, "FLATTEN_CODE", "other")

    assert (transform_version(stream) != before) is is_flattened


def test_two_markers_never_share_an_id() -> None:
    assert marker_batch_id("gap 1") != marker_batch_id("gap 1")
