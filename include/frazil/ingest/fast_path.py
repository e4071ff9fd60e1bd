"""How Spark evaluates a batch: on the fast path, where its Python workers write the rows, or not.

The fast path needs a large batch, values that workers read exactly as Spark does, and partitions
that they can compute. Small batches run without Spark's code generation.
"""

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from pyarrow.parquet import FileMetaData
from pyiceberg.io.fileformat import DataFileStatistics
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.properties import property_as_int

from frazil.environment import read_limit
from frazil.iceberg.catalog import HOT_DICTIONARY, NewTable
from frazil.iceberg.manifests import wrap_truncated
from frazil.iceberg.table_schema import (
    build_partition_spec,
    build_sort_order,
    build_table_schema,
    list_required_properties,
)
from frazil.ingest.messages import BatchPlan, FastPathSpec, PartitionBy
from frazil.ledger import keys
from frazil.quality.preaggregation import find_cut_points
from frazil.quality.suite_files import load_suite
from frazil.schemas.column_decoding import value_path
from frazil.schemas.fast_path_layouts import is_exact_type
from frazil.schemas.review import file_properties
from frazil.schemas.wire_format import WireFormat
from frazil.streams.column_types import ColumnType, ListType, Primitive, StructType
from frazil.streams.models import Stream

MIN_RECORDS_VARIABLE = "FRAZIL_DIRECT_MIN_RECORDS"
MIN_RECORDS = 500_000
"""In smaller batches a worker's start costs more than it saves."""
MOST_FILES = 100
"""The most files of the smallest batch on the fast path; compaction merges them."""
_TEMPORAL = frozenset({"date", "timestamp", "timestamptz"})
_PLAIN = frozenset({"string", "long", "int", "double", "boolean"})
_MAX_PRECISION = 18
_PLAIN_FOLDER = re.compile(r"file://[\w./+=-]+", re.ASCII)
"""Paths that every library reads the same way, without quoting."""
_PARQUET_PROPERTIES = frozenset(
    {
        TableProperties.PARQUET_COMPRESSION,
        TableProperties.PARQUET_COMPRESSION_LEVEL,
        TableProperties.PARQUET_DICT_SIZE_BYTES,
        TableProperties.PARQUET_PAGE_SIZE_BYTES,
    }
)
_UNKNOWN_PROPERTIES = (
    "encryption.",
    "write.parquet.",
    "write.location-provider.",
    "write.py-location-provider.",
)
_OBJECT_STORAGE = "write.object-storage."
_ZSTD_LEVEL = 3
"""The level of Iceberg's Java writer; PyArrow's default is 1."""
MAX_PARTITIONS = 64
"""The most partitions that a task opens files for; beyond that Spark's shuffle is better."""
PARTITION_KEY = b"frazil.partition"
"""The key in a data file's footer of its partition values, a JSON list."""
_TIMES = (DateType, TimestampType, TimestamptzType)
_EXACT_TYPES = (IntegerType, LongType, StringType)
_TYPES: dict[str, tuple[type[IcebergType], ...]] = {
    "identity": (BooleanType, DateType, *_EXACT_TYPES),
    "bucket": (*_TIMES, *_EXACT_TYPES),
    "truncate": _EXACT_TYPES,
    **dict.fromkeys(("year", "month", "day", "hour"), _TIMES),
}
DISTRIBUTION_MODE = "write.distribution-mode"
INTERPRET_VARIABLE = "FRAZIL_INTERPRET_MAX_RECORDS"
INTERPRET_MAX_RECORDS = 5_000
"""In larger batches generated code saves more than it costs to generate, if it is compiled once."""
_INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def plan_fast_path(
    table: Table,
    stream: Stream,
    plan: BatchPlan,
    metrics: Mapping[str, str],
    wire: WireFormat | None = None,
    suite_file: Path | None = None,
) -> FastPathSpec | None:
    """Return how Python workers write this batch's rows; None if Spark has to write them.

    `wire` holds the registered schemas of the values, if they have any; the metrics are those of
    `suite_file`.
    """
    columns = stream.parsed_columns
    metadata = table.metadata
    is_planned = (plan.schema_id, plan.spec_id) == (
        metadata.current_schema_id,
        metadata.default_spec_id,
    )
    if not is_planned or not is_worthwhile(plan) or not fits_fast_path(table, stream, wire):
        return None
    partitions = list_partitions(table.schema(), table.spec()) or ()
    most = count_partitions(plan, read_limit(MIN_RECORDS_VARIABLE, MIN_RECORDS) // MOST_FILES)
    if has_more_buckets(partitions, most):
        return None
    properties = table.properties
    suite = None if suite_file is None else load_suite(suite_file)
    schema = _choose_schema(table, stream)
    return FastPathSpec(
        folder=data_folder(table),
        schema_ipc=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        target_bytes=choose_target_bytes(properties),
        parquet=choose_parquet_options(properties),
        counted_columns=tuple(
            c.name for c in columns if any(value_path(c) in m for m in metrics.values())
        ),
        cut_points=find_cut_points(suite, stream.typed_columns),
        partitions=partitions,
        max_partitions=most,
    )


def _choose_schema(table: Table, stream: Stream) -> pa.Schema:
    """Return the schema of the files; the stream may require what the table has as nullable."""
    schema = narrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=True))
    required = {column.name for column in stream.parsed_columns if column.required}
    return pa.schema([f.with_nullable(f.nullable and f.name not in required) for f in schema])


