"""Values decoded by Spark and by Python workers, without a topic and a table."""

from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from support.lake import make_stream

from frazil.iceberg.table_schema import build_table_schema
from frazil.ingest.fast_path import is_exact_json_type, narrow_schema
from frazil.kafka.schema_registry import Registered, SchemaType
from frazil.schemas.fast_path_layouts import is_exact_type
from frazil.schemas.payloads import Payload, describe_schema
from frazil.schemas.wire_format import SchemaDecode, WireFormat
from frazil.streams.column_types import parse_column
from frazil_spark.decode.frame import DEFAULT_OPTIONS, GOOD, DecodeOptions
from frazil_spark.decode.values import decode
from frazil_spark.fast_path.readers import ValueSpec, open_reader
from frazil_spark.fast_path.writer import build_registered_spec

BY_ID = {"convert": "by_schema_id"}
Outcome = dict[str, object] | str
"""A row's values, or the reason of a dead letter."""


def decode_by_spark(
    spark: SparkSession,
    columns: Mapping[str, str],
    values: Sequence[bytes | None],
    convert: str = "json",
    options: DecodeOptions = DEFAULT_OPTIONS,
) -> list[Outcome]:
    """Decode values; give the row or the reason of each."""
    decoded = decode(make_records(spark, values), convert, dict(columns), options=options)
    good = decoded.frame.where(GOOD)
    rows = decoded.select_values(good).toArrow().to_pylist()
    found: dict[int, Outcome] = {
        row["_kafka"]["offset"]: {name: row[name] for name in columns} for row in rows
    }
    bad = decoded.frame.where(decoded.bad).select(
        F.col("_kafka.offset").alias("offset"), F.expr(decoded.reason).alias("reason")
    )
    for letter in bad.toArrow().to_pylist():
        assert letter["offset"] not in found
        found[letter["offset"]] = str(letter["reason"])
    return [found[offset] for offset in range(len(values))]


def use_schema(columns: Mapping[str, str], kind: SchemaType, text: str) -> DecodeOptions:
    """Decode payloads without a header by one registered schema."""
    value = {"convert": "by_latest_schema", "columns": dict(columns)}
    payload = Payload(make_stream(value=value), "value")
    described = describe_schema(payload, Registered(1, kind, text))
    form: Literal["avro", "protobuf"] = "avro" if kind == "AVRO" else "protobuf"
    return DecodeOptions(wire=WireFormat(format=form, has_schema_id=False, schemas=(described,)))


def use_framed_schema(
    columns: Mapping[str, str], schema: Registered, unknown: Sequence[int] = ()
) -> DecodeOptions:
    """Decode payloads behind the header of one schema; the registry lacks the `unknown` ids."""
    payload = Payload(make_stream(value={"columns": dict(columns)} | BY_ID), "value")
    described = describe_schema(payload, schema)
    form: Literal["avro", "protobuf"] = "avro" if schema.type == "AVRO" else "protobuf"
    absent = (SchemaDecode(schema_id=each, refusal=("unknown_schema_id", "")) for each in unknown)
    schemas = (described, *absent)
    return DecodeOptions(wire=WireFormat(format=form, has_schema_id=True, schemas=schemas))


def make_records(spark: SparkSession, values: Sequence[bytes | None]) -> DataFrame:
    """Lay values out as Spark's Kafka source does."""
    numbers = pa.array(range(len(values)), pa.int64())
    given = spark.createDataFrame(
        pa.table({"offset": numbers, "value": pa.array(values, pa.binary())})
    )
    return given.select(
        F.lit(None).cast("binary").alias("key"),
        "value",
        F.lit("t").alias("topic"),
        F.lit(0).alias("partition"),
        "offset",
        F.lit(None).cast("timestamp").alias("timestamp"),
        F.lit(0).alias("timestampType"),
        F.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
    )


def decode_by_workers(
    columns: Mapping[str, str],
    values: Sequence[bytes | None],
    options: DecodeOptions = DEFAULT_OPTIONS,
) -> dict[int, dict[str, object]]:
    """Decode on the fast path; give the rows without doubt by index, none of other types."""
    parsed = tuple(parse_column(*each) for each in columns.items())
    wire = options.wire
    fits = is_exact_json_type if wire is None else is_exact_type
    if not all(fits(column.type) for column in parsed):
        return {}
    schema = schema_to_pyarrow(build_table_schema(parsed), include_field_ids=True)
    own = pa.schema([field for field in narrow_schema(schema) if field.name != "_kafka"])
    spec = ValueSpec("json", fields=tuple((c.name, c.field) for c in parsed if c.source))
    if wire is not None:
        spec = build_registered_spec(wire)
    found = open_reader(spec, own).read(pa.array(values, pa.binary()))
    rows = pa.table(list(found.columns), names=own.names).to_pylist()
    return dict(zip(found.indexes.to_pylist(), rows, strict=True))
