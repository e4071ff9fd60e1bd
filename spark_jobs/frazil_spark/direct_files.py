"""Rows that Python workers write themselves: Arrow batches in, Parquet files out.

This runs in Spark's Python workers, sent there by value (see `direct_rows.py`).
"""

import contextlib
import posixpath
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow.fs import LocalFileSystem

from frazil_spark.sure_rows import Sure
from frazil_spark.sure_values import ValueOrder, open_reader

KAFKA = "_kafka"
SURE = "_frazil_sure"
FILE = "_frazil_file"
SURE_ID = "_frazil_sure_id"
BIG = "_frazil_big"
SHOWN = "_frazil_shown_"
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""In Arrow's memory; about a third of it on disk."""

_NO_TIME_US = -1000

SHIFTS = (3, 7, 11)
"""Of an offset, to shake it: marks of transactions, or producers that take turns, have a rhythm."""

PATIENCE = 3
"""So many batches in a row that are mostly unsure, and the rest of the task is not looked at."""


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


@dataclass
class FileRoller:
    """Write row groups into a file; begin the next file at the target size."""

    order: DirectOrder
    _system: LocalFileSystem = field(default_factory=LocalFileSystem)
    _begun: list[str] = field(default_factory=list)
    _writer: pq.ParquetWriter | None = None
    _sink: pa.NativeFile | None = None
    _waiting: list[pa.RecordBatch] = field(default_factory=list)
    _waiting_bytes: int = 0

    def write(self, rows: pa.RecordBatch) -> str | None:
        """Take rows; give the path of a file that they began."""
        began = None
        if self._writer is None:
            began = self._open()
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= ROW_GROUP_BYTES:
            self._flush()
            if self._sink is not None and self._sink.tell() >= self.order.target_bytes:
                self.close()
        return began

    def close(self) -> None:
        """Finish the file, if one is open."""
        if self._writer is not None and self._sink is not None:
            self._flush()
            self._writer.close()
            self._sink.close()
        self._writer = self._sink = None

    def discard(self) -> None:
        """Remove what this task began: its failure must not keep a full disk full."""
        with contextlib.suppress(OSError):
            if self._sink is not None:
                self._sink.close()
        for path in self._begun:
            with contextlib.suppress(OSError):
                self._system.delete_file(path)

    def _open(self) -> str:
        folder = self.order.folder.removeprefix("file://")
        self._system.create_dir(folder, recursive=True)
        path = posixpath.join(folder, f"{self.order.prefix}-{uuid.uuid4()}.parquet")
        self._begun.append(path)
        self._sink = self._system.open_output_stream(path)
        self._writer = pq.ParquetWriter(
            self._sink, self.order.schema, store_decimal_as_integer=True, **self.order.parquet
        )
        return f"file://{path}"

    def _flush(self) -> None:
        if self._writer is not None and self._waiting:
            rows = pa.Table.from_batches(self._waiting)
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._waiting, self._waiting_bytes = [], 0


