"""What may go and what stays: snapshots, branches, and what expiry must not have done."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from support.expiry_model import WINDOW, TableModel, state_of

from frazil.errors import ConfigurationError, ForeignRollbackError, HistoryCutError
from frazil.ingest.blocked_batches import BlockedBatch, encode_blocked
from frazil.ingest.messages import BatchPlan
from frazil.ledger.recovery_point import RecoveryPoint
from frazil.maintenance.expiry_rules import (
    ExpiryPlan,
    decide_branches,
    decide_expiry,
    require_kept_snapshots,
    require_kept_states,
    validate_table_retention,
)
from frazil.streams.timestamps import DAY_MS, HOUR_MS, RetentionWindow


def aged(*hours: int) -> TableModel:
    """Publish stream `a` once at each of these ages."""
    model = TableModel()
    now_ms = model.now_ms
    for age in hours:
        model.now_ms = now_ms - age * HOUR_MS
        model.publish("a")
    model.now_ms = now_ms
    return model


def decide(model: TableModel, window: RetentionWindow = WINDOW) -> ExpiryPlan:
    return decide_expiry(model.history(), model.all_refs(), model.now_ms, window)


def test_the_snapshot_that_was_current_when_the_window_began_stays() -> None:
    assert decide(aged(200, 100, 1)) == ExpiryPlan(ancestor_ids=(1,))


def test_a_long_rollback_window_outweighs_a_short_expiry() -> None:
    window = RetentionWindow(expire_ms=HOUR_MS, rollback_ms=150 * HOUR_MS)

    assert decide(aged(300, 200, 100, 1), window) == ExpiryPlan(ancestor_ids=(1,))


def test_an_idle_streams_state_is_carried_before_its_carrier_goes() -> None:
    model = aged(200)
    model.commit({}, "replace")

    plan = decide(replace_time(model, 100))

    assert plan == ExpiryPlan(ancestor_ids=(1,), carry=("a",))


def replace_time(model: TableModel, hours: int) -> TableModel:
    """Let time pass."""
    model.now_ms += hours * HOUR_MS
    return model


def test_an_idle_table_of_one_snapshot_needs_no_carry() -> None:
    assert decide(aged(500)) == ExpiryPlan()


def test_an_abandoned_snapshot_goes_after_a_day_and_a_staged_one_stays() -> None:
    model = aged(2)
    dropped = model.add(model.head, {}, "append")
    model.refs["frazil_a"] = model.add(model.head, {}, "append")

    plans = [decide(model), decide(replace_time(model, 30))]

    assert [plan.abandoned_ids for plan in plans] == [(), (dropped,)]


def test_what_others_cut_off_main_is_left_alone() -> None:
    model = aged(300, 200, 1)
    model.entries[3] = replace(model.entries[3], parent_id=99)

    assert decide(model) == ExpiryPlan()


def test_a_tagged_ancestor_stays_while_others_around_it_go() -> None:
    model = aged(400, 300, 200, 100, 1)
    model.refs["audit"] = 2

    assert decide(model).ancestor_ids == (3, 1)


def test_an_ancestor_goes_once_its_tag_is_gone_though_its_neighbours_went_before() -> None:
    model = aged(400, 300, 200, 100, 1)
    model.refs["audit"] = 2
    model.expire(WINDOW)

    del model.refs["audit"]

    assert decide(model).ancestor_ids == (2,)


def test_the_root_of_somebody_elses_branch_stays() -> None:
    model = aged(400, 300, 100, 1)
    model.refs["theirs"] = model.add(2, {}, "append")

    assert decide(model).ancestor_ids == (1,)


def test_a_rollback_by_others_halts_expiry() -> None:
    model = aged(300, 200, 100, 1)
    model.head = 2

    with pytest.raises(ForeignRollbackError):
        decide(model)


def branch_name(stream: str, epoch: int, hours: int, now_ms: int) -> str:
    return f"frazil_{stream}_{epoch}_{now_ms - hours * HOUR_MS:011x}0123abcd"


@pytest.mark.parametrize(
    ("epoch", "hours", "is_dropped"),
    [(6, 25, True), (7, 25, True), (7, 23, False), (6, 23, False), (8, 25, False)],
    ids=["overtaken", "another attempt won", "fresh", "overtaken but fresh", "ahead of main"],
)
def test_a_forsaken_staging_branch_goes_after_a_day(
    epoch: int,
    hours: int,
    is_dropped: bool,  # noqa: FBT001 - a column of the table above
) -> None:
    now_ms = 1000 * DAY_MS
    name = branch_name("a", epoch, hours, now_ms)
    points = {"a": RecoveryPoint(state_of(7), 1)}

    dropped = decide_branches(["main", "theirs", name], now_ms, points, {})

    assert dropped == ((name,) if is_dropped else ())


def test_the_branch_of_a_blocked_batch_stays_and_its_siblings_go() -> None:
    now_ms = 1000 * DAY_MS
    kept, sibling = (branch_name("a", 7, hours, now_ms) for hours in (100, 99))
    points = {"a": RecoveryPoint(state_of(7), 1)}

    dropped = decide_branches([kept, sibling], now_ms, points, blocked_on(kept))

    assert dropped == (sibling,)


def test_the_branch_of_a_batch_that_was_blocked_once_goes() -> None:
    now_ms = 1000 * DAY_MS
    name = branch_name("a", 7, 100, now_ms)
    points = {"a": RecoveryPoint(state_of(8), 1)}

    assert decide_branches([name], now_ms, points, blocked_on(name)) == (name,)


def blocked_on(branch: str) -> dict[str, str]:
    plan = BatchPlan(
        stream="a", table="t", table_uuid="u", base_epoch=7, base_batch="batch", batch_id="next",
        ranges={}, topic_ids={}, cluster_id="", next_offsets={}, schema_id=0, spec_id=0,
        suite_hash="", stream_hash="", transform_version="",
    )  # fmt: skip
    return encode_blocked(
        BlockedBatch(plan=plan, error="e", failures=(), branch=branch, blocked_at="2026-01-31")
    )


@pytest.mark.parametrize("hours", [23, 25])
def test_a_branch_beside_the_batches_goes_after_a_day(hours: int) -> None:
    now_ms = 1000 * DAY_MS
    name = branch_name("a", 7, hours, now_ms).replace("_7_", "_7_beside_")

    dropped = decide_branches([name], now_ms, {"a": RecoveryPoint(state_of(7), 1)}, {})

    assert dropped == ((name,) if hours > 24 else ())


@pytest.mark.parametrize(
    "after",
    [{}, {"a": RecoveryPoint(state_of(6), 1)}, {"a": RecoveryPoint(state_of(7, "other"), 1)}],
    ids=["lost", "set back", "replaced"],
)
def test_a_recovery_point_that_moved_under_expiry_is_an_error(
    after: Mapping[str, RecoveryPoint],
) -> None:
    before = {"a": RecoveryPoint(state_of(7), 1)}

    with pytest.raises(HistoryCutError, match="stream a was at epoch 7"):
        require_kept_states("t", before, after)


def test_a_batch_that_lands_under_expiry_is_no_error() -> None:
    before = {"a": RecoveryPoint(state_of(7), 1)}

    assert require_kept_states("t", before, before) is None
    assert require_kept_states("t", before, {"a": RecoveryPoint(state_of(8), 2)}) is None


def test_more_lost_snapshots_than_asked_for_are_an_error() -> None:
    before, after = aged(300, 200, 100, 1), aged(300, 200, 100, 1)
    del after.entries[1], after.entries[2]

    require_kept_snapshots(before.history(), after.history(), (1, 2))
    with pytest.raises(HistoryCutError, match="snapshots of main that are gone \\(1\\): 2"):
        require_kept_snapshots(before.history(), after.history(), (1,))


@pytest.mark.parametrize(
    ("properties", "main_age_ms"), [({"history.expire.max-ref-age-ms": "1"}, None), ({}, 1)]
)
def test_retention_rules_of_the_table_itself_are_refused(
    properties: Mapping[str, str], main_age_ms: int | None
) -> None:
    validate_table_retention("t", {"history.expire.max-snapshot-age-ms": "1"}, None)

    with pytest.raises(ConfigurationError, match="table t"):
        validate_table_retention("t", properties, main_age_ms)