def choose_target_bytes(properties: dict[str, str]) -> int:
    """Return the size in bytes at which a writer starts the next file."""
    default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    found = property_as_int(properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default)
    return found or default


def is_worthwhile(plan: BatchPlan) -> bool:
    """Return whether the batch has enough records for the fast path.

    Raises:
        ConfigurationError: the environment variable is not a number.
    """
    return count_planned(plan) >= read_limit(MIN_RECORDS_VARIABLE, MIN_RECORDS)


def data_folder(table: Table) -> str:
    """Return the URI of the folder of the table's data files.

    Workers write every file directly into it, so that no path names a partition value.
    """
    flat = {k: v for k, v in table.properties.items() if not k.startswith(_OBJECT_STORAGE)}
    provider = load_location_provider(table.location(), flat)
    folder = os.path.dirname(provider.new_data_location("x.parquet"))  # noqa: PTH120 - an address
    return folder if urlparse(folder).scheme else f"file://{folder}"


def fits_fast_path(table: Table, stream: Stream, wire: WireFormat | None = None) -> bool:
    """Return whether workers can write the stream's values in the table's layout."""
    columns = stream.parsed_columns
    return (
        _fits_values(stream, wire)
        and stream.key.convert is None
        and stream.route is None
        and list_partitions(table.schema(), table.spec()) is not None
        and table.sort_order().is_unsorted
        and [f.name for f in table.schema().fields]
        == [*[c.name for c in columns], keys.KAFKA_COLUMN]
        and _PLAIN_FOLDER.fullmatch(data_folder(table)) is not None
        and table.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet") == "parquet"
        and not any(map(_needs_spark, table.properties))
    )


def _fits_values(stream: Stream, wire: WireFormat | None) -> bool:
    """Return whether workers can decode the stream's values into its columns."""
    types = [column.type for column in stream.parsed_columns]
    if stream.value.convert in {"raw", "string"}:
        return True
    if not stream.value.is_flat or stream.value.change_events or stream.value.rest:
        return False
    if wire is None or wire.format == "json_schema":
        return all(map(is_exact_json_type, types))
    return all(map(is_exact_type, types)) and any(schema.layout for schema in wire.schemas)


def is_exact_json_type(column_type: ColumnType, depth: int = 0) -> bool:
    """Return whether a type has one exact JSON form.

    Below the top no field may be required or have another name in the record.
    """
    match column_type:
        case Primitive("decimal", (precision, _)):
            return precision <= _MAX_PRECISION
        case Primitive(name, _):
            return name in _PLAIN or (name in _TEMPORAL and depth == 0)
        case ListType(element, required):
            return not required and is_exact_json_type(element, depth + 1)
        case StructType(fields):
            return all(
                not f.required and not f.source and is_exact_json_type(f.type, depth + 1)
                for f in fields
            )
    return False


def choose_parquet_options(properties: Mapping[str, str]) -> dict[str, str | int]:
    """Translate a table's Parquet properties for PyArrow's writer."""
    codec = properties.get(
        TableProperties.PARQUET_COMPRESSION, TableProperties.PARQUET_COMPRESSION_DEFAULT
    ).lower()
    options: dict[str, str | int] = {
        "compression": "none" if codec == "uncompressed" else codec,
        "dictionary_pagesize_limit": int(
            {**HOT_DICTIONARY, **properties}[TableProperties.PARQUET_DICT_SIZE_BYTES]
        ),
        "data_page_size": int(
            properties.get(
                TableProperties.PARQUET_PAGE_SIZE_BYTES,
                TableProperties.PARQUET_PAGE_SIZE_BYTES_DEFAULT,
            )
        ),
    }
    level = properties.get(TableProperties.PARQUET_COMPRESSION_LEVEL)
    if level is not None:
        options["compression_level"] = int(level)
    elif codec == "zstd":
        options["compression_level"] = _ZSTD_LEVEL
    return options


def _needs_spark(name: str) -> bool:
    """Return whether only Spark's writer supports this table property."""
    return name.startswith(_UNKNOWN_PROPERTIES) and name not in _PARQUET_PROPERTIES


def narrow_schema(schema: pa.Schema) -> pa.Schema:
    """Replace Arrow's large types, which PyIceberg uses, by the small ones; field ids stay."""
    return pa.schema([_narrow_field(field) for field in schema])


