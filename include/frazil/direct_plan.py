"""Which batches Spark's Python workers may write themselves, and how."""

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlparse

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.utils.properties import property_as_int

from frazil import keys
from frazil.batch_size import count_planned
from frazil.columns import ColumnType, ListType, Primitive, StructType
from frazil.contracts import BatchPlan, WireFormat
from frazil.direct_orders import DirectFiles
from frazil.direct_partitions import count_partitions, exceed, list_partitions
from frazil.landmarks import find_landmarks
from frazil.site_limits import read_limit
from frazil.streams import Stream
from frazil.suites import load_suite
from frazil.sure_layouts import is_exact_type
from frazil.tables import HOT_DICTIONARY
from frazil.value_forms import value_path

MIN_RECORDS_VARIABLE = "FRAZIL_DIRECT_MIN_RECORDS"
MIN_RECORDS = 500_000
"""Below that a worker's start costs more than it saves."""

MOST_FILES = 100
"""Of the smallest batch that they write; compaction merges them."""

_TEMPORAL = frozenset({"date", "timestamp", "timestamptz"})
_PLAIN = frozenset({"string", "long", "int", "double", "boolean"})
_MAX_PRECISION = 18
_PLAIN_FOLDER = re.compile(r"file://[\w./+=-]+", re.ASCII)
"""Paths that no library unquotes, splits or refuses."""

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
    "write.object-storage.",
    "write.location-provider.",
    "write.py-location-provider.",
)
_ZSTD_LEVEL = 3
"""That of Iceberg's Java writer; PyArrow's own would be 1."""


def plan_direct(
    table: Table,
    stream: Stream,
    plan: BatchPlan,
    metrics: Mapping[str, str],
    wire: WireFormat | None = None,
    suite_file: Path | None = None,
) -> DirectFiles | None:
    """Say how workers may write this batch's rows, or None where Spark must.

    `wire` names the registered schemas of the values, if a registry has them; `suite_file` says
    what the metrics are for.
    """
    columns = stream.parsed_columns
    metadata = table.metadata
    is_planned = (plan.schema_id, plan.spec_id) == (
        metadata.current_schema_id,
        metadata.default_spec_id,
    )
    if not is_planned or not is_worthwhile(plan) or not fits_direct(table, stream, wire):
        return None
    partitions = list_partitions(table.schema(), table.spec()) or ()
    most = count_partitions(plan, read_limit(MIN_RECORDS_VARIABLE, MIN_RECORDS) // MOST_FILES)
    if exceed(partitions, most):
        return None
    properties = table.properties
    suite = None if suite_file is None else load_suite(suite_file)
    schema = narrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=True))
    return DirectFiles(
        folder=data_folder(table),
        schema_ipc=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        target_bytes=choose_target_bytes(properties),
        parquet=choose_parquet_options(properties),
        shown=tuple(c.name for c in columns if any(value_path(c) in m for m in metrics.values())),
        landmarks=find_landmarks(suite, stream.typed_columns),
        partitions=partitions,
        most_partitions=most,
    )


def choose_target_bytes(properties: dict[str, str]) -> int:
    """Give the size of a file at which the next one is begun."""
    default = TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
    found = property_as_int(properties, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, default)
    return found or default


def is_worthwhile(plan: BatchPlan) -> bool:
    """Say whether the batch is big enough to wake Python workers for it.

    Raises:
        ConfigurationError: the environment names no number.
    """
    return count_planned(plan) >= read_limit(MIN_RECORDS_VARIABLE, MIN_RECORDS)


def data_folder(table: Table) -> str:
    """Name the folder of the table's data files as an address."""
    provider = load_location_provider(table.location(), table.properties)
    folder = os.path.dirname(provider.new_data_location("x.parquet"))  # noqa: PTH120 - an address
    return folder if urlparse(folder).scheme else f"file://{folder}"


def fits_direct(table: Table, stream: Stream, wire: WireFormat | None = None) -> bool:
    """Say whether the stream's values and the table's layout are ones that workers can write."""
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
        and not any(map(_is_for_spark_alone, table.properties))
    )


def _fits_values(stream: Stream, wire: WireFormat | None) -> bool:
    """Say whether workers can decode the stream's values into its columns."""
    types = [column.type for column in stream.parsed_columns]
    if stream.value.convert in {"raw", "string"}:
        return True
    if not stream.value.is_flat:
        return False
    if wire is None or wire.format == "json_schema":
        return all(map(_is_sure_type, types))
    return all(map(is_exact_type, types)) and any(schema.layout for schema in wire.schemas)


def _is_sure_type(column_type: ColumnType, depth: int = 0) -> bool:
    """Name the types whose JSON form leaves no doubt; nothing required below the top."""
    match column_type:
        case Primitive("decimal", (precision, _)):
            return precision <= _MAX_PRECISION
        case Primitive(name, _):
            return name in _PLAIN or (name in _TEMPORAL and depth == 0)
        case ListType(element, required):
            return not required and _is_sure_type(element, depth + 1)
        case StructType(fields):
            return all(not f.required and _is_sure_type(f.type, depth + 1) for f in fields)
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


def _is_for_spark_alone(name: str) -> bool:
    """Recognise a property that Spark's writer obeys and workers would not."""
    return name.startswith(_UNKNOWN_PROPERTIES) and name not in _PARQUET_PROPERTIES


def narrow_schema(schema: pa.Schema) -> pa.Schema:
    """Take Arrow's small types where PyIceberg takes the large ones; field ids stay."""
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
