"""State tables through Spark: whatever the changes were, the state is what a dictionary holds."""

import os
import random
import secrets
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import Stack
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import DoubleType, LongType, PrimitiveType, StringType
from support.catalog_loads import count_loads
from support.forked import run_frazil
from support.lake import append
from support.state_lake import (
    Change,
    Order,
    StackStateLake,
    by_offset,
    by_sequence,
    make_state_lake,
)

from frazil.errors import MergeHaltedError
from frazil.failpoints import FAILPOINTS
from frazil.maintenance.compaction import compact_table
from frazil.observability.cost_report import read_cost
from frazil.state_tables.messages import MergeCounts
from frazil.state_tables.state_audit import audit_state
from frazil.streams.models import Stream

pytestmark = pytest.mark.spark
NONE = dict.fromkeys(MergeCounts.model_fields, 0)
KAFKA = {"topic": "orders", "partition": 0, "offset": 99}
BY_OFFSET = {
    "order": "kafka",
    "value": {"columns": {"id": "long!", "op": "string", "at": "long", "name": "string"}},
}


@pytest.fixture
def name(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return f"u{secrets.token_hex(4)}"


@pytest.fixture
def lake(name: str, tmp_path: Path) -> StackStateLake:
    """Begin a stream whose changes have a sequence."""
    return make_state_lake(StackStateLake, tmp_path, name)


def produce_randomly(lake: StackStateLake, rnd: random.Random, *, keeps_partition: bool) -> None:
    """Produce changes of few keys: late ones, equal sequences, deletes of keys never seen."""
    for _ in range(rnd.randrange(1, 25)):
        key = rnd.randrange(12)
        clock = sum(map(len, lake.log))
        operation = rnd.choice(("c", "r", "u", "UPDATE", "d", "D", "delete"))
        change = Change(key, operation, clock - rnd.choice((0, 0, 1, 9)), f"{key}/{clock}")
        lake.produce(key % 2 if keeps_partition else rnd.randrange(2), change)


@pytest.mark.core
@pytest.mark.parametrize("by", ["sequence", "offset"])
def test_the_state_is_the_fold_of_random_changes(name: str, tmp_path: Path, by: str) -> None:
    seed = random.randrange(10**6)
    rnd = random.Random(seed)
    is_offset = by == "offset"
    lake = make_state_lake(StackStateLake, tmp_path, name, **(BY_OFFSET if is_offset else {}))

    for merge in range(3):
        produce_randomly(lake, rnd, keeps_partition=is_offset)
        lake.ingest_all()
        merged = lake.merge()

        order = by_offset if is_offset else by_sequence
        assert lake.rows() == lake.expected(order), f"seed {seed}, merge {merge}"
        assert merged.counts is not None
        assert merged.counts.is_balanced
        assert merged.rebuilt == ("" if merge else "first merge")
    assert lake.merge().outcome == "NOTHING"
    assert audit_state(lake.store, lake.stream).findings == ()
    now = datetime.now(UTC)
    days = read_cost(lake.work, now - timedelta(hours=1), now, None).days
    assert sum(day.merges for day in days) == 3
    assert sum(day.merge_cpu_seconds for day in days) > 0
    assert sum(day.merge_bytes_written for day in days) > 0


def test_a_merge_loads_each_table_once_and_the_state_again_after_its_commits(
    lake: StackStateLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = count_loads(monkeypatch, SqlCatalog)
    for clock in range(2):
        lake.produce(0, Change(1, "c", clock, "one"), Change(2, "d", clock))
        lake.ingest_all()
        loads.take()
        assert lake.merge().outcome == "MERGED"

    changes, state = lake.stream.table.name, lake.state_name
    # The plan; what Spark staged, which the commit publishes; after that commit. The delete memory
    # before the plan, and before the commit: another merge may have recorded deletes.
    assert loads.take() == {changes: 1, state: 3, f"{state}__deletes": 2}


def test_a_key_that_moves_between_partitions_is_refused_by_offsets(
    name: str, tmp_path: Path
) -> None:
    lake = make_state_lake(StackStateLake, tmp_path, name, **BY_OFFSET)
    lake.produce(0, Change(1, "c", 0, "one"))
    lake.ingest_all()
    lake.merge()
    lake.produce(1, Change(1, "u", 1, "two"))
    lake.ingest_all()

    with pytest.raises(MergeHaltedError, match=r"two partitions, .* key of orders:1:0:"):
        lake.merge()
    assert lake.rows() == {1: ("one", 0, 0)}


def test_a_delete_that_came_first_keeps_its_key_away(lake: StackStateLake) -> None:
    lake.produce(0, Change(1, "d", 5), Change(2, "c", 1, "two"))
    lake.ingest_all()
    first = lake.merge()
    lake.produce(1, Change(1, "c", 4, "older"), Change(2, "d", 2))
    lake.ingest_all()
    second = lake.merge()

    assert lake.rows() == {}
    assert (first.counts, second.counts) == (
        MergeCounts(**NONE | {"changes": 2, "inserted": 1, "absent": 1}),
        MergeCounts(**NONE | {"changes": 2, "deleted": 1, "stale": 1}),
    )


def test_a_rebuild_replaces_the_rows_and_begins_a_new_delete_memory(
    name: str, tmp_path: Path
) -> None:
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
    lake = make_state_lake(StackStateLake, tmp_path, name, table=table)
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "d", 2))
    lake.ingest_all()
    lake.merge()
    row = {"id": 9, "at": 1, "name": "planted", "_kafka": KAFKA}
    append(lake.catalog, lake.store.load(lake.state_name), [row])
    assert [invariant for invariant, _ in audit_state(lake.store, lake.stream).findings] == ["M5"]

    merged = lake.merge(rebuild=True)
    lake.produce(0, Change(2, "c", 1, "older"))
    lake.ingest_all()
    later = lake.merge()

    assert (merged.rebuilt, later.rebuilt) == ("by request", "")
    assert merged.counts == MergeCounts(
        **NONE | {"changes": 2, "updated": 1, "absent": 1, "removed": 1}
    )
    assert lake.rows() == {1: ("one", 0, 0)}


