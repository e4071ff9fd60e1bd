"""PUBLISH of batches that are blocked, and of those that a person waived."""

import pytest
from support.lake import Lake
from support.publish_steps import FIVE, put

from frazil.errors import (
    BatchBlockedError,
)
from frazil.ingest.blocked_batches import BlockedBatch, Waiver, encode_blocked, encode_waiver
from frazil.ingest.messages import BatchPlan
from frazil.ledger.recovery_point import keys


def block(lake: Lake, plan: BatchPlan, waiver: Waiver | None = None) -> None:
    """Record that a plan failed its check."""
    blocked = BlockedBatch(
        plan=plan, error="e", failures=("f",), branch="b", blocked_at="2026-01-31", waiver=waiver
    )
    put(lake, encode_blocked(blocked))


def test_a_blocked_batch_is_not_published(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    block(lake, plan)

    with pytest.raises(BatchBlockedError):
        lake.publish(plan, staged)

    assert lake.coordinates() == []


def test_a_block_counts_only_for_batches_that_put_the_same_aside(lake: Lake) -> None:
    blocked, longer, other = (
        lake.plan(*ends).model_copy(update={"quarantined_columns": columns})
        for ends, columns in (((3, 2), ("city",)), ((30, 2), ("city",)), ((3, 2), ()))
    )
    block(lake, blocked)

    with pytest.raises(BatchBlockedError):
        lake.publish(longer, lake.stage(longer))
    lake.publish(other, lake.stage(other))

    assert lake.coordinates() == FIVE


WAIVER = Waiver(by="jane", reason="known", at="2026-01-31T00:00:00+00:00")


def test_a_waived_batch_is_published_and_its_record_removed(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    block(lake, plan)
    put(lake, encode_waiver(plan, WAIVER))

    lake.publish(plan, staged)

    assert lake.coordinates() == FIVE
    left = {keys.blocked_key("orders"), keys.waiver_key("orders")} & {*lake.table.properties}
    assert left == set()


def test_a_waiver_lets_only_its_own_batch_pass(lake: Lake) -> None:
    longer = lake.plan(30, 2)
    staged = lake.stage(longer)
    block(lake, lake.plan(3, 2), WAIVER)

    with pytest.raises(BatchBlockedError):
        lake.publish(longer, staged)
