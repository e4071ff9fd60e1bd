"""The staged rows as an Arrow table, only the columns that a check needs."""

from collections.abc import Iterable
from typing import Protocol

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.schema import Schema
from pyiceberg.table import FileScanTask, Table

from frazil.commits import read_added_files
from frazil.tables import translated_errors


class NeedsColumns(Protocol):
    """Whatever names the columns that it reads."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Name the columns."""


def read_staged_frame(
    table: Table, snapshot_id: int | None, needs: Iterable[NeedsColumns]
) -> pa.Table:
    """Read what one snapshot added: never what is on main already."""
    names = tuple(dict.fromkeys(name for need in needs for name in need.columns))
    schema = table.schema().select(*names) if names else table.schema()
    files = read_added_files(table, snapshot_id) if snapshot_id is not None else []
    with translated_errors(f"reading staged rows of {table.name()}"):
        return read_files(table, schema, [FileScanTask(file) for file in files])


def read_files(table: Table, schema: Schema, tasks: Iterable[FileScanTask]) -> pa.Table:
    """Read the rows of exactly these files, as their deletes left them."""
    return ArrowScan(table.metadata, table.io, schema, AlwaysTrue()).to_table(tasks)
