"""Parquet files of Python workers: a row group at a time, a file for each partition.

This runs in Spark's Python workers, sent there by value (see `direct_rows.py`).
"""

import contextlib
import json
import posixpath
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from frazil_spark.fast_path.partitions import Codes, Places, split
from frazil_spark.fast_path.preaggregation import AlikeOrder
from frazil_spark.fast_path.readers import ValueOrder

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""In Arrow's memory; about a third of it on disk."""

PLACE = "frazil.partition"
"""In a file's footer: the values of its partition, for whoever stages it."""


@dataclass(frozen=True)
class DirectOrder:
    """What a worker needs: how values are read, the table's schema with field ids, the files."""

    values: ValueOrder
    schema: pa.Schema
    folder: str
    prefix: str
    target_bytes: int
    parquet: dict[str, str | int]
    shown: tuple[str, ...]
    """Columns that Spark needs of the sure rows too, for its counters."""
    step: int = 1
    """Every how many offsets Spark needs the value too, to see what no column names."""
    alike: AlikeOrder | None = None
    """How rows are told apart; without, Spark is shown all of them."""
    partitions: tuple[tuple[str, str], ...] = ()
    """By what partitions are told apart: columns and transforms."""
    most_partitions: int = 1
    """That a task begins files of; rows of further ones are left to Spark."""


@dataclass(frozen=True)
class RowGroup:
    """Rows that stand in files now, the records that they were, and the files that they began."""

    rows: pa.Table
    records: pa.Table
    begun: Sequence[str]


@dataclass(frozen=True)
class OpenFile:
    """A file of one partition, and what writes it."""

    sink: pa.NativeFile
    writer: pq.ParquetWriter

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()
        self.sink.close()


@dataclass
class FileRoller:
    """Write row groups into a file for each partition; begin its next one at the target size."""

    order: DirectOrder
    places: Places
    _system: LocalFileSystem = field(default_factory=LocalFileSystem)
    _begun: list[str] = field(default_factory=list)
    _files: dict[int, OpenFile] = field(default_factory=dict)
    _rows: list[pa.RecordBatch] = field(default_factory=list)
    _records: list[pa.RecordBatch] = field(default_factory=list)
    _places: list[Codes] = field(default_factory=list)
    _waiting_bytes: int = 0

    def write(
        self, rows: pa.RecordBatch, records: pa.RecordBatch, places: Codes
    ) -> Iterator[RowGroup]:
        """Take rows; give the row group that is full with them."""
        self._rows.append(rows)
        self._records.append(records)
        self._places.append(places)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            yield from self._flush()

    def close(self) -> Iterator[RowGroup]:
        """Finish the files that are open or have to be; give the last row group."""
        yield from self._flush()
        while self._files:
            self._files.popitem()[1].close()

    def discard(self) -> None:
        """Remove what this task began: its failure must not keep a full disk full."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.sink.close()
        for path in self._begun:
            with contextlib.suppress(OSError):
                self._system.delete_file(path)

    def _open(self, place: int) -> OpenFile:
        folder = self.order.folder.removeprefix("file://")
        self._system.create_dir(folder, recursive=True)
        path = posixpath.join(folder, f"{self.order.prefix}-{uuid.uuid4()}.parquet")
        self._begun.append(path)
        sink = self._system.open_output_stream(path)
        writer = pq.ParquetWriter(
            sink, self.order.schema, store_decimal_as_integer=True, **self.order.parquet
        )
        writer.add_key_value_metadata({PLACE: json.dumps(self.places.values(place))})
        return self._files.setdefault(place, OpenFile(sink, writer))

    def _flush(self) -> Iterator[RowGroup]:
        if not self._rows:
            return
        rows, records = pa.Table.from_batches(self._rows), pa.Table.from_batches(self._records)
        places, before = np.concatenate(self._places), len(self._begun)
        self._rows, self._records, self._places, self._waiting_bytes = [], [], [], 0
        for place, part in split(rows, places):
            file = self._files.get(place) or self._open(place)
            file.writer.write_table(part, row_group_size=part.num_rows)
            if file.sink.tell() >= self.order.target_bytes:
                self._files.pop(place).close()
        yield RowGroup(rows, records, [f"file://{path}" for path in self._begun[before:]])
