"""Parquet files of Python workers: a row group at a time, a file for each partition.

This code travels to the workers by value (see `writer.py`).
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

from frazil_spark.fast_path.partitions import Codes, PartitionIds, split
from frazil_spark.fast_path.preaggregation import PreaggregationSpec
from frazil_spark.fast_path.readers import ValueSpec

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""Size of a row group in Arrow's memory; on disk it has about a third."""

PARTITION_KEY = "frazil.partition"
"""Key in a file's footer: the values of its partition, read when the file is staged."""


@dataclass(frozen=True)
class FileSpec:
    """What a worker needs: how to read values, the table's schema with field ids, and its files."""

    values: ValueSpec
    schema: pa.Schema
    folder: str
    prefix: str
    target_bytes: int
    parquet: dict[str, str | int]
    counted_columns: tuple[str, ...]
    """Columns of fast-path rows that Spark's counters read."""
    sample_step: int = 1
    """One of this many offsets is sampled: Spark gets its value, to find unmapped fields."""
    preaggregation: PreaggregationSpec | None = None
    """How rows are grouped; without it Spark gets every row."""
    partitions: tuple[tuple[str, str], ...] = ()
    """Columns and transforms of the table's partition spec."""
    operation: str = ""
    """The column whose values must be one of `operations`, in any case; empty for none."""
    operations: tuple[str, ...] = ()
    lowest: tuple[tuple[str, int], ...] = ()
    """Columns of whole numbers, and the lowest number that has a partition; Spark judges others."""
    max_partitions: int = 1
    """Partitions for which one task opens files; rows of further ones are left to Spark."""


@dataclass(frozen=True)
class RowGroup:
    """Rows that were written, fields of their records, and paths of the files that they began."""

    rows: pa.Table
    records: pa.Table
    begun: Sequence[str]


@dataclass(frozen=True)
class OpenFile:
    """An open file of one partition and its writer."""

    sink: pa.NativeFile
    writer: pq.ParquetWriter

    def close(self) -> None:
        """Finish the file."""
        self.writer.close()
        self.sink.close()


@dataclass
class FileRoller:
    """Write row groups into one file for each partition; begin the next file at the target size."""

    spec: FileSpec
    partitions: PartitionIds
    _system: LocalFileSystem = field(default_factory=LocalFileSystem)
    _begun: list[str] = field(default_factory=list)
    _files: dict[int, OpenFile] = field(default_factory=dict)
    _rows: list[pa.RecordBatch] = field(default_factory=list)
    _records: list[pa.RecordBatch] = field(default_factory=list)
    _partition_ids: list[Codes] = field(default_factory=list)
    _waiting_bytes: int = 0

    def write(
        self, rows: pa.RecordBatch, records: pa.RecordBatch, partition_ids: Codes
    ) -> Iterator[RowGroup]:
        """Add rows; yield the row group once it is full."""
        self._rows.append(rows)
        self._records.append(records)
        self._partition_ids.append(partition_ids)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            yield from self._flush()

    def close(self) -> Iterator[RowGroup]:
        """Write the waiting rows, yield the last row group, and close all files."""
        yield from self._flush()
        while self._files:
            self._files.popitem()[1].close()

    def discard(self) -> None:
        """Delete the files that this task began, so that a full disk does not stay full."""
        for file in self._files.values():
            with contextlib.suppress(OSError):
                file.sink.close()
        for path in self._begun:
            with contextlib.suppress(OSError):
                self._system.delete_file(path)

    def _open(self, partition_id: int) -> OpenFile:
        folder = self.spec.folder.removeprefix("file://")
        self._system.create_dir(folder, recursive=True)
        path = posixpath.join(folder, f"{self.spec.prefix}-{uuid.uuid4()}.parquet")
        self._begun.append(path)
        sink = self._system.open_output_stream(path)
        writer = pq.ParquetWriter(
            sink, self.spec.schema, store_decimal_as_integer=True, **self.spec.parquet
        )
        writer.add_key_value_metadata(
            {PARTITION_KEY: json.dumps(self.partitions.values(partition_id))}
        )
        return self._files.setdefault(partition_id, OpenFile(sink, writer))

    def _flush(self) -> Iterator[RowGroup]:
        if not self._rows:
            return
        rows, records = pa.Table.from_batches(self._rows), pa.Table.from_batches(self._records)
        partition_ids, before = np.concatenate(self._partition_ids), len(self._begun)
        self._rows, self._records, self._partition_ids, self._waiting_bytes = [], [], [], 0
        for partition_id, part in split(rows, partition_ids):
            file = self._files.get(partition_id) or self._open(partition_id)
            file.writer.write_table(part, row_group_size=part.num_rows)
            if file.sink.tell() >= self.spec.target_bytes:
                self._files.pop(partition_id).close()
        yield RowGroup(rows, records, [f"file://{path}" for path in self._begun[before:]])
