"""A staged branch becomes main only on the head that it was staged on."""

import pytest
from requests.exceptions import ReadTimeout
from support.lake import Lake, rows_of
from support.scripted_catalog import Answer, landed_then, overtaken_by, refused

from frazil.errors import StageLostError, StageStaleError
from frazil.iceberg.branches import create_branch, name_branch
from frazil.iceberg.fast_forward import FastForward, fast_forward_main
from frazil.iceberg.table_view import TableView
from frazil.ledger.recovery_point import PublishedBatch, keys, walk_ancestors


def publish(lake: Lake, seal: FastForward) -> PublishedBatch:
    """Fast-forward main as another process would."""
    return fast_forward_main(TableView(lake.store, lake.stream.table.name), seal)


def stage(lake: Lake, own_id: str = "seal-1") -> FastForward:
    """Stage three rows of the first batch on main's head."""
    branch = name_branch(lake.stream.stream, 0)
    create_branch(lake.store, lake.stream.table.name, branch)
    table = lake.table
    table.append(rows_of(table, lake.plan(3, 0)), branch=branch)
    staged_id = lake.table.metadata.refs[branch].snapshot_id
    summary = {keys.KIND: keys.REPLAY, keys.BATCH_ID: own_id}
    return FastForward(branch, staged_id, summary)


def test_the_seal_is_main_and_the_staged_rows_are_its_parents(lake: Lake) -> None:
    seal = stage(lake)
    head = lake.history.head

    landed = publish(lake, seal)

    ancestry = [entry.snapshot_id for entry in walk_ancestors(lake.history)]
    assert ancestry[:3] == [landed.entry.snapshot_id, seal.staged_id, head]
    assert landed.entry.summary[keys.SOURCE_SNAPSHOT_ID] == str(seal.staged_id)
    assert seal.branch not in lake.table.metadata.refs
    assert lake.coordinates() == [(0, 0), (0, 1), (0, 2)]


def test_sealing_again_finds_it_there(lake: Lake) -> None:
    seal = stage(lake)
    first = publish(lake, seal)

    again = publish(lake, seal)

    assert again.already_published
    assert again.entry.snapshot_id == first.entry.snapshot_id


@pytest.mark.parametrize(
    "answer", [landed_then(ReadTimeout("?")), refused(ReadTimeout("?"))], ids=["landed", "did not"]
)
def test_a_seal_whose_answer_was_lost_lands_once(lake: Lake, answer: Answer) -> None:
    seal = stage(lake)
    lake.catalog.script = [answer]

    publish(lake, seal)

    assert lake.coordinates() == [(0, 0), (0, 1), (0, 2)]


def test_a_seal_on_an_old_head_is_refused_and_drops_nothing_of_others(lake: Lake) -> None:
    seal = stage(lake)
    lake.ingest(0, 2)
    head = lake.history.head

    with pytest.raises(StageStaleError, match="another writer was faster"):
        publish(lake, seal)

    assert lake.history.head == head
    assert lake.coordinates() == [(1, 0), (1, 1)]


def test_a_batch_that_lands_between_look_and_commit_wins(lake: Lake) -> None:
    seal = stage(lake)
    lake.catalog.script = [overtaken_by(lambda: lake.ingest(0, 2))]

    with pytest.raises(StageStaleError):
        publish(lake, seal)

    assert lake.coordinates() == [(1, 0), (1, 1)]


def test_of_two_seals_on_one_head_one_wins(lake: Lake) -> None:
    one, other = stage(lake, "one"), stage(lake, "other")
    publish(lake, one)

    with pytest.raises(StageStaleError):
        publish(lake, other)

    assert lake.coordinates() == [(0, 0), (0, 1), (0, 2)]


def test_a_branch_that_is_gone_is_refused(lake: Lake) -> None:
    seal = stage(lake)
    lake.table.manage_snapshots().remove_branch(seal.branch).commit()

    with pytest.raises(StageLostError, match="does not exist or has moved"):
        publish(lake, seal)