def test_of_two_merges_at_once_one_lands_and_the_other_finds_it(lake: StackStateLake) -> None:
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    lake.merge()
    lake.produce(0, Change(1, "d", 2), Change(2, "c", 2, "two"))
    lake.ingest_all()
    with ThreadPoolExecutor(2) as pool:
        outcomes = [future.result() for future in [pool.submit(merge_apart, lake) for _ in "ab"]]

    assert sorted(outcomes) in (["MERGED", "NOTHING"], ["MERGED", "MERGED"])
    assert lake.rows() == {2: ("two", 0, 2)}
    assert audit_state(lake.store, lake.stream).findings == ()


def merge_apart(lake: StackStateLake) -> str:
    return type(lake)(lake.folder, lake.stream, lake.log).merge().outcome


def test_an_unknown_operation_stops_the_merge(lake: StackStateLake) -> None:
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "truncate", 2))
    lake.ingest_all()

    with pytest.raises(MergeHaltedError, match=r"1 change with an operation .* orders:0:1;"):
        lake.merge()


class LabelledLake(StackStateLake):
    """Changes whose `name` is also there under the names that the column gets later."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        names = dict.fromkeys(("label", "text"), change.name)
        return {**StackStateLake.make_row(change, place), **names, "place": {"x": change.id}}

    def read(self) -> dict[int, dict[str, object]]:
        """Read the state without coordinates; keys are unique."""
        rows = self.store.load(self.state_name).scan().to_arrow().to_pylist()
        found = {row.pop("id"): {n: v for n, v in row.items() if n != "_kafka"} for row in rows}
        assert len(found) == len(rows)
        return found


class NumberLake(StackStateLake):
    """Changes whose `name` is a number where it has only digits."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        name = int(change.name) if change.name and change.name.isdigit() else change.name
        return {**StackStateLake.make_row(change, place), "name": name}


