"""Zombies, double schedulers and foreign owners (docs/faults.md, B), as far as they need no JVM."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from support.lake import Lake, load_with_history, make_stream, make_topic, passed, rows_of

from faults.imagined_kafka import find_faults
from frazil.errors import SparkUnavailableError, SupersededError
from frazil.iceberg.branches import create_branch, name_branch
from frazil.ingest.bootstrap import ensure_table
from frazil.ingest.checking import check_batch
from frazil.ingest.messages import BatchPlan, Staged
from frazil.ingest.pipeline import publish_staged
from frazil.ingest.staging import stage_batch
from frazil.ledger.recovery_point import keys
from frazil.workspace import Workspace

TESTS = Path(__file__).parents[1]
SCHEDULED, BACKFILL, RETRY = 0, 1, 2


def test_b3_a_retry_of_every_step_after_success_asks_no_spark_and_changes_nothing(
    lake: Lake, work: Workspace
) -> None:
    plan = lake.plan(3, 2)
    lake.publish(plan, lake.stage(plan))
    before = lake.table.metadata_location

    staged = stage_batch(work, plan)
    verdict = check_batch(work, plan, staged)
    published = publish_staged(work, plan, staged, verdict)

    assert (staged.already_published, published.outcome) == (True, "ALREADY")
    assert lake.table.metadata_location == before
    with pytest.raises(SparkUnavailableError):
        stage_batch(work, lake.plan(4, 4))


@pytest.mark.parametrize("is_late", [False, True], ids=["before the retry", "after the retry"])
def test_b4_a_job_that_nobody_remembers_writes_its_own_branch_and_nothing_else(
    lake: Lake,
    is_late: bool,  # noqa: FBT001
) -> None:
    plan = lake.plan(3, 2)
    forgotten = name_branch(plan.stream, plan.base_epoch)
    create_branch(lake.store, plan.table, forgotten)
    retried = lake.stage(plan)
    if is_late:
        lake.publish(plan, retried)

    table = lake.table
    table.append(rows_of(table, plan), branch=forgotten)

    assert lake.publish(plan, retried).already_published is is_late
    assert find_faults(lake, 3, 2) == ()


@pytest.mark.parametrize(
    "order",
    list(permutations((SCHEDULED, BACKFILL, RETRY))),
    ids=lambda order: " ".join(("scheduled", "backfill", "retry")[run] for run in order),
)
def test_b5_of_three_overlapping_runs_the_first_decides_and_no_range_overlaps(
    lake: Lake, order: tuple[int, ...]
) -> None:
    plans = [lake.plan(3, 2), lake.plan(5, 2), lake.plan(3, 2)]
    stages = [lake.stage(plan) for plan in plans]
    ended = []

    for run in order:
        try:
            ended.append(
                "ALREADY" if lake.publish(plans[run], stages[run]).already_published else "NEW"
            )
        except SupersededError:
            ended.append("Superseded")

    same = [plans[run].batch_id == plans[order[0]].batch_id for run in order[1:]]
    assert ended == ["NEW", *("ALREADY" if is_same else "Superseded" for is_same in same)]
    assert find_faults(lake, 5, 2) == ()


def test_b9_a_second_stream_with_a_topic_of_its_own_has_its_own_ranges(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(3, 2)
    second = replace(work, stream=make_stream("sales"))

    point = ensure_table(second, [make_topic((7,), topic="sales")]).point

    assert point.state.offsets == {"sales": (0,)}
    assert ensure_table(second, [make_topic((7,), topic="sales")]).point == point
    lake.ingest(5, 5)
    assert find_faults(lake, 5, 5) == ()


@pytest.mark.parametrize(
    ("ends", "outcome"), [((3, 2), "ALREADY"), ((5, 5), "Superseded")], ids=["same", "longer"]
)
def test_b8_a_publisher_that_was_frozen_before_its_commit_wakes_up_fenced(
    lake: Lake, ends: tuple[int, int], outcome: str
) -> None:
    plan = lake.plan(3, 2)
    with frozen_publisher(lake, plan, lake.stage(plan)) as zombie:
        landed = lake.ingest(*ends)

        os.kill(zombie.pid, signal.SIGCONT)
        out, _ = zombie.communicate(timeout=120)

    assert out.splitlines()[-1] == outcome
    assert lake.history.head == landed.entry.snapshot_id
    assert find_faults(lake, *ends) == ()


def test_b8_a_publisher_that_wakes_up_where_others_rolled_main_back_to_its_head_lands_nothing(
    lake: Lake,
) -> None:
    plan, head = lake.plan(3, 2), lake.history.head
    assert head is not None
    with frozen_publisher(lake, plan, lake.stage(plan)) as zombie:
        lake.ingest(5, 5)
        lake.table.manage_snapshots().rollback_to_snapshot(head).commit()

        os.kill(zombie.pid, signal.SIGCONT)
        out, _ = zombie.communicate(timeout=120)

    assert out.splitlines()[-1] == "ForeignRollback"
    assert lake.history.head == head


@contextmanager
def frozen_publisher(
    lake: Lake, plan: BatchPlan, staged: Staged
) -> Iterator["subprocess.Popen[str]"]:
    """Start a publisher, give it when it stands still before its commit, and end it."""
    given = {
        "folder": str(lake.folder),
        "stream": lake.stream.model_dump(mode="json", by_alias=True),
        "plan": plan.model_dump(mode="json"),
        "staged": staged.model_dump(mode="json"),
    }
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("frozen_publisher.py"))],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(given))
        process.stdin.close()
        process.stdin = None
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "it ended instead of freezing"
        yield process
    finally:
        process.kill()
        process.wait()


def test_b10_messages_from_a_restored_metadata_database_meet_the_table_and_change_nothing(
    lake: Lake, work: Workspace
) -> None:
    kept = [(plan, lake.stage(plan)) for plan in (lake.plan(3, 2), lake.plan(4, 4))]
    lake.publish(*kept[0])
    for end in (5, 6, 7):
        lake.ingest(end, end)
    lake.expire_history()
    restored = [
        (BatchPlan.model_validate_json(p.model_dump_json()), Staged.model_validate_json(text))
        for p, text in ((plan, staged.model_dump_json()) for plan, staged in kept)
    ]
    head = lake.history.head

    old, never = restored
    again = publish_staged(work, *old, passed(*old))
    with pytest.raises(SupersededError):
        publish_staged(work, *never, passed(*never))

    assert (again.outcome, lake.history.head) == ("ALREADY", head)
    assert find_faults(lake, 7, 7) == ()


def test_b10_two_environments_plan_the_same_batch_from_the_same_table(
    lake: Lake, work: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ingest(3, 2)
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "another home"))
    clone = Lake(lake.folder, lake.stream)

    plans = lake.plan(5, 5), clone.plan(5, 5)

    clone.catalog.close()
    assert plans[0] == plans[1]
    _, history = load_with_history(work.store, "demo.orders")
    assert plans[0].base_batch in history.entries[history.head or 0].summary[keys.BATCH_ID]
