"""Rows that another engine deleted in delete files, and left in the data files."""

from collections.abc import Callable, Iterator

import pyarrow.parquet as pq
import pytest
from support.foreign_deletes import delete_by_position, delete_by_value
from support.lake import Lake, Molds, make_stream

from frazil.maintenance.erasure import erase, plan_erasure
from frazil.maintenance.messages import Erased, ErasureRequest
from frazil.workspace import Workspace

Delete = Callable[[Lake], None]


@pytest.fixture
def lake(molds: Molds) -> Iterator[Lake]:
    with molds.begin(make_stream()) as lake:
        lake.ingest(6, 0)
        yield lake


def by_position(lake: Lake) -> None:
    (task,) = lake.table.scan().plan_files()
    delete_by_position(lake, task.file.file_path, [2, 4])


def by_value(lake: Lake) -> None:
    delete_by_value(lake, "id", [2, 4])


def run(lake: Lake, key: str) -> int:
    return erase_key(lake, key).rows


def erase_key(lake: Lake, key: str) -> Erased:
    work = Workspace(lake.stream, lake.folder, f"erase-{key}")
    work.__dict__["store"] = lake.store
    wanted = ErasureRequest(stream="orders", keys=(key,), dry_run=False, by="a", reason="b")
    return erase(work, plan_erasure(work, wanted), wanted)


def read_stored_ids(lake: Lake) -> set[int]:
    """Read the ids that the data files of main's head hold, hidden or not."""
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    found = set()
    for manifest in snapshot.manifests(lake.table.io):
        for entry in manifest.fetch_manifest_entry(lake.table.io):
            if entry.data_file.content.value == 0:
                with lake.table.io.new_input(entry.data_file.file_path).open() as stream:
                    found |= set(pq.ParquetFile(stream).read(["id"])["id"].to_pylist())
    return found


@pytest.mark.parametrize("delete", [by_position, by_value])
def test_a_copy_has_no_row_that_another_engine_deleted(lake: Lake, delete: Delete) -> None:
    delete(lake)

    assert run(lake, "id=3") == 1

    assert read_stored_ids(lake) == {0, 1, 5}


@pytest.mark.parametrize("delete", [by_position, by_value])
def test_an_erasure_removes_the_bytes_of_a_row_that_another_engine_deleted(
    lake: Lake, delete: Delete
) -> None:
    delete(lake)

    assert run(lake, "id=2") == 1

    assert read_stored_ids(lake) == {0, 1, 3, 5}


def test_rows_that_came_after_an_equality_delete_stay(lake: Lake) -> None:
    by_value(lake)
    lake.append_foreign(2, 3)

    run(lake, "id=3")

    assert 2 in read_stored_ids(lake)


def test_an_equality_delete_file_that_holds_the_key_is_named_with_what_removes_it(
    lake: Lake,
) -> None:
    by_value(lake)
    delete_by_value(lake, "name", ["x-2"])

    told = {key: erase_key(lake, key).text for key in ("id=2", "id=3", "name=x-2")}

    named = {
        key: [line for line in text.splitlines() if "equality delete" in line]
        for key, text in told.items()
    }
    assert [len(lines) for lines in named.values()] == [1, 0, 1]
    assert named["id=2"][0].startswith("demo.orders: 1 equality delete file of another engine")
    assert "--rewrite-all" in named["id=2"][0]
    assert "x-2" not in told["name=x-2"]
