"""The tables of one stream that maintenance covers: their states, file layout and Spark jobs."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from frazil.errors import ForeignRollbackError, JobFailedError
from frazil.events import Event, note_event
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.live_files import FilePlanner, count_hidden_rows
from frazil.iceberg.row_changes import count_rows, find_rows
from frazil.iceberg.table_view import TableView
from frazil.ingest.bootstrap import require_sole_owner
from frazil.ledger import keys
from frazil.ledger.recovery_point import RecoveryPoint, find_recovery_points, walk_ancestors
from frazil.ledger.usage import cpu_facts, read_and_reset_usage
from frazil.maintenance.compaction_rules import (
    MEBIBYTE,
    FileSize,
    TableLayout,
    choose_inputs,
    count_small,
)
from frazil.maintenance.erasure import list_erased_dead_letters, select_dead_letters
from frazil.maintenance.messages import (
    CompactReport,
    ExpireReport,
    OrphanReport,
    RowExpiryReport,
    TableReport,
    TableRequest,
    TableResult,
)
from frazil.messages import count_noun
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace, list_maintenance_settings

SomeReport = TypeVar("SomeReport", CompactReport, ExpireReport, OrphanReport, RowExpiryReport)
SHARED_TABLES = (keys.LEDGER_TABLE, keys.TIMELINE_TABLE)
READERS = 8
"""Manifests read in parallel; on object storage each costs a round trip."""


@dataclass(frozen=True)
class BaseTable:
    """The stream's own table before maintenance, and the recovery points of its streams."""

    view: TableView
    points: Mapping[str, RecoveryPoint]


def read_base_table(work: Workspace, view: TableView | None = None) -> BaseTable | None:
    """Read every stream's recovery point; None if the table does not exist or is empty.

    Raises:
        TableError: a stream on the table is halted; nothing was changed.
        StreamFileError: the stream has not begun, and another stream fills the table.
    """
    view = view or TableView(work.store, work.stream.table.name)
    if view.found is None or view.history.head is None:
        return None
    history = view.history
    points = find_recovery_points(history, work.stream.stream)
    if work.stream.stream not in points:
        require_sole_owner(work, history)
    return BaseTable(view, points)


def iterate_maintained(
    work: Workspace, base: BaseTable, shared: Sequence[str] = SHARED_TABLES
) -> Iterator[TableView]:
    """Yield the stream's tables and the shared ones, as far as they have data.

    Each is loaded when its turn comes: a job on the one before may have taken an hour.

    Raises:
        ForeignRollbackError: another tool brought erased dead letters back.
    """
    state = work.stream.table.state
    of_state = (state.name, state.deletes_name) if state else ()
    yield base.view
    for name in (work.stream.dead_letters_table, *of_state, *shared):
        view = TableView(work.store, name)
        if view.found is not None and view.table.current_snapshot() is not None:
            if name == work.stream.dead_letters_table:
                _require_erased_letters(work.stream.stream, base.view, view)
            yield view


def _require_erased_letters(stream: str, view: TableView, letters: TableView) -> None:
    """Check that no rollback by another tool brought back dead letters that the ledger lists.

    They are read only if main lacks the newest erasure: it may have been replaced or have expired.

    Raises:
        ForeignRollbackError: erased dead letters are in the table again.
    """
    newest = letters.table.properties.get(keys.LAST_ERASURE, "")
    history = letters.history
    if not any(str(known) == newest for known in history.entries):
        return
    on_main = {str(e.snapshot_id) for e in walk_ancestors(history, beyond_metadata=False)}
    if newest in on_main:
        return
    listed = list_erased_dead_letters(view.history)
    count = count_rows(find_rows(letters.table, select_dead_letters(listed))) if listed else 0
    if count:
        raise ForeignRollbackError(
            f"table {letters.name}: main lacks snapshot {newest}, which erased dead letters: "
            f"another tool rolled the table back, and {count_noun(count, 'erased dead letter')} "
            "can be read again",
            f"`frazil erase {stream} --key COLUMN=VALUE --by YOU --reason WHY --no-dry-run`, with "
            f"any key, erases them again; then `frazil audit {stream}` names the dead letters that "
            "the rollback took away",
        )


def note_maintenance(work: Workspace, step: str, report: SomeReport) -> SomeReport:
    """Record a maintenance step for the timeline unless it was a dry run; return its report."""
    if not report.dry_run:
        stream, table = work.stream.stream, work.stream.table.name
        note_event(
            Event(
                event_id=f"{work.run_id}:{step}:{stream}",
                at=datetime.now(UTC),
                stream=stream,
                table=table,
                kind="maintenance",
                text=f"{step}: {report.text}",
                run_id=work.run_id,
                facts=cpu_facts(read_and_reset_usage()),
            )
        )
    return report


def orphan_retention_ms(work: Workspace) -> int:
    """Return the longest retention of unreferenced files among the table's streams."""
    return max(settings.orphan_days for settings in list_maintenance_settings(work)) * DAY_MS


