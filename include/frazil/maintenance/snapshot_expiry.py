"""Snapshot expiry: drop abandoned branches, archive ledger entries, expire the chosen snapshots."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pyiceberg.table.refs import SnapshotRef

from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.branches import drop_branches
from frazil.iceberg.commit_retry import CommitConflictError, retry_commit
from frazil.iceberg.ledger_archive import archive_all_entries, find_archived
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ingest.publishing import Marker, publish_marker
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, RecoveryPoint, find_recovery_points
from frazil.maintenance.delete_memory import forget_memories
from frazil.maintenance.expiry_rules import (
    ExpiryPlan,
    decide_branches,
    decide_expiry,
    find_expiring_value,
    require_kept_snapshots,
    require_kept_states,
    validate_table_retention,
)
from frazil.maintenance.messages import ExpireReport, TableExpiry
from frazil.maintenance.tables import (
    BaseTable,
    iterate_maintained,
    new_request,
    note_maintenance,
    now_ms,
    read_base_table,
    run_table_job,
)
from frazil.streams.timestamps import RetentionWindow
from frazil.workspace import Workspace, retention_window


@dataclass(frozen=True)
class ExpiryRun:
    """One run of expiry: stream, base table, retention window and time of the run."""

    work: Workspace
    base: BaseTable
    window: RetentionWindow
    at_ms: int
    dry_run: bool


@dataclass(frozen=True)
class PreparedExpiry:
    """An expiry plan with the history that it was decided on; `carried` states are on the head."""

    plan: ExpiryPlan
    view: TableView
    points: Mapping[str, RecoveryPoint]
    carried: tuple[str, ...] = ()
    merge_position: str | None = None
    """The merge position of a state table, if every snapshot that has it would expire."""


def expire_snapshots(work: Workspace, *, dry_run: bool = False) -> ExpireReport:
    """Drop abandoned staging branches and expire snapshots outside the retention window.

    The window is the longest of all streams on the table. States of idle streams are copied to
    the head first, and ledger entries are archived.

    Raises:
        TableError: a stream on the table is halted, or a recovery point moved.
        ConfigurationError: the table has its own retention settings.
        JobFailedError, UnavailableError: run again.
    """
    stream, name = work.stream.stream, work.stream.table.name
    base = read_base_table(work)
    if base is None:
        return ExpireReport(
            stream=stream, dry_run=dry_run, tables=(TableExpiry(table=name, exists=False),)
        )
    run = ExpiryRun(work, base, retention_window(work), now_ms(), dry_run)
    # Appending to the archive expires the archive's own old snapshots.
    views = iterate_maintained(work, base, [keys.TIMELINE_TABLE])
    tables = tuple(_expire_table(run, view) for view in views)
    report = ExpireReport(stream=stream, dry_run=dry_run, tables=tables)
    return _forget_deletes(work, note_maintenance(work, "expire_snapshots", report))


def _forget_deletes(work: Workspace, report: ExpireReport) -> ExpireReport:
    """Remove recorded deletes that only expired snapshots of a state needed; add their number."""
    state, dry_run = work.stream.table.state, report.dry_run
    if state is None:
        return report
    expired = {
        number
        for each in report.tables
        if each.table == state.name
        for number in (*each.expired_ids, *each.abandoned_ids)
    }
    count = forget_memories(work, expired=expired, dry_run=dry_run)
    tables = tuple(
        each.model_copy(update={"forgotten_deletes": count * (each.table == state.deletes_name)})
        for each in report.tables
    )
    return report.model_copy(update={"tables": tables})


def _expire_table(run: ExpiryRun, view: TableView) -> TableExpiry:
    name, table = view.name, view.table
    main_ref = table.metadata.refs.get(commits.MAIN)
    validate_table_retention(
        name, table.properties, main_ref.max_snapshot_age_ms if main_ref else None
    )
    # Abandoned branches first, so that their snapshots can expire.
    refs = table.metadata.refs
    base = run.base.view
    properties, base_name = base.table.properties, base.name
    dropped = decide_branches(refs, run.at_ms, run.base.points, properties, base_name)
    views = iterate_views(view if run.dry_run else drop_branches(view, dropped))
    prepared = retry_commit(f"expiring {name}", lambda: _try_prepare(run, next(views), dropped))
    before = TableExpiry(
        table=name,
        snapshots_before=len(table.metadata.snapshots),
        snapshots_after=len(prepared.view.history.entries),
        expired_ids=prepared.plan.ancestor_ids,
        abandoned_ids=prepared.plan.abandoned_ids,
        dropped_branches=dropped,
        carried_streams=prepared.carried,
        dry_run=run.dry_run,
    )
    if run.dry_run or not (before.expired_ids or before.abandoned_ids):
        return before
    return _expire_decided(run, prepared, before)


def _try_prepare(run: ExpiryRun, view: TableView, dropped: tuple[str, ...]) -> PreparedExpiry:
    """Decide what expires; if a stream's newest state would, copy it to the head, decide again."""
    prepared = _decide(run, view, dropped)
    position, carry = prepared.merge_position, prepared.plan.carry
    if position is not None:
        carry = (run.work.stream.stream,)
    if not carry:
        return prepared
    if not run.dry_run:
        extra = {keys.STREAM: carry[0]} if len(carry) == 1 else {}
        if position is not None:
            extra[keys.merge_key(carry[0])] = position
        marker = Marker(
            kind=keys.CARRY,
            states={stream: prepared.points[stream].state for stream in prepared.plan.carry},
            base_head=view.history.head,
            run_id=run.work.run_id,
            extra=extra,
        )
        publish_marker(run.work.store, view.table, marker)
        reach_failpoint("expire.after-carry")
        prepared = _decide(run, view.reload(), dropped)
        if prepared.plan.carry or prepared.merge_position:
            raise CommitConflictError("main moved while a state was copied to its head")
    return replace(prepared, carried=carry)


