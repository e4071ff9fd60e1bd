"""Compaction: rewrite small files and many manifests of a stream's tables with Spark.

Rows and states stay as they are (I8). A repeated run finds nothing left to rewrite.
"""

from pyiceberg.table import Table

from frazil.errors import CommitContentionError
from frazil.iceberg.branches import parse_branch
from frazil.iceberg.catalog import snapshot_summary
from frazil.iceberg.table_view import TableView
from frazil.maintenance.compaction_rules import (
    Rewrite,
    TableLayout,
    decide_rewrites,
    needs_partial_progress,
    plan_first_passes,
    require_same_row_count,
)
from frazil.maintenance.messages import (
    CompactReport,
    TableCompaction,
    TableReport,
    TableRequest,
)
from frazil.maintenance.tables import (
    describe_table,
    iterate_maintained,
    new_request,
    note_maintenance,
    now_ms,
    read_base_table,
    read_layout,
    run_table_job,
    target_bytes,
)
from frazil.schemas.inferred_columns import with_event_key
from frazil.streams.timestamps import HOUR_MS
from frazil.workspace import Workspace

REWRITE_ATTEMPTS = 3


def compact_table(
    work: Workspace, *, dry_run: bool = False, rewrite_all: bool = False
) -> CompactReport:
    """Rewrite small files, files with many deletes and many manifests of the stream's tables.

    Spark is used only where there is something to rewrite. Batches may land meanwhile.

    Raises:
        TableError: a stream on the table is halted.
        ConservationError: a rewrite changed the number of rows.
        CommitContentionError: other writers committed first in every attempt; run again.
        JobFailedError, UnavailableError: run again.
    """
    stream, base = work.stream.stream, read_base_table(work)
    if base is None:
        missing = TableReport(table=work.stream.table.name, exists=False)
        tables: tuple[TableCompaction, ...] = (TableCompaction(before=missing, after=missing),)
    else:
        tables = tuple(
            _compact(work, view, dry_run=dry_run, rewrite_all=rewrite_all)
            for view in iterate_maintained(work, base)
        )
    report = CompactReport(stream=stream, dry_run=dry_run, tables=tables)
    return note_maintenance(work, "compact", report)


def _compact(
    work: Workspace, view: TableView, *, dry_run: bool, rewrite_all: bool
) -> TableCompaction:
    target, layout = target_bytes(work), read_layout(view.table)
    before = describe_table(view, layout, target)
    rewrites = decide_rewrites(layout, target)
    if rewrite_all:
        rewrites = ("files", *(kind for kind in rewrites if kind != "files"))
        debt = {"debt_files": before.files, "debt_bytes": before.bytes}
        before = before.model_copy(update=debt)
    waiting = find_waiting_merge(view.table, now_ms())
    if not rewrites or waiting or dry_run:
        planned = () if waiting else rewrites
        return TableCompaction(
            before=before, after=before, rewritten=planned, waiting_for=waiting, dry_run=dry_run
        )
    rewritten: tuple[Rewrite, ...] = ()
    head, failed = view.history.head, 0
    first = () if rewrite_all else plan_first_passes(layout.files, target)
    passes: list[tuple[Rewrite, float | None]] = [("files", share) for share in (*first, None)]
    for kind, share in (*passes, ("manifests", None)):
        if kind in rewrites:
            request = _build_request(work, view, kind, layout, rewrite_all=rewrite_all)
            left = _rewrite(work, request.model_copy(update={"hidden_share": share}))
            failed = left if kind == "files" else failed
            view = view.reload()
            layout = read_layout(view.table)
            rewrites = decide_rewrites(layout, target)
            rewritten = tuple(dict.fromkeys((*rewritten, kind)))
    require_same_row_count(head, view.history)
    after = describe_table(view, layout, target)
    return TableCompaction(before=before, after=after, rewritten=rewritten, files_failed=failed)


def _build_request(
    work: Workspace, view: TableView, kind: Rewrite, layout: TableLayout, *, rewrite_all: bool
) -> TableRequest:
    return new_request(work, view.name).model_copy(
        update={
            "action": "manifests" if kind == "manifests" else "compact",
            "partial_progress": needs_partial_progress(layout, target_bytes(work)),
            "rewrite_all": rewrite_all,
            "sort_by": _choose_order(work, view),
            "has_deletes": layout.delete_files > 0,
            "dry_run": False,
        }
    )


def _choose_order(work: Workspace, view: TableView) -> tuple[str, ...]:
    """Return the columns by which changes are sorted: an erasure then reads few of them.

    Another order that the table got is kept. While a renamed key waits for its review, or the
    recorded deletes for the next merge, there is none.
    """
    state = work.stream.table.state
    is_sorted = bool(view.table.sort_order().fields)
    if state is None or is_sorted or view.name not in {work.stream.table.name, state.deletes_name}:
        return ()
    names = with_event_key(work).stream.table.id_columns
    return names if {*names} <= {*view.table.schema().column_names} else ()


def _rewrite(work: Workspace, request: TableRequest) -> int:
    """Rewrite until no commit conflicts; return how many files the last attempt left."""
    failed = 0
    for attempt in range(1, REWRITE_ATTEMPTS + 1):
        try:
            result = run_table_job(work, "compact_table", request)
        except CommitContentionError as error:
            if attempt == REWRITE_ATTEMPTS:
                raise CommitContentionError(
                    f"compacting {request.table}: other writers committed first in "
                    f"{REWRITE_ATTEMPTS} attempts; last error: {error.facts}",
                    "nothing is lost, the files are unchanged; the next run tries again",
                ) from error
            continue
        failed = result.counts.get("failed_data_files_count", 0)
        if failed == 0:
            break
    return failed


def find_waiting_merge(table: Table, at_ms: int) -> str | None:
    """Return the branch of recently staged rows that need main to stay where it is."""
    for name, ref in table.metadata.refs.items():
        branch = parse_branch(name, at_ms)
        snapshot = table.snapshot_by_id(ref.snapshot_id)
        if branch is None or snapshot is None or branch.age_ms > HOUR_MS:
            continue
        is_staged = snapshot.parent_snapshot_id == table.metadata.current_snapshot_id
        operation = snapshot_summary(snapshot.summary).get("operation")
        if is_staged and (operation in {"overwrite", "delete"} or branch.is_beside):
            return name
    return None
