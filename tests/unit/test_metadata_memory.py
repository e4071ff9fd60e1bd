"""Metadata that was read lately is parsed once; the catalog says each time which it is."""

from collections.abc import Callable
from typing import cast

import pytest
from lake import Lake
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.metadata import TableMetadata

from frazil.metadata_memory import KEPT, MetadataMemory


def read_by(read: list[str]) -> Callable[[str], TableMetadata]:
    """Make a memory over a reader that notes what it is asked, and a way to ask it."""

    def note(file: InputFile, _encoding: str) -> TableMetadata:
        read.append(file.location)
        if file.location == "gone":
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
    names = [f"{number}.metadata.json" for number in range(KEPT + 1)]

    told = [ask(name) for name in (*names[:KEPT], names[0], names[KEPT], names[0], names[1])]

    assert str(told[-1]) == "what 1.metadata.json says"
    assert read == [*names, names[1]]  # the oldest but for the first, which was asked for again


def test_a_file_that_could_not_be_read_is_tried_again() -> None:
    read: list[str] = []
    ask = read_by(read)

    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            ask("gone")

    assert read == ["gone", "gone"]
