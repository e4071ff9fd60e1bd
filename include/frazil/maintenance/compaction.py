"""Maintenance of a stream's tables: compaction, expiry, orphan removal, and what they report.

It adds no rows and loses no state (I8, I9). Each step may be repeated: what is done is found done.
"""

from pyiceberg.table import Table

from frazil.errors import CommitContentionError, JobFailedError
from frazil.iceberg.branches import parse_branch
from frazil.iceberg.catalog import snapshot_summary
from frazil.iceberg.ledger_archive import load_with_history
from frazil.maintenance.compaction_rules import (
    Rewrite,
    decide_rewrites,
    needs_partial_progress,
    require_same_row_count,
)
from frazil.maintenance.messages import CompactReport, TableCompaction, TableReport
from frazil.maintenance.tables import (
    describe_table,
    list_maintained,
    new_request,
    note_maintenance,
    now_ms,
    read_base_statistics,
    read_layout,
    run_table_job,
    target_bytes,
)
from frazil.streams.timestamps import HOUR_MS
from frazil.workspace import Workspace

REWRITE_TURNS = 3


_LOST_RACE_SIGNS = ("CommitFailedException", "ValidationException", "CommitStateUnknown", "BUSY")


def compact_table(
    work: Workspace, *, dry_run: bool = False, rewrite_all: bool = False
) -> CompactReport:
    """Rewrite small files and many manifests of the table, its dead letters and the archive.

    Where there is nothing to do no Spark job starts. A batch that lands meanwhile stays.

    Raises:
        TableError: a stream on the table halts.
        ConservationError: a rewrite changed the number of rows.
        CommitContentionError: other writers won every turn; run again.
        JobFailedError, UnavailableError: run again.
    """
    stream = work.stream.stream
    if read_base_statistics(work) is None:
        missing = TableReport(table=work.stream.table.name, exists=False)
        tables: tuple[TableCompaction, ...] = (TableCompaction(before=missing, after=missing),)
    else:
        tables = tuple(
            _compact(work, name, dry_run=dry_run, rewrite_all=rewrite_all)
            for name in list_maintained(work)
        )
    report = CompactReport(stream=stream, dry_run=dry_run, tables=tables)
    return note_maintenance(work, "compact", report)


def _compact(work: Workspace, name: str, *, dry_run: bool, rewrite_all: bool) -> TableCompaction:
    target = target_bytes(work)
    table = work.store.load(name)
    layout = read_layout(table)
    before = describe_table(name, table, layout, target)
    wanted = decide_rewrites(layout, target)
    if rewrite_all and "files" not in wanted:
        wanted = ("files", *wanted)
    waiting = find_waiting_merge(table, now_ms())
    if not wanted or waiting or dry_run:
        planned = () if waiting else wanted
        return TableCompaction(
            before=before, after=before, rewritten=planned, waiting_for=waiting, dry_run=dry_run
        )
    failed = _rewrite(work, name, "files", rewrite_all=rewrite_all) if "files" in wanted else 0
    rewritten: tuple[Rewrite, ...] = ("files",) if "files" in wanted else ()
    if "manifests" in decide_rewrites(read_layout(work.store.load(name)), target):
        _rewrite(work, name, "manifests")
        rewritten += ("manifests",)
    table_after, history = load_with_history(work.store, name)
    head = table.current_snapshot()
    require_same_row_count(head.snapshot_id if head else None, history)
    after = describe_table(name, table_after, read_layout(table_after), target)
    return TableCompaction(before=before, after=after, rewritten=rewritten, files_failed=failed)


def _rewrite(work: Workspace, name: str, rewrite: Rewrite, *, rewrite_all: bool = False) -> int:
    """Rewrite until no race is lost; give the files that lost theirs in the last turn."""
    layout = read_layout(work.store.load(name))
    request = new_request(work, name).model_copy(
        update={
            "action": "manifests" if rewrite == "manifests" else "compact",
            "partial_progress": needs_partial_progress(layout, target_bytes(work)),
            "rewrite_all": rewrite_all,
            "dry_run": False,
        }
    )
    failed = 0
    for turn in range(1, REWRITE_TURNS + 1):
        try:
            result = run_table_job(work, "compact_table", request)
        except JobFailedError as error:
            if not any(sign in error.facts for sign in _LOST_RACE_SIGNS):
                raise
            if turn == REWRITE_TURNS:
                raise CommitContentionError(
                    f"compacting {name}: other writers won {REWRITE_TURNS} turns; the last said: "
                    f"{error.facts}",
                    "nothing is lost, the files are as they were; the next run tries again",
                ) from error
            continue
        failed = result.counts.get("failed_data_files_count", 0)
        if failed == 0:
            break
    return failed


def find_waiting_merge(table: Table, at_ms: int) -> str | None:
    """Find a fresh staged merge: it can be published only while main stays where it is."""
    for name, ref in table.metadata.refs.items():
        branch = parse_branch(name, at_ms)
        snapshot = table.snapshot_by_id(ref.snapshot_id)
        if branch is None or snapshot is None or branch.age_ms > HOUR_MS:
            continue
        is_staged = snapshot.parent_snapshot_id == table.metadata.current_snapshot_id
        operation = snapshot_summary(snapshot.summary).get("operation")
        if is_staged and operation in {"overwrite", "delete"}:
            return name
    return None
