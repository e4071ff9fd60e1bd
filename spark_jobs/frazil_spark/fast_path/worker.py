"""The function that Spark runs in Python workers: Arrow batches in, Parquet files out.

Its code travels to the workers by value (see `writer.py`).
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil_spark.fast_path.json_reader import FastPathRows
from frazil_spark.fast_path.parquet_files import FileRoller, FileSpec, RowGroup
from frazil_spark.fast_path.partitions import Codes, PartitionIds
from frazil_spark.fast_path.preaggregation import name_sums, preaggregate
from frazil_spark.fast_path.readers import open_reader
from frazil_spark.sampling import SHIFTS

KAFKA = "_kafka"
ON_FAST_PATH = "_frazil_on_fast_path"
FILE = "_frazil_file"
FAST_PATH_SCHEMA_ID = "_frazil_fast_path_schema_id"
TOO_BIG = "_frazil_too_big"
RECORD: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestampType": pa.int32(),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
WEIGHT = "_frazil_weight"
"""How many records a row of the frame stands for: Spark gets one row for each group."""
COUNTED = "_frazil_counted_"
_NO_TIME_US = -1000
_FIRST_US, _END_US = -12_219_292_800_000_000, 253_402_300_800_000_000
"""From 1582-10-15 to 9999, as in `frazil.ledger.coordinates`."""

ROWS_PER_BATCH = 10_000

MAX_POOR_BATCHES = 3
"""After this many consecutive batches with mostly fallback rows, the task stops trying."""


def write_fast_path_rows(
    spec: FileSpec, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write fast-path rows into files; yield fallback records whole, and what Spark has to count.

    The first row of a row group names the files that it began. Files of a failed task are deleted.
    """
    roller = FileRoller(spec, PartitionIds(spec.partitions, spec.max_partitions))
    try:
        yield from _write_batches(spec, roller, batches)
    except BaseException:
        roller.discard()
        raise


