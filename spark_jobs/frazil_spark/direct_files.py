"""Rows that Python workers write themselves: Arrow batches in, Parquet files out.

This runs in Spark's Python workers, sent there by value (see `direct_rows.py`).
"""

import posixpath
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem

from frazil_spark.sure_rows import Sure, SureReader

KAFKA = "_kafka"
SURE = "_frazil_sure"
FILE = "_frazil_file"
BIG = "_frazil_big"
SHOWN = "_frazil_shown_"
ROW_GROUP_BYTES = 64 * 1024 * 1024
"""In Arrow's memory; about a third of it on disk."""

_NO_TIME_US = -1000

PATIENCE = 3
"""So many batches in a row without a sure row, and the rest of the task is not looked at."""


@dataclass(frozen=True)
class DirectOrder:
    """What a worker needs: the table's schema with field ids, and where and how to write."""

    schema: pa.Schema
    folder: str
    prefix: str
    target_bytes: int
    parquet: dict[str, str | int]
    shown: tuple[str, ...]
    """Columns that Spark needs of the sure rows too, for its counters."""


@dataclass
class FileRoller:
    """Write row groups into a file; begin the next file at the target size."""

    order: DirectOrder
    path: str = ""
    _writer: pq.ParquetWriter | None = None
    _sink: pa.NativeFile | None = None
    _waiting: list[pa.RecordBatch] = field(default_factory=list)

    def write(self, rows: pa.RecordBatch) -> str | None:
        """Take rows; give the path of a file that they began."""
        began = None
        if self._writer is None:
            began = self._open()
        self._waiting.append(rows)
        if sum(batch.nbytes for batch in self._waiting) >= ROW_GROUP_BYTES:
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

    def _open(self) -> str:
        system, folder = FileSystem.from_uri(self.order.folder)
        system.create_dir(folder, recursive=True)
        name = f"{self.order.prefix}-{uuid.uuid4()}.parquet"
        self._sink = system.open_output_stream(posixpath.join(folder, name))
        self._writer = pq.ParquetWriter(
            self._sink, self.order.schema, store_decimal_as_integer=True, **self.order.parquet
        )
        return posixpath.join(self.order.folder, name)

    def _flush(self) -> None:
        if self._writer is not None and self._waiting:
            rows = pa.Table.from_batches(self._waiting)
            self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._waiting = []


def write_sure_rows(
    order: DirectOrder, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write what is sure; pass on the rest whole, and of the sure rows what Spark counts.

    A file is named in the first row that it holds. If the task fails later, so does its result.
    """
    columns = pa.schema([f for f in order.schema if f.name != KAFKA])
    reader, roller, fruitless = SureReader(columns), FileRoller(order), 0
    for received in batches:
        if pc.any(received[BIG]).as_py():
            message = "a record is too big for Arrow batches"
            raise ValueError(message)
        batch = received.drop_columns([BIG])
        if fruitless >= PATIENCE:
            yield from _pass_on(batch, pa.array([False] * batch.num_rows), (), order)
            continue
        sure = reader.read(batch["value"].cast(pa.binary()))
        fruitless = 0 if len(sure.places) else fruitless + 1
        path = None
        if len(sure.places):
            kafka = build_kafka(batch.take(sure.places), order.schema.field(KAFKA).type)
            arrays = [*sure.columns, kafka]
            path = roller.write(pa.RecordBatch.from_arrays(arrays, schema=order.schema))
        mask = pc.is_in(pa.array(range(batch.num_rows), pa.int64()), value_set=sure.places)
        yield from _pass_on(batch, mask, _name_columns(columns, sure), order, path)
    roller.close()


def build_kafka(records: pa.RecordBatch, kafka: pa.StructType) -> pa.StructArray:
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
        "schema_id": pa.nulls(records.num_rows, pa.int32()),
    }
    arrays = [given[f.name].cast(f.type) for f in kafka.fields]
    return pa.StructArray.from_arrays(arrays, fields=list(kafka.fields))


def _name_columns(columns: pa.Schema, sure: Sure) -> tuple[tuple[str, pa.Array], ...]:
    return tuple(zip(columns.names, sure.columns, strict=True))


def _pass_on(
    batch: pa.RecordBatch,
    sure: pa.BooleanArray,
    columns: tuple[tuple[str, pa.Array], ...],
    order: DirectOrder,
    path: str | None = None,
) -> Iterator[pa.RecordBatch]:
    """Put together what Spark sees: sure rows first, without value, then the rest."""
    known, rest = batch.filter(sure), batch.filter(pc.invert(sure))
    if known.num_rows:
        values = dict(columns)
        shown = {SHOWN + name: values[name] for name in order.shown}
        yield _lay_out(known, order, shown, path, is_sure=True)
    if rest.num_rows:
        yield _lay_out(rest, order, {}, None, is_sure=False)


def _lay_out(
    batch: pa.RecordBatch,
    order: DirectOrder,
    shown: dict[str, pa.Array],
    path: str | None,
    *,
    is_sure: bool,
) -> pa.RecordBatch:
    """Lay out the columns in the order of `direct_rows.output_ddl`."""
    count = batch.num_rows
    types = {SHOWN + f.name: f.type for f in order.schema}
    bare = ("value", "key", "headers") if is_sure else ()
    arrays = [
        pa.nulls(count, column.type) if name in bare else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    names = [SHOWN + name for name in order.shown]
    arrays += [shown.get(name, pa.nulls(count, types[name])) for name in names]
    marks = pa.array([is_sure]).take(pa.array([0] * count, pa.int8()))
    paths = pa.array([path] + [None] * (count - 1), pa.string())
    schema = pa.schema(
        [
            *[pa.field(n, a.type) for n, a in zip(batch.schema.names, batch.columns, strict=True)],
            *[pa.field(name, types[name]) for name in names],
            pa.field(SURE, pa.bool_()),
            pa.field(FILE, pa.string()),
        ]
    )
    return pa.RecordBatch.from_arrays([*arrays, marks, paths], schema=schema)
