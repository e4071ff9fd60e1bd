"""A blocked batch holds its stream until base, rules or a person's word change."""

import pytest
from lake import Lake, make_state

from frazil.blocking import (
    BlockedBatch,
    Fingerprint,
    Waiver,
    encode_blocked,
    explain_block,
    is_standing,
    read_blocked,
)
from frazil.ledger import RecoveryPoint


def block(lake: Lake, waiver: Waiver | None = None) -> BlockedBatch:
    """Record that the next batch of the lake's stream failed its check."""
    plan = lake.plan(3, 2, suite_hash="suite-1")
    return BlockedBatch(
        plan=plan,
        error="QualityFailed",
        failures=("2 of 5 values are missing",),
        branch="frazil_orders_0_x",
        blocked_at="2026-01-31T00:00:00+00:00",
        waiver=waiver,
    )


def test_the_record_survives_a_table_property(lake: Lake) -> None:
    blocked = block(lake, Waiver(by="jane", reason="known", at="2026-01-31T00:00:00+00:00"))

    assert read_blocked(encode_blocked(blocked), "orders") == blocked
    assert read_blocked(encode_blocked(blocked), "sales") is None


def test_a_block_stands_while_base_and_rules_stay(lake: Lake) -> None:
    blocked, point = block(lake), lake.point

    assert point is not None
    assert is_standing(blocked, point, Fingerprint.of(blocked.plan))


@pytest.mark.parametrize("part", ["suite_hash", "stream_hash", "transform_version", "put_aside"])
def test_a_block_falls_when_this_changes(lake: Lake, part: str) -> None:
    blocked, point = block(lake), lake.point
    changed = Fingerprint.of(blocked.plan).model_copy(update={part: "changed"})

    assert point is not None
    assert not is_standing(blocked, point, changed)


@pytest.mark.parametrize(("epoch", "batch"), [(1, "bootstrap of orders"), (0, "another")])
def test_a_block_falls_when_the_recovery_point_moves(lake: Lake, epoch: int, batch: str) -> None:
    blocked = block(lake)
    moved = RecoveryPoint(make_state(epoch=epoch, batch=batch), 1)

    assert not is_standing(blocked, moved, Fingerprint.of(blocked.plan))


def test_the_answer_names_reason_branch_and_both_ways_on(lake: Lake) -> None:
    blocked = block(lake)

    error = explain_block(blocked)

    assert "2 of 5 values are missing" in error.facts
    assert "VERSION AS OF 'frazil_orders_0_x'" in error.next_step
    assert f"frazil waive orders --batch {blocked.plan.batch_id} --by" in error.next_step
