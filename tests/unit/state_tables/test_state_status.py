"""What operators are told: the rows of a state table, its lag, and the change behind a key."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from pyiceberg.exceptions import NoSuchIcebergTableError
from pyiceberg.table import Table
from pyiceberg.typedef import Identifier
from requests.exceptions import ReadTimeout
from support.catalog_loads import count_loads
from support.event_lake import COLUMNS, EVENTS, Event, EventsWithoutSpark
from support.lake import append
from support.scripted_catalog import ScriptedCatalog
from support.state_lake import BIRTH, Change, StateLake, make_state_lake

from frazil.errors import ConfigurationError
from frazil.iceberg.catalog import TableStore
from frazil.iceberg.table_view import TableView
from frazil.ingest.publishing import Marker, publish_marker
from frazil.ledger import keys
from frazil.ledger.authors import Author
from frazil.observability.status import list_state_snapshots, locate_key, read_status
from frazil.observability.timeline import derive_events
from frazil.observability.timeline_table import read_recorded, record_timeline
from frazil.observability.watch import read_table
from frazil.recovery.halt_resolution import reingest
from frazil.state_tables.messages import MergeCounts, MergePosition
from frazil.state_tables.state_status import StateStatus, read_state_status
from frazil.state_tables.tables import require_state
from frazil.streams.models import Stream
from frazil.streams.state_sections import SequenceBy
from frazil.streams.timestamps import from_epoch_ms
from frazil.workspace import Workspace

COUNTS = MergeCounts(changes=3, inserted=1, updated=0, deleted=0, absent=1, superseded=1, stale=0)


@pytest.fixture
def lake(tmp_path: Path) -> StateLake:
    """Merge a row of key 1 and a delete of key 2; a batch of two changes waits."""
    lake = make_state_lake(StateLake, tmp_path, "orders")
    lake.produce(0, Change(1, "c", 1, "first"), Change(1, "u", 5, "last"), Change(2, "d", 2))
    lake.ingest_all()
    position = lake.position(COUNTS)
    (row,) = (row for row in lake.table.scan().to_arrow().to_pylist() if row["at"] == 5)
    lake.put_state([{name: value for name, value in row.items() if name != "op"}], position)
    deletes = lake.store.load(f"{lake.state_name}__deletes")
    place = {"topic": "orders", "partition": 0, "offset": 2}
    append(
        lake.catalog, deletes, [{"id": 2, "_sequence": {"s0": 2}, "_kafka": place, "memory": "m"}]
    )
    lake.produce(1, Change(3, "c", 1, "new"), Change(4, "c", 1, "new"))
    lake.ingest_all()
    return lake


def compare(store: TableStore, stream: Stream) -> StateStatus:
    names = (stream.table.name, require_state(stream).name)
    return read_state_status(stream, *(TableView(store, name) for name in names))


@pytest.fixture
def work(lake: StateLake) -> Workspace:
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work)["store"] = lake.store
    return work


def test_status_counts_rows_and_what_is_not_merged(lake: StateLake) -> None:
    status = compare(lake.store, lake.stream)

    assert (status.rows, status.waiting_batches, status.waiting_changes) == (1, 1, 2)
    assert "1 row; 1 batch not merged (2 changes), behind since 2" in status.text
    assert "partition_by" not in status.text


def test_status_names_an_edit_of_the_partitions_that_the_table_does_not_follow(
    lake: StateLake,
) -> None:
    layout = lake.stream.table.state
    assert layout is not None
    edited = layout.model_copy(update={"partition_by": ("bucket(id, 4)",)})
    table = lake.stream.table.model_copy(update={"state": edited})

    status = compare(lake.store, lake.stream.model_copy(update={"table": table}))

    assert "; partition_by is bucket(id, 4) in the stream file, none in the table" in status.text


def test_a_halted_merge_says_since_when_and_what_to_do(lake: StateLake, work: Workspace) -> None:
    edited = lake.stream.model_copy(update={"order": SequenceBy(sequence_by=("_kafka.timestamp",))})

    status = compare(lake.store, edited)
    other = replace(work, stream=edited)
    vars(other)["store"] = lake.store
    merge = read_table(other).facts.merge

    assert "order, cdc_field or deletes changed" in status.text
    assert "1 batch not merged (2 changes), behind since" in status.text
    assert "next: restore them, or fold" in status.text
    assert merge is not None
    assert (merge.problem, merge.next_step) == (status.problem, status.next_step)
    assert merge.behind_since == status.behind_since == newest_of(lake)


FROM_KEY = {"name": "states.c", "mode": "upsert", "id_columns": "_from_debezium_key_"}
REGISTERED = {"convert": "by_schema_id", "transform": "flatten_debezium"}
LISTED = {**REGISTERED, "convert": "json", "columns": {**COLUMNS, "id": "long"}}


def open_captured(folder: Path, value: object, **layout: object) -> Workspace:
    """Merge an event, then open its stream with the key of the events; there is no registry."""
    table = {**FROM_KEY, "id_columns": ["id"]}
    lake = make_state_lake(EventsWithoutSpark, folder, "c", **{**EVENTS, "table": table})
    lake.produce(0, Event(1, "c", 1, values={"name": "a"}))
    lake.ingest_all()
    lake.put_state([], lake.position(COUNTS))
    document = lake.stream.model_dump(by_alias=True, exclude_unset=True)
    stream = Stream.model_validate({**document, "value": value, "table": FROM_KEY | layout})
    work = Workspace(stream, folder, "test")
    vars(work)["store"] = lake.store
    return work


@pytest.mark.parametrize("value", [LISTED, REGISTERED], ids=["listed", "registered"])
def test_a_key_that_the_events_name_is_the_one_of_the_merge(tmp_path: Path, value: object) -> None:
    work = open_captured(tmp_path, value)

    status = compare(work.store, work.stream)
    merge = read_table(work).facts.merge

    assert status.text == "state table states.c: 0 rows; up to date"
    assert merge is not None
    assert (merge.problem, merge.behind_since) == (None, None)


def test_a_file_that_contradicts_the_columns_of_the_table_halts_the_merge(tmp_path: Path) -> None:
    work = open_captured(tmp_path, REGISTERED, partition_by=["bucket(nr, 4)"])

    status = compare(work.store, work.stream)
    facts = read_table(work).facts

    assert "column 'nr'" in (status.problem or "")
    assert facts.obstacle is None
    assert facts.merge is not None
    assert facts.merge.problem == status.problem


def newest_of(lake: StateLake) -> datetime:
    """Return when the newest batch was published."""
    return from_epoch_ms(lake.history.entries[lake.history.head or 0].committed_at_ms)


def test_what_changes_no_row_does_not_wait(lake: StateLake) -> None:
    lake.put_state([], lake.position(COUNTS))
    marker = Marker(keys.CARRY, {}, lake.history.head, "test", {})
    publish_marker(lake.store, lake.table, marker)
    assert compare(lake.store, lake.stream).behind_since is None
    lake.produce(0, Change(9, "c", 1, "new"))
    lake.ingest_all()

    assert compare(lake.store, lake.stream).behind_since == newest_of(lake)


def test_a_status_loads_each_table_once(work: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = count_loads(monkeypatch, ScriptedCatalog)

    read_status(work)

    changes, state = work.stream.table.name, require_state(work.stream).name
    assert loads.take() == {changes: 1, state: 1}
    locate_key(work, ["id=1"])
    assert loads.take() == {changes: 1, state: 1}


def test_a_merge_that_is_published_during_a_status_is_not_late(
    lake: StateLake, work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.put_state([], lake.position(COUNTS))
    load, merges = ScriptedCatalog.load_table, [True]

    def load_table(self: ScriptedCatalog, identifier: str | Identifier) -> Table:
        if merges and identifier == require_state(lake.stream).name:
            merges.clear()
            lake.produce(0, Change(9, "c", 1, "new"))
            lake.ingest_all()
            lake.put_state([], lake.position(COUNTS))
        return load(self, identifier)

    monkeypatch.setattr(ScriptedCatalog, "load_table", load_table)

    merge = read_table(work).facts.merge

    assert merge is not None
    assert (merge.problem, merge.behind_since) == (None, None)


def test_a_catalog_that_is_silent_is_asked_once(lake: StateLake, work: Workspace) -> None:
    lake.catalog.lost_reads = [ReadTimeout(), ReadTimeout()]

    obstacle = read_table(work).facts.obstacle

    assert obstacle is not None
    assert obstacle.code == "CatalogUnavailable"
    assert len(lake.catalog.lost_reads) == 1


def test_a_state_table_that_cannot_be_read_is_a_problem_of_the_merge_alone(
    work: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = ScriptedCatalog.load_table

    def load_table(self: ScriptedCatalog, identifier: str | Identifier) -> Table:
        if identifier == require_state(work.stream).name:
            message = "Property table_type is DELTA"
            raise NoSuchIcebergTableError(message)
        return load(self, identifier)

    monkeypatch.setattr(ScriptedCatalog, "load_table", load_table)

    facts = read_table(work).facts

    assert facts.obstacle is None
    assert facts.merge is not None
    assert "is not an Iceberg table" in (facts.merge.problem or "")
    assert "is not an Iceberg table" in compare(work.store, work.stream).text


def test_after_a_rollback_what_was_committed_since_the_merge_waits(
    lake: StateLake, work: Workspace
) -> None:
    first = lake.history.head
    lake.produce(0, Change(9, "c", 1, "new"))
    lake.ingest_all()
    lake.put_state([], lake.position(COUNTS))
    lake.table.manage_snapshots().rollback_to_snapshot(first or 0).commit()

    assert compare(lake.store, lake.stream).behind_since == newest_of(lake)
    reingest(work, Author("jane@example.org", "another tool"))
    assert compare(lake.store, lake.stream).behind_since == newest_of(lake)


@pytest.mark.parametrize(
    ("key", "outcome", "text"),
    [
        ("id=1", "found", "row last changed by orders:0:1, in snapshot"),
        ("id=2", "lost", "deleted by orders:0:2, in snapshot"),
        ("id=3", "lost", "no row and no recorded delete\nstate table"),
    ],
)
def test_where_finds_the_change_behind_a_key(
    work: Workspace, key: str, outcome: str, text: str
) -> None:
    held = locate_key(work, [key])

    assert held.found == (outcome == "found")
    assert held.deleted == text.startswith("deleted by")
    assert text in held.text


def test_where_tells_that_a_marked_key_is_deleted(tmp_path: Path) -> None:
    table = {"name": "states.customers", "mode": "upsert", "id_columns": ["id"]}
    mark = {"cdc_field": "op", "deletes": "mark"}
    lake = make_state_lake(StateLake, tmp_path, "customers", table=table | mark)
    lake.produce(0, Change(1, "c", 1), Change(1, "d", 2), Change(2, "c", 1))
    lake.ingest_all()
    place = {"topic": "orders", "partition": 0}
    rows = [
        {"id": key, "at": 2, "_deleted_at": deleted_at, "_kafka": {**place, "offset": offset}}
        for key, deleted_at, offset in ((1, BIRTH, 1), (2, None, 2))
    ]
    lake.put_state(rows, lake.position(COUNTS))
    work = Workspace(lake.stream, lake.folder, "test")
    vars(work)["store"] = lake.store

    marked, alive = (locate_key(work, [f"id={key}"]) for key in (1, 2))

    assert "states.customers: marked as deleted by orders:0:1, in snapshot" in marked.text
    assert "states.customers: row last changed by orders:0:2, in snapshot" in alive.text
    assert [(held.found, held.deleted) for held in (marked, alive)] == [(True, True), (True, False)]


def test_a_delete_that_only_a_memory_of_before_has_is_not_told(
    lake: StateLake, work: Workspace
) -> None:
    place = {"topic": "orders", "partition": 0, "offset": 2}
    row = {"id": 3, "_sequence": {"s0": 1}, "_kafka": place, "memory": "before a rebuild"}
    append(lake.catalog, lake.store.load(f"{lake.state_name}__deletes"), [row])

    assert "no row and no recorded delete" in locate_key(work, ["id=3"]).text


@pytest.mark.parametrize(
    ("first", "second", "newest"),
    [((2, 9), (8, 4), 4), ((8, 4), (2, 9), 4), ((8, 4), (8, 9), 9), ((None, 9), (1, 4), 4)],
    ids=["a larger value", "whatever came first", "of equal ones the offset", "null is the oldest"],
)
def test_of_two_recorded_deletes_of_a_key_the_newest_is_named(
    lake: StateLake,
    work: Workspace,
    first: tuple[int | None, int],
    second: tuple[int | None, int],
    newest: int,
) -> None:
    for at, offset in (first, second):
        place = {"topic": "orders", "partition": 1, "offset": offset}
        row = {"id": 5, "_sequence": {"s0": at}, "_kafka": place, "memory": "m"}
        append(lake.catalog, lake.store.load(f"{lake.state_name}__deletes"), [row])

    held = locate_key(work, ["id=5"])

    assert [change.offset for change in held.changes] == [newest]
    assert held.text.count("deleted by") == 1


class NewerPosition(MergePosition):
    """A merge position with a field that this release does not know."""

    floors: bool = True


def test_where_finds_a_delete_below_a_position_of_a_newer_release(
    lake: StateLake, work: Workspace
) -> None:
    lake.put_state([], NewerPosition(**dict(lake.position(COUNTS))))

    assert "deleted by orders:0:2" in locate_key(work, ["id=2"]).text


@pytest.mark.parametrize("texts", [["name=last"], ["id=1", "id=2"], ["1"]])
def test_where_needs_each_column_of_the_key_once(work: Workspace, texts: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"the key of states\.orders has the columns id"):
        locate_key(work, texts)


def test_snapshots_and_timeline_tell_what_a_merge_did(lake: StateLake, work: Workspace) -> None:
    newest = list_state_snapshots(work)[0]
    events = derive_events(TableView(lake.store, lake.state_name).history, "orders")

    assert (newest.kind, newest.table) == ("merge", lake.state_name)
    assert newest.merged == COUNTS.text == "3 changes: 1 inserted, 1 absent, 1 superseded"
    assert [event.text for event in events if event.kind == "merge"] == [COUNTS.text]


def test_events_of_a_state_table_are_recorded_once(lake: StateLake, work: Workspace) -> None:
    append(lake.catalog, lake.store.load(lake.state_name), [])

    recorded = record_timeline(work)

    assert recorded > 0
    assert record_timeline(work) == 0
    events = read_recorded(lake.store, BIRTH)
    assert [e.kind for e in events if e.table == lake.state_name and not e.stream] == [
        "foreign append"
    ]


def test_a_staged_snapshot_is_no_event_of_another_writer(lake: StateLake) -> None:
    history = TableView(lake.store, lake.state_name).history
    head = history.entries[history.head or 0]
    staged = replace(head, snapshot_id=1, summary={"operation": "overwrite"})
    own = {**head.summary, keys.SOURCE_SNAPSHOT_ID: "1"}
    entries = {1: staged, head.snapshot_id: replace(head, parent_id=1, summary=own)}

    events = [*derive_events(replace(history, entries=entries), "orders")]

    assert "foreign overwrite" not in [event.kind for event in events]
    assert "merge" in [event.kind for event in events]
