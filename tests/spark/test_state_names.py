"""Columns and keys of any name that a stream file may have are merged."""

import secrets
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Stack
from support.event_lake import COLUMNS, EVENTS, Event, EventLake
from support.state_lake import Change, StackStateLake, by_sequence, make_state_lake

from frazil.errors import MergeHaltedError
from frazil.state_tables.state_audit import audit_state

pytestmark = pytest.mark.spark


@pytest.fixture
def name(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return f"n{secrets.token_hex(4)}"


NAMES = (
    *("live", "present", "held", "change", "changes", "first", "last", "held_first", "held_last"),
    *("stale", "unknown", "first_unknown", "moved", "example", "place", "inserted", "updated"),
    *("deleted", "absent", "lsn", "root", "end", "depth", "keys", "key", "value", "state", "row"),
    *("s0", "topic", "partition", "offset", "timestamp", "h", "q"),
)
"""What a merge calls its own columns, or might."""
SHAPES = {
    "keys": (NAMES, dict.fromkeys(NAMES, "long!")),
    "columns": (("id",), dict.fromkeys((*NAMES, "memory", "Memory_", "_Sequence"), "long")),
}
"""The columns of the key, and the types of the names."""


class NamedLake(StackStateLake):
    """A stream with columns of all the names, which hold its rows' `id`."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        names = dict.fromkeys((*NAMES, "memory", "Memory_", "_Sequence"), change.id)
        return {**names, **StackStateLake.make_row(change, place)}


class NamedEvents(EventLake):
    """The same of change events, which lack what they say."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        assert isinstance(change, Event)
        names = (*NAMES, "memory", "Memory_", "_Sequence")
        values = {name: change.id for name in names if name not in change.lacks}
        return {**values, **EventLake.make_row(change, place)}


@pytest.mark.parametrize("shape", SHAPES)
def test_columns_and_keys_of_any_name_are_merged(name: str, tmp_path: Path, shape: str) -> None:
    ids, types = SHAPES[shape]
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": [*ids], "cdc_field": "op"}
    columns = {"id": "long!" if "id" in ids else "long", "op": "string", "at": "long!"}
    value = {"columns": {**columns, "name": "string", **types}}
    lake = make_state_lake(NamedLake, tmp_path, name, table=table, value=value)

    for changes in (
        [Change(1, "c", 1, "one"), Change(2, "c", 1, "two"), Change(3, "c", 1, "three")],
        [Change(1, "u", 3, "uno"), Change(2, "d", 3), Change(4, "c", 3, "four")],
        [Change(1, "u", 2, "late"), Change(2, "u", 2, "late"), Change(3, "u", 2, "tre")],
    ):
        lake.produce(0, *changes)
        lake.ingest_all()
        lake.merge()
        assert lake.rows() == lake.expected(by_sequence)
        assert audit_state(lake.store, lake.stream).findings == ()


@pytest.mark.parametrize("shape", SHAPES)
def test_values_that_events_lack_are_filled_in_columns_of_any_name(
    name: str, tmp_path: Path, shape: str
) -> None:
    ids, types = SHAPES[shape]
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": [*ids]}
    columns = {**COLUMNS, "id": "long!" if "id" in ids else "long", **types}
    value = {"convert": "json", "transform": "flatten_debezium", "columns": columns}
    lake = make_state_lake(
        NamedEvents, tmp_path, name, **{**EVENTS, "table": table, "value": value}
    )
    lacks = ("doc", *(types if "id" in ids else ()))

    for events in (
        [Event(1, "c", 1, values={"name": "one", "doc": "long"})],
        [Event(1, "d", 2), Event(2, "c", 2, values={"name": "two"}, lacks=lacks, moved=True)],
        [Event(2, "u", 3, values={"name": "due"}, lacks=lacks)],
    ):
        for event in events:
            lake.produce(0, event)
        lake.ingest_all()
        lake.merge()
        assert audit_state(lake.store, lake.stream).findings == ()

    (row,) = lake.store.load(lake.state_name).scan().to_arrow().to_pylist()
    filled = 1 if "id" in ids else 2
    assert (row["id"], row["name"], row["doc"]) == (2, "due", "long")
    assert {row[each] for each in types} == {filled}


@pytest.mark.long
def test_a_state_table_may_have_hundreds_of_columns(name: str, tmp_path: Path) -> None:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"], "deletes": "mark"}
    wide = {f"c{number}": "long" for number in range(600)}
    value = {
        "convert": "json",
        "transform": "flatten_debezium",
        "columns": {"id": "long!", **wide},
    }
    lake = make_state_lake(EventLake, tmp_path, name, **{**EVENTS, "table": table, "value": value})

    for event in (
        Event(1, "c", 1, values={**dict.fromkeys(wide, 1), "c599": 7}),
        Event(1, "u", 2, values={**dict.fromkeys(wide, 2), "c599": None}, lacks=("c599",)),
        Event(1, "d", 3),
    ):
        lake.produce(0, event)
        lake.ingest_all()
        lake.merge()

    (row,) = lake.store.load(lake.state_name).scan().to_arrow().to_pylist()
    assert (row["c0"], row["c599"]) == (2, 7)
    assert row["_deleted_at"] is not None


class OperatedLake(StackStateLake):
    """A stream whose operation is a column `_op` of its file."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        row = StackStateLake.make_row(change, place)
        return {**row, "_op": row["op"], "_unavailable": "here"}


def make_operated(folder: Path, name: str) -> OperatedLake:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"], "cdc_field": "_op"}
    columns = {"id": "long!", "_op": "string", "at": "long!", "name": "string"}
    value = {"columns": {**columns, "_unavailable": "string"}}
    return make_state_lake(OperatedLake, folder, name, table=table, value=value)


def test_columns_named_as_those_of_change_events_are_columns_of_the_file(
    name: str, tmp_path: Path
) -> None:
    lake = make_operated(tmp_path, name)
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "c", 1, "two"), Change(2, "d", 2))
    lake.ingest_all()
    lake.merge()

    rows = lake.store.load(lake.state_name).scan().to_arrow().to_pylist()
    assert [(row["id"], row["_unavailable"]) for row in rows] == [(1, "here")]
    assert audit_state(lake.store, lake.stream).findings == ()


def test_no_operation_in_a_column_of_the_file_stops_the_merge(name: str, tmp_path: Path) -> None:
    lake = make_operated(tmp_path, name)
    lake.produce(0, Change(1, None, 1, "one"))  # type: ignore[arg-type]
    lake.ingest_all()

    with pytest.raises(MergeHaltedError, match="neither an upsert nor a delete"):
        lake.merge()


def test_columns_of_the_key_may_order_the_changes(name: str, tmp_path: Path) -> None:
    ids = ["id", "at"]
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ids, "cdc_field": "op"}
    lake = make_state_lake(
        StackStateLake, tmp_path, name, table=table, order={"sequence_by": ["at", "id", "at"]}
    )

    for changes in (
        [Change(1, "c", 1, "one"), Change(2, "c", 1, "two"), Change(3, "d", 1)],
        [Change(1, "u", 1, "uno"), Change(2, "d", 1), Change(3, "c", 1, "three")],
    ):
        lake.produce(0, *changes)
        lake.ingest_all()
        lake.merge()
        assert audit_state(lake.store, lake.stream).findings == ()
    assert {key: found[0] for key, found in lake.rows().items()} == {1: "uno", 3: "three"}


def test_columns_of_the_key_may_change_their_order(name: str, tmp_path: Path) -> None:
    ids = ("id", "at")
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": [*ids], "cdc_field": "op"}
    lake = make_state_lake(StackStateLake, tmp_path, name, table=table, order="kafka")

    for order, changes in (
        (ids, [Change(1, "c", 1, "one"), Change(2, "c", 1, "two"), Change(3, "d", 1)]),
        (ids[::-1], [Change(1, "u", 1, "uno"), Change(2, "d", 1), Change(3, "c", 1, "three")]),
    ):
        section = lake.stream.table.model_copy(update={"id_columns": order})
        lake = replace(lake, stream=lake.stream.model_copy(update={"table": section}))
        lake.produce(0, *changes)
        lake.ingest_all()
        assert lake.merge().rebuilt == ("first merge" if order == ids else "")
        assert audit_state(lake.store, lake.stream).findings == ()
    assert {key: found[0] for key, found in lake.rows().items()} == {1: "uno", 3: "three"}
