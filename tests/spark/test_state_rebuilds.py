"""Rebuilds of a state table, and deletes that stay in it as marked rows."""

import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import Stack
from faults.state_auditor import StateRules, audit_state_table
from pyspark.sql import SparkSession
from support.event_lake import EVENTS, LARGE, Event, EventLake
from support.lake import append
from support.state_lake import (
    BIRTH,
    Change,
    StackStateLake,
    by_offset,
    by_sequence,
    make_state_lake,
)

from frazil.errors import MergeHaltedError
from frazil.iceberg.branches import parse_branch
from frazil.state_tables.state_audit import audit_state
from frazil.streams.models import Stream
from merge_changes import MOST_CONDITIONS, select_at

pytestmark = pytest.mark.spark
VALUES = {"columns": {"id": "long!", "op": "string", "at": "long", "name": "string"}}
FULL = {"name": "n", "doc": "d", "words": ["w"], "raw": b"r"}


@pytest.fixture
def name(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return f"r{secrets.token_hex(4)}"


class TimedLake(StackStateLake):
    """Records have the time that their change names; below zero they have none."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        time = BIRTH + timedelta(hours=change.at) if change.at >= 0 else None
        row = StackStateLake.make_row(change, place)
        return row | {"_kafka": {**place, "timestamp": time}}


def find_wrong(lake: StackStateLake) -> list[object]:
    """Let both audits look."""
    table = lake.stream.table
    marks = table.deletes == "mark"
    rules = StateRules(
        lake.stream.stream, lake.state_name, ("id",), lake.stream.sequence, "op", marks=marks
    )
    own = audit_state(lake.store, lake.stream).findings
    return [*own, *audit_state_table(lake.store.catalog, rules)]


def make_table(name: str, **settings: object) -> dict[str, object]:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"]}
    return table | settings


def with_table(lake: StackStateLake, **settings: object) -> StackStateLake:
    """Change the table's section of the stream file."""
    document = lake.stream.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["table"] |= settings
    return replace(lake, stream=Stream.model_validate(document))


def plant(lake: StackStateLake) -> None:
    kafka = {"topic": "orders", "partition": 0, "offset": 99}
    row = {"id": 9, "at": 1, "name": "planted", "_kafka": kafka}
    append(lake.catalog, lake.store.load(lake.state_name), [row])


def test_each_rebuild_by_request_replaces_the_rows(name: str, tmp_path: Path) -> None:
    table = make_table(name, cdc_field="op")
    lake = make_state_lake(StackStateLake, tmp_path, name, table=table)
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    lake.merge()

    for _ in range(2):
        plant(lake)
        assert lake.merge(rebuild=True).rebuilt == "by request"
        assert lake.rows() == {1: ("one", 0, 0)}
    assert audit_state(lake.store, lake.stream).findings == ()


def test_deletes_that_are_no_longer_marked_leave_and_later_changes_are_merged(
    name: str, tmp_path: Path
) -> None:
    table = make_table(name, cdc_field="op", deletes="mark")
    lake = make_state_lake(StackStateLake, tmp_path, name, table=table)
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "c", 1, "two"), Change(2, "d", 2))
    lake.ingest_all()
    lake.merge()
    assert [*lake.rows()] == [1, 2]

    lake = with_table(lake, deletes="remove")
    lake.merge(rebuild=True)
    lake.produce(0, Change(1, "u", 3, "new"), Change(3, "c", 3, "three"))
    lake.ingest_all()
    lake.merge()

    assert lake.rows() == lake.expected(by_sequence)
    assert audit_state(lake.store, lake.stream).findings == ()


def test_a_rebuild_takes_no_partition_from_a_row_whose_changes_are_gone(
    name: str, tmp_path: Path
) -> None:
    sections = {"order": "kafka", "value": VALUES, "table": make_table(name, cdc_field="op")}
    lake = make_state_lake(StackStateLake, tmp_path, name, **sections)
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.produce(1, Change(7, "c", 1, "seven"))
    lake.ingest_all()
    lake.merge()
    kafka = {"topic": "orders", "partition": 0, "offset": 5}
    rows = lake.store.load(lake.state_name)
    rows.delete("id = 7")
    wrong = {"id": 7, "at": 1, "name": "of another partition", "_kafka": kafka}
    append(lake.catalog, lake.store.load(lake.state_name), [wrong])

    assert lake.merge(rebuild=True).outcome == "MERGED"
    assert lake.rows() == lake.expected(by_offset)


@pytest.mark.parametrize("merges", [1, 2], ids=["one merge", "two merges"])
def test_a_marked_row_keeps_its_values_where_its_delete_comes_again(
    name: str, tmp_path: Path, merges: int
) -> None:
    table = make_table(name, deletes="mark")
    lake = make_state_lake(EventLake, tmp_path, name, **{**EVENTS, "table": table})
    delete = Event(1, "d", 2)
    lake.produce(0, Event(1, "c", 1, values=FULL), delete)
    if merges == 2:
        lake.ingest_all()
        lake.merge()
    lake.produce(0, delete)
    lake.ingest_all()
    lake.merge()

    (row,) = lake.store.load(lake.state_name).scan().to_arrow().to_pylist()
    assert {each: row[each] for each in FULL} == FULL
    assert row["_deleted_at"] is not None
    assert audit_state(lake.store, lake.stream).findings == ()


