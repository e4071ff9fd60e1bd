"""Equality delete files of other engines that hold an erased key.

Each lists the values whose rows it hides, in older files. An erasure leaves such a file: without it
rows would return that it hides, and Frazil writes none in its place.
"""

from collections.abc import Iterator

from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table

from frazil.errors import hide_partition_values
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.data_files import read_files
from frazil.iceberg.live_files import list_equality_deletes
from frazil.maintenance.erasure_keys import ErasedKeys, select_rows_by_key
from frazil.messages import count_noun

_SHOWN = 3


def describe_equality_deletes(table: Table, erased: ErasedKeys, stream: str) -> Iterator[str]:
    """Describe the equality delete files that hold a key, and what removes them.

    Raises:
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    name = ".".join(table.name())
    with translated_errors(f"reading equality deletes of {name}"):
        found = [
            hide_partition_values(file.file_path)
            for file in list_equality_deletes(table)
            if any(_may_hold(table, file, column, erased) for column in erased.by_column)
        ]
    if not found:
        return
    files = count_noun(len(found), "equality delete file")
    shown = ", ".join(found[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
    yield (
        f"{name}: {files} of another engine may hold the key, and an erasure leaves them: {shown}; "
        f"`frazil maintain {stream} --only compact --rewrite-all --no-dry-run` applies and removes "
        "them, then erase again"
    )


def _may_hold(table: Table, file: DataFile, column: str, erased: ErasedKeys) -> bool:
    """Return whether a file's own values of a column have a key; True if it cannot be read."""
    schema = table.schema()
    if column not in schema.column_names:
        return False
    if schema.find_field(column).field_id not in (file.equality_ids or []):
        return False
    if file.file_format != FileFormat.PARQUET:
        return True
    values = ErasedKeys({column: erased.by_column[column]}, frozenset())
    rows = read_files(table, schema.select(column), [FileScanTask(file)])
    return bool(select_rows_by_key(table, values).flag(rows).any())