def describe_sorted(name: str, partition: str) -> dict[str, object]:
    return {
        "name": f"states.{name}",
        "mode": "upsert",
        "id_columns": ["id"],
        "cdc_field": "op",
        "partition_by": [partition],
        "sort_by": ["name"],
    }


def replace_name(lake: StackStateLake, new: PrimitiveType) -> None:
    """Set the column of names aside, and add one of another type."""
    with lake.table.update_schema() as update:
        update.rename_column("name", "old")
    with lake.table.update_schema() as update:
        update.add_column("name", new)


def test_a_replaced_column_whose_values_are_partitions_stops_the_merge(
    name: str, tmp_path: Path
) -> None:
    lake = make_state_lake(NumberLake, tmp_path, name, table=describe_sorted(name, "name"))
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    lake.merge()
    before = lake.store.load(lake.state_name).metadata_location
    replace_name(lake, LongType())
    lake.produce(0, Change(2, "c", 2, "22"))
    lake.ingest_all()

    with pytest.raises(
        MergeHaltedError, match=r"a new column has the name of a partition field .*, name;"
    ):
        lake.merge()
    assert lake.store.load(lake.state_name).metadata_location == before


@pytest.mark.parametrize(
    ("partition", "new", "after"),
    [
        ("bucket(name, 4)", LongType(), "bucket[4]"),
        ("truncate(name, 2)", LongType(), "truncate[2]"),
        ("truncate(name, 2)", DoubleType(), ""),
    ],
    ids=["bucket", "truncate", "no transform of the new type"],
)
def test_partitions_and_order_of_the_state_follow_a_replaced_column(
    name: str, tmp_path: Path, partition: str, new: PrimitiveType, after: str
) -> None:
    lake = make_state_lake(NumberLake, tmp_path, name, table=describe_sorted(name, partition))
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "c", 1, "two"), Change(3, "c", 1, "three"))
    lake.ingest_all()
    lake.merge()
    replace_name(lake, new)
    lake.produce(0, Change(2, "u", 2, "22"), Change(4, "c", 2, "44"), Change(3, "d", 2))
    lake.ingest_all()

    assert lake.merge().rebuilt == ""

    state = lake.store.load(lake.state_name)
    column = state.schema().find_field("name").field_id
    fields = [(each.source_id, str(each.transform)) for each in state.spec().fields]
    assert fields == ([(column, after)] if after else [])
    assert [each.source_id for each in state.sort_order().fields] == [column]
    found = {key: row[0] for key, row in lake.rows().items()}
    assert found == {1: None, 2: 22, 4: 44}
    assert audit_state(lake.store, lake.stream).findings == ()
    lake.produce(0, Change(2, "u", 3, "23"))
    lake.ingest_all()
    lake.merge()
    compact_table(lake.work, rewrite_all=True)
    lake.merge(rebuild=True)
    assert {key: row[0] for key, row in lake.rows().items()} == {1: None, 2: 23, 4: 44}
    assert audit_state(lake.store, lake.stream).findings == ()


def test_partitions_stay_with_a_column_that_the_file_renames_too(name: str, tmp_path: Path) -> None:
    table = describe_sorted(name, "bucket(name, 4)")
    lake = make_state_lake(LabelledLake, tmp_path, name, table=table)
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    lake.merge()
    column = lake.store.load(lake.state_name).schema().find_field("name").field_id
    with lake.table.update_schema() as update:
        update.rename_column("name", "label")
    with lake.table.update_schema() as update:
        update.add_column("name", StringType())
    lake.produce(0, Change(2, "c", 2, "two"))
    lake.ingest_all()
    document = lake.stream.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["table"]["state"] |= {"partition_by": ["bucket(label, 4)"], "sort_by": ["label"]}
    document["value"]["columns"]["label"] = "string"
    lake = replace(lake, stream=Stream.model_validate(document))
    lake.merge()

    state = lake.store.load(lake.state_name)
    assert state.schema().find_field("label").field_id == column
    assert [each.source_id for each in state.spec().fields] == [column]
    assert [each.source_id for each in state.sort_order().fields] == [column]


