"""Rows to delete are searched again at each attempt of a commit, in what is new only."""

from collections.abc import Iterable

import numpy as np
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from support.lake import Lake, Molds, append, make_stream

from frazil.iceberg.row_changes import RowSearch
from frazil.ingest.dead_letters import ensure_dead_letters_table
from frazil.ledger.offsets import OffsetRange
from frazil.maintenance.erasure import DeadLetterSearch
from frazil.maintenance.erasure_keys import ErasedKeys
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
    earlier = list_files(lake.table)
    lake.ingest(25, 0)
    table, opened = lake.table, record_opened(monkeypatch)
    found = list(search.find(table))

    assert sum(file.rows for file in found) == 22
    assert opened  # the new manifest and the new data file
    assert not earlier & set(opened)


def test_dead_letters_that_were_read_are_not_read_again(
    molds: Molds, monkeypatch: pytest.MonkeyPatch
) -> None:
    with molds.begin(make_stream()) as lake:
        name = lake.stream.dead_letters_table
        ensure_dead_letters_table(lake.store, lake.stream.table.name)
        search = DeadLetterSearch(ErasedKeys({}, frozenset({b"k3", b"k7"})))
        add_dead_letters(lake, range(5))
        place = ("orders", 0)
        assert search.find(lake.store.load(name), {})["a"][place].tolist() == [3]
        earlier = list_files(lake.store.load(name))
        add_dead_letters(lake, range(5, 9))
        table, opened = lake.store.load(name), record_opened(monkeypatch)

        found = search.find(table, {place: np.array([1])})

        assert found["a"][place].tolist() == [1, 3, 7]
        assert opened
        assert not earlier & set(opened)


def add_dead_letters(lake: Lake, offsets: Iterable[int]) -> None:
    rows = [
        {
            "attempt": "a",
            "_kafka": {"topic": "orders", "partition": 0, "offset": n, "key": f"k{n}".encode()},
        }
        for n in offsets
    ]
    append(lake.catalog, lake.store.load(lake.stream.dead_letters_table), rows)


def record_opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that will have the location of each file that is opened."""
    opened: list[str] = []
    new_input = PyArrowFileIO.new_input

    def record(io: PyArrowFileIO, location: str) -> object:
        opened.append(location)
        return new_input(io, location)

    monkeypatch.setattr(PyArrowFileIO, "new_input", record)
    return opened


def list_files(table: Table) -> set[str]:
    """List the manifests and data files of main's head."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = {each.manifest_path for each in snapshot.manifests(table.io)}
    return manifests | {task.file.file_path for task in table.scan().plan_files()}
