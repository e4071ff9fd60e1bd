"""Dead letters land once per attempt, whatever the catalog answers."""

import pytest
from requests.exceptions import ReadTimeout
from support.lake import Lake, append
from support.scripted_catalog import Answer, landed_then, overtaken_by, refused

from frazil.errors import StageLostError
from frazil.iceberg.branches import create_branch
from frazil.ingest.dead_letters import (
    ensure_dead_letters_table,
    has_dead_letters,
    publish_dead_letters,
)
from frazil.ingest.messages import BatchPlan, Staged

NAME = "demo.orders__dead_letters"


def stage_letters(lake: Lake, plan: BatchPlan, attempt: str, offsets: int = 2) -> Staged:
    """Stage one letter for each of the first offsets of partition 0."""
    ensure_dead_letters_table(lake.store, plan.table)
    create_branch(lake.store, NAME, attempt)
    table = lake.store.load(NAME)
    kafka = [{"topic": "orders", "partition": 0, "offset": offset} for offset in range(offsets)]
    rows = [{"_kafka": coordinate, "value": b"?", "attempt": attempt} for coordinate in kafka]
    append(lake.catalog, table, rows, attempt)
    snapshot_id = lake.store.load(NAME).metadata.refs[attempt].snapshot_id
    return Staged(
        stream="orders",
        batch_id=plan.batch_id,
        attempt=attempt,
        snapshot_id=None,
        base_head=0,
        rows_read=offsets,
        rows_written=0,
        rows_quarantined=offsets,
        rows_skipped=0,
        dead_letters_snapshot_id=snapshot_id,
    )


def letters(lake: Lake) -> int:
    """Count the letters on the table's main."""
    return lake.store.load(NAME).scan().to_arrow().num_rows


def test_preparing_the_table_twice_changes_nothing(lake: Lake) -> None:
    ensure_dead_letters_table(lake.store, "demo.orders")
    before = lake.store.load(NAME).metadata_location

    ensure_dead_letters_table(lake.store, "demo.orders")

    assert lake.store.load(NAME).metadata_location == before


def test_letters_are_invisible_until_they_are_published(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = stage_letters(lake, plan, "frazil_a")
    assert letters(lake) == 0

    publish_dead_letters(lake.store, plan, staged)

    assert letters(lake) == 2
    assert "frazil_a" not in lake.store.load(NAME).metadata.refs


def test_publishing_letters_again_changes_nothing(lake: Lake) -> None:  # E4
    plan = lake.plan(3, 2)
    staged = stage_letters(lake, plan, "frazil_a")
    publish_dead_letters(lake.store, plan, staged)

    publish_dead_letters(lake.store, plan, staged)

    assert letters(lake) == 2


@pytest.mark.parametrize(
    "answer", [landed_then(ReadTimeout("?")), refused(ReadTimeout("?"))], ids=["landed", "did not"]
)
def test_letters_whose_answer_was_lost_land_once(lake: Lake, answer: Answer) -> None:
    plan = lake.plan(3, 2)
    staged = stage_letters(lake, plan, "frazil_a")
    lake.catalog.script = [answer]

    publish_dead_letters(lake.store, plan, staged)

    assert letters(lake) == 2


def test_letters_of_two_attempts_stay_apart(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    one, other = (stage_letters(lake, plan, name) for name in ("frazil_a", "frazil_b"))
    lake.catalog.script = [overtaken_by(lambda: publish_dead_letters(lake.store, plan, other))]

    publish_dead_letters(lake.store, plan, one)

    table = lake.store.load(NAME)
    assert has_dead_letters(table, "frazil_a")
    assert has_dead_letters(table, "frazil_b")
    assert letters(lake) == 4


def test_letters_whose_branch_is_gone_stop_the_batch(lake: Lake) -> None:  # E3
    plan = lake.plan(3, 2)
    staged = stage_letters(lake, plan, "frazil_a")
    lake.store.load(NAME).manage_snapshots().remove_branch("frazil_a").commit()

    with pytest.raises(StageLostError, match=r"branch frazil_a .* is gone"):
        publish_dead_letters(lake.store, plan, staged)


def test_a_batch_without_letters_touches_no_table(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)

    publish_dead_letters(lake.store, plan, staged)

    assert lake.store.find(NAME) is None
