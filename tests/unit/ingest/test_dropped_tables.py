"""A dropped table halts its stream until a person decides; nothing takes its place by itself."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

import pytest
from support.lake import Lake, make_stream
from support.staged_offsets import Topic

from frazil.errors import IncompatibleTableError, MissingTableError, TableDroppedError
from frazil.iceberg.ledger_archive import archive_all_entries
from frazil.ingest.messages import BatchPlan
from frazil.ingest.pipeline import plan_next_batch, preview_next_batch
from frazil.kafka.cluster import KafkaLog
from frazil.ledger.authors import Author
from frazil.observability.dead_letter_report import report_dead_letters
from frazil.observability.status import list_snapshots, read_status
from frazil.recovery.decisions import accept_gap, waive_batch
from frazil.recovery.halt_resolution import start_over
from frazil.schemas.evolution import accept_schema, quarantine_schema, stop_schema
from frazil.workspace import Workspace

JANE = Author("jane@example.org", "dropped by mistake")


@pytest.fixture
def dropped(lake: Lake, work: Workspace) -> Workspace:
    """Return a stream of two batches whose table was dropped."""
    lake.ingest(3, 2)
    lake.ingest(5, 4)
    archive_all_entries(lake.store, lake.history)
    lake.catalog.drop_table("demo.orders")
    vars(work)["kafka"] = cast("KafkaLog", Topic((7, 7)))
    return work


@pytest.mark.parametrize("plan", [plan_next_batch, preview_next_batch])
def test_a_plan_refuses_a_dropped_table_and_creates_nothing(
    lake: Lake, dropped: Workspace, plan: Callable[[Workspace], object]
) -> None:
    with pytest.raises(TableDroppedError, match="2 batches of stream orders") as refused:
        plan(dropped)

    assert "register its newest metadata file" in refused.value.next_step
    assert "`frazil recover orders --new-table" in refused.value.next_step
    assert lake.catalog.list_tables("demo") == []


def test_a_dropped_table_fails_the_watch_and_is_a_problem_of_the_status(dropped: Workspace) -> None:
    status = read_status(dropped)

    assert (status.state, status.freshness.cause) == ("TableDropped", "halted")
    assert status.freshness.level == "fail"
    assert "demo.orders was dropped" in (status.problem or "")
    assert "--new-table" in (status.next_step or "")


@pytest.mark.parametrize("read", [list_snapshots, report_dead_letters])
def test_a_command_that_reads_says_that_the_table_was_dropped(
    dropped: Workspace, read: Callable[[Workspace], object]
) -> None:
    with pytest.raises(TableDroppedError, match="2 batches of stream orders"):
        read(dropped)


DECISIONS: Mapping[str, Callable[[Workspace], object]] = {
    "waive": lambda work: waive_batch(work, "0" * 32, JANE),
    "accept a gap": lambda work: accept_gap(work, JANE),
    "accept a schema": lambda work: accept_schema(work, JANE),
    "stop a schema": lambda work: stop_schema(work, JANE),
    "quarantine a schema": lambda work: quarantine_schema(work, JANE),
}


@pytest.mark.parametrize("decision", DECISIONS)
def test_a_decision_says_that_the_table_was_dropped(
    lake: Lake, dropped: Workspace, decision: str
) -> None:
    with pytest.raises(TableDroppedError, match=r"demo\.orders was dropped"):
        DECISIONS[decision](dropped)

    assert lake.catalog.list_tables("demo") == []


def test_a_stream_that_the_archive_does_not_know_has_not_started(dropped: Workspace) -> None:
    stream = dropped.stream.model_copy(update={"stream": "payments"})

    status = read_status(replace(dropped, stream=stream))

    assert status.state == "not started"


def test_a_table_that_is_registered_again_lets_the_stream_continue(
    lake: Lake, work: Workspace
) -> None:
    lake.ingest(3, 2)
    archive_all_entries(lake.store, lake.history)
    newest = lake.table.metadata_location
    lake.catalog.drop_table("demo.orders")
    lake.catalog.register_table("demo.orders", newest)
    vars(work)["kafka"] = cast("KafkaLog", Topic((7, 7)))

    plan = plan_next_batch(work)

    assert isinstance(plan, BatchPlan)
    assert plan.ranges == {"orders": {0: (3, 7), 1: (2, 7)}}


def test_the_preview_of_a_new_table_creates_nothing(lake: Lake, dropped: Workspace) -> None:
    preview = start_over(dropped, None)

    assert preview.kind == "bootstrap"
    assert lake.catalog.list_tables("demo") == []


def test_a_person_begins_again_in_a_new_table_once(lake: Lake, dropped: Workspace) -> None:
    done = start_over(dropped, JANE)
    again = start_over(dropped, JANE)

    assert done.snapshot_id == again.snapshot_id == lake.history.head
    assert lake.point is not None
    plan = plan_next_batch(dropped)
    assert isinstance(plan, BatchPlan)
    assert plan.ranges == {"orders": {0: (0, 7), 1: (0, 7)}}


@pytest.mark.parametrize("act", [plan_next_batch, lambda work: start_over(work, JANE)])
def test_a_dropped_change_table_is_not_begun_again_below_its_state_table(
    lake: Lake, work: Workspace, act: Callable[[Workspace], object]
) -> None:
    lake.ingest(3, 2)
    archive_all_entries(lake.store, replace(lake.history, table="demo.state__changes"))
    lake.catalog.rename_table("demo.orders", "demo.state")
    columns = {"id": "long!", "op": "string", "name": "string"}
    table = {"name": "demo.state", "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
    upsert = make_stream(table=table, value={"columns": columns}, order="kafka")
    opened = replace(work, stream=upsert)
    vars(opened)["store"], vars(opened)["kafka"] = lake.store, cast("KafkaLog", Topic((7, 7)))

    with pytest.raises(IncompatibleTableError, match="its change table") as refused:
        act(opened)

    assert "register its newest metadata file" in refused.value.next_step
    assert "--new-table" not in refused.value.next_step


def test_a_new_table_is_no_answer_for_a_stream_that_never_began(
    lake: Lake, work: Workspace
) -> None:
    lake.catalog.drop_table("demo.orders")

    with pytest.raises(MissingTableError):
        start_over(work, JANE)

    assert lake.catalog.list_tables("demo") == []
