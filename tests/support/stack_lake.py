"""A lake in the embedded stack: PyIceberg stages, Spark maintains, and days pass on request."""

import json
import os
import time
from functools import cached_property
from pathlib import Path
from typing import cast

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import text
from support.lake import Lake

from frazil.connections.clients import find_catalog
from frazil.iceberg.catalog import TableStore
from frazil.ledger.recovery_point import walk_ancestors
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace

INSTANTS = {"timestamp-ms", "last-updated-ms"}


class StackLake(Lake):
    """A stream of a test's own in the embedded stack's catalog."""

    @cached_property
    def store(self) -> TableStore:
        return TableStore(find_catalog("iceberg_default"))

    @property
    def work(self) -> Workspace:
        return Workspace(self.stream, self.folder, "test")

    @property
    def ids(self) -> list[int]:
        """List main's ancestors in the metadata, newest first."""
        return [e.snapshot_id for e in walk_ancestors(self.history, beyond_metadata=False)]


def let_days_pass(lake: Lake, days: float) -> None:
    """Set back every instant in the table's metadata, as if it had stood there for days.

    Less than none: as if this machine's clock had been set back by so many.
    """
    table = lake.table

    content = json.loads(table.io.new_input(table.metadata_location).open().read())
    location = table.metadata_location.replace(".metadata.json", "-aged.metadata.json")
    with table.io.new_output(location).create() as file:
        file.write(json.dumps(set_back(content, days)).encode())
    point_catalog_to(lake, location)


def set_back(part: object, days: float) -> object:
    """Return a table's metadata, or a part of it, with every instant so many days earlier."""
    match part:
        case dict():
            return {
                key: value - int(days * DAY_MS) if key in INSTANTS else set_back(value, days)
                for key, value in part.items()
            }
        case list():
            return [set_back(each, days) for each in part]
    return part


def point_catalog_to(lake: Lake, location: str) -> None:
    namespace, name = lake.stream.table.name.split(".")
    statement = text(
        "UPDATE iceberg_tables SET metadata_location = :location "
        "WHERE table_namespace = :namespace AND table_name = :name"
    )
    with cast("SqlCatalog", lake.store.catalog).engine.begin() as connection:
        given = {"location": location, "namespace": namespace, "name": name}
        assert connection.execute(statement, given).rowcount == 1


def rows_up_to(end: int) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in (0, 1) for offset in range(end)]


def ingest_up_to(lake: Lake, *ends: int) -> None:
    for end in ends:
        lake.ingest(end, end)


def make_files_old(folder: Path, days: int = 5) -> None:
    """Make every file below a folder look so many days old."""
    then = time.time() - days * DAY_MS / 1000
    for path in folder.rglob("*"):
        os.utime(path, (then, then))
