"""The direct way beside Spark's own decode: Python workers write the rows that are sure.

Records pass through a Python worker before the decode. What is a row beyond doubt the worker
writes into a Parquet file, and passes on without its value; all others go on as they came, are
decoded by Spark and judged as ever. One pass, one plan, and the counters see every record.
"""

import base64
from dataclasses import replace
from functools import partial

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.ingest.messages import StageRequest
from frazil.schemas.column_decoding import RECORD, convert_sql, converted_name, decoded_ddl
from frazil.schemas.wire_format import SchemaDecode
from frazil.streams.column_types import Column, parse_column, to_spark_ddl
from frazil_spark.decode.frame import GOOD, INVALID, Decoded
from frazil_spark.decode.wire_format import write_header
from frazil_spark.fast_path import (
    avro_reader,
    cursors,
    json_reader,
    parquet_files,
    partitions,
    preaggregation,
    protobuf_reader,
    readers,
    worker,
)
from frazil_spark.fast_path.parquet_files import DirectOrder
from frazil_spark.fast_path.preaggregation import MAGNITUDE, TOTAL, AlikeOrder
from frazil_spark.fast_path.readers import SchemaOrder, ValueOrder
from frazil_spark.fast_path.worker import (
    BIG,
    FILE,
    SHOWN,
    SURE,
    SURE_ID,
    WEIGHT,
    list_sums,
    write_sure_rows,
)

_RECORD_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


CARRIED = (SURE, SURE_ID, FILE, WEIGHT)


_PREFIXES = (SHOWN, TOTAL, MAGNITUDE)


RECORDS_PER_BATCH = 2500


_MAX_BYTES = 50_000


_BATCH_CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(RECORDS_PER_BATCH),
    # With a limit in bytes Spark measures the whole batch again for every record, which costs as
    # much as everything else if there is a list among the columns. The sizes are limited here.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


# Workers need not have this package: its code travels with the task.
for _module in (
    preaggregation,
    avro_reader,
    partitions,
    cursors,
    worker,
    protobuf_reader,
    partitions,
    parquet_files,
    json_reader,
    readers,
):
    cloudpickle.register_pickle_by_value(_module)  # type: ignore[no-untyped-call]


def ends_workers(spark: SparkSession) -> bool:
    """Say whether Python workers end by themselves.

    Spark Connect starts a daemon of workers for each session, and it outlives the session, unless
    it is ours or none.
    """
    if spark.conf.get("spark.python.use.daemon", "true") == "false":
        return True
    return spark.conf.get("spark.python.daemon.module", "") == "frazil_spark.worker_daemon"


def write_directly(records: DataFrame, request: StageRequest) -> DataFrame:
    """Let Python workers write the sure rows; give all records, with marks on those."""
    direct = request.direct
    if direct is None:
        return records
    order = DirectOrder(
        values=order_values(request),
        schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(direct.schema_ipc))),
        folder=direct.folder,
        prefix=request.batch_id,
        target_bytes=direct.target_bytes,
        parquet=dict(direct.parquet),
        shown=direct.shown,
        step=choose_step(request),
        alike=order_alike(request),
        partitions=tuple((by.column, by.transform) for by in direct.partitions),
        most_partitions=direct.most_partitions,
    )
    shown = "".join(
        f", `{SHOWN}{column.name}` {to_spark_ddl(column.type)}"
        for column in (parse_column(*pair) for pair in request.columns.items())
        if column.name in order.shown
    )
    shown += "".join(f", `{name}` DOUBLE" for name in list_sums(order))
    ddl = f"{_RECORD_DDL}{shown}, {SURE_ID} INT, {SURE} BOOLEAN, {FILE} STRING, {WEIGHT} BIGINT"
    for key, value in _BATCH_CONF.items():
        records.sparkSession.conf.set(key, value)
    return _bound_sizes(records).mapInArrow(partial(write_sure_rows, order), ddl)


def order_alike(request: StageRequest) -> AlikeOrder | None:
    """Write down by what workers tell rows apart; None if Spark must see every row."""
    landmarks = request.direct.landmarks if request.direct else None
    if landmarks is None:
        return None
    late_ms = request.late_before_ms
    return AlikeOrder(
        values=dict(landmarks.values),
        lengths=dict(landmarks.lengths),
        patterns=dict(landmarks.patterns),
        extremes=landmarks.extremes,
        sums=landmarks.sums,
        timestamps=() if late_ms is None else (late_ms * 1000,),
    )


