"""A blocked batch holds its stream until base, rules or a person's word change."""

from dataclasses import replace
from functools import partial
from typing import cast

import pytest
from support.lake import Lake, make_state, make_stream, make_topic, passed
from support.scripted_catalog import ScriptedCatalog, overtaken_by

from frazil.errors import (
    BatchError,
    BudgetExceededError,
    FrazilError,
    QualityFailedError,
    RecordsNotIsolatedError,
    StageLostError,
    StageStaleError,
)
from frazil.ingest.blocked_batches import (
    BlockedBatch,
    RulesFingerprint,
    Waiver,
    encode_blocked,
    explain_block,
    read_blocked,
    record_block,
    still_applies,
)
from frazil.ingest.checking import check_batch
from frazil.ingest.fast_path import choose_write_options
from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import publish_staged
from frazil.ingest.planning import PlanInput, TableFacts, plan_batch
from frazil.ingest.staging import stage_batch
from frazil.ledger.authors import Author
from frazil.ledger.recovery_point import RecoveryPoint
from frazil.recovery.decisions import waive_batch
from frazil.streams.models import Stream
from frazil.workspace import Workspace


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
    assert still_applies(blocked, point, RulesFingerprint.of(blocked.plan))


@pytest.mark.parametrize(
    "part", ["suite_hash", "stream_hash", "transform_version", "quarantined_columns"]
)
def test_a_block_falls_when_this_changes(lake: Lake, part: str) -> None:
    blocked, point = block(lake), lake.point
    changed = RulesFingerprint.of(blocked.plan).model_copy(update={part: "changed"})

    assert point is not None
    assert not still_applies(blocked, point, changed)


@pytest.mark.parametrize(
    ("error", "max_records", "applies"),
    [
        (RecordsNotIsolatedError, 1, False),
        (RecordsNotIsolatedError, 1_000_000, True),
        (QualityFailedError, 1, True),
    ],
)
def test_smaller_batches_lift_the_block_of_records_that_were_not_found(
    lake: Lake, error: type[BatchError], max_records: int, *, applies: bool
) -> None:
    blocked, point = block(lake).model_copy(update={"error": error("", "").code}), lake.point

    assert point is not None
    rules = RulesFingerprint.of(blocked.plan)
    assert still_applies(blocked, point, rules, max_records) is applies
    is_told = "batch.max_records" in explain_block(blocked).next_step
    assert is_told is (error is RecordsNotIsolatedError)


@pytest.mark.parametrize(("epoch", "batch"), [(1, "bootstrap of orders"), (0, "another")])
def test_a_block_falls_when_the_recovery_point_moves(lake: Lake, epoch: int, batch: str) -> None:
    blocked = block(lake)
    moved = RecoveryPoint(make_state(epoch=epoch, batch=batch), 1)

    assert not still_applies(blocked, moved, RulesFingerprint.of(blocked.plan))


def test_the_answer_names_reason_branch_and_both_ways_on(lake: Lake) -> None:
    blocked = block(lake)

    error = explain_block(blocked)

    assert "2 of 5 values are missing" in error.facts
    assert "VERSION AS OF 'frazil_orders_0_x'" in error.next_step
    assert f"frazil waive orders --batch {blocked.plan.batch_id} --by" in error.next_step


def with_budget(work: Workspace, ratio: float) -> Workspace:
    """Open the same stream after its file has changed."""
    return replace(work, stream=make_stream(errors={"max_bad_ratio": ratio}))


def test_a_step_refuses_a_stream_file_that_changed_since_the_plan(
    lake: Lake, work: Workspace
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)

    for step in (lambda w: stage_batch(w, plan), lambda w: check_batch(w, plan, staged)):
        with pytest.raises(StageStaleError, match="the stream file changed since batch"):
            step(with_budget(work, 0.9))
    assert check_batch(work, plan, staged).outcome == "passed"


def test_a_step_refuses_a_suite_that_changed_since_the_plan(lake: Lake, work: Workspace) -> None:
    plan = lake.plan(3, 2, suite_hash="0123456789abcdef")

    with pytest.raises(StageStaleError, match="the suite changed since batch"):
        check_batch(work, plan, lake.stage(plan))


def test_a_verdict_on_another_attempt_publishes_nothing(lake: Lake, work: Workspace) -> None:
    plan = lake.plan(3, 2)
    first, second = lake.stage(plan), lake.stage(plan)

    with pytest.raises(StageStaleError, match=f"the verdict is on attempt {first.attempt}"):
        publish_staged(work, plan, second, passed(plan, first))

    assert lake.coordinates() == []


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"snapshot_id": None}, "reported 5 rows, but no branch"),
        ({"rows_written": 3, "rows_quarantined": 2}, "reported 2 dead letters, but no branch"),
    ],
    ids=["rows", "dead letters"],
)
def test_what_is_counted_and_not_staged_is_never_published(
    lake: Lake, work: Workspace, changes: dict[str, object], lost: str
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan).model_copy(update=changes)

    with pytest.raises(StageLostError, match=lost):
        publish_staged(work, plan, staged, passed(plan, staged))

    assert lake.coordinates() == []
    assert lake.point is not None
    assert lake.point.state.epoch == plan.base_epoch


