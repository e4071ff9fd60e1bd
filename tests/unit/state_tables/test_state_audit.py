"""Both audits of a state table, the product's and the independent one, find every planted fault."""

from collections.abc import Callable
from pathlib import Path

import pytest
from faults.state_auditor import StateRules, audit_state_table
from pyiceberg.types import BinaryType
from support.event_lake import EVENTS, Event, EventsWithoutSpark
from support.lake import Lake, append
from support.log_lake import LogInMemory
from support.state_lake import Change, StateLake, make_state_lake

from frazil.errors import MergeHaltedError
from frazil.observability.audit import audit_table
from frazil.observability.audit_messages import Finding
from frazil.state_tables.messages import MergeCounts, MergePosition
from frazil.state_tables.state_audit import audit_state

COUNTS = MergeCounts(changes=6, inserted=2, updated=0, deleted=0, absent=1, superseded=3, stale=0)
Row = dict[str, object]
Rows = list[Row]


@pytest.fixture
def lake(tmp_path: Path) -> StateLake:
    """Publish changes whose fold is keys 1 and 3."""
    lake = make_state_lake(StateLake, tmp_path, "orders")
    lake.produce(0, Change(1, "c", 1, "first"), Change(1, "u", 5, "last"), Change(2, "c", 2, "x"))
    lake.produce(1, Change(1, "u", 3, "late"), Change(2, "d", 4), Change(3, "c", 1, "three"))
    lake.ingest_all()
    return lake


def right_rows(lake: StateLake) -> Rows:
    """Copy the winners' rows from the change table."""
    found = lake.table.scan().to_arrow().to_pylist()
    places = {(0, 1), (1, 2)}
    rows = [r for r in found if (r["_kafka"]["partition"], r["_kafka"]["offset"]) in places]
    return [{name: value for name, value in row.items() if name != "op"} for row in rows]


def remember(lake: StateLake) -> None:
    """Remember the delete of key 2, as a merge does before it writes rows."""
    place = {"topic": "orders", "partition": 1, "offset": 1}
    row = {"id": 2, "_sequence": {"s0": 4}, "_kafka": place, "memory": "m"}
    append(lake.catalog, lake.store.load(f"{lake.state_name}__deletes"), [row])


def audit(lake: Lake) -> list[tuple[str, str]]:
    """Let both look; give what the product says."""
    findings = [*audit_state(lake.store, lake.stream).findings]
    rules = StateRules("orders", "states.orders", ("id",), ("at",), "op")
    independent = audit_state_table(lake.store.catalog, rules)
    assert {invariant for invariant, _ in independent} == {invariant for invariant, _ in findings}
    return findings


def row_of(lake: StateLake, offset: tuple[int, int]) -> Row:
    found = lake.table.scan().to_arrow().to_pylist()
    row = next(r for r in found if (r["_kafka"]["partition"], r["_kafka"]["offset"]) == offset)
    return {name: value for name, value in row.items() if name != "op"}


def test_a_right_state_holds_also_with_batches_behind_it(lake: StateLake) -> None:
    lake.put_state(right_rows(lake), lake.position(COUNTS))
    remember(lake)
    assert audit(lake) == []

    lake.produce(0, Change(3, "d", 9))
    lake.ingest_all()

    assert audit(lake) == []


def test_a_state_behind_batches_is_audited_also_where_its_changes_are_expired(
    lake: StateLake,
) -> None:
    right = lake.position(COUNTS)
    lake.put_state(right_rows(lake), right)
    remember(lake)
    lake.produce(0, Change(3, "d", 9), Change(4, "c", 9))
    lake.ingest_all()
    lake.expire_history()
    assert audit_state(lake.store, lake.stream).findings == ()

    lake.put_state([row_of(lake, (0, 2))], right)

    (found,) = audit_state(lake.store, lake.stream).findings
    assert found == ("M1", "1 row whose key is deleted or unknown: orders:0:2")


