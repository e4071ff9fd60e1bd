"""Whether a rollback needs a second person, after those that went before without one."""

import time

import pytest
from support.lake import Lake
from support.log_lake import LogInMemory, Pipeline

from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.recovery_point import walk_ancestors
from frazil.recovery.messages import RecoverRequest, RecoveryPlan
from frazil.recovery.rollback import plan_recovery, recover
from frazil.recovery.rollback_rules import add_earlier_rollbacks
from frazil.workspace import Workspace

NOW_MS = int(time.time() * 1000)


@pytest.fixture
def heads(lake: Lake, work: Workspace, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Publish four batches of five rows, of which one may go; give main's ancestors from there."""
    monkeypatch.setenv("FRAZIL_APPROVAL_ROWS", "5")
    ensure_dead_letters_table(lake.store, lake.stream.table.name)
    pipeline = Pipeline(lake, LogInMemory())
    vars(work)["kafka"] = pipeline.log
    for start in range(0, 20, 5):
        pipeline.log.produce(0, *range(start, start + 5))
        pipeline.ingest()
    return [entry.snapshot_id for entry in walk_ancestors(lake.history)]


def plan(work: Workspace, snapshot_id: int) -> RecoveryPlan:
    request = RecoverRequest(
        stream="orders", to_snapshot=snapshot_id, by="jane", reason="small", dry_run=False
    )
    return plan_recovery(work, request)


def test_small_steps_need_the_approval_of_the_large_one(work: Workspace, heads: list[int]) -> None:
    assert plan(work, heads[3]).needs_approval
    assert not plan(work, heads[1]).needs_approval
    recover(work, plan(work, heads[1]))

    second = plan(work, heads[2])

    assert (second.rows_removed, second.rows_removed_earlier) == (5, 5)
    assert second.needs_approval
    assert "without an approval removed 5 rows" in second.text


def test_rollbacks_before_an_approved_one_and_those_of_earlier_days_do_not_count(
    lake: Lake, work: Workspace, heads: list[int]
) -> None:
    recover(work, plan(work, heads[1]))
    second = plan(work, heads[2])

    tomorrow = add_earlier_rollbacks(second, lake.history, NOW_MS + 2 * 86_400_000)
    recover(work, second, approved_by="joe")  # the first is no longer on main
    third = plan(work, heads[3])

    assert (tomorrow.rows_removed_earlier, tomorrow.needs_approval) == (0, False)
    assert third.rows_removed_earlier == 0


def test_a_rollback_that_only_brings_rows_back_needs_none(
    work: Workspace, heads: list[int]
) -> None:
    recover(work, plan(work, heads[1]))
    restored = plan(work, heads[2]).model_copy(update={"rows_removed": -5})

    assert not restored.needs_approval
