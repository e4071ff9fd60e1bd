"""Equality delete files of other engines that hold an erased key.

Each lists the values whose rows it hides, in older files. An erasure leaves such a file: without it
rows would return that it hides, and Frazil writes none in its place.
"""

from collections.abc import Iterator

from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask, Table

from frazil.errors import hide_partition_values
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.data_files import list_equality_deletes, read_files
from frazil.maintenance.erasure_keys import RAW_KEY, ErasedKeys, select_rows_by_key
from frazil.messages import count_noun
from frazil.schemas.merge import find_earlier_columns

_SHOWN = 3


def describe_equality_deletes(
    table: Table, by_row: ErasedKeys, erased: ErasedKeys, stream: str
) -> Iterator[str]:
    """Describe the equality delete files that hold a key, and what removes them.

    `by_row` are the keys by which rows are selected.

    Raises:
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    name = ".".join(table.name())
    by_raw = erased.restrict({RAW_KEY})
    with translated_errors(f"reading equality deletes of {name}"):
        found = [
            hide_partition_values(file.file_path)
            for file in list_equality_deletes(table, table.current_snapshot())
            if any(_may_hold(table, file, each) for each in (by_row, by_raw))
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


def _may_hold(table: Table, file: DataFile, erased: ErasedKeys) -> bool:
    """Return whether a file's own values are those of a key; True if it cannot be read.

    A file that has some columns of a key only holds it where these have its values.
    """
    schema = table.schema()
    ids = {schema.find_column_name(number) for number in file.equality_ids or []}
    names = {name for name in ids if name}
    columns = {*erased.by_column, *(erased.whole[0] if erased.whole else ())}
    held = {
        c for c in columns if names & {c, *find_earlier_columns(table.schemas(), schema, c).proven}
    }
    if not held or file.file_format != FileFormat.PARQUET:
        return bool(held)
    wanted = select_rows_by_key(table, erased.restrict(held), names)
    rows = read_files(table, schema.select(*wanted.columns), [FileScanTask(file)])
    return bool(wanted.flag(rows).any())