def write_sure_rows(
    order: DirectOrder, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write what is sure; pass on the rest whole, and of the sure rows what Spark counts.

    A file is named in the first row that it holds. If the task fails later, so does its result.
    """
    roller = FileRoller(order)
    try:
        yield from _write_sure_rows(order, roller, batches)
        roller.close()
    except BaseException:
        roller.discard()
        raise


def _write_sure_rows(
    order: DirectOrder, roller: FileRoller, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    columns = pa.schema([f for f in order.schema if f.name != KAFKA])
    reader, fruitless = open_reader(order.values, columns), 0
    for received in batches:
        if pc.any(received[BIG]).as_py():
            message = "a record is too big for Arrow batches"
            raise ValueError(message)
        batch = received.drop_columns([BIG])
        if fruitless >= PATIENCE:
            yield from _pass_on(batch, Sure(pa.array([], pa.int64()), ()), (), order)
            continue
        sure = reader.read(batch["value"].cast(pa.binary()))
        fruitless = 0 if 2 * len(sure.places) > batch.num_rows else fruitless + 1
        path = None
        if len(sure.places):
            known = batch.drop_columns(["value"])
            if len(sure.places) < batch.num_rows:
                known = known.take(sure.places)
            kafka = build_kafka(known, order.schema.field(KAFKA).type, sure.schema_ids)
            arrays = [*sure.columns, kafka]
            path = roller.write(pa.RecordBatch.from_arrays(arrays, schema=order.schema))
        yield from _pass_on(batch, sure, columns, order, path)


def build_kafka(
    records: pa.RecordBatch, kafka: pa.StructType, schema_ids: pa.Int32Array | None = None
) -> pa.StructArray:
    """Build `_kafka`; a record without a timestamp gets null, as in `kafka_source`."""
    timestamps = records["timestamp"].cast(pa.timestamp("us", "UTC"))
    has_time = pc.not_equal(timestamps.cast(pa.int64()), _NO_TIME_US)
    given = {
        "topic": records["topic"],
        "partition": records["partition"],
        "offset": records["offset"],
        "timestamp": pc.if_else(has_time, timestamps, None),
        "timestamp_type": records["timestampType"],
        "key": records["key"],
        "headers": records["headers"],
        "schema_id": pa.nulls(records.num_rows, pa.int32()) if schema_ids is None else schema_ids,
    }
    arrays = [given[f.name].cast(f.type) for f in kafka.fields]
    return pa.StructArray.from_arrays(arrays, fields=list(kafka.fields))


def _pass_on(
    batch: pa.RecordBatch,
    sure: Sure,
    columns: pa.Schema,
    order: DirectOrder,
    path: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Put together what Spark sees: sure rows first, hardly a value with them, then the rest."""
    known, rest = _part(batch, sure.places)
    if known.num_rows:
        values = dict(zip(columns.names, sure.columns, strict=True))
        shown = {SHOWN + name: values[name] for name in order.shown}
        if sure.schema_ids is not None:
            shown[SURE_ID] = sure.schema_ids
        yield _lay_out(known, order, shown, path, is_sure=True)
    if rest.num_rows:
        yield _lay_out(rest, order, {}, None, is_sure=False)


def find_sampled(offsets: NDArray[np.int64], step: int) -> NDArray[np.bool_]:
    """Find the records that are sampled, one of `step`, as `unnamed_fields` does in SQL."""
    mixed = offsets.copy()
    for bits in SHIFTS:
        mixed ^= offsets >> bits
    sampled: NDArray[np.bool_] = mixed % step == 0
    return sampled


def _part(batch: pa.RecordBatch, sure: pa.Int64Array) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Give the rows at the places and the others; nothing is copied where one part is all."""
    if len(sure) == batch.num_rows:
        return batch, batch.slice(0, 0)
    is_rest = np.ones(batch.num_rows, np.bool_)
    is_rest[sure.to_numpy()] = False
    return batch.take(sure), batch.filter(pa.array(is_rest))


def _lay_out(
    batch: pa.RecordBatch,
    order: DirectOrder,
    shown: dict[str, pa.Array],
    path: str | None,
    *,
    is_sure: bool,
) -> pa.RecordBatch:
    """Lay out the columns in the order of `direct_rows.write_directly`."""
    count = batch.num_rows
    bare = ("key", "headers") if is_sure else ()
    columns = {
        name: pa.nulls(count, column.type) if name in bare else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }
    if is_sure:
        left = ~find_sampled(batch["offset"].to_numpy(), order.step)
        # Taken, not masked: a mask leaves the bytes of all values in what is sent to Spark.
        columns["value"] = batch["value"].take(pa.array(np.arange(count), mask=left))
    kinds = {SHOWN + name: order.schema.field(name).type for name in order.shown}
    for name, kind in {**kinds, SURE_ID: pa.int32()}.items():
        columns[name] = shown.get(name, pa.nulls(count, kind))
    columns[SURE] = pa.array([is_sure]).take(pa.array([0] * count, pa.int8()))
    columns[FILE] = pa.array([path] + [None] * (count - 1), pa.string())
    return pa.RecordBatch.from_pydict(columns)
