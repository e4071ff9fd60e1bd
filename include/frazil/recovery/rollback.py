"""RECOVER: roll a table back, rows and offsets of all streams together, or resolve a halt.

One commit adds an empty snapshot of kind `rewind` on the chosen ancestor and moves main to it; the
abandoned head stays readable under a tag for the rollback window. `plan_recovery` previews,
`recover` carries out that plan on the table as it is then (protocol.md, Recover).
"""

import hashlib
import json
import time
from contextlib import suppress

from pyiceberg.table.update import TableUpdate

from frazil.environment import read_limit
from frazil.errors import NothingToDecideError, StateEndsError, SupersededError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.ledger_archive import archive_all_entries, archive_new_entries
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ingest.snapshot_summaries import summarize_marker
from frazil.ledger import keys
from frazil.ledger.authors import Author, require_not_dry_run
from frazil.ledger.coordinates import encode_dead_letters, join_dead_letters
from frazil.ledger.deletions import parse_deleted_dead_letters
from frazil.ledger.offsets import Ranges, describe_ranges, plain_ranges, unpack_ranges
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors
from frazil.ledger.state import hint_properties
from frazil.messages import count_noun
from frazil.recovery import halt_resolution
from frazil.recovery.decisions import accept_gap
from frazil.recovery.messages import (
    APPROVAL_ROWS,
    APPROVAL_VARIABLE,
    Recovered,
    RecoverRequest,
    RecoveryPlan,
)
from frazil.recovery.retention_check import (
    LostRanges,
    find_lost_backfills,
    find_lost_ranges,
    open_stream,
    require_no_lost_backfill,
    require_no_lost_range,
)
from frazil.recovery.rollback_rules import (
    Rollback,
    add_earlier_rollbacks,
    choose_target,
    decide_rollback,
    describe_rollback,
    validate_one_target,
)
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace, retention_window

_HALT_RESOLUTIONS = {
    "reingest": halt_resolution.reingest,
    "skip": halt_resolution.skip,
    "new-table": halt_resolution.start_over,
}
_OWN_KINDS = frozenset({keys.INGEST, keys.CARRY, keys.EXPIRE_ROWS, keys.TRIM})
TAG_PREFIX = "frazil_before_rewind_"


def plan_recovery(work: Workspace, request: RecoverRequest) -> RecoveryPlan:
    """Work out what a recovery would do; nothing is written.

    Raises:
        ConfigurationError: the request is ambiguous, or has no author and is not a dry run.
        TargetError, NothingToDecideError: the target cannot be reached.
        RetentionGapError: Kafka lacks ranges to read again, and the request does not accept that.
        SourceError, TableError, UnavailableError: the table or Kafka cannot be read.
    """
    validate_one_target(request)
    if not request.dry_run:
        Author(request.by, request.reason)
    if request.answer is not None:
        return _plan_halt_resolution(work, request)
    history = TableView(work.store, work.stream.table.name).history
    published = _find_published(history, request)
    if published is not None:
        text = f"done already: rollback snapshot {published.snapshot_id}"
        return _new_plan(work, request, text, history.head)
    target = choose_target(history, work.stream.stream, request)
    effects = _decide(work, history, request, target.snapshot_id)
    plan = describe_rollback(_new_plan(work, request, "", history.head), *effects)
    return add_earlier_rollbacks(plan, history, int(time.time() * 1000))


def _decide(
    work: Workspace, history: History, request: RecoverRequest, target_id: int
) -> tuple[Rollback, LostRanges, dict[str, list[Ranges]]]:
    """Return the rollback, and the lost ranges and lost backfilled windows that it accepts."""
    rollback = decide_rollback(history, work.stream.stream, target_id)
    lost = find_lost_ranges(work, rollback)
    require_no_lost_range(request, lost)
    windows = find_lost_backfills(work, rollback)
    require_no_lost_backfill(request, windows)
    return rollback, lost, windows


