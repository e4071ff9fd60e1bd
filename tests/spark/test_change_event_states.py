"""Change events become the source's table: what an event did not carry is filled from before."""

import random
import secrets
from pathlib import Path

import pytest
from conftest import Stack
from faults.state_auditor import StateRules, audit_state_table
from pyiceberg.types import BinaryType
from support.event_lake import EVENTS, Event, EventLake, Source
from support.state_lake import Change, make_state_lake

from frazil.errors import MergeHaltedError
from frazil.state_tables.state_audit import audit_state

pytestmark = pytest.mark.spark


@pytest.fixture
def name(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return f"e{secrets.token_hex(4)}"


BY_LSN = "_source.lsn"


def make_lake(folder: Path, name: str, *, deletes: str = "remove", **sections: object) -> EventLake:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"], "deletes": deletes}
    return make_state_lake(EventLake, folder, name, **{**EVENTS, "table": table, **sections})


def produce(lake: EventLake, events: list[Event], dice: random.Random | None = None) -> None:
    """Produce events by key, so that the parts of a changed key reach different partitions.

    With dice, the changes of one key reach different partitions, too, as in a repartitioned topic.
    """
    for each in events:
        lake.produce(dice.randrange(2) if dice else each.id % 2, each)


@pytest.mark.storm(1)
@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize("sequence", ["", BY_LSN], ids=["offsets", "lsn"])
def test_the_state_is_the_source_table(name: str, tmp_path: Path, part: int, sequence: str) -> None:
    seed = random.randrange(10**6)
    dice = random.Random(seed)
    order = {"order": {"sequence_by": sequence}} if sequence else {}
    marks = part % 2 == 1
    lake = make_lake(tmp_path, name, **order, deletes="mark" if marks else "remove")
    source = Source(dice)
    choose = dice if sequence else None
    ends = [0, 0]

    for _ in range(4):
        produce(lake, source.change(dice.randrange(1, 40)), choose)
        if dice.random() < 0.3:
            produce(lake, source.repeat(8), choose)
        if dice.random() < 0.2:
            produce(lake, source.snapshot(), choose)
        before = ends
        ends = [dice.randint(end, len(log)) for end, log in zip(ends, lake.log, strict=True)]
        if ends != before:
            lake.ingest(*ends)
        lake.merge()
        assert audit_state(lake.store, lake.stream).findings == (), f"part {part}, seed {seed}"
    produce(lake, source.change(1), choose)
    lake.ingest_all()
    merged = lake.merge()

    assert lake.values() == source.rows, f"part {part}, seed {seed}"
    assert merged.counts is not None
    assert merged.counts.is_balanced
    assert audit_state(lake.store, lake.stream).findings == (), f"part {part}, seed {seed}"
    by = (sequence,) if sequence else ()
    rules = StateRules(name, lake.state_name, ("id",), by, "_op", marks, has_events=True)
    assert audit_state_table(lake.store.catalog, rules) == [], f"part {part}, seed {seed}"


def test_events_without_an_lsn_come_before_all_others_and_need_one_partition(
    name: str, tmp_path: Path
) -> None:
    lake, source = make_lake(tmp_path, name, order={"sequence_by": BY_LSN}), Source(random.Random())
    source.lsn = 1
    source.insert(1)
    source.insert(2)
    first = source.snapshot(has_lsn=False)
    source.lsn = 2
    source.update(1)
    source.delete(2)
    newer = source.events[-2:]
    for part, events in ((0, first), (1, newer)):
        for each in events:
            lake.produce(part, each)
    lake.ingest_all()
    lake.merge()
    found = lake.values()
    for part, events in ((0, first), (1, source.snapshot(has_lsn=False))):
        for each in events:
            lake.produce(part, each)
    lake.ingest_all()

    with pytest.raises(MergeHaltedError, match=r"1 key with changes without _source\.lsn in two"):
        lake.merge()

    assert found == lake.values() == source.rows
    assert audit_state(lake.store, lake.stream).findings == ()


class RenamedLake(EventLake):
    """Events whose `doc` is also there under the name that the column gets later."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        row = EventLake.make_row(change, place)
        return {**row, "body": row.get("doc")}


def test_a_value_that_events_lack_is_found_after_its_column_was_renamed(
    name: str, tmp_path: Path
) -> None:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"]}
    lake = make_state_lake(RenamedLake, tmp_path, name, **{**EVENTS, "table": table})
    lake.produce(0, Event(1, "c", 1, values={"name": "a", "doc": "large"}))
    lake.produce(0, Event(2, "c", 2, values={"name": "b", "doc": "other"}))
    lake.ingest_all()
    lake.merge()
    lake.produce(0, Event(1, "u", 3, values={"name": "a2"}, lacks=("doc",)))
    lake.ingest_all()
    with lake.table.update_schema() as update:
        update.rename_column("doc", "body")
    lake.produce(0, Event(2, "u", 4, values={"name": "b2"}, lacks=("body",)))
    lake.ingest_all()

    for rebuild in (False, True):
        lake.merge(rebuild=rebuild)
        rows = lake.store.load(lake.state_name).scan().to_arrow().to_pylist()
        found = {row["id"]: (row["name"], row["body"]) for row in rows}
        assert found == {1: ("a2", "large"), 2: ("b2", "other")}
        assert audit_state(lake.store, lake.stream).findings == ()


class ReplacedLake(EventLake):
    """Events whose `doc` is a text first, then bytes; the column of the texts is set aside."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        row = EventLake.make_row(change, place)
        is_text = isinstance(row.get("doc"), str)
        return {**row, "doc_v3": row["doc"], "doc": None} if is_text else row


def test_a_value_that_events_lack_is_found_after_its_column_was_replaced(
    name: str, tmp_path: Path
) -> None:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"]}
    lake = make_state_lake(EventLake, tmp_path, name, **{**EVENTS, "table": table})
    lake.produce(0, Event(1, "c", 1, values={"name": "a", "doc": "large"}))
    lake.produce(0, Event(1, "u", 2, values={"name": "a2"}, lacks=("doc",)))
    lake.produce(0, Event(2, "c", 3, values={"name": "b", "doc": "other"}))
    lake.ingest_all()
    lake.merge()
    aside = f"doc_v{lake.table.schema().schema_id}"
    with lake.table.update_schema() as update:
        update.rename_column("doc", aside)
    with lake.table.update_schema() as update:
        update.add_column("doc", BinaryType())
    lake = ReplacedLake(lake.folder, lake.stream, lake.log)
    lake.produce(0, Event(2, "u", 4, values={"name": "b2", "doc": b"new"}))
    lake.produce(0, Event(2, "u", 5, values={"name": "b3"}, lacks=("doc",)))
    lake.ingest_all()
    lake.merge()
    lake.produce(0, Event(1, "u", 6, values={"name": "a3"}, lacks=("doc",)))
    lake.ingest_all()

    for rebuild in (False, True):
        lake.merge(rebuild=rebuild)
        rows = lake.store.load(lake.state_name).scan().to_arrow().to_pylist()
        found = {row["id"]: (row["name"], row[aside], row["doc"]) for row in rows}
        assert found == {1: ("a3", "large", None), 2: ("b3", None, b"new")}
        assert audit_state(lake.store, lake.stream).findings == ()
