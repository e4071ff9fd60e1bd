"""Keys that were deleted expire like rows: their changes, their delete, and its recorded copy."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from faults.state_auditor import Fold
from support.dated_lake import COUNTS, EXPIRE, NOW, SECTIONS, Dated
from support.scripted_catalog import honest, overtaken_by, refused
from support.state_lake import BAD, Change, make_state_lake

from frazil.errors import StageStaleError
from frazil.iceberg.table_view import TableView
from frazil.ledger import keys
from frazil.state_tables.merge_rules import find_position, plan_merge

BY_TIME = {"order": {"sequence_by": ["_kafka.timestamp"]}}
MARKS = {"name": "states.orders", "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
ORDERS = {"kafka": {}, "time": BY_TIME, "mark": {"table": {**MARKS, "deletes": "mark"}}}
ALICE = Change(1, "c", 1, "alice@example.org"), Change(1, "d", 3)


@pytest.fixture
def by() -> str:
    return "kafka"


@pytest.fixture
def further() -> tuple[Change, ...]:
    """Return further changes of partition 1."""
    return ()


@pytest.fixture
def lake(tmp_path: Path, by: str, further: tuple[Change, ...]) -> Iterator[Dated]:
    """Publish keys that were deleted 97 and 4 days ago, and one that came back after 97 days."""
    with time_machine.travel(NOW):
        sections = SECTIONS["kafka"] | ORDERS[by] | EXPIRE
        lake = make_state_lake(Dated, tmp_path, "orders", **sections)
        lake.produce(0, *ALICE, Change(2, "c", 2, "bob"), Change(2, "d", 96))
        lake.produce(0, Change(3, "c", 2, "carol"), Change(3, "d", 3), Change(3, "c", 96, "new"))
        lake.produce(1, *further, Change(5, "D", 3))
        lake.ingest_all()
        lake.merge()
        assert lake.find_wrong() == []
        yield lake
        lake.close()


def list_names(lake: Dated) -> set[object]:
    return {row["name"] for row in lake.table.scan().to_arrow().to_pylist()}


def is_merged(lake: Dated) -> bool:
    """Return whether the next merge has nothing to do."""
    position = find_position(TableView(lake.store, lake.state_name).history, "orders")
    return plan_merge(lake.history, lake.stream, position) is None


@pytest.mark.parametrize("by", ORDERS)
def test_a_key_whose_delete_is_too_old_leaves_all_tables(lake: Dated, by: str) -> None:
    assert lake.expire("look", dry_run=True).rows == 2

    assert lake.expire().rows == 2

    assert lake.changes_left() == [(0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]
    assert lake.deletes_left() == ([] if by == "mark" else [2])
    assert lake.rows().keys() == ({2, 3} if by == "mark" else {3})
    assert (lake.find_wrong(), is_merged(lake)) == ([], True)
    assert lake.expire("again").rows == 0


def test_the_snapshot_of_forgotten_deletes_names_the_rule_that_expired_them(lake: Dated) -> None:
    lake.expire()

    memory = lake.store.load(f"{lake.state_name}__deletes").current_snapshot()
    assert memory is not None
    assert memory.summary is not None
    assert memory.summary[keys.REASON] == "maintenance.expire_rows: _kafka.timestamp, 60 days"


@pytest.mark.parametrize("further", [(Change(9, BAD, 1),)])
def test_a_delete_above_an_open_dead_letter_stays(lake: Dated) -> None:
    assert lake.expire().rows == 1

    assert (1, 1) in lake.changes_left()
    assert lake.deletes_left() == [2, 5]
    assert lake.find_wrong() == []


@pytest.mark.parametrize("commits", range(5))
def test_an_end_at_any_commit_shows_no_deleted_key_and_the_next_run_finishes(
    lake: Dated, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    monkeypatch.setattr("frazil.maintenance.row_deletion.MAX_RUNS", 1)
    lake.catalog.script = [*[honest] * commits, refused(KeyboardInterrupt())]

    with pytest.raises(KeyboardInterrupt):
        lake.expire()

    fold = Fold(lake.rules, lake.table.scan().to_arrow().to_pylist())
    assert {key for key, row in fold.winners() if not fold.is_delete(row)} == {(3,)}
    if not is_merged(lake):
        lake.put_state([], lake.position(COUNTS))
    lake.expire("again")
    assert lake.changes_left() == [(0, 2), (0, 3), (0, 4), (0, 5), (0, 6)]
    assert (lake.deletes_left(), lake.find_wrong()) == ([2], [])


@pytest.mark.parametrize("by", ["time"])
def test_a_late_older_change_of_an_expired_key_expires_with_the_next_run(lake: Dated) -> None:
    lake.expire()
    lake.produce(1, Change(1, "u", 2, "late"))
    lake.ingest_all()
    row = next(row for row in lake.table.scan().to_arrow().to_pylist() if row["name"] == "late")
    lake.put_state([{n: v for n, v in row.items() if n != "op"}], lake.position(COUNTS))
    assert lake.find_wrong() == []

    assert lake.expire("again").rows == 1

    assert lake.rows().keys() == {3}
    assert (lake.find_wrong(), is_merged(lake)) == ([], True)


def test_a_deleted_key_that_a_merge_touches_meanwhile_is_folded_again(lake: Dated) -> None:
    def publish() -> None:
        lake.produce(0, Change(1, "c", 97, "back"))
        lake.ingest_all()

    def land() -> None:
        lake.put_state([], lake.position(COUNTS))

    lake.catalog.script = [overtaken_by(publish), honest, overtaken_by(land)]

    with pytest.raises(StageStaleError, match="1 key got changes"):
        lake.expire()

    assert "back" in list_names(lake)
    assert not is_merged(lake)


@dataclass(frozen=True)
class Placed(Dated):
    """Each change but a delete has a time of its own: that of its sequence, 50 days later."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, Any]:
        at = None if change.op == "d" else NOW - timedelta(days=50 - change.at)
        return {**Dated.make_row(change, place), "placed_at": at}


@pytest.mark.parametrize("deletes", ["remove", "mark"])
def test_a_delete_without_the_column_expires_by_the_time_of_its_record(
    tmp_path: Path, deletes: str
) -> None:
    columns = {"id": "long!", "op": "string", "at": "long", "name": "string"}
    rule = {"column": "placed_at", "keep_days": 60}
    with time_machine.travel(NOW):
        lake = make_state_lake(
            Placed,
            tmp_path,
            "orders",
            order="kafka",
            value={"columns": {**columns, "placed_at": "timestamptz"}},
            table={**MARKS, "deletes": deletes},
            maintenance={"expire_rows": rule},
        )
        lake.produce(0, *ALICE, Change(2, "c", 2, "bob"), Change(2, "d", 96))
        lake.produce(0, Change(3, "c", 2, "carol"))
        lake.ingest_all()
        lake.merge()

        assert lake.expire("look", dry_run=True).rows == lake.expire().rows == 1

        assert lake.changes_left() == [(0, 2), (0, 3), (0, 4)]
        assert (lake.find_wrong(), is_merged(lake)) == ([], True)
        lake.close()
