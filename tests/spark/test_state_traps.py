"""Traps that others' upserts fell into, as public reports tell them, through Spark's merge."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest
import yaml
from conftest import Stack
from faults.imagined_kafka import ImaginedLog
from faults.state_auditor import StateRules, audit_state_table
from pyiceberg.types import StringType
from pyspark.sql import SparkSession
from requests.exceptions import ReadTimeout
from support.scripted_catalog import Answer, landed_then, refused
from support.state_lake import Change, StackStateLake, by_sequence, make_state_lake

from frazil.connections.catalog_settings import to_spark_catalog
from frazil.connections.clients import CatalogPreset, find_catalog
from frazil.iceberg.catalog import TableStore
from frazil.messages import Message
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.rollback import plan_recovery, recover
from frazil.state_tables.merge import merge_changes
from frazil.state_tables.state_audit import audit_state
from frazil.streams.models import Stream

pytestmark = pytest.mark.spark
COLUMNS = {"id": "long!", "op": "string", "at": "long!", "name": "string"}
Produced = tuple[int, Change]
"""A partition, and a change."""
Result = TypeVar("Result", bound=Message)


@pytest.fixture
def name(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("FRAZIL_HOME", str(stack.home))
    return f"t{secrets.token_hex(4)}"


@pytest.fixture
def lake(name: str, tmp_path: Path) -> StackStateLake:
    return make_state_lake(StackStateLake, tmp_path, name)


def find_faults(lake: StackStateLake) -> list[object]:
    """List the findings of both audits, and rows that differ from a dictionary's fold."""
    rules = StateRules(lake.stream.stream, lake.state_name, ("id",), ("at",), "op")
    rows, expected = lake.rows(), lake.expected(by_sequence)
    return [
        *audit_state(lake.store, lake.stream).findings,
        *audit_state_table(lake.store.catalog, rules),
        *(key for key in rows.keys() | expected.keys() if rows.get(key) != expected.get(key)),
    ]


def merge_all(lake: StackStateLake, *changes: Produced) -> str:
    """Produce, publish and merge; return why the merge folded all changes, if it did."""
    for partition, change in changes:
        lake.produce(partition, change)
    lake.ingest_all()
    return lake.merge().rebuilt


TRAPS: dict[str, tuple[list[Produced], list[Produced], str | None]] = {
    # The changes of key 0, 1, … in two merges, and the name that is left.
    "same key twice in a batch": (
        [(0, Change(0, "c", 1, "a")), (0, Change(0, "u", 2, "b")), (0, Change(0, "u", 3, "c"))],
        [],
        "c",
    ),
    "a tie is decided by offset": (
        [(0, Change(1, "c", 5, "first")), (0, Change(1, "u", 5, "second"))],
        [(0, Change(1, "u", 5, "third"))],
        "third",
    ),
    "an older change comes late": (
        [(0, Change(2, "c", 5, "newer"))],
        [(0, Change(2, "u", 4, "older"))],
        "newer",
    ),
    "a delete comes before its insert": (
        [(0, Change(3, "d", 5))],
        [(0, Change(3, "c", 4, "older"))],
        None,
    ),
    "a row moves to another partition of the table": (
        [(0, Change(4, "c", 1, "north"))],
        [(0, Change(4, "u", 2, "south"))],
        "south",
    ),
    "the topic got partitions": (
        [(0, Change(5, "c", 1, "in partition 0"))],
        [(2, Change(5, "u", 2, "in partition 2"))],
        "in partition 2",
    ),
    "a snapshot of the source comes again": (
        [(0, Change(6, "c", 1, "one")), (0, Change(6, "d", 2))],
        [(0, Change(6, "r", 3, "read again"))],
        "read again",
    ),
    "a delete and an insert in one batch": (
        [(0, Change(7, "c", 1, "one"))],
        [(0, Change(7, "d", 2)), (0, Change(7, "c", 3, "again"))],
        "again",
    ),
}