def order_values(request: StageRequest) -> ValueOrder:
    """Write down how workers read the values: as they are, as JSON, or by a registry's schemas."""
    wire = request.wire
    if wire is None:
        return ValueOrder("json" if request.convert == "json" else "whole")
    schemas = [
        SchemaOrder(
            schema_id=schema.schema_id,
            headers=_write_headers(schema) if wire.has_schema_id else (b"",),
            layout=schema.layout,
        )
        for schema in wire.schemas
        if schema.refusal is None and (schema.layout or wire.format == "json_schema")
    ]
    return ValueOrder(wire.format, tuple(schemas))


def _write_headers(schema: SchemaDecode) -> tuple[bytes, ...]:
    """Write what may stand in front of a schema's payloads."""
    header = bytes.fromhex(write_header(schema.schema_id))
    return tuple(header + bytes.fromhex(each) for each in schema.headers) or (header,)


def _bound_sizes(records: DataFrame) -> DataFrame:
    """Keep big records out of Arrow batches, and mark them: the worker gives up on the first."""
    headers = (
        "aggregate(headers, 0, (sum, h) -> sum + length(h.key) + coalesce(length(h.value), 0))"
    )
    big = (
        f"coalesce(length(value), 0) > {_MAX_BYTES} OR coalesce(length(key), 0) > {_MAX_BYTES} "
        f"OR coalesce(size(headers) > 0 AND {headers} > {_MAX_BYTES}, false)"
    )
    marked = records.withColumn(BIG, F.expr(big))
    bounded = {
        name: F.expr(f"CASE WHEN NOT {BIG} THEN {name} END") for name in ("key", "value", "headers")
    }
    names = [word.partition(" ")[0] for word in _RECORD_DDL.split(", ")]
    plain = [name for name in records.columns if name in names]
    return marked.withColumns(bounded).select(*plain, BIG)


def carried_columns(records: DataFrame) -> list[str]:
    """Name the marks that the decode must keep."""
    return [name for name in records.columns if name in CARRIED or name.startswith(_PREFIXES)]


def include_sure(decoded: Decoded, request: StageRequest) -> Decoded:
    """Let the counters see the sure rows as if Spark had decoded them."""
    direct = request.direct
    if direct is None:
        return decoded
    is_json = request.wire is None or request.wire.format == "json_schema"
    inside = [c for c in decoded.columns if is_json or not _is_converted(c)]
    record = ", ".join(f"'{c.name}', {_shown_field(c, direct.shown)}" for c in inside)
    columns = {GOOD: F.expr(f"{SURE} OR {GOOD}")}
    if inside:
        of_sure = f"named_struct({record})"
        columns[RECORD] = F.expr(f"CASE WHEN {SURE} THEN {of_sure} ELSE {RECORD} END")
    if decoded.invalid == INVALID:
        columns[INVALID] = F.expr(f"NOT {SURE} AND {INVALID}")
    for wire in decoded.wires:
        columns[wire.id_column] = F.expr(f"coalesce({SURE_ID}, {wire.id_column})")
    for column in decoded.columns:
        if _is_converted(column) and column.name in direct.shown:
            name = converted_name(column.name)
            value = f"`{SHOWN}{column.name}`"
            columns[name] = F.expr(f"CASE WHEN {SURE} THEN {value} ELSE `{name}` END")
    frame = decoded.frame.withColumns(columns)
    return replace(decoded, frame=frame, unwritten=f"{GOOD} AND NOT {SURE}")


def _is_converted(column: Column) -> bool:
    """Say whether a column's value stands beside the record."""
    return convert_sql(column.type, "x") is not None


def _shown_field(column: Column, shown: tuple[str, ...]) -> str:
    is_kept = column.name in shown and not _is_converted(column)
    return f"`{SHOWN}{column.name}`" if is_kept else f"CAST(NULL AS {decoded_ddl(column.type)})"


def choose_step(request: StageRequest) -> int:
    """Choose every how many offsets a record is sampled."""
    pairs = (pair for parts in request.ranges.values() for pair in parts.values())
    return max(1, sum(end - start for start, end in pairs) // SAMPLED_RECORDS)


SAMPLED_RECORDS = 1000
