"""Batches whose rows Spark's Python workers may write themselves, and how those files are staged.

The files join the attempt's branch in one snapshot with whatever Spark wrote itself, so that all
later steps see one staged snapshot, however its rows came about.
"""

import base64
import os
import re
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
from frazil.errors import ConfigurationError, StageLostError, StageStaleError
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
    table: Table, stream: Stream, plan: BatchPlan, metrics: Mapping[str, str]
) -> DirectFiles | None:
    """Say how workers may write this batch's rows, or None where Spark must."""
    columns = stream.value.parsed_columns
    metadata = table.metadata
    is_planned = (plan.schema_id, plan.spec_id) == (
        metadata.current_schema_id,
        metadata.default_spec_id,
    )
    if not is_planned or not is_worthwhile(plan) or not fits_direct(table, stream):
        return None
    properties = table.properties
    schema = narrow_schema(schema_to_pyarrow(table.schema(), include_field_ids=True))
    return DirectFiles(
        folder=data_folder(table),
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
    """Say whether the batch is big enough to wake Python workers for it.

    Raises:
        ConfigurationError: the environment names no number.
    """
    planned = sum(end - begin for parts in plan.ranges.values() for begin, end in parts.values())
    text = os.environ.get(MIN_RECORDS_VARIABLE, str(MIN_RECORDS))
    if not text.isdecimal():
        raise ConfigurationError(
            f"{MIN_RECORDS_VARIABLE} is {text!r}, not a number of records",
            f"give a number such as {MIN_RECORDS}, or leave the variable out",
        )
    return planned >= int(text)


def data_folder(table: Table) -> str:
    """Name the folder of the table's data files as an address."""
    provider = load_location_provider(table.location(), table.properties)
    folder = os.path.dirname(provider.new_data_location("x.parquet"))  # noqa: PTH120 - an address
    return folder if urlparse(folder).scheme else f"file://{folder}"


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
        and _PLAIN_FOLDER.fullmatch(data_folder(table)) is not None
        and table.properties.get(TableProperties.WRITE_FILE_FORMAT, "parquet") == "parquet"
        and not any(map(_is_for_spark_alone, table.properties))
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


def stage_direct_files(
    store: TableStore, plan: BatchPlan, branch: tuple[str, int], paths: tuple[str, ...]
) -> None:
    """Put the workers' files into the attempt's one staged snapshot, on the head it began from.

    Raises:
        StageStaleError: the table's layout changed while the workers wrote.
        StageLostError: a file is no Parquet file.
        CommitContentionError, UnavailableError: nothing is visible; a later run stages afresh.
    """
    take_turns(
        f"staging {len(paths)} files on branch {branch[0]} of {plan.table}",
        lambda: _stage_turn(store, plan, branch, paths),
    )


def _stage_turn(
    store: TableStore, plan: BatchPlan, branch: tuple[str, int], paths: tuple[str, ...]
) -> None:
    attempt, base_head = branch
    table = store.load(plan.table)
    ref = table.metadata.refs.get(attempt)
    if ref is None:
        return  # the stage is lost; who looks for it next says so
    _refuse_other_layout(table, plan)
    with translated_errors(f"reading branch {attempt} of {plan.table}"):
        is_begun = ref.snapshot_id != base_head
        written = commits.read_added_files(table, ref.snapshot_id) if is_begun else []
    if set(paths) <= {file.file_path for file in written}:
        return  # an earlier turn landed without an answer
    with translated_errors(f"describing the staged files of {table.name()}"):
        files = [*written, *[describe_file(table, path) for path in paths]]
        added = commits.build_append(_from_head(table, attempt, base_head), {}, files, attempt)
    updates: list[TableUpdate] = [added, commits.set_branch(attempt, added.snapshot.snapshot_id)]
    if ref.snapshot_id != base_head:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=[ref.snapshot_id]))
    commit_turn(store, table, {attempt: ref.snapshot_id}, updates)


def _refuse_other_layout(table: Table, plan: BatchPlan) -> None:
    """Refuse files that were written for another schema or partitioning (E12)."""
    now = table.metadata.current_schema_id, table.metadata.default_spec_id
    if now != (plan.schema_id, plan.spec_id):
        raise StageStaleError(
            f"batch {plan.batch_id}: {plan.table} has schema {now[0]} and spec {now[1]} now, the "
            f"rows were written for schema {plan.schema_id} and spec {plan.spec_id}",
            "run again: the next run plans and stages afresh",
        )


def _from_head(table: Table, attempt: str, head: int) -> Table:
    """Give the table as it was when the attempt began: its branch at the head, no rows yet."""
    begun: SnapshotRef = table.metadata.refs[attempt].model_copy(update={"snapshot_id": head})
    refs = {**table.metadata.refs, attempt: begun}
    metadata = table.metadata.model_copy(update={"refs": refs})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog)


def describe_file(table: Table, path: str) -> DataFile:
    """Describe a Parquet file by its own footer, as Iceberg's writers do."""
    source = table.io.new_input(path)
    try:
        with source.open() as stream:
            footer = pq.ParquetFile(stream).metadata
    except pa.ArrowInvalid as error:
        raise StageLostError(
            f"{path} was written for {'.'.join(table.name())} and is no Parquet file: {error}",
            "run again: the next run plans and stages afresh",
        ) from error
    mapping = parquet_path_to_id_mapping(table.schema())
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(table.schema(), table.properties),
        parquet_column_mapping=mapping,
    ).to_serialized_dict()
    for field_id in find_unbounded(footer, mapping):
        statistics["lower_bounds"].pop(field_id, None)
        statistics["upper_bounds"].pop(field_id, None)
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
        **statistics,
    )


def find_unbounded(footer: pq.FileMetaData, mapping: Mapping[str, int]) -> set[int]:
    """Find the columns that have no bounds in some row group although there are values.

    The writer leaves bounds out where a value is long; those of the other row groups are not the
    file's, and readers would skip rows that are there.
    """
    unbounded = set()
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            found = chunk.statistics
            is_empty = found is not None and found.null_count == chunk.num_values
            if (found is None or not found.has_min_max) and not is_empty:
                unbounded.add(mapping[chunk.path_in_schema])
    return unbounded
