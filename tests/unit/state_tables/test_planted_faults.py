"""Faults of filled values, changed keys and uuid keys: the product's audit and the other find them.

The other planted faults are in `test_state_audit.py`.
"""

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from faults.state_auditor import StateRules, audit_state_table
from support.event_lake import EVENTS, LARGE, Event, EventLake
from support.lake import Lake, append
from support.state_lake import Change, StateLake, make_state_lake

from frazil.state_tables.messages import MergeCounts
from frazil.state_tables.state_audit import audit_state

Row = dict[str, object]
FULL = {"name": "n", "doc": "d", "words": ["w"], "raw": b"r"}
COUNTS = MergeCounts(changes=6, inserted=2, updated=0, deleted=0, absent=1, superseded=3, stale=0)


class StoredEventLake(EventLake):
    """A stream of change events in a catalog of its own."""

    store = Lake.store


class UuidLake(StateLake):
    """A stream whose key is a uuid."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> Row:
        """Make the row of a change; half of the keys are negative if read as signed numbers."""
        key = UUID(int=change.id << 127 | change.id)
        return {**StateLake.make_row(change, place), "id": key.bytes}


def find_faults(lake: StateLake, rules: StateRules) -> list[str]:
    """Let both audits look; they agree on what is broken."""
    found = [*audit_state(lake.store, lake.stream).findings]
    independent = audit_state_table(lake.store.catalog, rules)
    assert {invariant for invariant, _ in found} == {invariant for invariant, _ in independent}
    return [text for _, text in found]


def rows_at(lake: StateLake, *offsets: int) -> list[Row]:
    """Copy changes of partition 0 as rows of the state."""
    known = lake.table.scan().to_arrow().to_pylist()
    by_offset = {row["_kafka"]["offset"]: row for row in known if not row["_kafka"]["partition"]}
    own = {"op", "_op", "_unavailable"}
    return [
        {name: value for name, value in by_offset[offset].items() if name not in own}
        for offset in offsets
    ]


@pytest.fixture
def events(tmp_path: Path) -> StoredEventLake:
    """Publish a row that became key 2, and another one; both lack large values in the end."""
    lake = make_state_lake(
        StoredEventLake,
        tmp_path,
        "orders",
        **{**EVENTS, "table": {"name": "states.orders", "mode": "upsert", "id_columns": ["id"]}},
    )
    lake.produce(
        0,
        Event(1, "c", 1, values=FULL),
        Event(1, "u", 2, values={"name": "new"}, lacks=LARGE),
        Event(1, "d", 3),
        Event(2, "c", 3, values={"name": "moved"}, lacks=LARGE, moved=True),
        Event(4, "c", 4, values=FULL),
        Event(4, "u", 5, values={"name": "new"}, lacks=LARGE),
    )
    lake.ingest_all()
    return lake


EVENT_FAULTS: dict[str, tuple[Callable[[StateLake], list[Row]], str]] = {
    "none": (lambda lake: filled(lake, 3, 5), ""),
    "a lost fill": (lambda lake: [*filled(lake, 3), *rows_at(lake, 5)], "1 row not like"),
    "a lost fill after a move": (
        lambda lake: [*rows_at(lake, 3), *filled(lake, 5)],
        "1 row not like",
    ),
    "a row that stayed after its key changed": (
        lambda lake: [*filled(lake, 1), *filled(lake, 3, 5)],
        "1 row whose key is deleted or unknown",
    ),
}


def filled(lake: StateLake, *offsets: int) -> list[Row]:
    return [{**row, **{name: FULL[name] for name in LARGE}} for row in rows_at(lake, *offsets)]


@pytest.mark.parametrize("fault", EVENT_FAULTS)
def test_a_lost_fill_and_a_row_that_stayed_are_found(events: StoredEventLake, fault: str) -> None:
    plant, says = EVENT_FAULTS[fault]
    place = {"topic": "orders", "partition": 0, "offset": 2}

    events.put_state(plant(events), events.position(COUNTS))
    memory = events.store.load("states.orders__deletes")
    append(events.catalog, memory, [{"id": 1, "_kafka": place, "memory": "m"}])

    rules = StateRules("orders", "states.orders", ("id",), operation="_op", has_events=True)
    found = find_faults(events, rules)
    assert len(found) == bool(says)
    assert says in "".join(found)


@pytest.mark.parametrize("is_doubled", [False, True])
def test_a_doubled_uuid_key_is_found(tmp_path: Path, *, is_doubled: bool) -> None:
    columns = {"id": "uuid!", "op": "string", "at": "long!", "name": "string"}
    lake = make_state_lake(UuidLake, tmp_path, "orders", value={"columns": columns})
    lake.produce(0, Change(0, "c", 1, "a"), Change(1, "c", 1, "b"), Change(1, "u", 2, "c"))
    lake.ingest_all()

    lake.put_state(rows_at(lake, 0, *([1] if is_doubled else []), 2), lake.position(COUNTS))

    found = find_faults(lake, StateRules("orders", "states.orders", ("id",), ("at",), "op"))
    assert found == (["1 row with the key of another row"] if is_doubled else [])
