"""RECOVER: go back to an ancestor of main, rows and offsets of all streams together.

One commit adds an empty `rewind` snapshot on the chosen ancestor and moves main to it; the head
that is left stays readable under a tag for a while. `plan_recovery` looks, `recover` does what it
showed, on a look of its own (protocol.md, Recover).
"""

import hashlib
import json
import time
from contextlib import suppress

from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil.connections import read_limit
from frazil.errors import NothingToDecideError, SupersededError
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.ledger_archive import (
    archive_all_entries,
    archive_new_entries,
    load_with_history,
)
from frazil.ingest.snapshot_summaries import summarize_marker
from frazil.ledger import keys
from frazil.ledger.authors import Author, require_not_dry_run
from frazil.ledger.coordinates import encode_dead_letters, join_dead_letters
from frazil.ledger.deletions import parse_deleted_dead_letters
from frazil.ledger.offsets import plain_ranges
from frazil.ledger.recovery_point import History, LedgerEntry, find_recovery_point, walk_ancestors
from frazil.ledger.state import hint_properties
from frazil.recovery import halt_resolution
from frazil.recovery.decisions import accept_gap
from frazil.recovery.messages import (
    APPROVAL_ROWS,
    APPROVAL_VARIABLE,
    Recovered,
    RecoverRequest,
    RecoveryPlan,
    validate_one_target,
)
from frazil.recovery.retention_check import (
    find_lost,
    find_lost_windows,
    open_stream,
    require_no_lost_window,
    require_nothing_lost,
)
from frazil.recovery.rollback_rules import (
    Rollback,
    choose_target,
    decide_rollback,
    describe_rollback,
)
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace, retention_window

_ANSWERS = {
    "reingest": halt_resolution.reingest,
    "skip": halt_resolution.skip,
    "new-table": halt_resolution.start_over,
}
_OWN_KINDS = frozenset({keys.INGEST, keys.CARRY, keys.EXPIRE_ROWS})
TAG_PREFIX = "frazil_before_rewind_"


def plan_recovery(work: Workspace, request: RecoverRequest) -> RecoveryPlan:
    """Look what a recovery would do; nothing is written.

    Raises:
        ConfigurationError: the request is unclear, or lacks who and why although it is no dry run.
        TargetError, NothingToDecideError: there is no such way back.
        RetentionGapError: Kafka lacks what must be read again, and nobody accepted that.
        SourceError, TableError, UnavailableError: the stream is in no state to recover from.
    """
    validate_one_target(request)
    if not request.dry_run:
        Author(request.by, request.reason)
    if request.answer is not None:
        return _plan_answer(work, request)
    _, history = load_with_history(work.store, work.stream.table.name)
    standing = _find_standing(history, request)
    if standing is not None:
        text = f"this decision stands already as rewind snapshot {standing.snapshot_id}"
        return _new_plan(work, request, text, history.head)
    target = choose_target(history, work.stream.stream, request)
    rewind = decide_rollback(history, work.stream.stream, target.snapshot_id)
    lost = find_lost(work, rewind)
    require_nothing_lost(request, lost)
    windows = find_lost_windows(work, rewind)
    require_no_lost_window(request, windows)
    return describe_rollback(_new_plan(work, request, "", history.head), rewind, lost, windows)