def _decide(run: ExpiryRun, view: TableView, dropped: tuple[str, ...]) -> PreparedExpiry:
    history = view.history
    refs = {
        name: ref.snapshot_id
        for name, ref in view.table.metadata.refs.items()
        if name not in dropped and not is_ref_expired(ref, history, run.at_ms)
    }
    plan = decide_expiry(history, refs, run.at_ms, run.window)
    key = keys.merge_key(run.work.stream.stream)
    position = find_expiring_value(history, plan.ancestor_ids, key)
    points = find_recovery_points(history)
    return PreparedExpiry(plan, view, points, merge_position=position)


def is_ref_expired(ref: SnapshotRef, history: History, at_ms: int) -> bool:
    """Return whether Iceberg drops a branch or tag by its maximum age, counted from its commit."""
    entry = history.entries.get(ref.snapshot_id)
    if ref.max_ref_age_ms is None or entry is None:
        return False
    return at_ms - entry.committed_at_ms > ref.max_ref_age_ms


def _expire_decided(run: ExpiryRun, prepared: PreparedExpiry, before: TableExpiry) -> TableExpiry:
    """Archive the entries, expire those snapshots, and check the recovery points afterwards."""
    work, history = run.work, prepared.view.history
    expired = before.expired_ids
    archived, state = 0, work.stream.table.state
    if before.table in {work.stream.table.name, state.name if state else None}:
        archived = archive_all_entries(work.store, history)
        # Read back what was appended: without it in the archive an expired snapshot would be lost.
        known = find_archived(work.store, history) if archived else {*expired}
        expired = tuple(snapshot_id for snapshot_id in expired if snapshot_id in known)
    ids = (*expired, *before.abandoned_ids)
    request = new_request(work, before.table).model_copy(
        update={"action": "expire", "snapshot_ids": ids, "dry_run": False}
    )
    reach_failpoint("expire.before-job")
    counts = run_table_job(work, "expire_snapshots", request).counts
    reach_failpoint("expire.after-job")
    after = prepared.view.reload().history
    require_kept_states(
        before.table, prepared.points, find_recovery_points(after, *prepared.points)
    )
    require_kept_snapshots(history, after, ids)
    return before.model_copy(
        update={
            "expired_ids": expired,
            "archived_entries": archived,
            "snapshots_after": len(after.entries),
            **{key: counts[key] for key in ("files_before", "files_after")},
            **{key: counts[key] for key in ("bytes_before", "bytes_after")},
        }
    )
