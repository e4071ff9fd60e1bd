"""Look for values in decoded files: no plain search finds them in Avro or Parquet."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlparse

import fastavro
import pyarrow.parquet as pq
from pyiceberg.table import Table


def list_head_files(table: Table) -> Iterator[Path]:
    """Yield all files that a reader of main's head may open."""
    head = table.current_snapshot()
    assert head is not None
    paths = [table.metadata_location, head.manifest_list]
    for manifest in head.manifests(table.io):
        paths.append(manifest.manifest_path)
        paths += [each.data_file.file_path for each in manifest.fetch_manifest_entry(table.io)]
    yield from (Path(urlparse(path).path) for path in paths)


def lists_removed_files(table: Table) -> bool:
    """Return whether a manifest of main's head lists a removed file."""
    head = table.current_snapshot()
    assert head is not None
    return any(manifest.deleted_files_count for manifest in head.manifests(table.io))


def find_in_files(paths: Iterable[Path], values: Iterable[int | str]) -> list[Path]:
    """Return the files whose name or decoded content has one of the values."""
    wanted = [str(value).encode() for value in values]
    wanted += [value.to_bytes(8, "little") for value in values if isinstance(value, int)]
    return [path for path in paths if any(each in _decode(path) for each in wanted)]


def _decode(path: Path) -> bytes:
    """Return a file's name and bytes, and of Parquet and Avro all values and bounds."""
    content = str(path).encode() + path.read_bytes()
    if path.suffix == ".parquet":
        return content + repr(pq.ParquetFile(path).read().to_pylist()).encode()
    if path.suffix == ".avro":
        with path.open("rb") as stream:
            return content + b"".join(_list_bytes([*fastavro.reader(stream)]))
    return content


def _list_bytes(value: object) -> Iterator[bytes]:
    """Yield all bytes in a decoded record, and the text of anything else."""
    match value:
        case dict():
            yield from (found for each in value.values() for found in _list_bytes(each))
        case list():
            yield from (found for each in value for found in _list_bytes(each))
        case bytes():
            yield value
        case _:
            yield str(value).encode()