def recover(work: Workspace, plan: RecoveryPlan) -> Recovered:
    """Do what was planned; any repetition finds it there.

    Raises:
        ConfigurationError: the plan is a dry run, or lacks who and why.
        SupersededError: somebody else changed the table since the plan.
        SourceError, TableError: as in `plan_recovery`; nothing was written.
        CommitContentionError, UnavailableError: run again.
    """
    request = plan.request
    require_not_dry_run(plan.stream, dry_run=request.dry_run)
    author = Author(request.by, request.reason)
    if request.answer is not None:
        done = _ANSWERS[request.answer](work, author)
        return _describe_done(plan, done.kind, done.snapshot_id, done.text)
    _, history = load_with_history(work.store, plan.table)
    archive_all_entries(work.store, history)
    entry, was_done = retry_commit(f"rewinding {plan.table}", lambda: _rewind_turn(work, plan))
    reach_failpoint("rewind.after-commit")
    table, history = load_with_history(work.store, plan.table)
    archive_new_entries(work.store, history)
    gaps = _accept_gaps(work, history, entry, author)
    text = f"main of {plan.table} went back to snapshot {entry.parent_id}"
    tag = TAG_PREFIX + str(entry.snapshot_id)
    if tag in table.metadata.refs:
        text += f"; what it left can be read for a while as tag {tag}"
    done_plan = _describe_done(plan, keys.REWIND, entry.snapshot_id, "; ".join((text, *gaps)))
    return done_plan.model_copy(update={"outcome": "ALREADY"}) if was_done else done_plan


def _plan_answer(work: Workspace, request: RecoverRequest) -> RecoveryPlan:
    """Show an answer to a halt; one that was given already is found when it is given again."""
    try:
        shown = _ANSWERS[request.answer or ""](work, None)
    except NothingToDecideError:
        if request.dry_run:
            raise
        return _new_plan(work, request, "nothing halts now; perhaps this answer was given", None)
    return _new_plan(work, request, f"{shown.kind}: {shown.text}", None)


def _new_plan(
    work: Workspace, request: RecoverRequest, text: str, head: int | None
) -> RecoveryPlan:
    stream = work.stream
    return RecoveryPlan(
        stream=stream.stream,
        table=stream.table.name,
        request=request,
        head=head,
        approval_rows=choose_limit(request),
        text=text,
    )


def choose_limit(request: RecoverRequest) -> int:
    """Choose above how many rows a second person is asked: who asks may be stricter, never laxer.

    Raises:
        ConfigurationError: the site's limit is no number.
    """
    limit = read_limit(APPROVAL_VARIABLE, APPROVAL_ROWS)
    return limit if request.approval_rows is None else min(limit, request.approval_rows)


def _describe_done(plan: RecoveryPlan, kind: str, snapshot_id: int | None, text: str) -> Recovered:
    return Recovered(
        stream=plan.stream,
        table=plan.table,
        kind=kind,
        outcome="RECORDED",
        snapshot_id=snapshot_id,
        text=text,
    )


def _explain(request: RecoverRequest) -> dict[str, str]:
    return {
        keys.STREAM: request.stream,
        keys.BY: request.by,
        keys.REASON: request.reason,
        keys.TARGET: request.target,
    }


def _find_standing(history: History, request: RecoverRequest) -> LedgerEntry | None:
    """Find this very rewind on main: the same words for the same target are one decision (C13)."""
    wanted = _explain(request) | {keys.KIND: keys.REWIND}
    found = (entry for entry in walk_ancestors(history) if wanted.items() <= entry.summary.items())
    return next(found, None)


def _rewind_turn(work: Workspace, plan: RecoveryPlan) -> tuple[LedgerEntry, bool]:
    """Decide on a fresh look and commit on exactly that head."""
    table, history = load_with_history(work.store, plan.table)
    standing = _find_standing(history, plan.request)
    if standing is not None:
        return standing, True
    _require_previewed(history, plan)
    at_target = plan.request.model_copy(
        update={"to_snapshot": plan.target_id, "to_time": None, "to_offset": None}
    )
    target = choose_target(history, plan.stream, at_target)
    rewind = decide_rollback(history, plan.stream, target.snapshot_id)
    lost = find_lost(work, rewind)
    require_nothing_lost(plan.request, lost)
    windows = find_lost_windows(work, rewind)
    require_no_lost_window(plan.request, windows)
    _require_no_new_loss(plan, describe_rollback(plan, rewind, lost, windows))
    words = _explain(plan.request)
    if windows:
        given_up = {s: [plain_ranges(each) for each in gone] for s, gone in windows.items()}
        words[keys.LOST_WINDOWS] = json.dumps(given_up)
    if lost:
        words[keys.LOST_RANGES] = json.dumps({s: plain_ranges(gone) for s, gone in lost.items()})
    letters = join_dead_letters(parse_deleted_dead_letters(entry.summary) for entry in rewind.going)
    if letters:  # no rollback of the table brings them back: its ledger must go on saying so
        words[keys.LETTERS] = encode_dead_letters(letters)
    reach_failpoint("rewind.before-commit")
    return _commit_rewind(work, table, history, rewind, words), False


