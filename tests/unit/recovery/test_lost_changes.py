"""A rollback by another tool over a change of rows halts, though no offset moved back (C5)."""

from collections.abc import Callable

import pytest
from support.lake import Lake, load_with_history, make_state, make_stream

from frazil.errors import ForeignRollbackError, TargetError
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.ledger.authors import Author
from frazil.ledger.recovery_point import find_recovery_point, keys
from frazil.ledger.state import parse_hint
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import ErasureRequest
from frazil.recovery.halt_resolution import reingest
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.rollback import plan_recovery, recover
from frazil.workspace import Workspace

JANE = Author("jane@example.org", "undo of Tuesday's restore")
KINDS = sorted(keys.CHANGE_KINDS)


def change(lake: Lake, kind: str, stream: str = "orders") -> int:
    """Commit a snapshot that changes rows and holds no state; return its id."""
    table, head = lake.table, lake.history.head
    added = commits.build_append(table, {keys.KIND: kind, keys.STREAM: stream})
    new_id = added.snapshot.snapshot_id
    commit_once(lake.store, table, {"main": head}, [added, commits.set_branch("main", new_id)])
    return new_id


def roll_back(lake: Lake, snapshot_id: int | None) -> None:
    lake.table.manage_snapshots().rollback_to_snapshot(snapshot_id or 0).commit()


def restore(work: Workspace, snapshot_id: int) -> None:
    request = RecoverRequest(
        stream="orders", to_snapshot=snapshot_id, by=JANE.by, reason=JANE.reason, dry_run=False
    )
    plan = plan_recovery(work, request)
    assert f"main moves forward to the rolled-back snapshot {snapshot_id}" in plan.text
    assert recover(work, plan).outcome == "RECORDED"
    assert recover(work, plan).outcome == "ALREADY"


@pytest.mark.parametrize("kind", KINDS)
def test_a_rollback_over_a_change_halts_and_the_named_snapshot_restores_it(
    lake: Lake, work: Workspace, kind: str
) -> None:
    state_id = lake.ingest(3, 2).entry.snapshot_id
    changed_id = change(lake, kind)
    assert lake.point is not None
    roll_back(lake, state_id)

    with pytest.raises(ForeignRollbackError) as caught:
        lake.plan(5, 5)

    assert f"but {kind} snapshot {changed_id} is not on main" in caught.value.facts
    assert f"--to-snapshot {changed_id}" in caught.value.next_step
    restore(work, changed_id)
    assert changed_id in {e.parent_id for e in lake.history.entries.values()}
    assert lake.point.state.offsets == {"orders": (3, 2)}
    lake.ingest(5, 5)
    assert lake.coordinates() == [(p, offset) for p in (0, 1) for offset in range(5)]


@pytest.mark.parametrize("kind", [keys.ERASE, keys.REDRIVE])
def test_main_may_go_on_without_the_change_and_the_preview_names_it(
    lake: Lake, work: Workspace, kind: str
) -> None:
    state_id = lake.ingest(3, 2).entry.snapshot_id
    changed_id = change(lake, kind)
    roll_back(lake, state_id)

    assert f"{kind} {changed_id} was rolled back" in reingest(work, None).text
    reingest(work, JANE)

    lake.ingest(5, 5)
    assert lake.coordinates() == [(p, offset) for p in (0, 1) for offset in range(5)]


def append_foreign(lake: Lake) -> None:
    lake.append_foreign(100)


def add_batch(lake: Lake) -> None:
    lake.ingest(9, 9)


def change_again(lake: Lake) -> None:
    change(lake, keys.REPLAY)


@pytest.mark.parametrize("later", [append_foreign, add_batch, change_again])
def test_what_is_committed_on_a_change_does_not_hide_a_rollback_over_it(
    lake: Lake, later: Callable[[Lake], None]
) -> None:
    state_id = lake.ingest(3, 2).entry.snapshot_id
    changed_id = change(lake, keys.ERASE)
    later(lake)
    assert lake.point is not None
    roll_back(lake, state_id)

    with pytest.raises(ForeignRollbackError, match=f"erase {changed_id} was rolled back, so the"):
        lake.plan(12, 12)


