"""A named person's decisions: recorded once in the table, with who and why."""

from dataclasses import replace

import pytest
from requests.exceptions import ReadTimeout
from support.lake import Lake, make_state, make_stream, make_topic
from support.scripted_catalog import ScriptedCatalog, landed_then, overtaken_by

from frazil.errors import (
    ConfigurationError,
    NothingToDecideError,
    SupersededError,
    TargetError,
    UnknownStateError,
)
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.ingest.blocked_batches import BlockedBatch, encode_blocked, read_blocked
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.authors import Author
from frazil.ledger.history import trace_steps
from frazil.ledger.offsets import OffsetRange
from frazil.ledger.recovery_point import keys
from frazil.observability.audit_chain import check_chain
from frazil.observability.status import list_snapshots, locate_offset
from frazil.recovery.decisions import accept_gap, decide_gap, waive_batch
from frazil.recovery.halt_resolution import reingest
from frazil.workspace import Workspace

JANE = Author("jane@example.org", "restore of Tuesday")
STATE = make_state({"orders": (5, 5)}, epoch=4)


def topic_of(*pairs: tuple[int, int], topic_id: str = "topic-id-1") -> TopicFacts:
    """Describe a topic by earliest and end of each partition."""
    partitions = tuple(PartitionOffsets(earliest, end) for earliest, end in pairs)
    return TopicFacts("orders", topic_id, "cluster-1", partitions)


def roll_back(lake: Lake) -> None:
    """Publish a batch and let somebody else roll it back."""
    first = lake.history.head
    lake.ingest(3, 2)
    lake.table.manage_snapshots().rollback_to_snapshot(first or 0).commit()


@pytest.mark.parametrize(("by", "reason"), [("", "why"), ("jane", " ")])
def test_a_decision_needs_a_name_and_a_reason(by: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match="a name and a reason"):
        Author(by, reason)


@pytest.mark.parametrize(
    ("topic", "offsets", "lost"),
    [
        (make_topic((9, 9)), (5, 5), {}),
        (topic_of((5, 9), (7, 9)), (5, 7), {1: OffsetRange(5, 7)}),
        (topic_of((0, 9), (0, 9), (2, 9)), (5, 5, 2), {2: OffsetRange(0, 2)}),
        (topic_of((0, 3), (0, 9)), (3, 5), {}),
        (topic_of((0, 9), (0, 2), topic_id="new"), (0, 0), {}),
        (
            topic_of((8, 9), (2, 3), topic_id="new"),
            (8, 2),
            {0: OffsetRange(0, 8), 1: OffsetRange(0, 2)},
        ),
        (topic_of((0, 9)), (5,), {}),
    ],
    ids=[
        "no gap moves nothing",
        "only the partition with a gap moves",
        "a new partition that lost its first records",
        "a partition that was truncated goes on from its end",
        "a topic that was created again starts over",
        "a topic that was created again and aged",
        "fewer partitions keep the rest",
    ],
)
def test_after_a_gap_reading_goes_on_from(
    topic: TopicFacts, offsets: tuple[int, ...], lost: dict[int, OffsetRange]
) -> None:
    assert decide_gap(STATE, topic) == (offsets, lost)


class RecreatedTopic:
    """Kafka with a topic of the same name that has another id and has aged."""

    def __init__(self, *pairs: tuple[int, int]) -> None:
        """Keep the earliest offset and the end of each partition."""
        self.facts = topic_of(*pairs, topic_id="new")

    def fetch_topics(self, _names: object, _isolation: str) -> tuple[TopicFacts, ...]:
        """Describe the topic."""
        return (self.facts,)


