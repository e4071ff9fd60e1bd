"""PUBLISH: one compare-and-swap commit makes rows and offsets visible together.

Each attempt decides on one load of the table. It first searches main for its own batch, because an
earlier attempt with an unknown outcome may have been committed. So no attempt deletes files.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil.errors import (
    NothingToDecideError,
    StageLostError,
    StageStaleError,
    SupersededError,
    TableDroppedError,
    TableError,
    TableRecreatedError,
)
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.catalog import TableStore, translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.ledger_archive import archive_new_entries, require_not_dropped
from frazil.iceberg.table_schema import is_compatible_superset
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ingest.blocked_batches import (
    RulesFingerprint,
    explain_block,
    read_blocked,
    still_applies,
)
from frazil.ingest.fast_path import new_table
from frazil.ingest.isolation import suspected_records
from frazil.ingest.messages import BatchPlan, Staged, Verdict
from frazil.ingest.snapshot_summaries import summarize_batch, summarize_marker
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.ledger.foreign_snapshots import require_sole_writer
from frazil.ledger.keys import pack
from frazil.ledger.offsets import (
    Ranges,
    count_offsets,
    describe_next_offsets,
    describe_ranges,
    encode_ranges,
    parse_ranges,
)
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    PublishedBatch,
    RecoveryPoint,
    find_batch,
    find_recovery_point,
    walk_ancestors,
)
from frazil.ledger.state import StreamState, encode_state, hint_properties, parse_state
from frazil.ledger.usage import add_publish_usage
from frazil.messages import count_noun
from frazil.schemas.inferred_columns import with_newest_columns
from frazil.workspace import Workspace


def publish_batch(
    store: TableStore,
    plan: BatchPlan,
    staged: Staged,
    verdict: Verdict,
    run_id: str,
    view: TableView | None = None,
) -> PublishedBatch:
    """Publish a staged and checked batch; a repetition finds it on main and changes nothing.

    The first attempt decides on `view`; each further one loads the table again.

    Raises:
        SupersededError, StageLostError, StageStaleError, BatchBlockedError: nothing was written.
        TableError: the table's ledger cannot be trusted; nothing was written.
    """
    summary = summarize_batch(plan, staged, verdict, run_id)
    views = iterate_views(view or TableView(store, plan.table))
    return retry_commit(
        f"publishing batch {plan.batch_id} of stream {plan.stream}",
        lambda: _try_publish(next(views), plan, staged, summary),
    )


def _try_publish(
    view: TableView, plan: BatchPlan, staged: Staged, summary: Mapping[str, str]
) -> PublishedBatch:
    """Make one attempt, in the order that ARCHITECTURE.md fixes."""
    store, table, history = view.store, view.table, view.history
    found = find_published(history, plan)
    if found is not None:
        return PublishedBatch(found, already_published=True)
    check_base(history, plan)
    require_sole_writer(history, plan.stream, plan.other_writers)
    _require_not_blocked(history, plan)
    require_staging_branch(table, plan, staged)
    reach_failpoint("publish.before-commit")
    head = history.head
    summary = add_publish_usage(summary)
    files = commits.read_added_files(table, staged.snapshot_id) if staged.snapshot_id else []
    doing = f"writing the manifest of batch {plan.batch_id}"
    with suspected_records(doing, StageStaleError), translated_errors(doing):
        added = commits.build_append(table, summary, files)
    new_id = added.snapshot.snapshot_id
    states = {plan.stream: plan.state_after}
    updates: list[TableUpdate] = [
        *commits.move_main(added),
        commits.set_properties(hint_properties(states, new_id)),
    ]
    decided = {keys.blocked_key(plan.stream), keys.waiver_key(plan.stream)} & {*table.properties}
    if decided:
        updates.append(commits.remove_properties(sorted(decided)))
    heads: dict[str, int | None] = {commits.MAIN: head}
    # Without good rows the branch may be gone, or hold an empty snapshot that Spark committed.
    if ref := table.metadata.refs.get(staged.attempt):
        heads[staged.attempt] = tip = ref.snapshot_id
        updates += commits.drop_branch(staged.attempt, None if tip == staged.base_head else tip)
    commit_once(store, table, heads, updates)
    reach_failpoint("publish.after-commit")
    entry = LedgerEntry(new_id, head, added.snapshot.timestamp_ms, summary)
    return PublishedBatch(entry, already_published=False)


def require_complete_stage(plan: BatchPlan, staged: Staged, verdict: Verdict) -> None:
    """Require that all messages are of one attempt and that their rows were staged (I1).

    Airflow's tasks can be cleared one by one, and a catalog can be restored between two of them.

    Raises:
        StageStaleError: the verdict belongs to another attempt.
        StageLostError: rows or dead letters are counted that no branch holds.
    """
    again = "run again: the next run plans and stages the batch again"
    batches = {plan.batch_id, staged.batch_id, verdict.batch_id}
    if len(batches) > 1 or verdict.attempt != staged.attempt:
        raise StageStaleError(
            f"batch {plan.batch_id}: attempt {staged.attempt} of batch {staged.batch_id} is "
            f"staged, the verdict is on attempt {verdict.attempt} of batch {verdict.batch_id}",
            again,
        )
    rows_lost = staged.rows_written > 0 and staged.snapshot_id is None
    dead_letters_lost = staged.rows_quarantined > 0 and staged.dead_letters_snapshot_id is None
    if rows_lost or dead_letters_lost:
        dead_letters = count_noun(staged.rows_quarantined, "dead letter")
        what = count_noun(staged.rows_written, "row") if rows_lost else dead_letters
        raise StageLostError(
            f"batch {plan.batch_id}: attempt {staged.attempt} reported {what}, but no branch "
            f"of {plan.table} has them; nothing was published",
            again,
        )


def find_published(history: History, plan: BatchPlan) -> LedgerEntry | None:
    """Return the snapshot of the plan's own batch on main (ALREADY); None if it is not there.

    While the recovery point is the plan's base the batch cannot lie below it (I2), so the archive
    is read only if the recovery point has moved.
    """
    found = find_batch(history, plan.batch_id, beyond_metadata=False)
    if found is not None or _is_base(history, plan):
        return found
    return find_batch(history, plan.batch_id)


def _is_base(history: History, plan: BatchPlan) -> bool:
    try:
        point = find_recovery_point(history, plan.stream)
    except TableError:
        return False
    return point is not None and _base_of(point) == (plan.base_epoch, plan.base_batch)


def _base_of(point: RecoveryPoint) -> tuple[int, str]:
    return point.state.epoch, point.state.batch


def check_base(history: History, plan: BatchPlan) -> RecoveryPoint:
    """Return the recovery point, which must be the plan's base.

    Raises:
        SupersededError: another batch was published first.
        TableRecreatedError: the table was dropped and created again.
        TableError: the table's ledger cannot be trusted; nothing may be written (I10).
    """
    if history.table_uuid != plan.table_uuid:
        raise TableRecreatedError(
            f"table {plan.table} has uuid {history.table_uuid}, batch {plan.batch_id} was planned "
            f"for uuid {plan.table_uuid}",
            f"`frazil plan {plan.stream}` shows what would be read into the table that is there",
        )
    point = find_recovery_point(history, plan.stream)
    if point is None or _base_of(point) != (plan.base_epoch, plan.base_batch):
        now = f"epoch {point.state.epoch}, batch {point.state.batch}" if point else "no state"
        raise SupersededError(
            f"stream {plan.stream}: batch {plan.batch_id} was planned on epoch {plan.base_epoch}, "
            f"batch {plan.base_batch}; main now has {now}: another run published first",
            f"nothing to do: the next run plans from there (`frazil status {plan.stream}`)",
        )
    return point


def _require_not_blocked(history: History, plan: BatchPlan) -> None:
    blocked = read_blocked(history.properties, plan.stream, history.table)
    if blocked is None or (blocked.waiver and blocked.plan.batch_id == plan.batch_id):
        return
    point = find_recovery_point(history, plan.stream)
    if point is not None and still_applies(blocked, point, RulesFingerprint.of(plan)):
        raise explain_block(blocked)


def require_staging_branch(table: Table, plan: BatchPlan, staged: Staged) -> None:
    """Raise if the staged rows are gone or were written for another table layout.

    Raises:
        StageLostError: the staging branch is gone or was moved.
        StageStaleError: the table's schema or partition spec changed after staging.
    """
    if staged.snapshot_id is None:
        return
    again = "run again: the next run plans and stages the batch again"
    branch = table.metadata.refs.get(staged.attempt)
    if branch is None or branch.snapshot_id != staged.snapshot_id:
        raise StageLostError(
            f"batch {plan.batch_id}: branch {staged.attempt} of {plan.table} is gone or was moved; "
            f"snapshot {staged.snapshot_id} was staged there",
            again,
        )
    planned = next((s for s in table.metadata.schemas if s.schema_id == plan.schema_id), None)
    if table.metadata.default_spec_id != plan.spec_id:
        raise StageStaleError(
            f"batch {plan.batch_id}: {plan.table} is partitioned by spec "
            f"{table.metadata.default_spec_id} now, the rows were staged for {plan.spec_id}",
            again,
        )
    if planned is None or not is_compatible_superset(table.schema(), planned):
        raise StageStaleError(
            f"batch {plan.batch_id}: the schema of {plan.table} changed after staging (id "
            f"{plan.schema_id} → {table.metadata.current_schema_id}) and the rows do not fit it",
            again,
        )


@dataclass(frozen=True)
class Marker:
    """An empty snapshot that sets states; `first` are updates before it in the same commit."""

    kind: str
    states: Mapping[str, StreamState]
    base_head: int | None
    run_id: str
    extra: Mapping[str, str]
    first: tuple[TableUpdate, ...] = ()


def publish_marker(store: TableStore, table: Table, marker: Marker) -> int:
    """Commit a marker on exactly the head that it was decided on; return its snapshot id.

    Raises:
        CommitConflictError: main moved; load the table again and decide again.
    """
    summary = summarize_marker(marker.kind, marker.states, marker.run_id, marker.extra)
    with translated_errors(f"writing the {marker.kind} snapshot"):
        added = commits.build_append(table, summary)
    new_id = added.snapshot.snapshot_id
    updates: list[TableUpdate] = [
        *marker.first,
        *commits.move_main(added),
        commits.set_properties(hint_properties(marker.states, new_id)),
    ]
    commit_once(store, table, {commits.MAIN: marker.base_head}, updates)
    return new_id


@dataclass(frozen=True)
class Choice:
    """A person's decision, computed for one load of the table.

    `base` is the state that it replaces, None if there is none; `state` is the new one, whose batch
    id is set later. `summary` goes into the snapshot's summary, `first` are updates before the
    snapshot in the same commit, `text` describes the decision.
    """

    base: StreamState | None
    state: StreamState
    lost: Ranges | None = None
    summary: Mapping[str, str] = field(default_factory=dict)
    first: tuple[TableUpdate, ...] = ()
    text: str = ""

    def identify(self, uuid: str, kind: str, stream: str, author: Author) -> str:
        """Return an id that is equal for a repetition of the same decision (I7)."""
        base = (self.base.epoch, self.base.batch) if self.base else None
        lost = encode_ranges(self.lost or {})
        parts = [uuid, stream, kind, author.by, author.reason, base, encode_state(self.state), lost]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def record_decision(
    work: Workspace,
    kind: str,
    author: Author | None,
    decide: Callable[[TableView], Choice],
    view: TableView | None = None,
) -> Decision:
    """Load the table, decide, and commit on the head that was loaded; retry after a conflict.

    If nothing is left to decide, return the same decision by the same author from main: the answer
    to its commit was lost, or it was submitted twice. Without an author nothing is written. The
    first attempt decides on `view`, if the caller has loaded the table.
    """
    stream, first = work.stream.stream, view or TableView(work.store, work.stream.table.name)
    first = _replace_dropped(work, author, decide, first) if kind == keys.BOOTSTRAP else first
    if author is None:
        choice = decide(first)
        return Decision(kind, choice.text + _describe(choice.state, choice.lost))

    text, views = "", iterate_views(first)

    def attempt() -> LedgerEntry:
        nonlocal text
        seen = next(views)
        try:
            choice = decide(seen)
        except NothingToDecideError:
            found = _find_decision(seen.history, stream, kind, author)
            if found is None:
                raise
            return found
        text = choice.text
        return _commit_choice(work, kind, author, choice, seen)

    entry = retry_commit(f"recording a {kind}", attempt)
    reach_failpoint("decide.after-commit")
    archive_new_entries(work.store, first.reload().history)
    state = parse_state(entry.summary[keys.state_key(stream)])
    lost = parse_ranges(entry.summary[keys.RANGES]) if keys.RANGES in entry.summary else None
    return Decision(kind, text + _describe(state, lost), entry.snapshot_id)


def _is_dropped(work: Workspace, view: TableView) -> bool:
    try:
        if view.found is None:
            require_not_dropped(work.store, view.name, work.stream.stream)
    except TableDroppedError:
        return True
    return False


def _replace_dropped(
    work: Workspace, author: Author | None, decide: Callable[[TableView], Choice], view: TableView
) -> TableView:
    """Create a dropped table again if the decision can be made; without an author, create nothing.

    For a table that was not dropped, return its view unchanged.
    """
    if not _is_dropped(work, view):
        return view
    absent = view.as_absent()
    if author is None:
        return absent
    decide(absent)
    stream = with_newest_columns(work, view).stream
    work.store.create(stream.table.name, new_table(stream))
    return view.reload()


def _commit_choice(
    work: Workspace, kind: str, author: Author, choice: Choice, view: TableView
) -> LedgerEntry:
    """Commit a choice that was made on this view of the table; return its snapshot."""
    stream, history = work.stream.stream, view.history
    own_id = choice.identify(history.table_uuid, kind, stream, author)
    state = replace(choice.state, batch=own_id)
    extra = _explain(stream, author) | {keys.BATCH_ID: own_id} | dict(choice.summary)
    if choice.lost is not None:
        extra[keys.RANGES] = pack(encode_ranges(choice.lost))
    marker = Marker(kind, {stream: state}, history.head, work.run_id, extra, choice.first)
    reach_failpoint("decide.before-commit")
    snapshot_id = publish_marker(work.store, view.table, marker)
    summary = summarize_marker(kind, marker.states, marker.run_id, marker.extra)
    return LedgerEntry(snapshot_id, history.head, 0, summary)


def _describe(state: StreamState, lost: Ranges | None) -> str:
    ranges = describe_ranges(lost or {})
    count = count_noun(count_offsets(lost or {}), "offset")
    text = f"lost for good: {ranges}, {count}; " if ranges else ""
    return f"{text}epoch {state.epoch}; reading continues at {describe_next_offsets(state.offsets)}"


def _find_decision(history: History, stream: str, kind: str, author: Author) -> LedgerEntry | None:
    """Return the newest decision of this kind by the same author with the same reason."""
    expected = _explain(stream, author) | {keys.KIND: kind}
    for entry in walk_ancestors(history, beyond_metadata=False):
        if expected.items() <= entry.summary.items():
            return entry
    return None


def _explain(stream: str, author: Author) -> dict[str, str]:
    return {keys.STREAM: stream, keys.BY: author.by, keys.REASON: author.reason}
