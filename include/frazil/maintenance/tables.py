"""The tables that one stream's maintenance looks after, and how a job on one of them runs."""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from frazil.errors import JobFailedError
from frazil.events import Event, note_event
from frazil.iceberg.catalog import dead_letters_name, snapshot_summary, translated_errors
from frazil.iceberg.ledger_archive import load_with_history
from frazil.ledger import keys
from frazil.ledger.recovery_point import RecoveryPoint, find_recovery_points
from frazil.ledger.usage import cpu_facts, read_and_reset_usage
from frazil.maintenance.compaction_rules import MEBIBYTE, FileSize, TableLayout, count_small
from frazil.maintenance.messages import (
    CompactReport,
    ExpireReport,
    OrphanReport,
    RowExpiryReport,
    TableReport,
    TableRequest,
    TableResult,
)
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace, list_maintenance_settings

SomeReport = TypeVar("SomeReport", CompactReport, ExpireReport, OrphanReport, RowExpiryReport)


@dataclass(frozen=True)
class BaseStatistics:
    """What maintenance must know of the stream's own table before it touches any."""

    points: Mapping[str, RecoveryPoint]
    properties: Mapping[str, str]


def read_base_statistics(work: Workspace) -> BaseStatistics | None:
    """Find every stream's recovery point; None if the table is not there or empty.

    Raises:
        TableError: a stream halts; its table is left as it is, for the person who decides.
    """
    name = work.stream.table.name
    if work.store.find(name) is None:
        return None
    _, history = load_with_history(work.store, name)
    if history.head is None:
        return None
    return BaseStatistics(find_recovery_points(history, work.stream.stream), history.properties)


def list_maintained(work: Workspace) -> tuple[str, ...]:
    """List the stream's table, dead letters, archive and timeline, where they have data."""
    base = work.stream.table.name
    names = (base, dead_letters_name(base), keys.LEDGER_TABLE, keys.TIMELINE_TABLE)
    tables = ((name, work.store.find(name)) for name in names)
    return tuple(name for name, table in tables if table is not None and table.current_snapshot())


def note_maintenance(work: Workspace, step: str, report: SomeReport) -> SomeReport:
    """Note for the timeline what a step did, and give its report on."""
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


def orphan_keep_ms(work: Workspace) -> int:
    """Give the longest time that any stream of the table keeps unreferenced files."""
    return max(settings.orphan_days for settings in list_maintenance_settings(work)) * DAY_MS


def target_bytes(work: Workspace) -> int:
    """Give the file size that compaction aims at."""
    return work.stream.maintenance.compact_target_mb * MEBIBYTE


def describe_table(name: str, table: Table, layout: TableLayout, target: int) -> TableReport:
    """Put a table's sizes into a report."""
    head = table.current_snapshot()
    summary = snapshot_summary(head.summary if head else None)
    kinds = [ref.snapshot_ref_type for ref in table.metadata.refs.values()]
    return TableReport(
        table=name,
        rows=int(summary.get("total-records", "0")),
        files=len(layout.files),
        bytes=layout.data_bytes,
        small_files=count_small(layout.files, target),
        manifests=len(layout.manifest_bytes),
        snapshots=len(table.metadata.snapshots),
        metadata_files=len(table.metadata.metadata_log) + 1,
        branches=kinds.count(SnapshotRefType.BRANCH),
        tags=kinds.count(SnapshotRefType.TAG),
    )


def summarize_table(work: Workspace) -> TableReport:
    """Describe the stream's table as it is now; no Spark."""
    name = work.stream.table.name
    table = work.store.find(name)
    if table is None:
        return TableReport(table=name, exists=False)
    return describe_table(name, table, read_layout(table), target_bytes(work))


def new_request(work: Workspace, name: str) -> TableRequest:
    """Begin a request for one table; the caller adds what to do."""
    return TableRequest(
        catalog=work.store.preset.name,
        table=name,
        action="compact",
        target_bytes=target_bytes(work),
        session_conf=work.store.preset.spark_conf(),
    )


def run_table_job(work: Workspace, job: str, request: TableRequest) -> TableResult:
    """Run one maintenance job.

    Raises:
        SparkUnavailableError: the server does not listen or went away.
        JobFailedError: the job ended with an error; rows and offsets are as they were.
    """
    try:
        return work.engine.run_job(job, request, TableResult)
    except JobFailedError as error:
        raise JobFailedError(
            error.facts,
            f"rows and offsets are as they were; `frazil maintain {work.stream.stream}` shows "
            "what is left to do, and a later run does it",
        ) from error


def now_ms() -> int:
    """Read the clock."""
    return int(time.time() * 1000)


READERS = 8
"""Manifests read at the same time: on object storage each costs a round trip."""


def read_layout(table: Table) -> TableLayout:
    """Read the live data files of main's head."""
    head = table.current_snapshot()
    if head is None:
        return TableLayout((), ())
    with translated_errors("reading the manifests of the table"):
        manifests = [m for m in head.manifests(table.io) if is_live(m)]
        with ThreadPoolExecutor(READERS) as pool:
            groups = list(pool.map(lambda m: list(_read_sizes(table, m)), manifests))
    files = tuple(size for group in groups for size in group)
    return TableLayout(files, tuple(manifest.manifest_length for manifest in manifests))


def is_live(manifest: ManifestFile) -> bool:
    """Say whether a manifest lists live data files."""
    is_data = manifest.content == ManifestContent.DATA
    return is_data and (manifest.has_added_files() or manifest.has_existing_files())


def _read_sizes(table: Table, manifest: ManifestFile) -> Iterator[FileSize]:
    """Read sizes; files of an older partition spec are one group, as Spark rewrites them."""
    is_current = manifest.partition_spec_id == table.metadata.default_spec_id
    for entry in manifest.fetch_manifest_entry(table.io):
        file = entry.data_file
        yield FileSize(str(file.partition) if is_current else "", file.file_size_in_bytes)


def read_used_files(table: Table) -> Iterator[str]:
    """Yield the addresses of what the heads of all branches and tags use, and of all metadata."""
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