def test_a_waiver_outlives_the_next_failure_of_the_same_batch(lake: Lake, work: Workspace) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    error = BudgetExceededError("2 of 5 are bad", "mend them")
    record_block(work, plan, staged.attempt, error)
    waive_batch(work, plan.batch_id, Author("jane@example.org", "known and harmless"))

    record_block(work, plan, staged.attempt, error)

    blocked = read_blocked(lake.table.properties, plan.stream)
    assert blocked is not None
    assert blocked.waiver is not None
    assert blocked.waiver.by == "jane@example.org"
    other = plan.model_copy(update={"batch_id": "another"})
    record_block(work, other, staged.attempt, error)
    assert cast("BlockedBatch", read_blocked(lake.table.properties, plan.stream)).waiver is None


def test_a_waiver_given_while_a_run_records_the_same_block_is_not_lost(
    lake: Lake, work: Workspace
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    error = BudgetExceededError("2 of 5 are bad", "correct them")
    record_block(work, plan, staged.attempt, error)
    waive = partial(waive_batch, replace(work), plan.batch_id, Author("jane@example.org", "known"))
    cast("ScriptedCatalog", work.store.catalog).script = [overtaken_by(waive)]

    record_block(work, plan, staged.attempt, error)

    assert cast("BlockedBatch", read_blocked(lake.table.properties, plan.stream)).waiver is not None


def test_a_block_recorded_while_a_waiver_is_given_is_not_lost(lake: Lake, work: Workspace) -> None:
    plan = lake.plan(3, 2)
    staged, other = lake.stage(plan), plan.model_copy(update={"batch_id": "another"})
    error = BudgetExceededError("2 of 5 are bad", "correct them")
    record_block(work, plan, staged.attempt, error)
    record = partial(record_block, replace(work), other, staged.attempt, error)
    cast("ScriptedCatalog", work.store.catalog).script = [overtaken_by(record)]

    waive_batch(work, plan.batch_id, Author("jane@example.org", "known"))

    blocked = cast("BlockedBatch", read_blocked(lake.table.properties, plan.stream))
    assert (blocked.plan.batch_id, blocked.waiver) == ("another", None)


def test_a_waiver_is_not_valid_under_other_rules(lake: Lake, work: Workspace) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    error = BudgetExceededError("2 of 5 are bad", "correct them")
    record_block(work, plan, staged.attempt, error)
    waive_batch(work, plan.batch_id, Author("jane@example.org", "known"))

    record_block(work, plan.model_copy(update={"suite_hash": "other"}), staged.attempt, error)

    assert cast("BlockedBatch", read_blocked(lake.table.properties, plan.stream)).waiver is None


def test_a_waiver_of_an_earlier_release_outlives_the_next_failure(
    lake: Lake, work: Workspace
) -> None:
    blocked = block(lake, Waiver(by="jane", reason="known", at="2026-01-31T00:00:00+00:00"))
    with lake.table.transaction() as transaction:
        transaction.set_properties(encode_blocked(blocked))

    record_block(
        work, blocked.plan, lake.stage(blocked.plan).attempt, BudgetExceededError("bad", "fix")
    )

    assert read_blocked(lake.table.properties, "orders").waiver == blocked.waiver  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("properties", "mode"),
    [({}, "hash"), ({"write.distribution-mode": "none"}, "none")],
    ids=["a sorted table would be sampled", "the table's own word"],
)
def test_no_write_samples_the_rows(properties: dict[str, str], mode: str) -> None:
    stream: Stream = make_stream(table={"name": "demo.orders", "properties": properties})

    assert choose_write_options(stream) == {"distribution-mode": mode}


def test_the_plan_keeps_the_ids_of_topics_that_it_does_not_read(lake: Lake) -> None:
    point = lake.point
    assert point is not None
    state = replace(point.state, topic_ids={**point.state.topic_ids, "old": "id-of-old"})
    given = PlanInput(lake.stream, state, [make_topic((3, 2))], TableFacts("uuid", 0, 0), "")

    plan = cast("BatchPlan", plan_batch(given))

    assert plan.topic_ids == {"orders": "topic-id-1", "old": "id-of-old"}


def test_the_errors_name_the_next_step(lake: Lake, work: Workspace) -> None:
    plan = lake.plan(3, 2)

    with pytest.raises(FrazilError) as caught:
        check_batch(with_budget(work, 0.9), plan, lake.stage(plan))

    assert "run again" in caught.value.next_step