def test_what_a_topic_created_again_has_lost_counts_from_its_own_begin(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(100, 100)
    work.__dict__["kafka"] = RecreatedTopic((40, 60), (150, 160))

    decision = accept_gap(work, JANE)

    assert "lost for good: orders:0:0-40, orders:1:0-150, 190 offsets" in decision.text
    assert check_chain(trace_steps(lake.history, "orders")) == ()
    lost, kept = locate_offset(work, "orders", 0, 20), locate_offset(work, "orders", 0, 60)
    assert (lost.kind, lost.snapshot_id) == (keys.GAP, decision.snapshot_id)
    assert "has the record that was at this offset before" in lost.reason
    assert kept.kind == keys.INGEST


def test_partitions_that_a_topic_no_longer_has_are_named(lake: Lake, work: Workspace) -> None:
    lake.ingest(100, 70)
    work.__dict__["kafka"] = RecreatedTopic((0, 60))

    text = accept_gap(work, None).text

    assert text.startswith(
        "partitions that no longer exist, with the offset that was next: orders:1:70; "
    )


def test_rows_of_a_topic_that_left_the_file_are_not_given_up(lake: Lake, work: Workspace) -> None:
    roll_back(lake)
    other = make_stream(source={"topics": ["sales"]})

    with pytest.raises(TargetError, match="rows of topic orders would be rolled back") as caught:
        reingest(replace(work, stream=other), JANE)

    assert "put orders back" in caught.value.next_step


def test_a_rewind_says_who_and_why(lake: Lake, work: Workspace) -> None:
    roll_back(lake)

    decision = reingest(work, JANE)

    summary = lake.history.entries[decision.snapshot_id or 0].summary
    assert summary[keys.KIND] == keys.REWIND
    assert (summary[keys.BY], summary[keys.REASON]) == ("jane@example.org", "restore of Tuesday")


def test_after_a_rewind_every_old_plan_is_superseded(lake: Lake, work: Workspace) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    roll_back(lake)

    reingest(work, JANE)

    with pytest.raises(SupersededError):
        lake.publish(plan, staged)


def test_a_rewind_starts_from_the_archive_where_main_has_no_state(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(3, 2)
    archive_all_entries(lake.store, lake.history)
    lake.append_foreign(100)
    keep = lake.history.head
    lake.table.maintenance.expire_snapshots().by_ids(
        [s.snapshot_id for s in lake.table.metadata.snapshots if s.snapshot_id != keep]
    ).commit()

    reingest(work, JANE)

    assert lake.point is not None
    assert lake.point.state.epoch == 2


def test_a_rewind_that_landed_without_an_answer_is_not_written_twice(
    lake: Lake, work: Workspace
) -> None:
    roll_back(lake)
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    catalog.script = [landed_then(ReadTimeout("no answer"))]

    reingest(work, JANE)

    assert kinds_of(lake).count(keys.REWIND) == 1


def kinds_of(lake: Lake) -> list[str | None]:
    """List the kinds of the snapshots that the metadata holds."""
    return [entry.summary.get(keys.KIND) for entry in lake.history.entries.values()]


def later(work: Workspace, run_id: str) -> Workspace:
    """Open the same stream in another process."""
    return replace(work, run_id=run_id)


def test_the_same_rewind_given_twice_is_written_once(lake: Lake, work: Workspace) -> None:
    roll_back(lake)
    first = reingest(work, JANE)

    second = reingest(later(work, "run-2"), JANE)

    assert second == first
    assert kinds_of(lake).count(keys.REWIND) == 1


def test_a_rewind_whose_process_died_before_the_answer_is_not_written_by_the_next(
    lake: Lake, work: Workspace
) -> None:
    roll_back(lake)
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    catalog.script = [landed_then(KeyboardInterrupt())]
    with pytest.raises(KeyboardInterrupt):
        reingest(work, JANE)
    lake.ingest(3, 2)

    reingest(later(work, "run-2"), JANE)

    assert kinds_of(lake).count(keys.REWIND) == 1


def test_two_processes_that_give_the_same_decision_at_once_write_it_once(
    lake: Lake, work: Workspace
) -> None:
    roll_back(lake)
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    catalog.script = [overtaken_by(lambda: reingest(later(work, "run-2"), JANE))]

    decision = reingest(work, JANE)

    assert decision.snapshot_id == lake.history.head
    assert kinds_of(lake).count(keys.REWIND) == 1


def test_a_second_rollback_is_answered_by_a_second_rewind(lake: Lake, work: Workspace) -> None:
    roll_back(lake)
    first = reingest(work, JANE)
    before = lake.history.entries[first.snapshot_id or 0].parent_id
    lake.table.manage_snapshots().rollback_to_snapshot(before or 0).commit()

    second = reingest(work, JANE)

    batches = {
        lake.history.entries[d.snapshot_id or 0].summary[keys.BATCH_ID] for d in (first, second)
    }
    assert len(batches) == 2
    assert lake.point is not None
    assert lake.point.state.epoch == 3


def test_a_rewind_without_a_rollback_is_refused(lake: Lake, work: Workspace) -> None:
    lake.ingest(3, 2)

    with pytest.raises(NothingToDecideError, match="has a recovery point"):
        reingest(work, JANE)
    assert keys.REWIND not in kinds_of(lake)


def test_what_somebody_else_decided_is_not_taken_for_ones_own(lake: Lake, work: Workspace) -> None:
    roll_back(lake)
    reingest(work, JANE)

    with pytest.raises(NothingToDecideError):
        reingest(work, Author("joe@example.org", "restore of Tuesday"))


def test_a_rewind_decides_again_when_main_has_moved(lake: Lake, work: Workspace) -> None:
    roll_back(lake)
    catalog = work.store.catalog
    assert isinstance(catalog, ScriptedCatalog)
    catalog.script = [overtaken_by(lambda: lake.append_foreign(100))]

    decision = reingest(work, JANE)

    assert lake.history.head == decision.snapshot_id
    assert 100 in lake.table.scan().to_arrow()["id"].to_pylist()


def block(lake: Lake) -> str:
    """Record that the next batch failed its check; give its id."""
    plan = lake.plan(3, 2)
    blocked = BlockedBatch(
        plan=plan, error="e", failures=("f",), branch="b", blocked_at="2026-01-31"
    )
    with lake.table.transaction() as transaction:
        transaction.set_properties(encode_blocked(blocked))
    return plan.batch_id


def test_a_waiver_is_kept_beside_the_plan_that_it_lets_pass(lake: Lake, work: Workspace) -> None:
    batch_id = block(lake)

    waive_batch(work, batch_id, JANE)

    blocked = read_blocked(lake.table.properties, "orders")
    assert blocked is not None
    assert blocked.waiver is not None
    assert (blocked.plan.batch_id, blocked.waiver.by) == (batch_id, "jane@example.org")


def test_a_waiver_without_a_person_only_shows_what_would_pass(lake: Lake, work: Workspace) -> None:
    batch_id = block(lake)

    shown = waive_batch(work, batch_id, None)

    assert "would approve exactly this batch" in shown.text
    blocked = read_blocked(lake.table.properties, "orders")
    assert blocked is not None
    assert blocked.waiver is None


@pytest.mark.parametrize("is_blocked", [True, False], ids=["another batch", "no batch"])
def test_only_the_blocked_batch_can_be_waived(
    lake: Lake,
    work: Workspace,
    is_blocked: bool,  # noqa: FBT001
) -> None:
    if is_blocked:
        block(lake)

    with pytest.raises(ConfigurationError, match="blocked, not another"):
        waive_batch(work, "another", JANE)


def test_a_state_that_nobody_can_read_is_rolled_back_and_answered(
    lake: Lake, work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr("frazil.ingest.snapshot_summaries.encode_state", lambda _: '{"v":9}')
        before = lake.history.head
        lake.ingest(3, 2)
    with pytest.raises(UnknownStateError, match="stream orders"):
        reingest(work, JANE)
    newest, *rest = list_snapshots(work)
    assert (newest.epoch, newest.rows_written, [r.epoch for r in rest][-1]) == (None, 5, 0)
    lake.table.manage_snapshots().rollback_to_snapshot(before or 0).commit()

    reingest(work, JANE)

    point = lake.point
    assert point is not None
    assert point.state.offsets == {"orders": (0, 0)}
    lake.ingest(3, 2)
    assert len(lake.coordinates()) == 5
