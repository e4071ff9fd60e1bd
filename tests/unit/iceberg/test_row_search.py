"""Rows to delete are searched again at each attempt of a commit, in what is new only."""

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from support.lake import Lake, Molds, make_stream

from frazil.iceberg.row_changes import RowSearch
from frazil.ledger.offsets import OffsetRange
from frazil.recovery.range_overwrite import select_ranges


def test_a_further_search_reads_only_what_was_added_since(
    molds: Molds, monkeypatch: pytest.MonkeyPatch
) -> None:
    with molds.begin(make_stream()) as lake:
        check_further_search(lake, monkeypatch)


def check_further_search(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    for end in (5, 10, 15, 20):
        lake.ingest(end, 0)
    search = RowSearch(select_ranges({"orders": {0: OffsetRange(3, 100)}}))
    assert sum(file.rows for file in search.find(lake.table)) == 17
    earlier = {task.file.file_path for task in lake.table.scan().plan_files()}
    earlier |= {each.manifest_path for each in read_manifests(lake)}
    lake.ingest(25, 0)
    table = lake.table
    opened: list[str] = []
    new_input = PyArrowFileIO.new_input

    def record(io: PyArrowFileIO, location: str) -> object:
        opened.append(location)
        return new_input(io, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", record)
    found = list(search.find(table))

    assert sum(file.rows for file in found) == 22
    assert opened  # the new manifest and the new data file
    assert not earlier & set(opened)


def read_manifests(lake: Lake) -> list[ManifestFile]:
    table = lake.table
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return list(snapshot.manifests(table.io))
