"""PUBLISH while commits conflict, fail or get no answer: once, or not at all."""

import pytest
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
    ServiceUnavailableError,
    ValidationException,
)
from requests.exceptions import ConnectionError as NoConnectionError
from requests.exceptions import ReadTimeout
from support.lake import Lake
from support.publish_steps import FIVE, roll_back
from support.scripted_catalog import Answer, honest, landed_then, overtaken_by, refused

from frazil.errors import (
    CommitContentionError,
    ForeignRollbackError,
    FrazilError,
    SupersededError,
)
from frazil.iceberg.commit_retry import MAX_ATTEMPTS

RACE = CommitFailedException("Requirement failed: branch main has changed")


@pytest.mark.parametrize(
    "error",
    [
        RACE,
        CommitStateUnknownException("500 Internal Server Error"),
        ServerError("500 Internal Server Error"),
        ServiceUnavailableError("503"),
        ReadTimeout("no answer"),
        NoConnectionError("connection reset"),
    ],
    ids=["409", "500 unknown", "500", "503", "timeout", "reset"],
)
def test_a_commit_that_landed_without_an_answer_is_found(lake: Lake, error: Exception) -> None:
    plan = lake.plan(3, 2)  # A2, A3
    staged = lake.stage(plan)
    lake.catalog.script = [landed_then(error)]

    landed = lake.publish(plan, staged)

    assert landed.already_published
    assert lake.coordinates() == FIVE
    assert len(lake.table.metadata.snapshots) == 2, "the bootstrap and one batch"


@pytest.mark.parametrize(
    "error",
    [
        RACE,
        ServerError("500"),
        ReadTimeout("no answer"),
        ValueError("Cannot add snapshot with sequence number 3"),
        ValidationException("Cannot find starting snapshot"),
        KeyError("frazil_orders_0_x"),
    ],
    ids=["409", "500", "timeout", "sequence number", "starting snapshot", "branch gone"],
)
def test_a4_a_commit_that_did_not_land_is_tried_again(lake: Lake, error: Exception) -> None:  # A4
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [refused(error), refused(error), honest]

    landed = lake.publish(plan, staged)

    assert not landed.already_published
    assert lake.coordinates() == FIVE


@pytest.mark.parametrize("first", [landed_then(ReadTimeout("?")), refused(ReadTimeout("?"))])
def test_an_unknown_outcome_is_not_forgotten_behind_a_conflict(  # A10
    lake: Lake, first: Answer
) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [first, refused(RACE), refused(ServerError("500"))]

    lake.publish(plan, staged)

    assert lake.coordinates() == FIVE


def test_the_commit_of_another_writer_between_two_turns_survives(lake: Lake) -> None:  # A12, F2
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [overtaken_by(lambda: lake.append_foreign(100, 101))]

    landed = lake.publish(plan, staged)

    assert not landed.already_published
    assert lake.coordinates() == FIVE
    assert sorted(lake.table.scan().to_arrow()["id"].to_pylist()) == [0, 0, 1, 1, 2, 100, 101]


def test_a_rival_that_lands_between_look_and_commit_supersedes(lake: Lake) -> None:  # B8
    slow, fast = lake.plan(3, 2), lake.plan(5, 2)
    staged, rival = lake.stage(slow), lake.stage(fast)
    lake.catalog.script = [overtaken_by(lambda: lake.publish(fast, rival))]

    with pytest.raises(SupersededError):
        lake.publish(slow, staged)

    assert lake.coordinates() == [(0, n) for n in range(5)] + [(1, 0), (1, 1)]


def test_a_rollback_between_look_and_commit_is_not_undone(lake: Lake) -> None:  # I5
    first = lake.history.head
    lake.ingest(3, 2)
    plan = lake.plan(4, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [overtaken_by(lambda: roll_back(lake, first))]

    with pytest.raises(ForeignRollbackError):
        lake.publish(plan, staged)

    assert lake.history.head == first


def test_losing_every_turn_ends_with_the_stage_intact(lake: Lake) -> None:
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [refused(RACE)] * MAX_ATTEMPTS

    with pytest.raises(CommitContentionError, match=r"publishing batch .* branch main has changed"):
        lake.publish(plan, staged)

    assert lake.coordinates() == []
    assert lake.publish(plan, staged).already_published is False


def test_a_forbidden_commit_writes_nothing_and_names_the_reason(lake: Lake) -> None:  # J2
    plan = lake.plan(3, 2)
    staged = lake.stage(plan)
    lake.catalog.script = [refused(ForbiddenError("no WRITE on demo.orders"))] * MAX_ATTEMPTS

    with pytest.raises(FrazilError, match="no WRITE"):
        lake.publish(plan, staged)

    assert lake.coordinates() == []