def target_bytes(work: Workspace) -> int:
    """Return the target file size of compaction."""
    return work.stream.maintenance.compact_target_mb * MEBIBYTE


def describe_table(view: TableView, layout: TableLayout, target: int) -> TableReport:
    """Build the report of a table's sizes and counts."""
    table = view.table
    debt = choose_inputs(layout.files, target)
    kinds = [ref.snapshot_ref_type for ref in table.metadata.refs.values()]
    return TableReport(
        table=view.name,
        rows=layout.rows,
        files=len(layout.files),
        delete_files=layout.delete_files,
        hidden_rows=layout.hidden_rows,
        files_with_many_deletes=sum(file.has_many_deletes for file in layout.files),
        debt_files=len(debt),
        debt_bytes=sum(file.size_bytes for file in debt),
        bytes=layout.data_bytes,
        small_files=count_small(layout.files, target),
        manifests=len(layout.manifest_bytes),
        snapshots=len(table.metadata.snapshots),
        metadata_files=len(table.metadata.metadata_log) + 1,
        branches=kinds.count(SnapshotRefType.BRANCH),
        tags=kinds.count(SnapshotRefType.TAG),
    )


def summarize_table(work: Workspace, view: TableView | None = None) -> TableReport:
    """Describe the stream's table, without Spark; without a `view` as it is now."""
    view = view or TableView(work.store, work.stream.table.name)
    if view.found is None:
        return TableReport(table=view.name, exists=False)
    return describe_table(view, read_layout(view.table), target_bytes(work))


def new_request(work: Workspace, name: str) -> TableRequest:
    """Build a request for one table; the caller sets the action and its options."""
    return TableRequest(
        catalog=work.store.preset.name,
        table=name,
        action="compact",
        target_bytes=target_bytes(work),
        session_conf=work.store.preset.spark_conf(),
    )


def run_table_job(work: Workspace, job: str, request: TableRequest) -> TableResult:
    """Run one maintenance job in Spark.

    Raises:
        SparkUnavailableError: the server does not answer.
        JobFailedError: the job failed; rows and offsets are unchanged.
    """
    try:
        return work.engine.run_job(job, request, TableResult)
    except JobFailedError as error:
        raise JobFailedError(
            error.facts,
            f"rows and offsets are unchanged; `frazil maintain {work.stream.stream}` previews what "
            "is left, and the next maintenance run does it",
        ) from error


def now_ms() -> int:
    """Return the current time in milliseconds since 1970."""
    return int(time.time() * 1000)


def read_layout(table: Table) -> TableLayout:
    """Read the sizes of the live data files and manifests of main's head."""
    head = table.current_snapshot()
    if head is None:
        return TableLayout((), ())
    with translated_errors("reading the manifests of the table"):
        listed = head.manifests(table.io)
        manifests = [m for m in listed if lists_live_files(m)]
        delete_files = sum(map(_count_delete_files, listed))
        planned = FilePlanner(AlwaysTrue()).plan(table) if delete_files else []
        hidden = {live.file.file_path: count_hidden_rows(live) for live in planned}
        with ThreadPoolExecutor(READERS) as pool:
            groups = list(pool.map(lambda m: list(_read_sizes(table, m, hidden)), manifests))
    files = tuple(size for group in groups for size in group)
    sizes = tuple(manifest.manifest_length for manifest in manifests)
    return TableLayout(files, sizes, delete_files)


def _count_delete_files(manifest: ManifestFile) -> int:
    if manifest.content != ManifestContent.DELETES:
        return 0
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def lists_live_files(manifest: ManifestFile) -> bool:
    """Return whether a manifest lists live data files."""
    is_data = manifest.content == ManifestContent.DATA
    return is_data and (manifest.has_added_files() or manifest.has_existing_files())


def _read_sizes(
    table: Table, manifest: ManifestFile, hidden: Mapping[str, int]
) -> Iterator[FileSize]:
    """Read file sizes; Spark rewrites files of older partition specs as one group, so they are."""
    is_current = manifest.partition_spec_id == table.metadata.default_spec_id
    for entry in manifest.fetch_manifest_entry(table.io):
        file = entry.data_file
        partition = str(file.partition) if is_current else ""
        hidden_rows = hidden.get(file.file_path, 0)
        yield FileSize(partition, file.file_size_in_bytes, file.record_count, hidden_rows)


def read_used_files(table: Table) -> Iterator[str]:
    """Yield the paths of all metadata files, and of all files that branches and tags use."""
    yield table.metadata_location
    yield from (entry.metadata_file for entry in table.metadata.metadata_log)
    yield from (snapshot.manifest_list for snapshot in table.metadata.snapshots)
    heads = {ref.snapshot_id for ref in table.metadata.refs.values()}
    manifests = {
        manifest.manifest_path: manifest
        for snapshot in table.metadata.snapshots
        if snapshot.snapshot_id in heads
        for manifest in snapshot.manifests(table.io)
    }
    yield from manifests
    for manifest in manifests.values():
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry.data_file.file_path