def recover(work: Workspace, plan: RecoveryPlan, approved_by: str = "") -> Recovered:
    """Carry out a plan; a repetition finds it done. The snapshot records who approved it.

    Raises:
        ConfigurationError: the plan is a dry run, or has no author.
        SupersededError: another writer changed the table since the plan.
        SourceError, TableError: as in `plan_recovery`; nothing was written.
        CommitContentionError, UnavailableError: run again.
    """
    request = plan.request
    require_not_dry_run(plan.stream, dry_run=request.dry_run)
    author = Author(request.by, request.reason)
    if request.answer is not None:
        decision = _HALT_RESOLUTIONS[request.answer](work, author)
        return _describe_result(plan, decision.kind, decision.snapshot_id, decision.text)
    view = TableView(work.store, plan.table)
    archive_all_entries(work.store, view.history)
    views = iterate_views(view)
    entry, was_done = retry_commit(
        f"rolling back {plan.table}", lambda: _try_rollback(work, next(views), plan, approved_by)
    )
    reach_failpoint("rollback.after-commit")
    view = view.reload()
    archive_new_entries(work.store, view.history)
    gaps = _accept_gaps(work, view, entry, author)
    text = f"main of {plan.table} was rolled back to snapshot {entry.parent_id}"
    tag = TAG_PREFIX + str(entry.snapshot_id)
    if tag in view.table.metadata.refs:
        text += f"; the previous head stays readable as tag {tag} for the rollback window"
    result = _describe_result(plan, keys.REWIND, entry.snapshot_id, "; ".join((text, *gaps)))
    return result.model_copy(update={"outcome": "ALREADY"}) if was_done else result


def _plan_halt_resolution(work: Workspace, request: RecoverRequest) -> RecoveryPlan:
    """Preview the resolution of a halt; a repeated one passes, so that `recover` finds it done."""
    try:
        preview = _HALT_RESOLUTIONS[request.answer or ""](work, None)
    except NothingToDecideError:
        if request.dry_run:
            raise
        text = "the stream is not halted; it may have been resolved already"
        return _new_plan(work, request, text, None)
    return _new_plan(work, request, f"{preview.kind}: {preview.text}", None)


def _new_plan(
    work: Workspace, request: RecoverRequest, text: str, head: int | None
) -> RecoveryPlan:
    stream = work.stream
    return RecoveryPlan(
        stream=stream.stream,
        table=stream.table.name,
        request=request,
        head=head,
        approval_rows=choose_approval_rows(request),
        text=text,
    )


def choose_approval_rows(request: RecoverRequest) -> int:
    """Return above how many rows a second person must approve: a request may only lower the limit.

    Raises:
        ConfigurationError: the site's limit is not a number.
    """
    limit = read_limit(APPROVAL_VARIABLE, APPROVAL_ROWS)
    return limit if request.approval_rows is None else min(limit, request.approval_rows)


def _describe_result(
    plan: RecoveryPlan, kind: str, snapshot_id: int | None, text: str
) -> Recovered:
    return Recovered(
        stream=plan.stream,
        table=plan.table,
        kind=kind,
        outcome="RECORDED",
        snapshot_id=snapshot_id,
        text=text,
    )


def _request_properties(request: RecoverRequest) -> dict[str, str]:
    return {
        keys.STREAM: request.stream,
        keys.BY: request.by,
        keys.REASON: request.reason,
        keys.TARGET: request.target,
    }


def _find_published(history: History, request: RecoverRequest) -> LedgerEntry | None:
    """Find this rollback on main; equal target, author and reason are one decision."""
    wanted = _request_properties(request) | {keys.KIND: keys.REWIND}
    found = (entry for entry in walk_ancestors(history) if wanted.items() <= entry.summary.items())
    return next(found, None)


def _try_rollback(
    work: Workspace, view: TableView, plan: RecoveryPlan, approved_by: str
) -> tuple[LedgerEntry, bool]:
    """Decide on the view and commit on exactly its head; True if it was there before."""
    history = view.history
    published = _find_published(history, plan.request)
    if published is not None:
        return published, True
    _require_previewed(history, plan)
    at_target = plan.request.model_copy(
        update={"to_snapshot": plan.target_id, "to_time": None, "to_offset": None}
    )
    target = choose_target(history, plan.stream, at_target)
    rollback, lost, windows = _decide(work, history, plan.request, target.snapshot_id)
    _require_no_new_loss(plan, describe_rollback(plan, rollback, lost, windows))
    properties = _request_properties(plan.request)
    if approved_by:
        properties[keys.APPROVED_BY] = approved_by
    if windows:
        lost_windows = {s: [plain_ranges(each) for each in found] for s, found in windows.items()}
        properties[keys.LOST_WINDOWS] = json.dumps(lost_windows)
    if lost:
        lost_ranges = {stream: plain_ranges(ranges) for stream, ranges in lost.items()}
        properties[keys.LOST_RANGES] = json.dumps(lost_ranges)
    erased = join_dead_letters(
        parse_deleted_dead_letters(entry.summary) for entry in rollback.removed
    )
    if erased:  # a rollback does not restore dead letters, so the ledger keeps listing them
        properties[keys.LETTERS] = encode_dead_letters(erased)
    reach_failpoint("rollback.before-commit")
    return _commit_rollback(work, view, rollback, properties), False


