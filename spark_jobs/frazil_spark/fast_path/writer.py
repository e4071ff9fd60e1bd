"""The fast path beside Spark's own decode: Python workers write most rows of a batch.

Records pass through a Python worker before the decode. Rows that the worker decodes exactly as
Spark would, it writes into a Parquet file and returns without their values. All others it returns
unchanged, and Spark decodes, judges and writes them. It is one pass; counters see every record.
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
from frazil.schemas.wire_format import SchemaDecode, WireFormat
from frazil.streams.change_events import DELETE_OPERATIONS, UPSERT_OPERATIONS
from frazil.streams.column_types import Column, Primitive, parse_column, to_spark_ddl
from frazil_spark import sampling
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
from frazil_spark.fast_path.parquet_files import FileSpec
from frazil_spark.fast_path.preaggregation import MAGNITUDE, TOTAL, PreaggregationSpec
from frazil_spark.fast_path.readers import SchemaSpec, ValueSpec
from frazil_spark.fast_path.worker import (
    COUNTED,
    FAST_PATH_SCHEMA_ID,
    FILE,
    ON_FAST_PATH,
    TOO_BIG,
    WEIGHT,
    list_sums,
    write_fast_path_rows,
)
from frazil_spark.sampling import choose_sample_step

_RECORD_DDL = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
CARRIED = (ON_FAST_PATH, FAST_PATH_SCHEMA_ID, FILE, WEIGHT)
_PREFIXES = (COUNTED, TOTAL, MAGNITUDE)
RECORDS_PER_BATCH = 2500
_MAX_BYTES = 50_000
_BATCH_CONF = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": str(RECORDS_PER_BATCH),
    # With a limit in bytes Spark measures the whole batch again for every record, which costs as
    # much as everything else if there is a list among the columns. The sizes are limited here.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
}


# Workers do not need this package: its code travels with the task.
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
    sampling,
):
    cloudpickle.register_pickle_by_value(_module)  # type: ignore[no-untyped-call]


def knows_limits(request: StageRequest) -> bool:
    """Return whether workers see each value that may be too low: whole numbers at the top."""
    columns = {name: parse_column(name, text).type for name, text in request.columns.items()}
    whole = {Primitive("int"), Primitive("long")}
    return all(columns.get(name) in whole for name in request.limits.lowest)


def ends_workers(spark: SparkSession) -> bool:
    """Check that Python workers end with their session, or soon after.

    Spark Connect starts a daemon of workers for each session, and PySpark's own daemon outlives it.
    """
    if spark.conf.get("spark.python.use.daemon", "true") == "false":
        return True
    return spark.conf.get("spark.python.daemon.module", "") == "frazil_spark.worker_daemon"


def write_fast_path(records: DataFrame, request: StageRequest) -> DataFrame:
    """Have Python workers write fast-path rows; return all records, those rows marked."""
    fast_path = request.fast_path
    if fast_path is None:
        return records
    spec = FileSpec(
        values=build_value_spec(request),
        schema=pa.ipc.read_schema(pa.py_buffer(base64.b64decode(fast_path.schema_ipc))),
        folder=fast_path.folder,
        prefix=request.batch_id,
        target_bytes=fast_path.target_bytes,
        parquet=dict(fast_path.parquet),
        counted_columns=fast_path.counted_columns,
        sample_step=choose_sample_step(request.ranges),
        preaggregation=build_preaggregation_spec(request),
        partitions=tuple((by.column, by.transform) for by in fast_path.partitions),
        max_partitions=fast_path.max_partitions,
        operation=request.limits.operation or "",
        operations=(*UPSERT_OPERATIONS, *DELETE_OPERATIONS),
        lowest=tuple((name, int(lowest)) for name, lowest in request.limits.lowest.items()),
    )
    counted = "".join(
        f", `{COUNTED}{column.name}` {to_spark_ddl(column.type)}"
        for column in (parse_column(*pair) for pair in request.columns.items())
        if column.name in spec.counted_columns
    )
    counted += "".join(f", `{name}` DOUBLE" for name in list_sums(spec))
    marks = f"{FAST_PATH_SCHEMA_ID} INT, {ON_FAST_PATH} BOOLEAN, {FILE} STRING, {WEIGHT} BIGINT"
    ddl = f"{_RECORD_DDL}{counted}, {marks}"
    for key, value in _BATCH_CONF.items():
        records.sparkSession.conf.set(key, value)
    return _bound_sizes(records).mapInArrow(partial(write_fast_path_rows, spec), ddl)


def build_preaggregation_spec(request: StageRequest) -> PreaggregationSpec | None:
    """Describe how workers group rows; None if Spark must count every row."""
    cut_points = request.fast_path.cut_points if request.fast_path else None
    if cut_points is None:
        return None
    late_ms = request.late_before_ms
    return PreaggregationSpec(
        values=dict(cut_points.values),
        lengths=dict(cut_points.lengths),
        patterns=dict(cut_points.patterns),
        extremes=cut_points.extremes,
        sums=cut_points.sums,
        timestamps=() if late_ms is None else (late_ms * 1000,),
    )


def build_value_spec(request: StageRequest) -> ValueSpec:
    """Describe how workers read values: whole, as JSON, or by registered schemas."""
    wire = request.wire
    columns = (parse_column(*pair) for pair in request.columns.items())
    fields = tuple((column.name, column.source) for column in columns if column.source)
    if wire is None:
        return ValueSpec("json" if request.convert == "json" else "whole", fields=fields)
    return build_registered_spec(wire, fields)


def build_registered_spec(wire: WireFormat, fields: tuple[tuple[str, str], ...] = ()) -> ValueSpec:
    """Describe how workers read payloads of registered schemas."""
    schemas = [
        SchemaSpec(
            schema_id=schema.schema_id,
            headers=_write_headers(schema) if wire.has_schema_id else (b"",),
            layout=schema.layout,
        )
        for schema in wire.schemas
        if schema.refusal is None and (schema.layout or wire.format == "json_schema")
    ]
    return ValueSpec(wire.format, tuple(schemas), fields)


def _write_headers(schema: SchemaDecode) -> tuple[bytes, ...]:
    """Return the headers that a schema's payloads can have."""
    header = bytes.fromhex(write_header(schema.schema_id))
    return tuple(header + bytes.fromhex(each) for each in schema.headers) or (header,)