def _write_batches(
    spec: FileSpec, roller: FileRoller, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    columns = pa.schema([f for f in spec.schema if f.name != KAFKA])
    reader, poor_batches = open_reader(spec.values, columns), 0
    for received in batches:
        if pc.any(received[TOO_BIG]).as_py():
            message = "a record is too big for Arrow batches"
            raise ValueError(message)
        batch = received.drop_columns([TOO_BIG])
        if poor_batches >= MAX_POOR_BATCHES:
            yield _lay_out_fallback(batch, spec)
            continue
        found = reader.read(batch["value"].cast(pa.binary()))
        named = dict(zip(columns.names, found.columns, strict=True))
        partition_ids = roller.partitions.assign(named, len(found.indexes))
        if spec.operation:
            partition_ids[~_has_operation(named[spec.operation], spec.operations)] = -1
        for name, lowest in spec.lowest:
            partition_ids[_is_below(named[name], lowest)] = -1
        found, partition_ids = _drop_rows_without_partition(found, partition_ids)
        poor_batches = 0 if 2 * len(found.indexes) > batch.num_rows else poor_batches + 1
        if len(found.indexes):
            known = _take(batch.drop_columns(["value"]), found.indexes)
            kafka = build_kafka(known, spec.schema.field(KAFKA).type, found.schema_ids)
            rows = pa.RecordBatch.from_arrays([*found.columns, kafka], schema=spec.schema)
            records = _select_record_fields(batch, known, found, spec)
            for group in roller.write(rows, records, partition_ids):
                yield from _lay_out_counted(group, spec)
        if len(found.indexes) < batch.num_rows:
            yield _lay_out_fallback(_select_fallback(batch, found.indexes), spec)
    for group in roller.close():
        yield from _lay_out_counted(group, spec)


def build_kafka(
    records: pa.RecordBatch, kafka: pa.StructType, schema_ids: pa.Int32Array | None = None
) -> pa.StructArray:
    """Build the column `_kafka`; a record without a timestamp gets null, as in `decode.sources`."""
    given = {
        "topic": records["topic"],
        "partition": records["partition"],
        "offset": records["offset"],
        "timestamp": read_timestamps(records),
        "timestamp_type": records["timestampType"],
        "key": records["key"],
        "headers": records["headers"],
        "schema_id": pa.nulls(records.num_rows, pa.int32()) if schema_ids is None else schema_ids,
    }
    arrays = [given[f.name].cast(f.type) for f in kafka.fields]
    return pa.StructArray.from_arrays(arrays, fields=list(kafka.fields))


def read_timestamps(records: pa.RecordBatch) -> pa.TimestampArray:
    """Return the records' timestamps, null where they have none, as in `decode.sources`."""
    timestamps = records["timestamp"].cast(pa.timestamp("us", "UTC"))
    numbers = timestamps.cast(pa.int64())
    is_kept = pc.and_(pc.greater_equal(numbers, _FIRST_US), pc.less(numbers, _END_US))
    return pc.if_else(pc.and_(is_kept, pc.not_equal(numbers, _NO_TIME_US)), timestamps, None)


def find_sampled(offsets: NDArray[np.int64], step: int) -> NDArray[np.bool_]:
    """Mark sampled records, one of `step`, as `sampling.write_sampled` does in SQL."""
    mixed = offsets.copy()
    for bits in SHIFTS:
        mixed ^= offsets >> bits
    sampled: NDArray[np.bool_] = mixed % step == 0
    return sampled


def _take(records: pa.RecordBatch, indexes: pa.Int64Array) -> pa.RecordBatch:
    """Return the records at these indexes; nothing is copied if it is all of them."""
    return records if len(indexes) == records.num_rows else records.take(indexes)


def _has_operation(values: pa.Array, operations: tuple[str, ...]) -> NDArray[np.bool_]:
    """Mark the values that are an operation of a change; Spark decides on those beyond ASCII."""
    found = pc.is_in(pc.ascii_lower(values), pa.array(operations))
    marks: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return marks


def _is_below(values: pa.Array, lowest: int) -> NDArray[np.bool_]:
    """Mark the numbers below a limit."""
    found = pc.coalesce(pc.less(values, pa.scalar(lowest, values.type)), pa.scalar(value=False))
    marks: NDArray[np.bool_] = found.to_numpy(zero_copy_only=False)
    return marks


def _drop_rows_without_partition(
    found: FastPathRows, partition_ids: Codes
) -> tuple[FastPathRows, Codes]:
    """Leave rows to Spark that have no operation, no partition, or one beyond the limit (-1)."""
    kept = partition_ids >= 0
    if kept.all():
        return found, partition_ids
    mask = pa.array(kept)
    columns = tuple(column.filter(mask) for column in found.columns)
    ids = None if found.schema_ids is None else found.schema_ids.filter(mask)
    return FastPathRows(found.indexes.filter(mask), columns, ids), partition_ids[kept]


def _select_fallback(batch: pa.RecordBatch, written: pa.Int64Array) -> pa.RecordBatch:
    is_fallback = np.ones(batch.num_rows, np.bool_)
    is_fallback[written.to_numpy()] = False
    return batch.filter(pa.array(is_fallback))


def _select_record_fields(
    batch: pa.RecordBatch, known: pa.RecordBatch, found: FastPathRows, spec: FileSpec
) -> pa.RecordBatch:
    """Select what Spark counts of the records themselves; values only of sampled records."""
    sampled = find_sampled(known["offset"].to_numpy(), spec.sample_step)
    # `take` with a mask of indexes: a mask over values would keep the bytes of all of them.
    values = batch["value"].take(pa.array(found.indexes.to_numpy(), mask=~sampled))
    ids = found.schema_ids
    kept = {name: known[name] for name in RECORD if name not in ("key", "value", "headers")}
    kept |= {
        "value": values,
        FAST_PATH_SCHEMA_ID: pa.nulls(len(values), pa.int32()) if ids is None else ids,
    }
    return pa.RecordBatch.from_pydict(kept)


def _lay_out_counted(group: RowGroup, spec: FileSpec) -> Iterator[pa.RecordBatch]:
    """Lay out the written rows that Spark counts: one of each group, extremes and sampled rows."""
    records = group.records.combine_chunks().to_batches()[0]
    columns = {name: group.rows[name].combine_chunks() for name in spec.counted_columns}
    given = {name: records[name] for name in records.schema.names}
    given |= {COUNTED + name: column for name, column in columns.items()}
    weights = np.ones(records.num_rows, np.int64)
    if spec.preaggregation is not None:
        group_by = [records["topic"], records["partition"], records[FAST_PATH_SCHEMA_ID]]
        groups = preaggregate(spec.preaggregation, columns, read_timestamps(records), group_by)
        sampled = find_sampled(records["offset"].to_numpy(), spec.sample_step)
        rows = np.flatnonzero(groups.is_extreme | sampled | (groups.weights > 0))
        given |= {name: pa.array(sums) for name, sums in groups.sums.items()}
        given = {name: column.take(pa.array(rows)) for name, column in given.items()}
        weights = groups.weights[rows]
    given[WEIGHT] = pa.array(weights)
    begun = "\n".join(group.begun) or None
    given[FILE] = pa.array([begun] + [None] * (len(weights) - 1), pa.string())
    counted = _lay_out(given, len(weights), spec, on_fast_path=True)
    for begin in range(0, counted.num_rows, ROWS_PER_BATCH):
        yield counted.slice(begin, ROWS_PER_BATCH)


def _lay_out(
    given: Mapping[str, pa.Array], count: int, spec: FileSpec, *, on_fast_path: bool
) -> pa.RecordBatch:
    """Lay out the columns in the order of `writer.write_fast_path`; those not given are null.

    The weight of a row is 1 unless it is given.
    """
    counted = {COUNTED + name: spec.schema.field(name).type for name in spec.counted_columns}
    counted |= dict.fromkeys(list_sums(spec), pa.float64())
    kinds = {
        **RECORD,
        **counted,
        FAST_PATH_SCHEMA_ID: pa.int32(),
        ON_FAST_PATH: pa.bool_(),
        FILE: pa.string(),
    }
    columns = {WEIGHT: pa.repeat(pa.scalar(1, pa.int64()), count), **given}
    columns[ON_FAST_PATH] = pa.repeat(pa.scalar(on_fast_path), count)
    nothing = {n: pa.nulls(count, kind) for n, kind in kinds.items() if n not in columns}
    columns |= nothing
    return pa.RecordBatch.from_pydict({name: columns[name] for name in [*kinds, WEIGHT]})


def list_sums(spec: FileSpec) -> list[str]:
    """List the names of the columns that hold the sums of a group."""
    columns = spec.preaggregation.sums if spec.preaggregation else ()
    return [name for column in columns for name in name_sums(column)]


def _lay_out_fallback(batch: pa.RecordBatch, spec: FileSpec) -> pa.RecordBatch:
    """Lay out records that Spark decodes and writes."""
    given = {name: batch[name] for name in RECORD}
    return _lay_out(given, batch.num_rows, spec, on_fast_path=False)