def _require_previewed(history: History, plan: RecoveryPlan) -> None:
    """Check that only batches, which are read again, and maintenance landed since the plan."""
    for entry in walk_ancestors(history):
        if entry.snapshot_id == plan.head:
            return
        is_own = entry.summary.get(keys.KIND) in _OWN_KINDS
        if not is_own and entry.summary.get("operation") != "replace":
            break
    raise SupersededError(
        f"stream {plan.stream}: {plan.table} was at snapshot {plan.head} when this recovery was "
        "planned; since then it was changed by more than batches and maintenance",
        f"plan again: `frazil recover {plan.stream}` with the same target; nothing was written",
    )


def _require_no_new_loss(plan: RecoveryPlan, now: RecoveryPlan) -> None:
    """Check that nothing more is lost than the plan showed: Kafka keeps deleting meanwhile."""
    if (plan.lost, plan.windows_lost) != (now.lost, now.windows_lost):
        raise SupersededError(
            f"stream {plan.stream}: Kafka deleted more of the ranges to read again since this "
            f"recovery was planned; lost now: {_describe_loss(now)}; lost in the plan: "
            f"{_describe_loss(plan)}",
            f"plan again: `frazil recover {plan.stream}` with the same target; nothing was written",
        )


def _describe_loss(plan: RecoveryPlan) -> str:
    ranges = "; ".join(
        f"{stream}: {describe_ranges(unpack_ranges(lost))}" for stream, lost in plan.lost.items()
    )
    return f"{ranges or 'no offset'} and {count_noun(plan.windows_lost, 'window')}"


def _commit_rollback(
    work: Workspace, view: TableView, rollback: Rollback, properties: dict[str, str]
) -> LedgerEntry:
    history = view.history
    parts = [history.table_uuid, properties, rollback.target.snapshot_id, history.head]
    own_id = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    states = rollback.states_to_write(history, own_id)
    extra = properties | {keys.BATCH_ID: own_id, keys.ABANDONED_HEAD: str(history.head)}
    summary = summarize_marker(keys.REWIND, states, work.run_id, extra)
    target_id = rollback.target.snapshot_id
    with translated_errors("writing the rollback snapshot"):
        added = commits.build_append(view.table, summary, parent_id=target_id)
    new_id = added.snapshot.snapshot_id
    updates: list[TableUpdate] = [
        *commits.move_main(added),
        commits.set_properties(hint_properties(states, new_id)),
        *_tag_abandoned(work, history, new_id),
    ]
    commit_once(work.store, view.table, {commits.MAIN: history.head}, updates)
    return LedgerEntry(new_id, target_id, added.snapshot.timestamp_ms, summary)


def _tag_abandoned(work: Workspace, history: History, rollback_id: int) -> list[TableUpdate]:
    """Tag the abandoned head so that it stays for the rollback window, at least a day from now."""
    entry = history.entries.get(history.head or 0)
    if entry is None:
        return []
    keep_ms = max(DAY_MS, retention_window(work).rollback_ms)
    age_ms = max(0, int(time.time() * 1000) - entry.committed_at_ms)
    return [commits.set_tag(TAG_PREFIX + str(rollback_id), entry.snapshot_id, age_ms + keep_ms)]


def _accept_gaps(
    work: Workspace, view: TableView, rollback: LedgerEntry, author: Author
) -> list[str]:
    """Record the ranges lost by the rollback as gaps, stream by stream, in the author's name.

    Only while the rollback is a stream's newest state: a later gap needs its own decision.
    """
    notes = []
    for stream in json.loads(rollback.summary.get(keys.LOST_RANGES, "{}")):
        point = view.find_point(stream)
        if point is None or point.snapshot_id != rollback.snapshot_id:
            continue
        with suppress(NothingToDecideError):
            try:
                gap = accept_gap(open_stream(work, stream), author)
            except StateEndsError as error:  # the rollback is done: this gap is another decision
                notes.append(f"gap of {stream} not recorded: {error.facts}")
            else:
                notes.append(f"gap of {stream}: {gap.text}")
    return notes
