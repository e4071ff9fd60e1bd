"""Metadata that was read lately is parsed once; the catalog says each time which it is."""

import uuid
from collections.abc import Callable
from typing import cast

import pytest
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.metadata import TableMetadata
from support.lake import Lake

from frazil.iceberg.metadata_memory import KEPT, MetadataMemory

GONE = f"0-{uuid.uuid4()}.metadata.json"


def read_by(read: list[str]) -> Callable[[str], TableMetadata]:
    """Make a memory over a reader that notes what it is asked, and a way to ask it."""

    def note(file: InputFile, _encoding: str) -> TableMetadata:
        read.append(file.location)
        if file.location == GONE:
            raise FileNotFoundError(file.location)
        return cast("TableMetadata", f"what {file.location} says")

    memory = MetadataMemory(note)
    return lambda location: memory(PyArrowFileIO().new_input(location))


def test_a_table_that_stands_still_is_parsed_once_and_one_that_moved_anew(lake: Lake) -> None:
    before, again = lake.table, lake.table
    with lake.table.transaction() as change:
        change.set_properties({"moved": "yes"})
    after = lake.table

    assert again.metadata is before.metadata
    assert "moved" not in again.properties
    assert after.properties["moved"] == "yes"


def test_only_what_was_read_lately_is_kept() -> None:
    read: list[str] = []
    ask = read_by(read)
    names = [f"{number}-{uuid.uuid4()}.metadata.json" for number in range(KEPT + 1)]

    told = [ask(name) for name in (*names[:KEPT], names[0], names[KEPT], names[0], names[1])]

    assert str(told[-1]) == f"what {names[1]} says"
    assert read == [*names, names[1]]  # the oldest but for the first, which was asked for again


def test_a_file_that_could_not_be_read_is_tried_again() -> None:
    read: list[str] = []
    ask = read_by(read)

    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            ask(GONE)

    assert read == [GONE, GONE]


def test_a_name_that_may_be_used_again_is_read_again() -> None:
    read: list[str] = []
    ask = read_by(read)

    told = [ask(name) for name in ("t/metadata/v1.metadata.json",) * 2]

    assert (len(told), read) == (2, ["t/metadata/v1.metadata.json"] * 2)


def test_a_commit_changes_nothing_of_what_is_remembered(lake: Lake) -> None:
    lake.ingest(1, 0)
    table = lake.table
    before, snapshots = table.metadata.model_dump_json(), list(table.metadata.snapshots)

    lake.ingest(2, 1)

    assert table.metadata.model_dump_json() == before
    assert lake.catalog.load_table(table.name()).metadata.model_dump_json() != before
    assert all(a is b for a, b in zip(table.metadata.snapshots, snapshots, strict=True))


def test_a_deep_copy_of_metadata_shares_its_snapshots(lake: Lake) -> None:  # decision record 22
    lake.ingest(1, 0)
    metadata = lake.table.metadata

    copied = metadata.model_copy(deep=True)

    assert copied.snapshots is not metadata.snapshots
    pairs = zip(copied.snapshots, metadata.snapshots, strict=True)
    assert all(own is other for own, other in pairs)
    logged = zip(copied.snapshot_log, metadata.snapshot_log, strict=True)
    assert all(own is other for own, other in logged)
