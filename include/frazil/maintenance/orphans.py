"""Orphan removal: delete old files that no table metadata references.

Spark lists the candidates; before any is deleted, PyIceberg's view of the metadata must agree
that none is in use.
"""

from collections.abc import Collection

from pyiceberg.io import FileIO

from frazil.errors import ConfigurationError, TableError
from frazil.failpoints import reach_failpoint
from frazil.iceberg.table_view import TableView
from frazil.maintenance.messages import OrphanReport, TableOrphans
from frazil.maintenance.tables import (
    iterate_maintained,
    new_request,
    note_maintenance,
    now_ms,
    orphan_retention_ms,
    read_base_table,
    read_used_files,
    run_table_job,
)
from frazil.messages import count_noun
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace

_EQUAL_SCHEMES = {"s3a": "s3", "s3n": "s3", "": "file"}
_OBJECT_STORES = {"s3", "s3a", "s3n", "gs", "abfs", "abfss", "oss"}
_SAMPLE = 20
"""Paths shown in a report."""


def decide_cutoff_ms(now_ms: int, keep_ms: int) -> int:
    """Return the instant (ms) before which an unreferenced file counts as an orphan.

    Raises:
        ConfigurationError: the retention is below a day; files of a running batch would be deleted.
    """
    if keep_ms < DAY_MS:
        raise ConfigurationError(
            f"orphan removal after {keep_ms} ms: files younger than 24 hours may belong to a run "
            "that has not published yet",
            "set maintenance.orphan_days to 1 or more in the stream file",
        )
    return now_ms - keep_ms


def normalize_path(path: str) -> str:
    """Return a path in one canonical form: `file:/a`, `file:///a` and `/a` are the same file."""
    # Not urlparse: a partition value in the path may hold `?` or `#`.
    scheme, separator, rest = path.partition(":")
    if not separator or "/" in scheme:
        scheme, rest = "", path
    return f"{_EQUAL_SCHEMES.get(scheme, scheme)}:{rest.lstrip('/')}"


def needs_prefix_listing(location: str) -> bool:
    """Return whether Iceberg's file client lists the table's folder, instead of Hadoop's."""
    return location.partition(":")[0] in _OBJECT_STORES


def require_no_live_file(table: str, candidates: Collection[str], live: Collection[str]) -> None:
    """Check that no candidate is a file that the table uses, however its path is written.

    Raises:
        TableError: Spark and the table's metadata disagree; nothing was deleted.
    """
    live_paths = {normalize_path(path) for path in live}
    in_use = sorted(path for path in candidates if normalize_path(path) in live_paths)
    if in_use:
        raise TableError(
            f"table {table}: Spark lists {count_noun(len(in_use), 'file')} as orphans that the "
            f"table uses, for example {in_use[0]}; nothing was deleted",
            "the catalog and Spark write paths differently: set the same `warehouse` address, with "
            "its scheme, for both",
        )


def remove_orphans(work: Workspace, *, dry_run: bool = False) -> OrphanReport:
    """Delete old files in the tables' folders that no snapshot, branch or metadata log names.

    Raises:
        TableError: a stream on the table is halted, or Spark and PyIceberg disagree about the
            orphans; nothing was deleted.
        ConfigurationError: the retention is below a day.
        JobFailedError, UnavailableError: run again.
    """
    stream, base = work.stream.stream, read_base_table(work)
    cutoff_ms = decide_cutoff_ms(now_ms(), orphan_retention_ms(work))
    if base is None:
        tables: tuple[TableOrphans, ...] = (
            TableOrphans(table=work.stream.table.name, exists=False),
        )
    else:
        tables = tuple(
            _remove(work, view, cutoff_ms, dry_run=dry_run)
            for view in iterate_maintained(work, base)
        )
    report = OrphanReport(stream=stream, dry_run=dry_run, tables=tables)
    return note_maintenance(work, "remove_orphans", report)


def _remove(work: Workspace, view: TableView, cutoff_ms: int, *, dry_run: bool) -> TableOrphans:
    name = view.name
    request = new_request(work, name).model_copy(
        update={
            "action": "orphans",
            "older_than_ms": cutoff_ms,
            "prefix_listing": needs_prefix_listing(view.table.location()),
        }
    )
    paths = run_table_job(work, "remove_orphans", request).paths
    if not paths:
        return TableOrphans(table=name, dry_run=dry_run)
    # Loaded after Spark's listing, so that files published meanwhile count as in use.
    table = view.reload().table
    require_no_live_file(name, paths, set(read_used_files(table)))
    size_bytes = sum(_sum_bytes(table.io, path) for path in paths)
    if not dry_run:
        reach_failpoint("orphans.before-delete")
        paths = run_table_job(
            work, "remove_orphans", request.model_copy(update={"dry_run": False})
        ).paths
    return TableOrphans(
        table=name, files=len(paths), bytes=size_bytes, sample=paths[:_SAMPLE], dry_run=dry_run
    )


def _sum_bytes(io: FileIO, path: str) -> int:
    """Return a file's size; 0 if it was removed meanwhile."""
    try:
        return len(io.new_input(path))
    except FileNotFoundError:
        return 0