def test_a_carried_state_does_not_hide_a_rollback_over_the_change_below_it(
    lake: Lake, work: Workspace
) -> None:
    state_id = lake.ingest(3, 2).entry.snapshot_id
    change(lake, keys.ERASE)
    assert lake.point is not None
    table, history = load_with_history(lake.store, "demo.orders")
    carry_id = lake.mark(keys.CARRY, {"orders": lake.point.state}, table, history)
    assert lake.point is not None
    roll_back(lake, state_id)

    with pytest.raises(ForeignRollbackError):
        lake.plan(5, 5)

    restore(work, carry_id)
    lake.ingest(5, 5)


def test_a_carried_state_without_a_change_may_be_rolled_back(lake: Lake) -> None:
    state_id = lake.ingest(3, 2).entry.snapshot_id
    assert lake.point is not None
    table, history = load_with_history(lake.store, "demo.orders")
    lake.mark(keys.CARRY, {"orders": lake.point.state}, table, history)
    roll_back(lake, state_id)

    lake.ingest(5, 5)


def test_a_change_that_expired_halts_nothing(lake: Lake) -> None:
    lake.ingest(3, 2)
    changed_id = change(lake, keys.REPLAY)
    lake.append_foreign(100)
    archive_all_entries(lake.store, lake.history)
    lake.table.maintenance.expire_snapshots().by_id(changed_id).commit()
    assert changed_id not in lake.history.entries

    lake.ingest(5, 5)


def test_an_erasure_concerns_every_stream_of_the_table(lake: Lake, work: Workspace) -> None:
    lake.begin(make_stream("refunds", source={"topic": "refunds"}))
    head = lake.history.head
    changed_id = change(lake, keys.ERASE, stream="refunds")
    roll_back(lake, head)
    for stream in ("orders", "refunds"):
        with pytest.raises(ForeignRollbackError):
            find_recovery_point(lake.history, stream)

    restore(work, changed_id)

    for stream in ("orders", "refunds"):
        assert find_recovery_point(lake.history, stream) is not None


def test_batches_of_another_stream_above_the_rollback_are_read_again(
    lake: Lake, work: Workspace
) -> None:
    lake.begin(make_stream("refunds", source={"topic": "refunds"}))
    head = lake.history.head
    changed_id = change(lake, keys.REPLAY)
    roll_back(lake, head)
    table, history = load_with_history(lake.store, "demo.orders")
    later = make_state({"refunds": (7, 0)}, epoch=1, batch="later")
    lake.mark(keys.GAP, {"refunds": later}, table, history)
    request = RecoverRequest(stream="orders", to_snapshot=changed_id)

    with pytest.raises(TargetError, match="refunds writes to"):
        plan_recovery(work, request)


def test_the_hint_of_an_older_release_names_no_change(lake: Lake) -> None:
    lake.ingest(3, 2)

    hint = parse_hint(lake.table.properties[keys.hint_key("orders")])

    assert hint.change is None
    change(lake, keys.BACKFILL)
    changed = parse_hint(lake.table.properties[keys.hint_key("orders")])
    assert changed.change is not None
    assert changed.change.kind == keys.BACKFILL


def test_a_rollback_over_an_erasure_brings_no_erased_row_back_unnoticed(
    lake: Lake, work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.kafka.cluster.TIMEOUT_SECONDS", 0.1)
    state_id = lake.ingest(3, 2).entry.snapshot_id
    request = ErasureRequest(
        stream="orders", keys=("id=1",), by=JANE.by, reason="request 12", dry_run=False
    )
    erased_id = erase(work, plan_erasure(work, request), request).snapshot_ids[0]
    assert lake.coordinates() == [(0, 0), (0, 2), (1, 0)]
    roll_back(lake, state_id)

    with pytest.raises(ForeignRollbackError):
        lake.plan(5, 5)

    restore(work, erased_id)
    assert lake.coordinates() == [(0, 0), (0, 2), (1, 0)]