def test_a_life_that_began_on_a_marked_row_has_no_values_of_the_life_before(
    name: str, tmp_path: Path
) -> None:
    table = make_table(name, deletes="mark")
    lake = make_state_lake(EventLake, tmp_path, name, **{**EVENTS, "table": table})
    lake.produce(0, Event(1, "c", 1, values=FULL), Event(1, "d", 2))
    lake.ingest_all()
    lake.merge()
    lake.produce(0, Event(1, "c", 3, values={"name": "new"}, lacks=LARGE), Event(1, "d", 4))
    lake.ingest_all()
    lake.merge()

    (row,) = lake.store.load(lake.state_name).scan().to_arrow().to_pylist()
    assert {each: row[each] for each in FULL} == {**dict.fromkeys(FULL), "name": "new"}
    assert audit_state(lake.store, lake.stream).findings == ()


def test_a_rebuild_counts_values_that_no_change_carried(name: str, tmp_path: Path) -> None:
    lake = make_state_lake(EventLake, tmp_path, name, **{**EVENTS, "table": make_table(name)})
    lake.produce(0, Event(1, "u", 1, values={"name": "n"}, lacks=LARGE))
    lake.ingest_all()
    found = [lake.merge(rebuild=rebuild).counts for rebuild in (False, True)]

    assert [counts and counts.unfilled for counts in found] == [1, 1]


def test_a_halted_merge_leaves_no_branch(name: str, tmp_path: Path) -> None:
    lake = make_state_lake(StackStateLake, tmp_path, name)
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    lake.merge()
    lake.produce(0, Change(1, "unknown", 2, "two"))
    lake.ingest_all()

    with pytest.raises(MergeHaltedError, match="operation"):
        lake.merge()
    refs = lake.store.load(lake.state_name).metadata.refs
    assert [ref for ref in refs if parse_branch(ref, 0) is not None] == []


def test_records_without_a_time_come_before_all_others(name: str, tmp_path: Path) -> None:
    table = make_table(name, cdc_field="op")
    order = {"sequence_by": "_kafka.timestamp"}
    lake = make_state_lake(TimedLake, tmp_path, name, table=table, order=order, value=VALUES)
    lake.produce(0, Change(1, "u", 5, "one"), Change(1, "d", -1), Change(2, "u", -1, "none"))
    lake.produce(1, Change(3, "d", -1), Change(2, "u", 4, "two"), Change(4, "u", -1, "four"))
    lake.ingest_all()
    lake.merge()
    assert lake.rows() == lake.expected(by_sequence)
    assert find_wrong(lake) == []

    lake.produce(0, Change(3, "u", 0, "three"), Change(4, "d", -1), Change(2, "d", -1))
    lake.ingest_all()
    lake.merge()
    rows = lake.rows()
    assert (
        rows
        == lake.expected(by_sequence)
        == {1: ("one", 0, 0), 2: ("two", 1, 1)}
        | {
            3: ("three", 0, 3),
            4: ("four", 1, 2),
        }
    )
    assert lake.merge(rebuild=True).outcome == "MERGED"
    assert lake.rows() == rows
    assert find_wrong(lake) == []


def test_a_marked_row_is_never_alive_whatever_time_its_delete_has(
    name: str, tmp_path: Path
) -> None:
    table = make_table(name, cdc_field="op", deletes="mark")
    lake = make_state_lake(TimedLake, tmp_path, name, table=table, order="kafka", value=VALUES)
    lake.produce(0, Change(1, "c", 5, "one"), Change(1, "d", -1), Change(2, "d", 3))
    lake.ingest_all()
    lake.merge()
    marked = lake.store.load(lake.state_name).scan().to_arrow()
    times = dict(zip(marked["id"].to_pylist(), marked["_deleted_at"].to_pylist(), strict=True))
    assert times == {1: datetime(1970, 1, 1, tzinfo=UTC), 2: BIRTH + timedelta(hours=3)}
    assert find_wrong(lake) == []


def test_a_merge_folds_the_changes_of_more_partitions_than_a_condition_names(
    name: str, tmp_path: Path
) -> None:
    empty = make_state_lake(StackStateLake, tmp_path, name, table=make_table(name, cdc_field="op"))
    lake = replace(empty, log=tuple([] for _ in range(MOST_CONDITIONS + 1)))
    for at, text in enumerate(("first", "second")):
        for number in range(len(lake.log)):
            is_deleted = at == 1 and number % 100 == 7
            lake.produce(number, Change(number, "d" if is_deleted else "u", at, text))
        lake.ingest_all()
        assert lake.merge().rebuilt == ("" if at else "first merge")
    assert lake.rows() == lake.expected(by_sequence)
    assert audit_state(lake.store, lake.stream).findings == ()


@pytest.mark.parametrize("count", [MOST_CONDITIONS, MOST_CONDITIONS + 1])
def test_changes_of_many_runs_are_selected_or_left_out_by_their_offsets(
    spark: SparkSession, count: int
) -> None:
    runs = {"t": {p: [(10, 12)] for p in range(count - 1)}, "u": {0: [(5, 6)]}}
    place = "named_struct('topic', topic, 'partition', id, 'offset', offset) AS _kafka"
    records = spark.range(count + 5).selectExpr("CAST(id AS INT) AS id", "'t' AS topic")
    others = spark.sql("SELECT 0 AS id, 'u' AS topic")
    offsets = spark.sql("SELECT explode(array(5L, 9L, 10L, 11L, 12L)) AS offset")
    changes = records.union(others).crossJoin(offsets).selectExpr(place, "'v' AS topic")

    found = select_at(spark, changes, runs)

    assert found.columns == ["_kafka", "topic"]
    places = {(r.topic, r.partition, r.offset) for (r, _) in found.collect()}
    assert places == {
        *(("t", p, offset) for p in range(count - 1) for offset in (10, 11)),
        ("u", 0, 5),
    }
    others = select_at(spark, changes, runs, others=True)
    every = [(r.topic, r.partition, r.offset) for (r, _) in changes.collect()]
    assert sorted((r.topic, r.partition, r.offset) for (r, _) in others.collect()) == sorted(
        place for place in every if place not in places
    )
