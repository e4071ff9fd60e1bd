"""Plan, stage, check and publish speak of one batch, one attempt and one set of rules."""

from dataclasses import replace
from typing import cast

import pytest
from lake import Lake, make_stream, make_topic, passed

from frazil.authors import Author
from frazil.blocking import BlockedBatch, read_blocked
from frazil.checking import check_batch, record_block
from frazil.contracts import BatchPlan
from frazil.decisions import waive_batch
from frazil.errors import BudgetExceededError, FrazilError, StageLostError, StageStaleError
from frazil.ingest import publish_staged
from frazil.planning import PlanInput, TableFacts, plan_batch
from frazil.staging import choose_write_options, stage_batch
from frazil.streams import Stream
from frazil.workspace import Workspace


def with_budget(work: Workspace, ratio: float) -> Workspace:
    """Open the same stream after somebody has changed its file."""
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
        ({"snapshot_id": None}, "counts 5 rows that no branch"),
        ({"rows_written": 3, "rows_quarantined": 2}, "counts 2 letters that no branch"),
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
    record_block(work, plan, staged, error)
    waive_batch(work, plan.batch_id, Author("jane@example.org", "known and harmless"))

    record_block(work, plan, staged, error)

    blocked = read_blocked(lake.table.properties, plan.stream)
    assert blocked is not None
    assert blocked.waiver is not None
    assert blocked.waiver.by == "jane@example.org"
    other = plan.model_copy(update={"batch_id": "another"})
    record_block(work, other, staged, error)
    assert cast("BlockedBatch", read_blocked(lake.table.properties, plan.stream)).waiver is None


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
