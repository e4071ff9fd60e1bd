"""Write Parquet files, copy them without some of their rows, and describe them for manifests.

A copy keeps the file's own columns, types and field ids. PyIceberg's reader and writer are not
used for it: both store a null list or map of structs as an empty one.
"""

import uuid
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from frazil.errors import TargetError, hide_partition_values
from frazil.iceberg.catalog import translated_errors


def copy_retained_rows(table: Table, source: DataFile, is_removed: NDArray[np.bool_]) -> DataFile:
    """Write the rows of a Parquet file that stay, one row group at a time, in their order.

    Raises:
        TargetError: the file is not a Parquet file.
        StorageError, CatalogUnavailableError: a file cannot be read or written.
    """
    require_parquet(table, source)
    provider = load_location_provider(table.location(), table.properties)
    path = provider.new_data_location(f"{uuid.uuid4()}.parquet")
    target = table.io.new_output(path)
    with (
        translated_errors(f"copying {source.file_path} without the deleted rows"),
        table.io.new_input(source.file_path).open() as stream,
    ):
        rows = pq.ParquetFile(stream, coerce_int96_timestamp_unit="us")
        with target.create() as sink:
            _copy_row_groups(rows, sink, ~is_removed)
        schema = pyarrow_to_schema(
            rows.schema_arrow, table.name_mapping(), format_version=table.format_version
        )
    with translated_errors(f"describing {path}"), target.to_input_file().open() as stream:
        footer = pq.ParquetFile(stream).metadata
        statistics = read_statistics(table, footer, schema)
    place = (source.spec_id, source.partition)
    return build_data_file((path, len(target)), place, statistics, source.sort_order_id)


def write_rows(table: Table, rows: Sequence[Mapping[str, object]]) -> DataFile:
    """Write rows to a new Parquet file of an unpartitioned table; a null list stays null.

    Raises:
        StorageError, CatalogUnavailableError: the file cannot be written.
    """
    provider = load_location_provider(table.location(), table.properties)
    path = provider.new_data_location(f"{uuid.uuid4()}.parquet")
    content = pa.Table.from_pylist([dict(row) for row in rows], table.schema().as_arrow())
    target = table.io.new_output(path)
    with translated_errors(f"writing {path}"):
        with (
            target.create() as sink,
            pq.ParquetWriter(
                sink, content.schema, compression="zstd", store_decimal_as_integer=True
            ) as writer,
        ):
            writer.write_table(content)
        with target.to_input_file().open() as stream:
            statistics = read_statistics(table, pq.ParquetFile(stream).metadata)
    return build_data_file((path, len(target)), (table.spec().spec_id, Record()), statistics)


def require_parquet(table: Table, file: DataFile) -> None:
    """Check that a file is a Parquet file.

    Raises:
        TargetError: it has another format.
    """
    if file.file_format == FileFormat.PARQUET:
        return
    raise TargetError(
        f"table {'.'.join(table.name())}: {hide_partition_values(file.file_path)} holds rows to "
        "delete or hides rows, but "
        f"it is an {file.file_format.value} file, and only Parquet files are rewritten; nothing "
        "was written",
        "set the table property write.format.default to parquet, rewrite every file with Spark "
        "(`frazil maintain STREAM --only compact --rewrite-all --no-dry-run`), then run again",
    )


def _copy_row_groups(rows: pq.ParquetFile, sink: object, is_retained: NDArray[np.bool_]) -> None:
    codec = rows.metadata.row_group(0).column(0).compression.lower()
    with pq.ParquetWriter(
        sink,
        rows.schema_arrow,
        compression="none" if codec == "uncompressed" else codec,
        store_decimal_as_integer=True,
        write_statistics=list_paths_with_statistics(rows.schema),
    ) as writer:
        begin = 0
        for number in range(rows.num_row_groups):
            group = rows.read_row_group(number)
            own = is_retained[begin : begin + len(group)]
            begin += len(group)
            if own.any():
                writer.write_table(group.filter(pa.array(own)), row_group_size=len(group))


def list_paths_with_statistics(schema: pq.ParquetSchema) -> list[str]:
    """Return the paths of a file's columns that are no uuids: Spark orders those differently."""
    columns = (schema.column(number) for number in range(len(schema)))
    return [column.path for column in columns if column.logical_type.type != "UUID"]


def read_statistics(
    table: Table, footer: pq.FileMetaData, schema: Schema | None = None
) -> DataFileStatistics:
    """Read a file's statistics from its footer, without bounds that do not cover the whole file.

    `schema` is the file's own, if it may differ from the table's: files keep the names and types
    of columns that were changed later.
    """
    schema = schema or table.schema()
    mapping = parquet_path_to_id_mapping(schema)
    own, current = (
        compute_statistics_plan(each, table.properties) for each in (schema, table.schema())
    )
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns={field_id: current.get(field_id, own[field_id]) for field_id in own},
        parquet_column_mapping=mapping,
    )
    for field_id in {mapping[path] for path in find_unbounded(footer)}:
        statistics.column_aggregates.pop(field_id, None)
    for field_id, aggregate in tuple(statistics.column_aggregates.items()):
        try:
            aggregate.max_as_bytes()
        except UnicodeEncodeError:  # PyIceberg's bound ends in U+D800, which has no UTF-8
            del statistics.column_aggregates[field_id]
    return statistics


def find_unbounded(footer: pq.FileMetaData) -> set[str]:
    """Return the paths of columns with values but without bounds in some row group.

    The writer omits bounds of long values. The other row groups' bounds do not cover the file, and
    with them readers would skip rows.
    """
    unbounded = set()
    for group in range(footer.num_row_groups):
        for number in range(footer.num_columns):
            chunk = footer.row_group(group).column(number)
            found = chunk.statistics
            is_empty = found is not None and found.null_count == chunk.num_values
            if (found is None or not found.has_min_max) and not is_empty:
                unbounded.add(chunk.path_in_schema)
    return unbounded


def build_data_file(
    written: tuple[str, int],
    place: tuple[int, Record],
    statistics: DataFileStatistics,
    sort_order_id: int | None = None,
) -> DataFile:
    """Return a Parquet file of a path and size as an Iceberg data file of a partition."""
    path, size = written
    spec_id, partition = place
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=sort_order_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    file.spec_id = spec_id  # no field of the manifest's schema, so `from_args` would drop it
    return file