def _narrow_field(field: pa.Field) -> pa.Field:
    return field.with_type(_narrow_type(field.type))


def _narrow_type(given: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(given):
        return pa.string()
    if pa.types.is_large_binary(given):
        return pa.binary()
    if pa.types.is_struct(given):
        return pa.struct([_narrow_field(field) for field in given.fields])
    if pa.types.is_large_list(given) or pa.types.is_list(given):
        return pa.list_(_narrow_field(given.value_field))
    return given


def new_table(stream: Stream) -> NewTable:
    """Describe the table that the stream file declares.

    With a sort order, or partitions that Python workers cannot compute, Spark writes every batch.
    Spark takes the smaller dictionaries from a table property; the fast path sets them itself.
    """
    schema = build_table_schema(stream.parsed_columns)
    spec = build_partition_spec(schema, stream.partition_fields)
    by_spark = stream.table.sort_by or list_partitions(schema, spec) is None
    hot = HOT_DICTIONARY if by_spark else {}
    return NewTable(
        schema=schema,
        spec=spec,
        sort_order=build_sort_order(schema, stream.table.sort_by),
        properties={
            **hot,
            **stream.table.properties,
            **file_properties(stream),
            **list_required_properties(schema, spec),
        },
    )


def list_partitions(schema: Schema, spec: PartitionSpec) -> tuple[PartitionBy, ...] | None:
    """Return the partition fields that workers compute; None if only Spark can."""
    found = [*_match_fields(schema, spec.fields)]
    return None if None in found else tuple(by for by in found if by)


def _match_fields(
    schema: Schema, fields: tuple[PartitionField, ...]
) -> Iterator[PartitionBy | None]:
    columns = {column.field_id: column for column in schema.fields}
    for field in fields:
        column, transform = columns.get(field.source_id), str(field.transform)
        types = _TYPES.get(transform.partition("[")[0], ())
        fits = column is not None and isinstance(column.field_type, types)
        yield PartitionBy(column=column.name, transform=transform) if column and fits else None


def count_partitions(plan: BatchPlan, rows_in_a_file: int) -> int:
    """Return the number of partitions that give a task files of at least `rows_in_a_file`."""
    tasks = sum(len(parts) for parts in plan.ranges.values())
    rows = count_planned(plan) // max(tasks, 1)
    return max(1, min(MAX_PARTITIONS, rows // max(rows_in_a_file, 1)))


def has_more_buckets(partitions: Iterable[PartitionBy], most: int) -> bool:
    """Return whether there are more than `most` buckets; a batch has rows for all of them."""
    widths = (by.transform.partition("[") for by in partitions)
    return prod(int(width.rstrip("]")) for kind, _, width in widths if kind == "bucket") > most


def read_partition(table: Table, footer: FileMetaData, statistics: DataFileStatistics) -> Record:
    """Read a file's partition from its footer, and compare it with the smallest value's partition.

    Raises:
        ValueError: the footer has no partition, or another one than the rows.
    """
    spec, schema = table.spec(), table.schema()
    if spec.is_unpartitioned():
        return Record()
    text = (footer.metadata or {}).get(PARTITION_KEY, b"null")
    values = json.loads(text)
    if values is None or len(values) != len(spec.fields):
        message = "its footer names no partition of the table's partition spec"
        raise ValueError(message)
    for field, value in zip(spec.fields, values, strict=True):
        held = statistics.column_aggregates.get(field.source_id)
        if held is None or held.current_min is None or not field.transform.preserves_order:
            continue
        bounds = DataFileStatistics.partition(statistics, PartitionSpec(field), schema)
        if wrap_truncated(bounds[0], schema.find_field(field.source_id).field_type) != value:
            message = f"its footer and its rows differ in partition field {field.name}"
            raise ValueError(message)
    return Record(*values)


def count_planned(plan: BatchPlan) -> int:
    """Return the number of planned offsets; Kafka may deliver fewer records."""
    return sum(end - begin for parts in plan.ranges.values() for begin, end in parts.values())


def choose_evaluation(plan: BatchPlan) -> dict[str, str]:
    """Return the Spark settings that turn off code generation for a small batch.

    Raises:
        ConfigurationError: the environment variable is not a number.
    """
    limit = read_limit(INTERPRET_VARIABLE, INTERPRET_MAX_RECORDS)
    return dict(_INTERPRETED) if count_planned(plan) <= limit else {}


def choose_write_options(stream: Stream) -> dict[str, str]:
    """Return Iceberg's write options, which keep Spark from reading Kafka twice.

    Iceberg's default distribution for sorted tables, `range`, samples the rows first; here each
    task sorts the rows that it writes.
    """
    given = stream.table.properties.get(DISTRIBUTION_MODE, "")
    return {"distribution-mode": "none" if given == "none" else "hash"}
