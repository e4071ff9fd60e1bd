"""A property of Frazil that cannot be read stops the stream with the statement that removes it."""

import json
from collections.abc import Callable

import pytest
from support.lake import Lake

from frazil.errors import UnknownStateError
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once
from frazil.ingest.blocked_batches import (
    BlockedBatch,
    Waiver,
    encode_blocked,
    encode_waiver,
    read_blocked,
)
from frazil.ingest.bootstrap import require_unchanged_route
from frazil.ledger import keys
from frazil.ledger.recovery_point import History
from frazil.observability.timeline import derive_events
from frazil.recovery.decisions import waive_batch
from frazil.schemas.inferred_columns import read_pending_schemas
from frazil.schemas.review import read_schema_decision, review_table
from frazil.state_tables.tables import map_names
from frazil.workspace import Workspace

Read = Callable[[Lake, Workspace], object]
NAME = "demo.orders"


def block(lake: Lake) -> BlockedBatch:
    plan = lake.plan(3, 2)
    return BlockedBatch(
        plan=plan, error="quality-failed", failures=("x",), branch="", blocked_at="2026-01-31"
    )


def write(lake: Lake, key: str, text: str) -> None:
    """Set a property of the table."""
    commit_once(lake.store, lake.table, {}, [commits.set_properties({key: text})])


def list_events(lake: Lake) -> object:
    head = lake.table.metadata.current_snapshot_id
    properties = lake.table.properties
    return list(derive_events(History(NAME, "u", head, {}, properties), "orders"))


READERS: list[tuple[str, Read]] = [
    (
        "blocked.orders",
        lambda lake, _: read_blocked(lake.table.properties, "orders", NAME),
    ),
    ("blocked.orders", lambda _, work: waive_batch(work, "b", None)),
    ("columns.orders", lambda lake, work: review_table(lake.table, work)),
    ("route.orders", lambda lake, work: require_unchanged_route(lake.table, work.stream)),
    (
        "schema-answer.orders",
        lambda lake, _: read_schema_decision(
            lake.table.properties, "orders", lake.stream.table.name
        ),
    ),
    (
        "schema-question.orders",
        lambda lake, _: read_pending_schemas(
            lake.table.properties, "orders", lake.stream.table.name
        ),
    ),
    ("schema-change.1", lambda lake, _: list_events(lake)),
    ("state-fields", lambda lake, _: map_names(lake.table, lake.table.schema())),
]


@pytest.mark.parametrize("text", ['{"plan": {"v"', "5", '["a", {}]'], ids=["cut", "number", "list"])
@pytest.mark.parametrize(("key", "read"), READERS)
def test_a_damaged_property_is_named_with_the_statement_that_removes_it(
    lake: Lake, work: Workspace, key: str, read: Read, text: str
) -> None:
    write(lake, f"frazil.{key}", text)

    with pytest.raises(UnknownStateError) as caught:
        read(lake, work)

    assert caught.value.facts.startswith(f"table demo.orders: property frazil.{key} cannot be read")
    unset = f"`ALTER TABLE demo.orders UNSET TBLPROPERTIES ('frazil.{key}')`; "
    assert caught.value.next_step.startswith(unset)


def test_a_waiver_that_cannot_be_read_is_named(lake: Lake) -> None:
    properties = encode_blocked(block(lake)) | {keys.waiver_key("orders"): "{"}

    with pytest.raises(UnknownStateError, match=r"frazil\.waiver\.orders cannot be read"):
        read_blocked(properties, "orders", NAME)


@pytest.mark.parametrize("damage", [{"v": 2}, {"new": 1}, {"v": 2, "new": 1}])
def test_a_blocked_batch_of_a_newer_release_asks_for_that_release(
    lake: Lake, damage: dict[str, int]
) -> None:
    key, text = next(iter(encode_blocked(block(lake)).items()))
    record = json.loads(text)
    record["plan"] |= damage

    with pytest.raises(UnknownStateError) as caught:
        read_blocked({key: json.dumps(record)}, "orders", NAME)

    assert caught.value.next_step.startswith("run the newer release that wrote it; if it was")
    assert "planned and checked again" in caught.value.next_step


def test_a_blocked_batch_and_its_waiver_are_read_as_written(lake: Lake) -> None:
    blocked, waiver = block(lake), Waiver(by="jane", reason="known", at="2026-01-31")
    properties = encode_blocked(blocked) | encode_waiver(blocked.plan, waiver)

    found = read_blocked(properties, "orders", NAME)

    assert found == blocked.model_copy(update={"waiver": waiver})