def test_the_state_follows_renamed_and_replaced_columns_without_folding_again(
    stack: Stack, name: str, tmp_path: Path
) -> None:
    lake = make_state_lake(LabelledLake, tmp_path, name)
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "c", 1, "two"), Change(3, "c", 1, "three"))
    lake.ingest_all()
    lake.merge()
    with lake.table.update_schema() as update:
        update.rename_column("name", "label")
    lake.produce(0, Change(2, "u", 2, "new"))
    lake.ingest_all()
    environment = {**os.environ, "FRAZIL_HOME": str(stack.home)}
    environment |= {"FRAZIL_STREAMS": str(lake.folder), "FRAZIL_FAILPOINT": "merge.after-branch"}
    killed = run_frazil(("merge", lake.stream.stream), environment, 240)
    assert killed.code == -9 or "SIGKILL" in killed.err, killed.out + killed.err
    assert lake.merge().rebuilt == ""
    labels = {1: "one", 2: "new", 3: "three"}
    assert {key: row["label"] for key, row in lake.read().items()} == labels
    for names in (("label", "name"), ("name", "label")):  # to schemas of before
        with lake.table.update_schema() as update:
            update.rename_column(*names)
        assert audit_state(lake.store, lake.stream).findings == ()
        lake.produce(0, Change(2, "u", 3, labels[2]))
        lake.ingest_all()
        assert lake.merge().rebuilt == ""
        assert {key: row[names[1]] for key, row in lake.read().items()} == labels
    assert len(lake.store.load(lake.state_name).metadata.schemas) == 2

    for number in range(3):  # three types, one after the other, without a merge between them
        with lake.table.update_schema() as update:
            update.rename_column("text" if number else "label", f"was_{number}")
        with lake.table.update_schema() as update:
            update.add_column("text", LongType() if number == 1 else StringType())
    lake.produce(0, Change(3, "u", 3, "text"), Change(1, "d", 4))
    lake.ingest_all()
    merged = lake.merge()
    found = lake.read()
    assert merged.rebuilt == ""
    assert {key: (row["text"], row["was_0"]) for key, row in found.items()} == {
        2: (None, "new"),
        3: ("text", None),
    }
    assert audit_state(lake.store, lake.stream).findings == ()
    lake.merge(rebuild=True)
    assert lake.read() == found
    assert audit_state(lake.store, lake.stream).findings == ()


def test_a_key_that_becomes_wider_is_wider_in_the_delete_memory_too(
    name: str, tmp_path: Path
) -> None:
    columns = {"id": "int!", "op": "string", "at": "long!", "name": "string"}
    lake = make_state_lake(StackStateLake, tmp_path, name, value={"columns": columns})
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "d", 1))
    lake.ingest_all()
    lake.merge()
    with lake.table.update_schema() as update:
        update.update_column("id", LongType())
    lake.produce(0, Change(2**40, "d", 5), Change(2**41, "c", 1, "far"))
    lake.ingest_all()
    lake.merge()
    lake.produce(1, Change(2**40, "c", 4, "older"), Change(2, "c", 0, "older"))
    lake.ingest_all()
    lake.merge()

    assert lake.rows() == lake.expected(by_sequence) == {1: ("one", 0, 0), 2**41: ("far", 0, 3)}
    assert audit_state(lake.store, lake.stream).findings == ()


def test_a_key_of_another_type_stops_the_merge(lake: StackStateLake) -> None:
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    lake.merge()
    before = lake.rows()
    with lake.table.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("id", "id_v0").make_column_optional("id")
    with lake.table.update_schema() as update:
        update.add_column("id", LongType())
    lake.produce(0, Change(2, "c", 2, "two"))
    lake.ingest_all()

    with pytest.raises(MergeHaltedError, match="key column id has another type"):
        lake.merge()
    assert lake.rows() == before


