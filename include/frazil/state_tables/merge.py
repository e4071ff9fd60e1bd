"""MERGE: bring a state table to the newest changes, in one commit of rows and merge position.

Deletes enter the delete memory first, then the rows are staged on a branch, then main moves to it
if it is still where the merge began. A kill in between leaves what the next merge does again. Many
changes are merged in slices, each of which is a merge of its own.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

from pyiceberg.schema import Schema
from pyiceberg.table import Table

from frazil import __version__
from frazil.errors import ConservationError, MergeHaltedError, StageStaleError
from frazil.failpoints import reach_failpoint
from frazil.iceberg.branches import (
    create_branch_on,
    drop_branches,
    name_branch,
    parse_branch,
)
from frazil.iceberg.catalog import snapshot_summary
from frazil.iceberg.commit_retry import CommitConflictError
from frazil.iceberg.commits import MAIN
from frazil.iceberg.fast_forward import FastForward, fast_forward_main
from frazil.iceberg.table_view import TableView
from frazil.ingest.publishing import Marker, publish_marker
from frazil.ledger import keys
from frazil.ledger.recovery_point import require_recovery_point
from frazil.ledger.usage import encode_usage, read_and_reset_usage
from frazil.schemas.inferred_columns import with_event_key
from frazil.state_tables.followed_schema import list_former_names
from frazil.state_tables.merge_rules import (
    BY_REQUEST,
    CAME_LATE,
    DELETED_AT,
    MergePlan,
    describe_disagreement,
    find_operation,
    find_position,
    hash_rules,
    merge_waiting,
    plan_merge,
    require_compacted,
    require_mergeable,
)
from frazil.state_tables.merge_slices import take_slice
from frazil.state_tables.messages import (
    Merged,
    MergePosition,
    MergePreview,
    MergeRequest,
    MergeResult,
)
from frazil.state_tables.tables import ensure_state_table, require_own_state, require_state
from frazil.streams.models import Stream
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace

log = logging.getLogger(__name__)
STAGE_ATTEMPTS = 3
"""How often a merge is staged if another writer commits first."""


@dataclass(frozen=True)
class _Planned:
    """A merge before anything is written: the two tables, and the plan; None for nothing to fold.

    `work` knows the key of change events, `epoch` is that of the change table. `memory` is
    the delete memory, if there is one, as it was before the change table was loaded.
    """

    work: Workspace
    changes: TableView
    state: TableView
    memory: Table | None
    epoch: int
    before: MergePosition | None
    plan: MergePlan | None


@dataclass(frozen=True)
class _Attempt:
    """One staging of a merge: the plan, the position before, the branch and its base.

    `sequence` is the sequence number of the delete memory before the plan.
    """

    plan: MergePlan
    before: MergePosition | None
    merge_id: str
    branch: str
    base_head: int | None
    sequence: int

    @property
    def memory(self) -> str:
        """Return the part of the delete memory to use; an attempt of a rebuild begins a new one.

        That of an attempt that was killed may be removed while the rebuild runs again.
        """
        return self.before.memory if self.before and self.plan.added is not None else self.branch

    @property
    def waiting(self) -> tuple[int, ...]:
        """Return the pending deletes, not in the changes yet; a rebuild finds them by itself."""
        return self.before.waiting if self.before and self.plan.added is not None else ()


class _LateChangeError(Exception):
    """A change event may have changed what older merges filled: all changes have to be folded."""


def merge_changes(
    work: Workspace, *, rebuild: bool = False, report: Callable[[str], None] = log.info
) -> Merged:
    """Fold the changes above the merge position into the state table; repeating it does nothing.

    With `rebuild` all changes are folded and replace the state. `report` is called with a
    line of progress after each slice but the last.

    Raises:
        IncompatibleTableError: the stream has no state table, or another table has its name.
        MissingTableError: the stream has not begun.
        TableError: the stream is halted, or the state cannot follow its changes.
        ConservationError: the counts of fold and table disagree; nothing was published.
        StageStaleError: another writer committed first in every attempt, or a merge with newer
            changes recorded deletes; run again.
        JobFailedError, UnavailableError: run again; slices that were published are kept.
    """
    reason, stale, started = BY_REQUEST if rebuild else "", 0, time.monotonic()
    slices: list[Merged] = []
    while True:
        try:
            merged = _try_merge(work, reason)
        except _LateChangeError:
            reason = CAME_LATE
        except StageStaleError:
            reason, stale = BY_REQUEST if rebuild else "", stale + 1
            if stale == STAGE_ATTEMPTS:
                raise
        else:
            if merged.counts is not None or not slices:
                slices.append(merged)
            if not merged.changes_left:
                return _sum_slices(slices)
            reason, stale = "", 0
            report(_describe_progress(slices, time.monotonic() - started))


def _sum_slices(slices: Sequence[Merged]) -> Merged:
    """Return the last slice, with the counts of all."""
    counts = [each.counts for each in slices if each.counts is not None]
    update = {
        "counts": reduce(add, counts) if counts else None,
        "rebuilt": "; ".join(dict.fromkeys(each.rebuilt for each in slices if each.rebuilt)),
        "slices": len(slices),
        "changes_left": 0,
    }
    return slices[-1].model_copy(update=update)


def _describe_progress(slices: Sequence[Merged], seconds: float) -> str:
    """Return how many changes are merged, of how many, and since when."""
    last, folded = slices[-1], 0
    for each in slices:
        before = 0 if each.rebuilt else folded  # a rebuild folds what was merged once more
        folded = before + (each.counts.changes if each.counts is not None else 0)
    return (
        f"{last.table}: slice {len(slices)} merged, {folded:,} of "
        f"{folded + last.changes_left:,} changes in {seconds:,.0f} s"
    )


def preview_merge(work: Workspace, *, rebuild: bool = False, dry_run: bool = True) -> MergePreview:
    """Return what a merge would fold now; nothing is written.

    Raises:
        FrazilError: as `merge_changes`, for what a merge finds before it stages.
    """
    plan = _plan(work, BY_REQUEST if rebuild else "").plan
    return MergePreview(
        stream=work.stream.stream,
        table=require_state(work.stream).name,
        dry_run=dry_run,
        has_changes=plan is not None,
        added_offsets=plan.count_added() if plan else None,
        rebuilt=plan.reason if plan else "",
    )


def _plan(work: Workspace, rebuild: str) -> _Planned:
    state, changes = require_state(work.stream), TableView(work.store, work.stream.table.name)
    memory = work.store.find(state.deletes_name)
    point = require_recovery_point(changes.history, work.stream.stream)
    work = with_event_key(work, changes)
    view = TableView(work.store, state.name)
    before = _find_position(work.stream, view, rebuild=bool(rebuild))
    plan = plan_merge(changes.history, work.stream, before, rebuild=rebuild)
    if plan is not None and plan.added is not None:
        require_compacted(work.stream.stream, view.history)
    return _Planned(work, changes, view, memory, point.state.epoch, before, plan)


def _try_merge(work: Workspace, rebuild: str) -> Merged:
    planned = _plan(work, rebuild)
    work, changes, plan = planned.work, planned.changes, planned.plan
    stream = work.stream
    if plan is None:
        name = require_state(stream).name
        return Merged(stream=stream.stream, table=name, outcome="NOTHING")
    plan = take_slice(changes.history, plan, planned.before, stream.merge.max_changes)
    columns = _find_schema(changes.table, plan.read_at)
    view = ensure_state_table(work, planned.state, columns, planned.memory)
    _drop_old_branches(view)
    branch = name_branch(stream.stream, planned.epoch, beside=True)
    sequence = _find_newest_sequence(planned.memory) if planned.memory is not None else 0
    merge_id = plan.identify(view.history, planned.before, hash_rules(stream))
    attempt = _Attempt(plan, planned.before, merge_id, branch, view.history.head, sequence)
    try:
        return _stage_and_publish(work, attempt, changes, view)
    except (StageStaleError, MergeHaltedError, _LateChangeError):
        drop_branches(view.reload(), [branch])
        raise


def _find_position(stream: Stream, state: TableView, *, rebuild: bool) -> MergePosition | None:
    """Return the merge position; None if there is no state table yet."""
    if state.found is None:
        return None
    require_own_state(stream, state.table)
    return find_position(state.history, stream.stream, rebuild=rebuild)


def _find_schema(changes: Table, snapshot_id: int) -> Schema:
    """Return the schema with which Spark reads a snapshot of the change table."""
    snapshot = changes.snapshot_by_id(snapshot_id)
    found = snapshot.schema_id if snapshot is not None else None
    return changes.schema() if found is None else changes.schemas()[found]


def _drop_old_branches(state: TableView) -> None:
    """Drop the branches that killed merges left a day ago or longer."""
    now_ms = time.time_ns() // 1_000_000
    found = (parse_branch(name, now_ms) for name in state.table.metadata.refs)
    old = [each.name for each in found if each is not None and each.age_ms > DAY_MS]
    if old:
        drop_branches(state, old)


def _create_branch(state: TableView, attempt: _Attempt) -> None:
    """Create the branch at the head for which the merge was planned."""
    refs = create_branch_on(state, attempt.branch).table.metadata.refs
    heads = {refs[name].snapshot_id for name in (attempt.branch, MAIN)}
    if heads != {attempt.base_head}:
        raise StageStaleError(
            f"merge of {state.name}: another writer committed on {attempt.base_head} before the "
            "stage; nothing was written",
            "run again: it stages on the new head",
        )
    reach_failpoint("merge.after-branch")


def _stage_and_publish(
    work: Workspace, attempt: _Attempt, changes: TableView, view: TableView
) -> Merged:
    stream, state = work.stream, require_state(work.stream)
    _create_branch(view, attempt)
    request = _build_request(work, attempt, changes.table, view.table)
    result = work.engine.run_job("merge_changes", request, MergeResult)
    _require_known_deletes(work, attempt, changes.table)
    if result.fault == "late":
        raise _LateChangeError
    require_mergeable(stream, result)
    reach_failpoint("merge.after-stage")
    view = view.reload()
    staged_id = view.table.metadata.refs[attempt.branch].snapshot_id
    summary = _summarize(work, attempt, str(changes.table.metadata.table_uuid), result)
    if staged_id == attempt.base_head:
        snapshot_id = _publish_position(work, attempt, view, summary)
    else:
        _require_agreement(work, attempt, result, view.table)
        landed = fast_forward_main(view, FastForward(attempt.branch, staged_id, summary))
        snapshot_id = landed.entry.snapshot_id
    return Merged(
        stream=stream.stream,
        table=state.name,
        outcome="MERGED",
        snapshot_id=snapshot_id,
        change_snapshot=attempt.plan.head,
        counts=result.counts,
        rebuilt=attempt.plan.reason,
        changes_left=attempt.plan.rest.changes if attempt.plan.rest else 0,
    )


def _require_known_deletes(work: Workspace, attempt: _Attempt, changes: Table) -> None:
    """Raise if a merge that was planned with newer changes recorded deletes since this plan.

    They may be deletes of changes that are not in this plan, which would make older ones stale.
    The merge with the newer plan goes on, so of several merges at once one always ends. A rebuild
    reads no recorded deletes.
    """
    state = require_state(work.stream)
    if attempt.plan.added is None or work.stream.table.deletes == "mark":
        return
    memory = work.store.load(state.deletes_name)
    known = {str(each.snapshot_id) for each in changes.metadata.snapshots}
    if not _list_change_snapshots(memory, attempt.sequence) <= known:
        raise StageStaleError(
            f"merge of {state.name}: a merge with newer changes recorded deletes in "
            f"{state.deletes_name} meanwhile; nothing was published",
            "run again: it plans with the newer changes, too",
        )


def _find_newest_sequence(table: Table) -> int:
    return max((each.sequence_number or 0 for each in table.metadata.snapshots), default=0)


def _list_change_snapshots(memory: Table, sequence: int) -> set[str]:
    """List the snapshots of the change table that merges knew which recorded deletes since."""
    newer = (s for s in memory.metadata.snapshots if (s.sequence_number or 0) > sequence)
    found = (snapshot_summary(each.summary).get(keys.CHANGE_SNAPSHOT) for each in newer)
    return {each for each in found if each is not None}


def _build_request(
    work: Workspace, attempt: _Attempt, changes: Table, table: Table
) -> MergeRequest:
    stream, state = work.stream, require_state(work.stream)
    names = [field.name for field in table.schema().fields]
    plan, schema = attempt.plan, _find_schema(changes, attempt.plan.read_at)
    operation = find_operation(stream, [field.name for field in schema.fields])
    has_events = stream.value.change_events is not None
    marks = stream.table.deletes == "mark"
    return MergeRequest(
        catalog=work.store.preset.name,
        changes=stream.table.name,
        change_snapshot=plan.read_at,
        state=state.name,
        branch=attempt.branch,
        deletes=state.deletes_name,
        memory=attempt.memory,
        added=plan.added,
        later=plan.rest.runs if plan.rest else {},
        # A table that once marked deletes keeps the column, in which rows have no value now.
        columns=tuple(name for name in names if not (marks and name == DELETED_AT)),
        id_columns=stream.table.id_columns,
        sequence=stream.sequence,
        operation=operation,
        marks=marks,
        has_events=has_events,
        has_added_operation=operation != stream.table.cdc_field and not has_events,
        former_names=list_former_names(changes.schemas(), schema, stream.value.typed_columns),
        waiting=attempt.waiting,
        session_conf=work.store.preset.spark_conf(),
    )


def _summarize(
    work: Workspace, attempt: _Attempt, changes_uuid: str, result: MergeResult
) -> Mapping[str, str]:
    """Return the summary of the snapshot that moves the merge position."""
    stream = work.stream
    position = MergePosition(
        snapshot_id=attempt.plan.head,
        table_uuid=changes_uuid,
        rules=hash_rules(stream),
        id_columns=stream.table.id_columns,
        memory=attempt.memory,
        counts=result.counts,
        rebuilt=attempt.plan.reason,
        erased=attempt.plan.rest.erased if attempt.plan.rest else (),
        waiting=merge_waiting(attempt.waiting, result.waiting),
    )
    return {
        keys.KIND: keys.MERGE,
        keys.STREAM: stream.stream,
        keys.BATCH_ID: attempt.merge_id,
        keys.merge_key(stream.stream): position.encode(),
        keys.RUN_ID: work.run_id,
        keys.USAGE: encode_usage({"merge": read_and_reset_usage()}),
        keys.VERSION: __version__,
    }


def _publish_position(
    work: Workspace, attempt: _Attempt, view: TableView, summary: Mapping[str, str]
) -> int:
    """Move the merge position alone: no change was applied."""
    marker = Marker(keys.MERGE, {}, attempt.base_head, work.run_id, summary)
    try:
        snapshot_id = publish_marker(work.store, view.table, marker)
    except CommitConflictError as error:
        raise StageStaleError(
            f"merge of {view.name}: another writer committed first: {error}", "run again"
        ) from error
    drop_branches(view.reload(), [attempt.branch])
    return snapshot_id


def _require_agreement(
    work: Workspace, attempt: _Attempt, result: MergeResult, table: Table
) -> None:
    state = require_state(work.stream).name
    staged = table.snapshot_by_name(attempt.branch)
    summary = snapshot_summary(staged.summary) if staged is not None else {}
    marks, rebuilt = work.stream.table.deletes == "mark", attempt.plan.added is None
    wrong = describe_disagreement(result.counts, summary, marks=marks, rebuilt=rebuilt)
    if wrong:
        raise ConservationError(
            f"merge of {state}: {wrong}; nothing was published, the rows are on branch "
            f"{attempt.branch}",
            "run again, and report this if it happens again",
        )
