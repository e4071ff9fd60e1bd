"""Where a rollback leads: pure decisions on a real ancestry."""

from datetime import UTC, datetime

import pytest
from support.lake import Lake, load_with_history, make_state, make_stream

from frazil.errors import ForeignRollbackError, NothingToDecideError, TargetError
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import History, LedgerEntry, keys
from frazil.ledger.state import encode_state
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.retention_check import list_lost_ranges
from frazil.recovery.rollback_rules import choose_target, decide_rollback, list_reread_ranges


def ask(**given: object) -> RecoverRequest:
    return RecoverRequest.model_validate({"stream": "orders", **given})


@pytest.fixture
def heads(lake: Lake) -> list[int]:
    """Publish three batches; give main's head before and after each."""
    first = lake.history.head
    assert first is not None
    return [first, *(lake.ingest(end, end).entry.snapshot_id for end in (2, 5, 9))]


@pytest.mark.parametrize(
    ("offset", "head"), [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2), (8, 2)], ids=str
)
def test_by_offset_main_goes_back_to_just_before_it_was_read(
    lake: Lake, heads: list[int], offset: int, head: int
) -> None:
    target = choose_target(lake.history, "orders", ask(to_offset=f"orders:1:{offset}"))

    assert target.snapshot_id == heads[head]


def test_an_offset_that_nobody_read_needs_no_way_back(lake: Lake, heads: list[int]) -> None:
    assert heads
    with pytest.raises(NothingToDecideError, match="next offset is 9"):
        choose_target(lake.history, "orders", ask(to_offset="orders:1:9"))


def test_by_time_the_newest_snapshot_of_that_moment_counts(lake: Lake, heads: list[int]) -> None:
    moment = lake.history.entries[heads[2]].committed_at_ms
    instant = datetime.fromtimestamp(moment / 1000, tz=UTC).isoformat()

    assert choose_target(lake.history, "orders", ask(to_time=instant)).snapshot_id == heads[2]


def test_a_halt_is_answered_before_any_way_back(lake: Lake, heads: list[int]) -> None:
    lake.table.manage_snapshots().rollback_to_snapshot(heads[1]).commit()

    with pytest.raises(ForeignRollbackError):
        choose_target(lake.history, "orders", ask(to_snapshot=heads[0]))


def entry(snapshot_id: int, parent: int | None, **summary: str) -> LedgerEntry:
    return LedgerEntry(snapshot_id, parent, snapshot_id, summary)


def test_a_target_is_never_between_the_two_snapshots_of_an_old_redrive() -> None:
    state = {keys.state_key("orders"): encode_state(make_state())}
    seal = {**state, keys.KIND: keys.REDRIVE, keys.SOURCE_SNAPSHOT_ID: "2"}
    entries = [
        entry(1, None, **state),
        entry(2, 1, operation="overwrite"),
        entry(3, 2, **seal),
        entry(4, 3, operation="replace"),
    ]
    history = History("demo.orders", "u", 4, {e.snapshot_id: e for e in entries}, {})

    assert choose_target(history, "orders", ask(to_snapshot=2)).snapshot_id == 1
    assert choose_target(history, "orders", ask(to_snapshot=3)).snapshot_id == 3
    with pytest.raises(TargetError):
        choose_target(history, "orders", ask(to_snapshot=5))


def test_every_stream_of_the_table_goes_back_and_a_later_one_to_its_beginning(lake: Lake) -> None:
    target = lake.ingest(2, 2).entry.snapshot_id
    refunds = make_stream("refunds", source={"topic": "refunds"})
    lake.begin(refunds)
    table, history = load_with_history(lake.store, "demo.orders")
    later = make_state({"refunds": (7, 0)}, epoch=3, batch="later")
    lake.mark(keys.ADOPT, {"refunds": later}, table, history)
    lake.ingest(5, 5)

    rollback = decide_rollback(lake.history, "orders", target)

    raised = rollback.states_to_write(lake.history, "new")
    assert {name: (s.epoch, s.batch) for name, s in raised.items()} == {
        "orders": (3, "new"),
        "refunds": (4, "new"),
    }
    assert raised["orders"].offsets == {"orders": (2, 2)}
    assert rollback.reread["refunds"] == {"refunds": {0: OffsetRange(0, 7)}}


def test_a_target_before_the_stream_began_is_refused(lake: Lake, heads: list[int]) -> None:
    assert heads
    lake.begin(make_stream("refunds", source={"topic": "refunds"}))

    with pytest.raises(TargetError, match="is older than the stream"):
        decide_rollback(lake.history, "refunds", heads[1])


@pytest.mark.parametrize(
    ("partition", "topic_id", "lost"),
    [
        (PartitionOffsets(0, 9), "topic-id-1", {}),
        (PartitionOffsets(4, 9), "topic-id-1", {0: OffsetRange(2, 4)}),
        (PartitionOffsets(8, 9), "topic-id-1", {0: OffsetRange(2, 6)}),
        (PartitionOffsets(0, 5), "topic-id-1", {0: OffsetRange(2, 6)}),
        (PartitionOffsets(0, 9), "another", {0: OffsetRange(2, 6)}),
    ],
    ids=["kept", "begun to age", "aged out", "cut", "created again"],
)
def test_what_kafka_cannot_give_back(
    partition: PartitionOffsets, topic_id: str, lost: dict[int, OffsetRange]
) -> None:
    topic = TopicFacts("orders", topic_id, "cluster-1", (partition,))

    assert list_lost_ranges(make_state(), topic, {0: OffsetRange(2, 6)}) == lost


def test_what_is_read_again_lies_between_two_states() -> None:
    again = list_reread_ranges({"orders": (2, 5)}, {"orders": (4, 5, 3)})

    assert again == {"orders": {0: OffsetRange(2, 4), 2: OffsetRange(0, 3)}}