@pytest.mark.parametrize(
    ("first", "then", "order"),
    [
        ("kafka", {"sequence_by": ["at"]}, by_sequence),
        ({"sequence_by": ["at", "id"]}, {"sequence_by": ["at"]}, by_sequence),
        (
            {"sequence_by": ["at"]},
            {"sequence_by": ["_kafka.timestamp"]},
            lambda _change, partition, offset: (partition, offset),
        ),
    ],
    ids=["added", "fewer", "other type"],
)
def test_other_sequences_are_remembered_after_a_rebuild(
    name: str, tmp_path: Path, first: object, then: object, order: Order
) -> None:
    columns = {"id": "long!", "op": "string", "at": "long!", "name": "string"}
    declared = columns | ({"at": "long"} if first == "kafka" else {})
    lake = make_state_lake(StackStateLake, tmp_path, name, order=first, value={"columns": declared})
    lake.produce(0, Change(1, "c", 1, "one"), Change(2, "d", 7))
    lake.ingest_all()
    lake.merge()
    document = lake.stream.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if "_kafka.timestamp" in str(then):
        columns["at"] = "long"
    document |= {"order": then, "value": {"columns": columns}}
    lake = replace(lake, stream=Stream.model_validate(document))

    assert lake.merge(rebuild=True).outcome == "MERGED"
    lake.produce(1, Change(2, "c", 6, "older"), Change(1, "d", 9))
    lake.ingest_all()
    lake.merge()
    lake.produce(0, Change(1, "c", 8, "older"))
    lake.ingest_all()
    lake.merge()
    assert lake.rows() == lake.expected(order)
    assert 1 not in lake.rows()


def test_a_field_that_only_the_state_has_is_null(name: str, tmp_path: Path) -> None:
    columns = {"id": "long!", "op": "string", "at": "long!", "place": "struct<x: int>"}
    lake = make_state_lake(LabelledLake, tmp_path, name, value={"columns": columns})
    lake.produce(0, Change(1, "c", 1, "one"))
    lake.ingest_all()
    lake.merge()
    with lake.store.load(lake.state_name).update_schema() as update:
        update.add_column(("place", "y"), LongType())
    lake.produce(0, Change(1, "u", 2, "two"), Change(2, "c", 2, "two"))
    lake.ingest_all()
    lake.merge()

    assert {key: row["place"] for key, row in lake.read().items()} == {
        1: {"x": 1, "y": None},
        2: {"x": 2, "y": None},
    }


@pytest.mark.storm(1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "failpoint", [*(n for n in FAILPOINTS if n.startswith(("merge.", "seal.")))]
)
def test_a_killed_merge_changes_nothing_twice(
    stack: Stack, lake: StackStateLake, failpoint: str, seed: int
) -> None:
    one, two, three, dice = 101, 102, 103, random.Random(seed)

    def ingest(partition: int, *changes: Change) -> None:
        lake.produce(partition, *changes)
        produce_randomly(lake, dice, keeps_partition=False)
        lake.ingest_all()

    ingest(0, Change(one, "c", 1, "one"), Change(two, "c", 1, "two"))
    lake.merge()
    ingest(1, Change(one, "d", 2), Change(two, "u", 2, "new"), Change(three, "d", 9))
    environment = {**os.environ, "FRAZIL_HOME": str(stack.home)}
    environment |= {"FRAZIL_STREAMS": str(lake.folder), "FRAZIL_FAILPOINT": failpoint}
    killed = run_frazil(("merge", lake.stream.stream), environment, 240)
    assert killed.code == -9 or "SIGKILL" in killed.err, killed.out + killed.err

    lake.merge()
    ingest(0, Change(one, "u", 1, "late"), Change(three, "c", 3, "late"))
    lake.merge()

    rows = lake.rows()
    assert rows == lake.expected(by_sequence)
    assert {key: row[0] for key, row in rows.items() if key >= one} == {two: "new"}
    assert audit_state(lake.store, lake.stream).findings == ()
