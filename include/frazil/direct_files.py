"""Batches whose rows Spark's Python workers may write themselves, and how those files are staged.

The files join the attempt's branch in one snapshot with whatever Spark wrote itself, so that all
later steps see one staged snapshot, however its rows came about.
"""

import base64
import os
from collections.abc import Mapping
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate
from pyiceberg.typedef import Record
from pyiceberg.utils.properties import property_as_int

from frazil import commits, keys
from frazil.columns import ColumnType, ListType, Primitive, StructType
from frazil.contracts import BatchPlan, DirectFiles
from frazil.publishing import commit_turn
from frazil.streams import Stream
from frazil.tables import TableStore, translated_errors
from frazil.turns import take_turns
from frazil.value_forms import value_path

MIN_RECORDS_VARIABLE = "FRAZIL_DIRECT_MIN_RECORDS"
MIN_RECORDS = 20_000
"""Below that a worker's start costs more than it saves."""

_TEMPORAL = frozenset({"date", "timestamp", "timestamptz"})
_PLAIN = frozenset({"string", "long", "int", "double", "boolean"})
_MAX_PRECISION = 18
_UNKNOWN_PROPERTIES = (
    "encryption.",
    "write.parquet.bloom-filter-",
    "write.parquet.row-group-size-bytes",
    "write.object-storage.",
    "write.location-provider.",
    "write.py-location-provider.",
)
"""Properties that Spark's writer obeys and this one would not."""


def plan_direct(
    table: Table, stream: Stream, plan: BatchPlan, metrics: Mapping[str, str]
) -> DirectFiles | None:
    """Say how workers may write this batch's rows, or None where Spark must."""
    columns = stream.value.parsed_columns
    if not is_worthwhile(plan) or not fits_direct(table, stream):
        return None
    properties = table.properties
    provider = load_location_provider(table.location(), properties)
    folder = os.path.dirname(provider.new_data_location("x.parquet"))  # noqa: PTH120 - an address
    schema = narrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=True))
    return DirectFiles(
        folder=folder if urlparse(folder).scheme else f"file://{folder}",
        schema_ipc=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        target_bytes=property_as_int(
            properties,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        )
        or TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
        parquet=choose_parquet_options(properties),
        shown=tuple(c.name for c in columns if any(value_path(c) in m for m in metrics.values())),
    )


def is_worthwhile(plan: BatchPlan) -> bool:
    """Say whether the batch is big enough to wake Python workers for it."""
    planned = sum(end - begin for parts in plan.ranges.values() for begin, end in parts.values())
    return planned >= int(os.environ.get(MIN_RECORDS_VARIABLE, str(MIN_RECORDS)))


def fits_direct(table: Table, stream: Stream) -> bool:
    """Say whether the stream's values and the table's layout are ones that workers can write."""
    columns = stream.value.parsed_columns
    return (
        stream.value.convert == "json"
        and table.spec().is_unpartitioned()
        and table.sort_order().is_unsorted
        and [f.name for f in table.schema().fields]
        == [*[c.name for c in columns], keys.KAFKA_COLUMN]
        and all(_is_sure_type(column.type) for column in columns)
        and urlparse(table.location()).scheme in {"", "file"}
        and table.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet") == "parquet"
        and not any(name.startswith(_UNKNOWN_PROPERTIES) for name in table.properties)
    )


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
            properties.get(
                TableProperties.PARQUET_DICT_SIZE_BYTES,
                TableProperties.PARQUET_DICT_SIZE_BYTES_DEFAULT,
            )
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
    return options


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


def stage_direct_files(
    store: TableStore, table_name: str, branch: tuple[str, int], paths: tuple[str, ...]
) -> None:
    """Put the workers' files into the attempt's one staged snapshot, on the head it began from.

    Raises:
        CommitContentionError, UnavailableError: nothing is visible; a later run stages afresh.
    """
    attempt, base_head = branch
    take_turns(
        f"staging {len(paths)} files on branch {attempt} of {table_name}",
        lambda: _stage_turn(store.load(table_name), store, attempt, base_head, paths),
    )


def _stage_turn(
    table: Table, store: TableStore, attempt: str, base_head: int, paths: tuple[str, ...]
) -> None:
    ref = table.metadata.refs.get(attempt)
    if ref is None:
        return  # the stage is lost; who looks for it next says so
    written = (
        commits.read_added_files(table, ref.snapshot_id) if ref.snapshot_id != base_head else []
    )
    if set(paths) <= {file.file_path for file in written}:
        return  # an earlier turn landed without an answer
    with translated_errors(f"describing the staged files of {table.name()}"):
        files = [*written, *[describe_file(table, path) for path in paths]]
        added = commits.build_append(_from_head(table, attempt, base_head), {}, files, attempt)
    updates: list[TableUpdate] = [added, commits.set_branch(attempt, added.snapshot.snapshot_id)]
    if ref.snapshot_id != base_head:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=[ref.snapshot_id]))
    commit_turn(store, table, {attempt: ref.snapshot_id}, updates)


def _from_head(table: Table, attempt: str, head: int) -> Table:
    """Give the table as it was when the attempt began: its branch at the head, no rows yet."""
    begun: SnapshotRef = table.metadata.refs[attempt].model_copy(update={"snapshot_id": head})
    refs = {**table.metadata.refs, attempt: begun}
    metadata = table.metadata.model_copy(update={"refs": refs})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def describe_file(table: Table, path: str) -> DataFile:
    """Describe a Parquet file by its own footer, as Iceberg's writers do."""
    source = table.io.new_input(path)
    with source.open() as stream:
        footer = pq.ParquetFile(stream).metadata
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(table.schema()),
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=len(source),
        sort_order_id=None,
        spec_id=table.metadata.default_spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
