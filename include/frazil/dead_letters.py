"""Dead letters: records that did not fit, kept whole in `<table>__dead_letters`.

They are published in their own table before the batch, keyed by attempt and coordinate. A letter
counts only through the attempt that main's ancestry names (protocol.md, Dead letters), so an
abandoned attempt leaves rows that nobody counts.
"""

from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil import commits, keys
from frazil.contracts import BatchPlan, Staged
from frazil.errors import StageLostError
from frazil.publishing import commit_turn
from frazil.table_schema import build_dead_letters_schema
from frazil.tables import NewTable, TableStore, dead_letters_name, translated_errors
from frazil.turns import take_turns


def ensure_dead_letters_table(store: TableStore, table_name: str) -> None:
    """Create the dead-letter table with one empty snapshot, so that branches can start there."""
    name = dead_letters_name(table_name)
    table = store.find(name) or store.create(name, NewTable(build_dead_letters_schema()))
    if table.current_snapshot() is not None:
        return
    take_turns(f"preparing {name}", lambda: _first_snapshot(store, name))


def _first_snapshot(store: TableStore, name: str) -> None:
    table = store.load(name)
    if table.current_snapshot() is not None:
        return
    added = commits.build_append(table, {keys.KIND: keys.BOOTSTRAP})
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, added.snapshot.snapshot_id),
    ]
    commit_turn(store, table, {commits.MAIN: None}, updates)


def publish_dead_letters(store: TableStore, plan: BatchPlan, staged: Staged) -> None:
    """Publish the staged letters of one attempt; rows that are there already stay alone.

    Raises:
        StageLostError: the letters' branch is gone and its rows are not in the table.
    """
    if staged.dead_letters_snapshot_id is None:
        return
    name = dead_letters_name(plan.table)
    take_turns(
        f"publishing dead letters of batch {plan.batch_id}",
        lambda: _publish_turn(store, name, plan, staged),
    )


def _publish_turn(store: TableStore, name: str, plan: BatchPlan, staged: Staged) -> None:
    table = store.load(name)
    if has_letters_of(table, staged.attempt):
        return
    snapshot_id = staged.dead_letters_snapshot_id
    branch = table.metadata.refs.get(staged.attempt)
    if snapshot_id is None or branch is None or branch.snapshot_id != snapshot_id:
        raise StageLostError(
            f"batch {plan.batch_id}: branch {staged.attempt} of {name} is gone; the dead letters "
            "of this attempt are not in the table",
            "run again: the next run plans and stages afresh",
        )
    files = commits.read_added_files(table, snapshot_id)
    summary = {
        keys.KIND: keys.INGEST,
        keys.STREAM: plan.stream,
        keys.BATCH_ID: plan.batch_id,
        keys.ATTEMPT: staged.attempt,
    }
    with translated_errors(f"writing the manifest of dead letters of {plan.batch_id}"):
        added = commits.build_append(table, summary, files)
    head = table.current_snapshot()
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, added.snapshot.snapshot_id),
        *commits.drop_branch(staged.attempt, snapshot_id),
    ]
    heads = {commits.MAIN: head.snapshot_id if head else None, staged.attempt: snapshot_id}
    commit_turn(store, table, heads, updates)


def has_letters_of(table: Table, attempt: str) -> bool:
    """Decide by rows whether an attempt's letters are in the table: its snapshots may expire."""
    with translated_errors("looking for dead letters"):
        scan = table.scan(
            row_filter=f"attempt = '{attempt}'", selected_fields=("attempt",), limit=1
        )
        return bool(scan.to_arrow().num_rows)


def count_letters(table: Table, attempts: frozenset[str]) -> int:
    """Count the letters of these attempts."""
    with translated_errors("counting dead letters"):
        rows = table.scan(selected_fields=("attempt",)).to_arrow()
    return sum(1 for attempt in rows["attempt"].to_pylist() if attempt in attempts)
