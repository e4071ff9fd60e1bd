"""PUBLISH: one compare-and-set commit makes rows and offsets visible together.

Each turn of the loop starts from a fresh look at the table, and its first line decides whether an
earlier turn with an unknown outcome has landed. Nothing is ever deleted after an unknown outcome.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from pyiceberg.exceptions import ForbiddenError, UnauthorizedError
from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil import commits, keys
from frazil.archive import read_archive
from frazil.blocking import Fingerprint, explain_block, is_standing, read_blocked
from frazil.contracts import BatchPlan, Staged, Verdict
from frazil.errors import (
    CatalogUnavailableError,
    ClockBehindError,
    StageLostError,
    StageStaleError,
    SupersededError,
    TableError,
    TableRecreatedError,
)
from frazil.failpoints import reach_failpoint
from frazil.ledger import History, LedgerEntry, RecoveryPoint, find_batch, find_recovery_point
from frazil.other_writers import refuse_other_writers
from frazil.state import StreamState
from frazil.summaries import hint_properties, summarize_batch, summarize_marker
from frazil.table_schema import is_compatible_superset
from frazil.tables import TableStore, read_history, translated_errors
from frazil.turns import LostTurnError, take_turns
from frazil.usage import add_publish


@dataclass(frozen=True)
class Landed:
    """A batch on main: by this call, or found there."""

    entry: LedgerEntry
    was_there: bool


def commit_turn(
    store: TableStore, table: Table, ref_heads: Mapping[str, int | None], updates: list[TableUpdate]
) -> None:
    """Commit once; a conflict or an unknown outcome ends the turn.

    Raises:
        LostTurnError: look again; only a fresh load knows what happened.
        ClockBehindError: nothing was written.
    """
    requirements = commits.require_uuid(table) + commits.require_layout(table)
    for ref, snapshot_id in ref_heads.items():
        requirements += commits.require_head(table, ref, snapshot_id)[1:]
    try:
        commits.commit(store.catalog, table, requirements, updates)
    except ClockBehindError:
        raise
    except (OSError, ForbiddenError, UnauthorizedError):
        # Full, forbidden or gone: the next turn still looks first, but it ends with this cause.
        with translated_errors(f"committing to {'.'.join(table.name())}"):
            raise
    except Exception as error:
        kind = "conflict" if commits.is_definite_conflict(error) else "unknown outcome"
        raise LostTurnError(f"{kind}: {type(error).__name__}: {str(error)[:200]}") from error


def load_with_history(store: TableStore, name: str) -> tuple[Table, History]:
    """Load a table afresh, with its ledger and the archive behind it."""
    table = store.load(name)
    uuid = str(table.metadata.table_uuid)
    return table, read_history(table, name, partial(read_archive, store, name, uuid))


def publish_batch(
    store: TableStore, plan: BatchPlan, staged: Staged, verdict: Verdict, run_id: str
) -> Landed:
    """Publish a staged and judged batch; any repetition finds it there.

    Raises:
        SupersededError, StageLostError, StageStaleError, BatchBlockedError: nothing was written.
        TableError: the ledger halts.
    """
    summary = summarize_batch(plan, staged, verdict, run_id)
    return take_turns(
        f"publishing batch {plan.batch_id} of stream {plan.stream}",
        lambda: _publish_turn(store, plan, staged, summary),
    )


def _publish_turn(
    store: TableStore, plan: BatchPlan, staged: Staged, summary: Mapping[str, str]
) -> Landed:
    """Take one turn, in the order that protocol.md fixes."""
    table, history = load_with_history(store, plan.table)
    found = find_published(history, plan)
    if found is not None:
        return Landed(found, was_there=True)
    check_base(history, plan)
    refuse_other_writers(history, plan.stream, plan.other_writers)
    _refuse_blocked(history, plan)
    refuse_lost_stage(table, plan, staged)
    reach_failpoint("publish.before-commit")
    head = history.head
    summary = add_publish(summary)
    files = commits.read_added_files(table, staged.snapshot_id) if staged.snapshot_id else []
    with translated_errors(f"writing the manifest of batch {plan.batch_id}"):
        added = commits.build_append(table, summary, files)
    new_id = added.snapshot.snapshot_id
    states = {plan.stream: plan.state_after}
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, new_id),
        commits.set_properties(hint_properties(states, new_id)),
    ]
    if keys.blocked_key(plan.stream) in table.properties:
        updates.append(commits.remove_properties([keys.blocked_key(plan.stream)]))
    heads: dict[str, int | None] = {commits.MAIN: head}
    if ref := table.metadata.refs.get(staged.attempt):  # where no row is good nobody misses it
        heads[staged.attempt] = seen = ref.snapshot_id  # Spark commits an empty snapshot there
        updates += commits.drop_branch(staged.attempt, None if seen == staged.base_head else seen)
    commit_turn(store, table, heads, updates)
    reach_failpoint("publish.after-commit")
    entry = LedgerEntry(new_id, head, added.snapshot.timestamp_ms, summary)
    return Landed(entry, was_there=False)


def refuse_incomplete(plan: BatchPlan, staged: Staged, verdict: Verdict) -> None:
    """See that the messages speak of one attempt, and that what they count was staged (I1, E3).

    Tasks can be cleared one by one, and a catalog can be restored between two of them.

    Raises:
        StageStaleError: the verdict is that of another attempt.
        StageLostError: rows or dead letters are counted that no branch holds.
    """
    again = "run again: the next run plans and stages afresh"
    batches = {plan.batch_id, staged.batch_id, verdict.batch_id}
    if len(batches) > 1 or verdict.attempt != staged.attempt:
        raise StageStaleError(
            f"batch {plan.batch_id}: attempt {staged.attempt} of batch {staged.batch_id} is "
            f"staged, the verdict is on attempt {verdict.attempt} of batch {verdict.batch_id}",
            again,
        )
    rows_lost = staged.rows_written > 0 and staged.snapshot_id is None
    letters_lost = staged.rows_quarantined > 0 and staged.dead_letters_snapshot_id is None
    if rows_lost or letters_lost:
        what = f"{staged.rows_written} rows" if rows_lost else f"{staged.rows_quarantined} letters"
        raise StageLostError(
            f"batch {plan.batch_id}: attempt {staged.attempt} counts {what} that no branch of "
            f"{plan.table} holds; nothing was published",
            again,
        )


def find_published(history: History, plan: BatchPlan) -> LedgerEntry | None:
    """Find the plan's own batch on main (ALREADY), before anything else is checked.

    While the carrier is still the plan's base the batch cannot be below it (I2), so the archive
    is asked only when it is not.
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
    """See that the plan's base is still the recovery point.

    Raises:
        SupersededError: another batch was faster.
        TableRecreatedError: this is another table.
        TableError: the recovery point halts; nothing may be written (I10).
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
            f"batch {plan.base_batch}; main now has {now}: another run was faster",
            f"nothing to do: the next run plans from there (`frazil status {plan.stream}`)",
        )
    return point


def _refuse_blocked(history: History, plan: BatchPlan) -> None:
    blocked = read_blocked(history.properties, plan.stream)
    if blocked is None or (blocked.waiver and blocked.plan.batch_id == plan.batch_id):
        return
    point = find_recovery_point(history, plan.stream)
    if point is not None and is_standing(blocked, point, Fingerprint.of(plan)):
        raise explain_block(blocked)


def refuse_lost_stage(table: Table, plan: BatchPlan, staged: Staged) -> None:
    """Refuse a stage that is gone or that was written for another layout (E12)."""
    if staged.snapshot_id is None:
        return
    again = "run again: the next run plans and stages afresh"
    branch = table.metadata.refs.get(staged.attempt)
    if branch is None or branch.snapshot_id != staged.snapshot_id:
        raise StageLostError(
            f"batch {plan.batch_id}: branch {staged.attempt} of {plan.table} is gone or moved; "
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
    """An empty snapshot that moves states, and updates that come before it in the same commit."""

    kind: str
    states: Mapping[str, StreamState]
    base_head: int | None
    run_id: str
    extra: Mapping[str, str]
    first: tuple[TableUpdate, ...] = ()


def publish_marker(store: TableStore, table: Table, marker: Marker) -> int:
    """Commit a marker on exactly the head that it was decided on; give its snapshot id.

    Raises:
        LostTurnError: main moved; decide again.
    """
    summary = summarize_marker(marker.kind, marker.states, marker.run_id, marker.extra)
    with translated_errors(f"writing the {marker.kind} snapshot"):
        added = commits.build_append(table, summary)
    new_id = added.snapshot.snapshot_id
    updates: list[TableUpdate] = [
        *marker.first,
        added,
        commits.set_branch(commits.MAIN, new_id),
        commits.set_properties(hint_properties(marker.states, new_id)),
    ]
    commit_turn(store, table, {commits.MAIN: marker.base_head}, updates)
    return new_id


def drop_stage(store: TableStore, table_name: str, staged: Staged) -> None:
    """Drop the branch of a superseded attempt; what is gone already is fine."""
    table = store.find(table_name)
    seen = table.metadata.refs.get(staged.attempt) if table else None
    if table is None or seen is None:
        return
    try:
        commits.commit(
            store.catalog,
            table,
            commits.require_head(table, staged.attempt, seen.snapshot_id),
            commits.drop_branch(staged.attempt),
        )
    except Exception as error:
        if not commits.is_definite_conflict(error):
            raise CatalogUnavailableError(
                f"dropping branch {staged.attempt} of {table_name}: {error}",
                "nothing is at risk: maintenance removes the branch later",
            ) from error
