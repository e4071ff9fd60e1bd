"""Staging branches start at main's head, under names that no two attempts share."""

import pytest
from pyiceberg.exceptions import CommitFailedException
from requests.exceptions import ReadTimeout
from support.lake import Lake
from support.scripted_catalog import ignored, landed_then, overtaken_by, refused

from frazil.errors import CatalogUnavailableError
from frazil.iceberg.branches import create_branch, name_branch, parse_branch
from frazil.ingest.bootstrap import new_table


def test_no_two_attempts_share_a_branch() -> None:
    names = {name_branch("orders", 7) for _ in range(1000)}

    assert len(names) == 1000
    assert all(name.startswith("frazil_orders_7_") for name in names)


@pytest.mark.parametrize("stream", ["orders", "a_1_b_2", "x" * 63])
@pytest.mark.parametrize("beside", [False, True])
def test_a_branch_tells_whose_it_is_and_its_age_by_its_name(stream: str, *, beside: bool) -> None:
    name = name_branch(stream, 12, beside=beside)

    branch = parse_branch(name, now_ms=4_102_444_800_000)

    assert branch is not None
    assert (branch.stream, branch.epoch, branch.is_beside) == (stream, 12, beside)
    assert 0 < branch.age_ms < 4_102_444_800_000


@pytest.mark.parametrize("name", ["main", "audit", "frazil_notes", "frazil_orders_7_abc"])
def test_anybody_elses_branch_tells_nothing(name: str) -> None:
    assert parse_branch(name, now_ms=0) is None


def test_a_branch_starts_at_mains_head_and_moves_nothing(lake: Lake) -> None:
    landed = lake.ingest(3, 2)

    head = create_branch(lake.store, "demo.orders", "frazil_x")

    assert head == lake.history.head == landed.entry.snapshot_id
    assert lake.table.metadata.refs["frazil_x"].snapshot_id == head


def test_a_catalog_that_ignores_branches_is_refused_by_name(lake: Lake) -> None:
    lake.catalog.script = [ignored(lake.table)]

    with pytest.raises(CatalogUnavailableError, match="catalog lake accepted branch frazil_x"):
        create_branch(lake.store, "demo.orders", "frazil_x")


def test_a_table_without_a_snapshot_has_nothing_to_branch_from(lake: Lake) -> None:
    lake.store.create("demo.empty", new_table(lake.stream))

    with pytest.raises(CatalogUnavailableError, match="no snapshot to create a branch from"):
        create_branch(lake.store, "demo.empty", "frazil_x")


def test_a_lost_race_is_tried_again(lake: Lake) -> None:
    lake.catalog.script = [
        refused(CommitFailedException("main has changed")),
        overtaken_by(lambda: lake.append_foreign(1)),
    ]

    head = create_branch(lake.store, "demo.orders", "frazil_x")

    assert lake.table.metadata.refs["frazil_x"].snapshot_id == head


def test_a_branch_that_was_created_without_an_answer_is_found(lake: Lake) -> None:
    lake.catalog.script = [landed_then(ReadTimeout("no answer"))]

    head = create_branch(lake.store, "demo.orders", "frazil_x")

    assert head == lake.history.head
