"""Traps in which a merge has to stop before it reads a change."""

from pathlib import Path

import pytest
from faults.imagined_kafka import ImaginedLog
from support.event_lake import EVENTS, Event, EventsWithoutSpark
from support.state_lake import Change, StateLake, make_state_lake

from frazil.errors import ForeignRollbackError, FrazilError, MergeHaltedError, StateEndsError
from frazil.iceberg.table_view import TableView
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger import keys
from frazil.ledger.authors import Author
from frazil.ledger.history import list_reused
from frazil.ledger.state import StreamState
from frazil.recovery.decisions import accept_gap
from frazil.recovery.halt_resolution import skip
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.rollback import plan_recovery, recover
from frazil.schemas.inferred_columns import with_event_key
from frazil.state_tables.merge import merge_changes
from frazil.state_tables.merge_rules import find_position, plan_merge
from frazil.state_tables.messages import MergeCounts, MergePosition, MergeRequest
from frazil.state_tables.state_audit import audit_state
from frazil.streams.models import Stream
from frazil.workspace import Workspace

COUNTS = MergeCounts(changes=1, inserted=1, updated=0, deleted=0, absent=0, superseded=0, stale=0)


@pytest.fixture
def lake(tmp_path: Path) -> StateLake:
    """Merge one change, and publish another one."""
    lake = make_state_lake(StateLake, tmp_path, "orders")
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    rows = lake.table.scan().to_arrow().drop_columns("op").to_pylist()
    lake.put_state(rows, lake.position(COUNTS))
    lake.produce(0, Change(1, "d", 2))
    lake.ingest_all()
    return lake


def require_halt(lake: StateLake, error: type[FrazilError], says: str) -> None:
    """Merge twice: each time nothing is written."""
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work)["store"] = lake.store
    before = lake.store.load(lake.state_name).metadata
    for _ in range(2):
        with pytest.raises(error, match=says):
            merge_changes(work)
    assert lake.store.load(lake.state_name).metadata == before
    assert lake.rows() == {1: ("one", 0, 0)}


def test_a_change_table_that_others_rolled_back_halts_the_merge(lake: StateLake) -> None:
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    assert snapshot.parent_snapshot_id is not None
    lake.table.manage_snapshots().rollback_to_snapshot(snapshot.parent_snapshot_id).commit()

    require_halt(lake, ForeignRollbackError, "rolled the table back")


@pytest.mark.parametrize(
    ("kind", "topic_id", "cluster"),
    [(keys.GAP, "topic-id-2", "cluster-1"), (keys.MOVE, "topic-id-2", "cluster-2")],
    ids=["recreated topic", "moved cluster"],
)
def test_a_log_whose_offsets_start_over_halts_the_merge(
    lake: StateLake, kind: str, topic_id: str, cluster: str
) -> None:
    point = lake.point
    assert point is not None
    epoch = point.state.epoch + 1
    over = StreamState(epoch, "over", {"orders": (0, 0)}, {"orders": topic_id}, cluster)
    lake.mark(kind, {"orders": over}, lake.table, lake.history)

    require_halt(lake, MergeHaltedError, "started over")


class OtherLog:
    """Kafka with a topic whose partitions end here."""

    def __init__(self, *pairs: tuple[int, int], topic_id: str) -> None:
        """Keep the earliest offset and the end of each partition."""
        partitions = tuple(PartitionOffsets(*pair) for pair in pairs)
        self.facts = TopicFacts("orders", topic_id, "cluster-1", partitions)

    def fetch_topics(self, _names: object, _isolation: str) -> tuple[TopicFacts, ...]:
        """Describe the topic."""
        return (self.facts,)


STARTS_OVER = {
    "recreated topic": OtherLog((0, 9), (0, 9), topic_id="new"),
    "truncated log": OtherLog((0, 1), (0, 0), topic_id="topic-id-1"),
}


@pytest.mark.parametrize("log", STARTS_OVER.values(), ids=STARTS_OVER)
def test_a_gap_that_no_merge_could_follow_asks_for_a_word_of_its_own(
    lake: StateLake, log: OtherLog
) -> None:
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work).update(store=lake.store, kafka=log)
    head = lake.history.head

    preview = accept_gap(work, None).text
    with pytest.raises(StateEndsError, match="orders:0 start over, so no merge") as refused:
        accept_gap(work, Author("ann", "a test"))

    assert "run `frazil merge orders` first" in preview
    assert all("send every key again" in text for text in (preview, refused.value.next_step))
    assert "--stop-merges" in refused.value.next_step
    assert lake.history.head == head
    assert accept_gap(work, Author("ann", "a test"), stop_merges=True).snapshot_id is not None
    require_halt(lake, MergeHaltedError, "orders:0 started over")

    request = RecoverRequest(
        stream="orders", to_snapshot=head, by="ann", reason="a test", dry_run=False
    )
    recover(work, plan_recovery(work, request))
    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    plan = plan_merge(lake.history, lake.stream, position)
    assert plan is not None


def test_a_gap_that_the_state_can_follow_asks_for_nothing(lake: StateLake) -> None:
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work).update(store=lake.store, kafka=OtherLog((6, 9), (0, 0), topic_id="topic-id-1"))

    assert "start over" not in accept_gap(work, Author("ann", "a test")).text
    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    plan = plan_merge(lake.history, lake.stream, position)
    assert plan is not None
    assert (plan.added, plan.reason) == ({"orders": {0: [(1, 2)]}}, "")