def _bound_sizes(records: DataFrame) -> DataFrame:
    """Empty records that are too big for Arrow batches, and mark them: the worker then stops."""
    headers = (
        "aggregate(headers, 0, (sum, h) -> sum + length(h.key) + coalesce(length(h.value), 0))"
    )
    big = (
        f"coalesce(length(value), 0) > {_MAX_BYTES} OR coalesce(length(key), 0) > {_MAX_BYTES} "
        f"OR coalesce(size(headers) > 0 AND {headers} > {_MAX_BYTES}, false)"
    )
    marked = records.withColumn(TOO_BIG, F.expr(big))
    bounded = {
        name: F.expr(f"CASE WHEN NOT {TOO_BIG} THEN {name} END")
        for name in ("key", "value", "headers")
    }
    names = [word.partition(" ")[0] for word in _RECORD_DDL.split(", ")]
    plain = [name for name in records.columns if name in names]
    return marked.withColumns(bounded).select(*plain, TOO_BIG)


def carried_columns(records: DataFrame) -> list[str]:
    """List the columns of the fast path that the decode must keep."""
    return [name for name in records.columns if name in CARRIED or name.startswith(_PREFIXES)]


def include_fast_path_rows(decoded: Decoded, request: StageRequest) -> Decoded:
    """Return the frame in which counters read fast-path rows like rows that Spark decoded."""
    fast_path = request.fast_path
    if fast_path is None:
        return decoded
    is_json = request.wire is None or request.wire.format == "json_schema"
    inside = [c for c in decoded.columns if is_json or not _is_converted(c)]
    record = ", ".join(
        f"'{c.name}', {_counted_field(c, fast_path.counted_columns)}" for c in inside
    )
    columns = {GOOD: F.expr(f"{ON_FAST_PATH} OR {GOOD}")}
    if inside:
        written = f"named_struct({record})"
        columns[RECORD] = F.expr(f"CASE WHEN {ON_FAST_PATH} THEN {written} ELSE {RECORD} END")
    if decoded.invalid == INVALID:
        columns[INVALID] = F.expr(f"NOT {ON_FAST_PATH} AND {INVALID}")
    for wire in decoded.wires:
        columns[wire.id_column] = F.expr(f"coalesce({FAST_PATH_SCHEMA_ID}, {wire.id_column})")
    for column in decoded.columns:
        if _is_converted(column) and column.name in fast_path.counted_columns:
            name = converted_name(column.name)
            value = f"`{COUNTED}{column.name}`"
            columns[name] = F.expr(f"CASE WHEN {ON_FAST_PATH} THEN {value} ELSE `{name}` END")
    frame = decoded.frame.withColumns(columns)
    return replace(decoded, frame=frame, unwritten=f"{GOOD} AND NOT {ON_FAST_PATH}")


def _is_converted(column: Column) -> bool:
    """Return whether a column's value is held in a column of its own beside the record."""
    return convert_sql(column.type, "x") is not None


def _counted_field(column: Column, counted: tuple[str, ...]) -> str:
    is_kept = column.name in counted and not _is_converted(column)
    return f"`{COUNTED}{column.name}`" if is_kept else f"CAST(NULL AS {decoded_ddl(column.type)})"