def _require_previewed(history: History, plan: RecoveryPlan) -> None:
    """See that nothing landed since the plan but batches, which are read again, and maintenance."""
    for entry in walk_ancestors(history):
        if entry.snapshot_id == plan.head:
            return
        is_own = entry.summary.get(keys.KIND) in _OWN_KINDS
        if not is_own and entry.summary.get("operation") != "replace":
            break
    raise SupersededError(
        f"stream {plan.stream}: {plan.table} was at snapshot {plan.head} when this recovery was "
        "planned; since then somebody changed it by more than batches",
        f"look again: `frazil recover {plan.stream}` with the same target; nothing was written",
    )


def _require_no_new_loss(plan: RecoveryPlan, now: RecoveryPlan) -> None:
    """See that nobody gives up more than was shown and agreed to: Kafka deletes on meanwhile."""
    if (plan.lost, plan.windows_lost) != (now.lost, now.windows_lost):
        raise SupersededError(
            f"stream {plan.stream}: since this recovery was planned Kafka lost more of what must "
            f"be read again: {now.lost} and {now.windows_lost} windows, where the plan says "
            f"{plan.lost} and {plan.windows_lost}",
            f"look again: `frazil recover {plan.stream}` with the same target; nothing was written",
        )


def _commit_rewind(
    work: Workspace, table: Table, history: History, rewind: Rollback, words: dict[str, str]
) -> LedgerEntry:
    parts = [history.table_uuid, words, rewind.target.snapshot_id, history.head]
    own_id = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]
    states = rewind.raised(history, own_id)
    extra = words | {keys.BATCH_ID: own_id, keys.ABANDONED_HEAD: str(history.head)}
    summary = summarize_marker(keys.REWIND, states, work.run_id, extra)
    target_id = rewind.target.snapshot_id
    with translated_errors("writing the rewind snapshot"):
        added = commits.build_append(table, summary, parent_id=target_id)
    new_id = added.snapshot.snapshot_id
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, new_id),
        commits.set_properties(hint_properties(states, new_id)),
        *_tag_abandoned(work, history, new_id),
    ]
    commit_once(work.store, table, {commits.MAIN: history.head}, updates)
    return LedgerEntry(new_id, target_id, added.snapshot.timestamp_ms, summary)


def _tag_abandoned(work: Workspace, history: History, rewind_id: int) -> list[TableUpdate]:
    """Keep the abandoned head for the rollback window, a day at least, from now on."""
    entry = history.entries.get(history.head or 0)
    if entry is None:
        return []
    keep_ms = max(DAY_MS, retention_window(work).rollback_ms)
    age_ms = max(0, int(time.time() * 1000) - entry.committed_at_ms)
    return [commits.set_tag(TAG_PREFIX + str(rewind_id), entry.snapshot_id, age_ms + keep_ms)]


def _accept_gaps(
    work: Workspace, history: History, rewind: LedgerEntry, author: Author
) -> list[str]:
    """Record what the rewind gave up, stream by stream, in the same person's name.

    Only while a stream stands on the rewind itself: a later gap is a decision of its own.
    """
    notes = []
    for stream in json.loads(rewind.summary.get(keys.LOST_RANGES, "{}")):
        point = find_recovery_point(history, stream)
        if point is None or point.snapshot_id != rewind.snapshot_id:
            continue
        with suppress(NothingToDecideError):
            notes.append(f"gap of {stream}: {accept_gap(open_stream(work, stream), author).text}")
    return notes
