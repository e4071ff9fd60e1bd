"""Which files nobody references may be deleted: pure decisions of orphan removal (F4, F5)."""

from collections.abc import Collection

from frazil.errors import ConfigurationError, TableError
from frazil.expiry import DAY_MS

_EQUAL_SCHEMES = {"s3a": "s3", "s3n": "s3", "": "file"}
_OBJECT_STORES = {"s3", "s3a", "s3n", "gs", "abfs", "abfss", "oss"}


def decide_cutoff_ms(now_ms: int, keep_ms: int) -> int:
    """Give the instant before which an unreferenced file was written to be an orphan.

    Raises:
        ConfigurationError: less than a day; a file of a run in progress would be taken for one.
    """
    if keep_ms < DAY_MS:
        raise ConfigurationError(
            f"orphan removal after {keep_ms} ms: files younger than 24 hours may belong to a run "
            "that has not published yet",
            "set maintenance.orphan_days to 1 or more in the stream file",
        )
    return now_ms - keep_ms


def normalize_path(path: str) -> str:
    """Write one file's address in one way: `file:/a`, `file:///a` and `/a` are the same file."""
    # Not urlparse: a partition value in the path may hold `?` or `#`.
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme:
        scheme, rest = "", path
    return f"{_EQUAL_SCHEMES.get(scheme, scheme)}:{rest.lstrip('/')}"


def needs_prefix_listing(location: str) -> bool:
    """Say whether the table's folder is listed by Iceberg's own client, not by Hadoop's."""
    return location.partition(":")[0] in _OBJECT_STORES


def refuse_live_files(table: str, candidates: Collection[str], live: Collection[str]) -> None:
    """See that no candidate is a file that the table uses, in whatever way it is written.

    Raises:
        TableError: Spark and the table's metadata disagree; nothing was deleted.
    """
    known = {normalize_path(path) for path in live}
    doubtful = sorted(path for path in candidates if normalize_path(path) in known)
    if doubtful:
        raise TableError(
            f"table {table}: {len(doubtful)} files that the table uses were taken for orphans, "
            f"for example {doubtful[0]}; nothing was deleted",
            "the catalog's warehouse and Spark's file system write paths differently: give both "
            "the same `warehouse` address, with its scheme",
        )
