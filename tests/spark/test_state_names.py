"""Columns and keys of any name that a stream file may have are merged."""

import secrets
from pathlib import Path

import pytest
from conftest import Stack
from support.state_lake import Change, StackStateLake, make_state_lake

from frazil.errors import MergeHaltedError
from frazil.state_tables.state_audit import audit_state

pytestmark = pytest.mark.spark


@pytest.fixture
def name(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return f"n{secrets.token_hex(4)}"


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
    assert [*audit_state(lake.store, lake.stream)] == []


def test_no_operation_in_a_column_of_the_file_stops_the_merge(name: str, tmp_path: Path) -> None:
    lake = make_operated(tmp_path, name)
    lake.produce(0, Change(1, None, 1, "one"))  # type: ignore[arg-type]
    lake.ingest_all()

    with pytest.raises(MergeHaltedError, match="neither an upsert nor a delete"):
        lake.merge()