def test_a_gap_of_changes_that_another_tool_rolled_back_folds_all_changes(lake: StateLake) -> None:
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work)["store"] = lake.store
    merged = lake.history.entries[lake.history.head or 0].parent_id
    assert merged is not None
    lake.table.manage_snapshots().rollback_to_snapshot(merged).commit()

    skipped = skip(work, Author("ann", "a test")).snapshot_id

    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    plan = plan_merge(lake.history, lake.stream, position)
    assert plan is not None
    assert (plan.added, plan.reason) == (None, f"gap snapshot {skipped} of the change table")


def test_a_partition_that_was_never_read_has_no_change_to_mix() -> None:
    before = StreamState(1, "a", {"orders": (0, 7)}, {"orders": "old"}, "cluster-1")
    after = StreamState(2, "b", {"orders": (0, 7)}, {"orders": "new"}, "cluster-1")

    assert list_reused(keys.GAP, before, after) == [("orders", 1)]
    assert list_reused(keys.INGEST, before, after) == []


def test_a_recovery_past_the_oldest_snapshot_of_the_state_folds_all_changes(
    lake: StateLake,
) -> None:
    lake.put_state([], lake.position(COUNTS))
    state = lake.store.load(lake.state_name)
    old = [each.snapshot_id for each in state.snapshots()][:-1]
    state.maintenance.expire_snapshots().by_ids(old).commit()
    target = lake.history.entries[lake.history.head or 0].parent_id
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work).update(store=lake.store, kafka=ImaginedLog((2, 0)))
    request = RecoverRequest(
        stream="orders", to_snapshot=target, by="ann", reason="a test", dry_run=False
    )

    recover(work, plan_recovery(work, request))

    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    plan = plan_merge(lake.history, lake.stream, position)
    assert position is not None
    assert plan is not None
    assert (plan.added, "no longer on main" in plan.reason) == (None, True)


class NewerPosition(MergePosition):
    """A position of a newer release."""

    floors: bool = True


class Reached(Exception):  # noqa: N818 - no error: the job was asked to run
    """The job would run."""


class NoEngine:
    """Keep the requests of jobs, and run none."""

    def __init__(self) -> None:
        """Begin without a request."""
        self.requests: list[MergeRequest] = []

    def run_job(self, _name: str, request: MergeRequest, _result: object) -> None:
        self.requests.append(request)
        raise Reached


def test_a_rebuild_repairs_a_position_that_this_release_cannot_read(lake: StateLake) -> None:
    newer = NewerPosition(**dict(lake.position(COUNTS)))
    lake.put_state([], newer)
    require_halt(lake, MergeHaltedError, "cannot read")
    engine = NoEngine()
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work).update(store=lake.store, engine=engine)

    with pytest.raises(Reached):
        merge_changes(work, rebuild=True)

    assert [(each.added, each.waiting) for each in engine.requests] == [(None, ())]
    assert engine.requests[0].memory != newer.memory


def test_a_rebuild_still_refuses_another_change_table(lake: StateLake) -> None:
    lake.put_state([], NewerPosition(**{**dict(lake.position(COUNTS)), "table_uuid": "other"}))
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work)["store"] = lake.store

    with pytest.raises(MergeHaltedError, match="dropped and created again"):
        merge_changes(work, rebuild=True)


KEYED = {"id": "long!", "name": "string!", "doc": "string"}


def merge_one_event(folder: Path) -> EventsWithoutSpark:
    """Merge one event whose key has two columns, and publish another one."""
    table = {"name": "states.orders", "mode": "upsert", "id_columns": ["id", "name"]}
    sections = {**EVENTS, "value": {**EVENTS["value"], "columns": KEYED}, "table": table}
    lake = make_state_lake(EventsWithoutSpark, folder, "orders", **sections)
    lake.produce(0, Event(1, "c", 1, values={"name": "a", "doc": "one"}))
    lake.ingest_all()
    rows = lake.table.scan().to_arrow().drop_columns(["_op", "_unavailable"]).to_pylist()
    lake.put_state(rows, lake.position(COUNTS))
    lake.produce(0, Event(2, "c", 2, values={"name": "b", "doc": "two"}))
    lake.ingest_all()
    return lake


@pytest.mark.parametrize("ids", [["name", "id"], "_from_debezium_key_"])
def test_a_key_whose_columns_have_another_order_is_the_same_key(
    tmp_path: Path, ids: str | list[str]
) -> None:
    lake, engine = merge_one_event(tmp_path), NoEngine()
    content = lake.stream.model_dump(by_alias=True, exclude_unset=True)
    content["table"]["id_columns"] = ids
    kinds = KEYED if isinstance(ids, list) else {n: kind.rstrip("!") for n, kind in KEYED.items()}
    content["value"]["columns"] = {name: kinds[name] for name in ("doc", "name", "id")}
    work = Workspace(Stream.model_validate(content), lake.folder, "test")
    vars(work).update(store=lake.store, engine=engine)

    with pytest.raises(Reached):
        merge_changes(work)

    assert [each.added for each in engine.requests] == [{"orders": {0: [(1, 2)]}}]
    assert engine.requests[0].id_columns == ("name", "id")
    assert audit_state(lake.store, with_event_key(work).stream).findings == ()