@pytest.fixture(scope="module")
def merged(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackStateLake]:
    """Merge the changes of all traps twice; the topic gets a third partition in between."""
    name = f"t{secrets.token_hex(4)}"
    table = {"name": f"states.{name}", "mode": "upsert", "id_columns": ["id"], "cdc_field": "op"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAZIL_HOME", str(stack.home))
        lake = make_state_lake(
            StackStateLake,
            tmp_path_factory.mktemp("traps"),
            name,
            table={**table, "partition_by": ["truncate(name, 1)"]},
        )
        merge_all(lake, *(each for first, _, _ in TRAPS.values() for each in first))
        lake = replace(lake, log=(*lake.log, []))
        again = merge_all(lake, *(each for _, second, _ in TRAPS.values() for each in second))
        assert again == ""
        yield lake


@pytest.mark.parametrize(("number", "trap"), [*enumerate(TRAPS)], ids=TRAPS)
def test_a_trap_leaves_the_right_row(merged: StackStateLake, number: int, trap: str) -> None:
    found = merged.rows().get(number)

    assert (found and found[0]) == TRAPS[trap][2]


def test_no_trap_leaves_another_fault(merged: StackStateLake) -> None:
    assert find_faults(merged) == []


class UuidLake(StackStateLake):
    """A stream whose key is a uuid."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        """Make the row of a change; half of the keys are negative if read as signed numbers."""
        key = UUID(int=(change.id % 2) << 127 | change.id)
        return {**StackStateLake.make_row(change, place), "id": key.bytes}


def test_a_uuid_key_is_found_again(name: str, tmp_path: Path) -> None:
    columns = {**COLUMNS, "id": "uuid!"}
    lake = make_state_lake(UuidLake, tmp_path, name, value={"columns": columns})
    merge_all(lake, *((0, Change(key, "c", 1, f"{key}")) for key in range(1, 9)))

    again = merge_all(lake, *((0, Change(key, "u", 2, f"new {key}")) for key in range(1, 7)))
    merge_all(lake, *((0, Change(key, "d", 3)) for key in (1, 2)))

    rules = StateRules(lake.stream.stream, lake.state_name, ("id",), ("at",), "op")
    assert again == ""
    assert sorted(str(row[0]) for row in lake.rows().values()) == [
        *("7", "8"),
        *(f"new {key}" for key in range(3, 7)),
    ]
    assert audit_state(lake.store, lake.stream).findings == ()
    assert audit_state_table(lake.store.catalog, rules) == []


class ExtendedLake(StackStateLake):
    """A stream whose changes have a further column, once the table has it."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        """Make the row of a change."""
        return {**StackStateLake.make_row(change, place), "extra": f"extra {change.at}"}


def test_another_partition_spec_and_a_new_column_between_merges(
    spark: SparkSession, name: str, tmp_path: Path
) -> None:
    lake = make_state_lake(ExtendedLake, tmp_path, name)
    merge_all(lake, *((0, Change(key, "c", 1, f"{key}")) for key in range(4)))
    spark.sql(f"ALTER TABLE lake.{lake.state_name} ADD PARTITION FIELD truncate(name, 1)")
    with lake.table.update_schema() as update:
        update.add_column("extra", StringType())
    document = yaml.safe_load((tmp_path / f"{name}.yaml").read_text())
    document["value"] = {"columns": {**COLUMNS, "extra": "string"}}
    lake = replace(lake, stream=Stream.model_validate(document))

    again = merge_all(lake, (0, Change(1, "u", 2, "new")), (0, Change(2, "d", 2)))
    last = merge_all(lake, (0, Change(1, "d", 3)), (0, Change(3, "u", 3, "3")))

    assert (again, last) == ("", "")
    assert find_faults(lake) == []
    found = lake.store.load(lake.state_name).scan().to_arrow().to_pylist()
    assert {row["id"]: row["extra"] for row in found} == {0: None, 3: "extra 3"}


def test_a_state_table_that_others_rolled_back_is_merged_again(lake: StackStateLake) -> None:
    merge_all(lake, (0, Change(1, "c", 1, "one")), (0, Change(2, "c", 1, "two")))
    target = lake.store.load(lake.state_name).metadata.current_snapshot_id
    assert target is not None
    merge_all(lake, (0, Change(1, "d", 3)), (0, Change(3, "d", 5)), (0, Change(2, "u", 2, "new")))

    lake.store.load(lake.state_name).manage_snapshots().rollback_to_snapshot(target).commit()
    again = merge_all(lake, (1, Change(1, "u", 2, "late")), (1, Change(3, "c", 4, "late")))

    assert again == ""
    assert find_faults(lake) == []


def test_a_recovery_past_the_oldest_snapshot_of_the_state_is_followed(
    lake: StackStateLake,
) -> None:
    merge_all(lake, (0, Change(1, "c", 1, "one")))
    target = lake.history.head
    merge_all(lake, (0, Change(1, "u", 2, "later")), (0, Change(2, "d", 2)))
    merge_all(lake, (0, Change(1, "d", 3)), (0, Change(2, "c", 3, "two")))
    drop_old_snapshots(lake)
    request = RecoverRequest(
        stream=lake.stream.stream, to_snapshot=target, by="ann", reason="a test", dry_run=False
    )
    work = lake.work
    vars(work)["kafka"] = ImaginedLog(tuple(map(len, lake.log)))

    recover(work, plan_recovery(work, request))
    merged = lake.merge()

    assert "no longer on main" in merged.rebuilt
    assert lake.rows() == {1: ("one", 0, 0)}
    assert audit_state(lake.store, lake.stream).findings == ()
    lake.ingest_all()
    assert lake.merge().rebuilt == ""
    assert find_faults(lake) == []


def drop_old_snapshots(lake: StackStateLake) -> None:
    """Expire every snapshot of the state but the newest."""
    state = lake.store.load(lake.state_name)
    head = state.metadata.current_snapshot_id
    old = [each.snapshot_id for each in state.snapshots() if each.snapshot_id != head]
    state.maintenance.expire_snapshots().by_ids(old).commit()
    assert len(lake.store.load(lake.state_name).snapshots()) == 1


class ScriptedStateLake(StackStateLake):
    """The embedded stack's catalog, whose answers to commits are scripted."""

    @cached_property
    def store(self) -> TableStore:
        preset = find_catalog("iceberg_default")
        kept = {name: value for name, value in preset.properties.items() if name != "type"}
        scripted = {**kept, "py-catalog-impl": "support.scripted_catalog.ScriptedCatalog"}
        for_spark = to_spark_catalog(preset.name, preset.properties)
        return TableStore(CatalogPreset(preset.name, scripted, for_spark))


class LosingAnswers:
    """The engine of a workspace; the first commit after its job goes as the test says."""

    def __init__(self, lake: ScriptedStateLake, answer: Answer) -> None:
        """Begin with an honest catalog."""
        self._lake, self._engine, self._answer = lake, lake.work.engine, answer

    def run_job(self, name: str, request: Message, result: type[Result]) -> Result:
        found = self._engine.run_job(name, request, result)
        self._lake.catalog.script = [self._answer]
        return found


@pytest.mark.parametrize(
    "answer", [landed_then(ReadTimeout("?")), refused(ReadTimeout("?"))], ids=["landed", "did not"]
)
def test_a_merge_whose_commit_got_no_answer_lands_once(
    name: str, tmp_path: Path, answer: Answer
) -> None:
    lake = make_state_lake(ScriptedStateLake, tmp_path, name)
    merge_all(lake, (0, Change(1, "c", 1, "one")), (0, Change(2, "c", 1, "two")))
    for change in (Change(1, "d", 2), Change(2, "u", 2, "new")):
        lake.produce(0, change)
    lake.ingest_all()
    work = lake.work
    vars(work).update(store=lake.store, engine=LosingAnswers(lake, answer))

    merged = merge_changes(work)

    assert merged.outcome == "MERGED"
    assert lake.catalog.script == []
    assert lake.merge().outcome == "NOTHING"
    assert find_faults(lake) == []
