"""After an erasure no manifest of main's head lists a removed file, with bounds and partition."""

import io
from collections.abc import Iterator

import fastavro
import pytest
from pyiceberg.manifest import DataFile
from support.foreign_deletes import delete_by_position, delete_by_value, remove_as_java
from support.lake import Lake, Molds, append, make_stream
from support.planted_values import find_in_files, list_head_files

from frazil.iceberg.data_files import list_equality_deletes
from frazil.iceberg.table_view import TableView
from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import Erased, ErasureRequest
from frazil.maintenance.row_deletion import forget_removed_files
from frazil.workspace import Workspace

PLANTED, NAME = 7_070_707_070_707, "planted-9f3c71"


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    """Begin a table that is partitioned by a text, and publish a batch."""
    table = {"name": "demo.orders", "partition_by": ["name"]}
    with molds.begin(make_stream(table=table)) as lake:
        lake.ingest(6, 0)
        yield lake


def plant(lake: Lake, number: int = PLANTED, name: str = NAME) -> None:
    kafka = {"topic": "orders", "partition": 0, "offset": number % 100}
    append(lake.catalog, lake.table, [{"id": number, "name": name, "_kafka": kafka}])


def open_work(lake: Lake) -> Workspace:
    work = Workspace(lake.stream, lake.folder, "run-1")
    vars(work)["store"] = lake.store
    return work


def run(lake: Lake, key: str) -> Erased:
    wanted = ErasureRequest(stream="orders", keys=(key,), dry_run=False, by="a", reason="b")
    return erase(open_work(lake), plan_erasure(open_work(lake), wanted), wanted)


def find_planted(lake: Lake) -> list[str]:
    return [path.name for path in find_in_files(list_head_files(lake.table), (PLANTED, NAME))]


def list_live(lake: Lake) -> list[tuple[object, ...]]:
    """List what the head's manifests say of its files, those of rows and those of deletes."""
    head = lake.table.current_snapshot()
    assert head is not None
    return sorted(
        (*describe(entry.data_file), entry.sequence_number, entry.snapshot_id)
        for manifest in head.manifests(lake.table.io)
        for entry in manifest.fetch_manifest_entry(lake.table.io)
    )


def describe(file: DataFile) -> tuple[object, ...]:
    maps = (file.column_sizes, file.value_counts, file.lower_bounds, file.upper_bounds)
    partition = str(file.partition)
    sizes = (file.record_count, file.file_size_in_bytes, file.sort_order_id)
    return (
        file.file_path,
        file.content.name,
        partition,
        str(sizes),
        *(str(dict(each or {})) for each in maps),
    )


@pytest.mark.parametrize("key", [f"id={PLANTED}", f"name={NAME}"])
def test_the_head_has_no_bounds_and_no_partition_of_what_was_erased(lake: Lake, key: str) -> None:
    plant(lake)
    assert len(find_planted(lake)) == 3  # the data file, its manifest and the manifest list

    done = run(lake, key)

    assert (done.outcome, done.rows) == ("ERASED", 1)
    assert find_planted(lake) == []
    assert lake.table.scan().to_arrow().num_rows == 6
    assert run(lake, key).outcome == "ERASED"  # the same run again finds its commit


def test_position_deletes_leave_with_the_last_rows_of_their_partition(lake: Lake) -> None:
    plant(lake)
    plant(lake, 1, "one")
    for name in (NAME, "one"):
        (task,) = lake.table.scan(row_filter=f"name = '{name}'").plan_files()
        delete_by_position(lake, task.file.file_path, [0], name)

    run(lake, f"name={NAME}")

    assert find_planted(lake) == []
    left = [each for each in list_live(lake) if each[1] == "POSITION_DELETES"]
    assert [each[2] for each in left] == ["Record[one]"]
    assert lake.table.scan().to_arrow().num_rows == 6


def test_what_a_rewrite_left_beside_files_that_stay_is_forgotten_too(lake: Lake) -> None:
    plant(lake)
    plant(lake, 1, "one")
    for task in lake.table.scan(row_filter=f"id >= {PLANTED}").plan_files():
        remove_as_java(lake, task.file.file_path)
    expected, head = list_live(lake), lake.history.head
    assert find_planted(lake) != []

    forget_removed_files(open_work(lake), TableView(lake.store, lake.stream.table.name))

    assert find_planted(lake) == []
    assert list_live(lake) == expected
    newest = lake.history.entries[lake.history.head or 0]
    assert (newest.parent_id, newest.summary["operation"]) == (head, "replace")
    forget_removed_files(open_work(lake), TableView(lake.store, lake.stream.table.name))
    assert lake.history.head == newest.snapshot_id


def test_delete_files_that_stay_hide_the_same_rows(lake: Lake) -> None:
    plant(lake, 1, "one")
    (task,) = lake.table.scan(row_filter="name = 'one'").plan_files()
    delete_by_position(lake, task.file.file_path, [0], "one")
    delete_by_position(lake, "file:///of/another.parquet", [0], "one")
    paths = [str(path) for path, content, *_ in list_live(lake) if content == "POSITION_DELETES"]
    remove_as_java(lake, paths[1])
    expected = list_live(lake)

    forget_removed_files(open_work(lake), TableView(lake.store, lake.stream.table.name))

    assert list_live(lake) == expected


def test_java_reads_the_ids_of_equality_deletes(lake: Lake) -> None:
    for number in (1, 2):
        delete_by_value(lake, "id", [number], "x")
    first, second = list_equality_deletes(lake.table, lake.table.current_snapshot())
    remove_as_java(lake, first.file_path)

    forget_removed_files(open_work(lake), TableView(lake.store, lake.stream.table.name))

    assert [
        each.equality_ids
        for each in list_equality_deletes(lake.table, lake.table.current_snapshot())
    ] == [[1]]
    assert (
        list_equality_deletes(lake.table, lake.table.current_snapshot())[0].file_path
        == second.file_path
    )
    head = lake.table.current_snapshot()
    assert head is not None
    (manifest,) = (each for each in head.manifests(lake.table.io) if each.content.value == 1)
    with lake.table.io.new_input(manifest.manifest_path).open() as stream:
        schema = fastavro.reader(io.BytesIO(stream.read())).writer_schema
    files = next(each["type"] for each in schema["fields"] if each["name"] == "data_file")
    ids = next(each["type"] for each in files["fields"] if each["name"] == "equality_ids")
    assert ids[1]["items"] == "int"  # PyIceberg's own schema has longs, which Java cannot read
