"""Rows that Python workers write themselves: Arrow batches in, Parquet files out.

This runs in Spark's Python workers, sent there by value (see `direct_rows.py`).
"""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from frazil_spark.fast_path.json_reader import Sure
from frazil_spark.fast_path.parquet_files import DirectOrder, FileRoller, RowGroup
from frazil_spark.fast_path.partitions import Codes, Places
from frazil_spark.fast_path.preaggregation import name_sums, weigh
from frazil_spark.fast_path.readers import open_reader

KAFKA = "_kafka"
SURE = "_frazil_sure"
FILE = "_frazil_file"
SURE_ID = "_frazil_sure_id"
BIG = "_frazil_big"
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
"""For how many records a row of the frame stands: of rows that are counted alike one is enough."""
SHOWN = "_frazil_shown_"
_NO_TIME_US = -1000

SHOWN_PER_BATCH = 10_000

SHIFTS = (3, 7, 11)
"""Of an offset, to shake it: marks of transactions, or producers that take turns, have a rhythm."""

PATIENCE = 3
"""So many batches in a row that are mostly unsure, and the rest of the task is not looked at."""


def write_sure_rows(
    order: DirectOrder, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write what is sure; pass on the rest whole, and of the sure rows what Spark counts.

    Files are named in the first row that they hold. If the task fails later, so does its result.
    """
    roller = FileRoller(order, Places(order.partitions, order.most_partitions))
    try:
        yield from _write_sure_rows(order, roller, batches)
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
            yield _pass_on(batch, order)
            continue
        sure = reader.read(batch["value"].cast(pa.binary()))
        named = dict(zip(columns.names, sure.columns, strict=True))
        places = roller.places.find(named, len(sure.places))
        sure, places = _leave_to_spark(sure, places)
        fruitless = 0 if 2 * len(sure.places) > batch.num_rows else fruitless + 1
        if len(sure.places):
            known = _take(batch.drop_columns(["value"]), sure.places)
            kafka = build_kafka(known, order.schema.field(KAFKA).type, sure.schema_ids)
            rows = pa.RecordBatch.from_arrays([*sure.columns, kafka], schema=order.schema)
            records = _keep_records(batch, known, sure, order)
            for group in roller.write(rows, records, places):
                yield from _show(group, order)
        if len(sure.places) < batch.num_rows:
            yield _pass_on(_leave_out(batch, sure.places), order)
    for group in roller.close():
        yield from _show(group, order)


def build_kafka(
    records: pa.RecordBatch, kafka: pa.StructType, schema_ids: pa.Int32Array | None = None
) -> pa.StructArray:
    """Build `_kafka`; a record without a timestamp gets null, as in `kafka_source`."""
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
    """Read the records' timestamps, null where they have none."""
    timestamps = records["timestamp"].cast(pa.timestamp("us", "UTC"))
    has_time = pc.not_equal(timestamps.cast(pa.int64()), _NO_TIME_US)
    return pc.if_else(has_time, timestamps, None)


def find_sampled(offsets: NDArray[np.int64], step: int) -> NDArray[np.bool_]:
    """Find the records that are sampled, one of `step`, as `unnamed_fields` does in SQL."""
    mixed = offsets.copy()
    for bits in SHIFTS:
        mixed ^= offsets >> bits
    sampled: NDArray[np.bool_] = mixed % step == 0
    return sampled


def _take(records: pa.RecordBatch, places: pa.Int64Array) -> pa.RecordBatch:
    """Take records in their order; nothing is copied where it is all of them."""
    return records if len(places) == records.num_rows else records.take(places)


def _leave_to_spark(sure: Sure, places: Codes) -> tuple[Sure, Codes]:
    """Take rows for sure no longer whose partition is one too many."""
    kept = places >= 0
    if kept.all():
        return sure, places
    mask = pa.array(kept)
    columns = tuple(column.filter(mask) for column in sure.columns)
    ids = None if sure.schema_ids is None else sure.schema_ids.filter(mask)
    return Sure(sure.places.filter(mask), columns, ids), places[kept]


def _leave_out(batch: pa.RecordBatch, sure: pa.Int64Array) -> pa.RecordBatch:
    is_rest = np.ones(batch.num_rows, np.bool_)
    is_rest[sure.to_numpy()] = False
    return batch.filter(pa.array(is_rest))


def _keep_records(
    batch: pa.RecordBatch, known: pa.RecordBatch, sure: Sure, order: DirectOrder
) -> pa.RecordBatch:
    """Keep of the records of sure rows what Spark may ask for: hardly a value."""
    sampled = find_sampled(known["offset"].to_numpy(), order.step)
    # Taken, not masked: a mask leaves the bytes of all values in what is kept.
    values = batch["value"].take(pa.array(sure.places.to_numpy(), mask=~sampled))
    ids = sure.schema_ids
    kept = {name: known[name] for name in RECORD if name not in ("key", "value", "headers")}
    kept |= {"value": values, SURE_ID: pa.nulls(len(values), pa.int32()) if ids is None else ids}
    return pa.RecordBatch.from_pydict(kept)


def _show(group: RowGroup, order: DirectOrder) -> Iterator[pa.RecordBatch]:
    """Lay out what Spark sees of sure rows: one of those that are alike, and those it asks for."""
    records = group.records.combine_chunks().to_batches()[0]
    columns = {name: group.rows[name].combine_chunks() for name in order.shown}
    given = {name: records[name] for name in records.schema.names}
    given |= {SHOWN + name: column for name, column in columns.items()}
    weights = np.ones(records.num_rows, np.int64)
    if order.alike is not None:
        kinds = [records["topic"], records["partition"], records[SURE_ID]]
        weighed = weigh(order.alike, columns, read_timestamps(records), kinds)
        asked = weighed.marks | find_sampled(records["offset"].to_numpy(), order.step)
        rows = np.flatnonzero(asked | (weighed.weights > 0))
        given |= {name: pa.array(sums) for name, sums in weighed.sums.items()}
        given = {name: column.take(pa.array(rows)) for name, column in given.items()}
        weights = weighed.weights[rows]
    given[WEIGHT] = pa.array(weights)
    begun = "\n".join(group.begun) or None
    given[FILE] = pa.array([begun] + [None] * (len(weights) - 1), pa.string())
    shown = _lay_out(given, len(weights), order, is_sure=True)
    for begin in range(0, shown.num_rows, SHOWN_PER_BATCH):
        yield shown.slice(begin, SHOWN_PER_BATCH)


def _lay_out(
    given: Mapping[str, pa.Array], count: int, order: DirectOrder, *, is_sure: bool
) -> pa.RecordBatch:
    """Lay out the columns in the order of `direct_rows.write_directly`; those not given are null.

    A row weighs one unless its weight is given.
    """
    shown = {SHOWN + name: order.schema.field(name).type for name in order.shown}
    shown |= dict.fromkeys(list_sums(order), pa.float64())
    kinds = {**RECORD, **shown, SURE_ID: pa.int32(), SURE: pa.bool_(), FILE: pa.string()}
    columns = {WEIGHT: pa.repeat(pa.scalar(1, pa.int64()), count), **given}
    columns[SURE] = pa.repeat(pa.scalar(is_sure), count)
    nothing = {n: pa.nulls(count, kind) for n, kind in kinds.items() if n not in columns}
    columns |= nothing
    return pa.RecordBatch.from_pydict({name: columns[name] for name in [*kinds, WEIGHT]})


def list_sums(order: DirectOrder) -> list[str]:
    """List the names of the sums that rows bring along."""
    columns = order.alike.sums if order.alike else ()
    return [name for column in columns for name in name_sums(column)]


def _pass_on(batch: pa.RecordBatch, order: DirectOrder) -> pa.RecordBatch:
    """Lay out records that Spark decodes."""
    given = {name: batch[name] for name in RECORD}
    return _lay_out(given, batch.num_rows, order, is_sure=False)