FAULTS: dict[str, tuple[Callable[[StateLake, Rows], Rows], str]] = {
    "a revived key": (lambda lake, rows: [*rows, row_of(lake, (0, 2))], "deleted or unknown"),
    "a doubled key": (lambda _, rows: [*rows, rows[0]], "with the key of another row"),
    "a lost key": (lambda _, rows: rows[:1], "1 key without a row"),
    "a row that is stale after its key moved to another partition": (
        lambda lake, rows: [row_of(lake, (1, 0)), *(r for r in rows if r["id"] != 1)],
        "not like the newest change: orders:0:1",
    ),
    "a changed value": (
        lambda _, rows: [{**row, "name": "planted"} for row in rows],
        "2 rows not like the newest change",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(lake: StateLake, fault: str) -> None:
    plant, says = FAULTS[fault]

    lake.put_state(plant(lake, right_rows(lake)), lake.position(COUNTS))
    remember(lake)

    findings = audit(lake)
    assert [invariant for invariant, _ in findings] == ["M1"]
    assert says in findings[0][1]
    assert "planted" not in findings[0][1]


def test_a_state_one_merge_behind_its_position_is_found(lake: StateLake) -> None:
    rows = right_rows(lake)
    lake.produce(0, Change(3, "d", 9), Change(4, "c", 9))
    lake.ingest_all()

    lake.put_state(rows, lake.position(COUNTS))
    remember(lake)

    assert sorted(text.split(":")[0] for _, text in audit(lake)) == [
        "1 key without a row",
        "1 row whose key is deleted or unknown",
        f"{lake.state_name}__deletes lacks 1 delete",
    ]


def test_counts_that_do_not_add_up_are_found(lake: StateLake) -> None:
    wrong = COUNTS.model_copy(update={"stale": 1})

    lake.put_state(right_rows(lake), lake.position(wrong))
    remember(lake)

    assert [invariant for invariant, _ in audit(lake)] == ["M4"]


def test_a_forgotten_delete_is_found(lake: StateLake) -> None:
    lake.put_state(right_rows(lake), lake.position(COUNTS))

    assert audit(lake) == [("M1", f"{lake.state_name}__deletes lacks 1 delete: orders:1:1")]


class NewerCounts(MergeCounts):
    """Counts of a newer release."""

    moved: int = 1


class NewerPosition(MergePosition):
    """A position of a newer release."""

    floors: bool = True


class NewestPosition(NewerPosition):
    """One whose counts are newer too."""

    counts: NewerCounts


def test_an_older_position_of_a_newer_release_is_no_finding_but_told(lake: StateLake) -> None:
    plain = lake.position(COUNTS)
    lake.put_state([], NewestPosition(**{**dict(plain), "counts": NewerCounts(**dict(COUNTS))}))
    old = lake.store.load(lake.state_name).metadata.current_snapshot_id
    lake.put_state(right_rows(lake), plain)
    remember(lake)
    log = LogInMemory()
    for number, changes in enumerate(lake.log):
        log.produce(number, *range(len(changes)))

    assert audit(lake) == []
    assert audit_state(lake.store, lake.stream).unchecked_merges == (old,)
    report = audit_table(lake.store, lake.stream, log)
    told = f"of 1 merge snapshot that a newer release wrote were not checked, the newest is {old}"
    assert report.verdict == "holds"
    assert told in report.facts_line


def test_known_counts_of_a_newer_position_are_checked(lake: StateLake) -> None:
    plain = lake.position(COUNTS)
    wrong = COUNTS.model_copy(update={"stale": 1})
    lake.put_state([], NewerPosition(**{**dict(plain), "counts": wrong}))
    lake.put_state(right_rows(lake), plain)
    remember(lake)

    assert [invariant for invariant, _ in audit(lake)] == ["M4"]
    assert audit_state(lake.store, lake.stream).unchecked_merges == ()


def test_a_newest_position_of_a_newer_release_ends_the_audit(lake: StateLake) -> None:
    lake.put_state(right_rows(lake), NewerPosition(**dict(lake.position(COUNTS))))

    with pytest.raises(MergeHaltedError, match="cannot read"):
        audit_state(lake.store, lake.stream)


@pytest.mark.parametrize("invariant", ["M1", "M4", "M5"])
def test_every_invariant_of_a_state_can_be_reported(invariant: str) -> None:
    assert Finding.model_validate({"invariant": invariant, "text": "x"}).text == "x"


def make_replaced(folder: Path) -> EventsWithoutSpark:
    """Merge an event that lacks a large value, then replace the column of that value."""
    table = {"name": "states.orders", "mode": "upsert", "id_columns": ["id"]}
    lake = make_state_lake(EventsWithoutSpark, folder, "orders", **{**EVENTS, "table": table})
    lake.produce(0, Event(1, "c", 1, values={"name": "a", "doc": "large"}))
    lake.produce(0, Event(1, "u", 2, values={"name": "a2"}, lacks=("doc",)))
    lake.ingest_all()
    row = next(r for r in lake.table.scan().to_arrow().to_pylist() if r["_op"] == "u")
    lake.put_state([{**row, "doc": "large"}], lake.position(COUNTS))
    with lake.table.update_schema() as update:
        update.rename_column("doc", "doc_v3")
    with lake.table.update_schema() as update:
        update.add_column("doc", BinaryType())
    return lake


def test_a_value_that_an_event_lacks_is_right_after_its_column_was_replaced(tmp_path: Path) -> None:
    lake = make_replaced(tmp_path)
    lake.produce(0, Event(1, "u", 3, values={"name": "a3"}, lacks=("doc",)))
    lake.produce(0, Event(2, "c", 4, values={"name": "b", "doc": b"new"}))
    lake.produce(0, Event(2, "u", 5, values={"name": "b2"}, lacks=("doc",)))
    lake.ingest_all()
    lake.store.load(lake.state_name).delete("id == 1")
    rows = {row["name"]: row for row in lake.table.scan().to_arrow().to_pylist()}

    both = [{**rows["a3"], "doc_v3": "large"}, {**rows["b2"], "doc": b"new"}]
    lake.put_state(both, lake.position(COUNTS))

    assert audit_state(lake.store, lake.stream).findings == ()


def test_the_state_may_lack_a_new_column_where_its_changes_are_expired(tmp_path: Path) -> None:
    lake = make_replaced(tmp_path)
    lake.produce(0, Event(2, "c", 4, values={"name": "b", "doc": b"new"}))
    lake.ingest_all()
    lake.expire_history()

    assert audit_state(lake.store, lake.stream).findings == ()
