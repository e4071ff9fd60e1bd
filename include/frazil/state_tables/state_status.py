"""How far a state table has folded its changes, for people."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
from pydantic import ValidationError
from pyiceberg.table import Table

from frazil.errors import (
    FrazilError,
    IncompatibleTableError,
    MergeHaltedError,
    StreamFileError,
)
from frazil.iceberg.live_files import Flags, count_live_rows
from frazil.iceberg.row_changes import RowsToDelete, collect_offsets, find_rows
from frazil.iceberg.table_schema import to_columns
from frazil.iceberg.table_view import TableView
from frazil.ledger import keys
from frazil.ledger.recovery_point import History, for_reading
from frazil.messages import Report, count_noun
from frazil.schemas.inferred_columns import complete_from_table
from frazil.schemas.partition_evolution import compare_partitions
from frazil.state_tables.merge_rules import (
    DELETED_AT,
    find_merged,
    find_position,
    list_waiting,
    plan_merge,
    require_compacted,
)
from frazil.state_tables.messages import MergePosition
from frazil.state_tables.tables import require_state
from frazil.streams.models import Stream
from frazil.streams.partitioning import PartitionField, parse_partition_field
from frazil.streams.state_sections import SEQUENCE
from frazil.streams.timestamps import from_epoch_ms

Place = tuple[str, int, int]


@dataclass(frozen=True)
class NewestRow:
    """Topic, partition and offset of the change behind a key; whether its row has the mark."""

    place: Place
    is_marked: bool


class StateStatus(Report):
    """The state table of a stream: its merge position, and the batches that are not merged.

    `problem` is what keeps merges from going on, `next_step` what helps.
    """

    table: str
    rows: int | None = None
    snapshot_id: int | None = None
    waiting_batches: int = 0
    waiting_changes: int = 0
    behind_since: datetime | None = None
    other_partitions: str = ""
    """The edit of `partition_by` that the table does not follow; empty for none."""
    problem: str | None = None
    next_step: str | None = None

    @property
    def text(self) -> str:
        """Return the status on one line."""
        if self.problem is not None:
            waiting = "" if self.behind_since is None else self._describe_waiting()
            step = f"next: {self.next_step}" if self.next_step else ""
            texts = [self.problem, waiting, step]
        else:
            rows = "not created yet" if self.rows is None else count_noun(self.rows, "row")
            texts = [rows, self._describe_waiting(), self.other_partitions]
        return f"state table {self.table}: {'; '.join(filter(None, texts))}"

    def _describe_waiting(self) -> str:
        if self.behind_since is None:
            return "up to date"
        batches = count_noun(self.waiting_batches, "batch", "batches")
        changes = count_noun(self.waiting_changes, "change")
        since = f"{self.behind_since:%Y-%m-%d %H:%M:%S} UTC"
        return f"{batches} not merged ({changes}), behind since {since}"


def read_state_status(stream: Stream, changes: TableView, state: TableView) -> StateStatus:
    """Compare a state table with its change table; problems are part of the result."""
    try:
        status = read_merge_lag(stream, changes, state)
        if status.problem or state.found is None:
            return status
        found = {
            "rows": count_live_rows(state.found),
            "other_partitions": _compare_partitions(state.found, stream),
        }
        return status.model_copy(update=found)
    except FrazilError as error:
        return StateStatus(table=state.name, problem=error.facts, next_step=error.next_step)


def read_merge_lag(stream: Stream, changes: TableView, state: TableView) -> StateStatus:
    """Compare a state table with its change table by their ledgers alone, without its rows.

    What halts the merge is part of the result.

    Raises:
        UnavailableError: catalog or storage did not answer.
    """
    merged = position = None
    halt: FrazilError | None = None
    try:
        state.load()  # before its changes: a merge may be published meanwhile
        if changes.found is None:
            return StateStatus(table=state.name)
        if state.found is not None:
            merged = find_merged(for_reading(state.history), stream.stream)
            position = find_position(for_reading(state.history), stream.stream)
        completed = complete_from_table(stream, changes.table.schema())
        is_behind = _is_behind(changes.history, state, completed, position)
    except (MergeHaltedError, IncompatibleTableError, StreamFileError) as error:
        halt, is_behind = error, True
    waiting = list_waiting(changes.history, merged, position) if is_behind else []
    batches = [entry for entry in waiting if entry.summary.get(keys.KIND) in keys.ROW_KINDS]
    return StateStatus(
        table=state.name,
        snapshot_id=position.snapshot_id if position else None,
        waiting_batches=len(batches),
        waiting_changes=sum(int(each.summary.get(keys.ROWS_WRITTEN, "0")) for each in batches),
        behind_since=from_epoch_ms(waiting[-1].committed_at_ms) if waiting else None,
        problem=halt.facts if halt else None,
        next_step=halt.next_step if halt else None,
    )


def _is_behind(
    changes: History, state: TableView, stream: Stream, position: MergePosition | None
) -> bool:
    """Return whether the next merge folds something.

    Raises:
        MergeHaltedError: it could not.
    """
    plan = plan_merge(changes, stream, position)
    if plan is not None and plan.added is not None:
        require_compacted(stream.stream, for_reading(state.history))
    return plan is not None


def _compare_partitions(state: Table, stream: Stream) -> str:
    """Describe how the partitions of the stream file differ from the table's; empty if not."""
    columns = to_columns(f for f in state.schema().fields if f.name != keys.KAFKA_COLUMN)
    wanted: list[PartitionField] = []
    try:
        for text in require_state(stream).partition_by:
            wanted.append(parse_partition_field(text, columns, wanted))
    except ValueError:
        return ""  # a column of the file comes with the next merge
    found = compare_partitions(state, state.schema(), wanted)
    if not found:
        return ""
    return f"partition_by is {found[0].after} in the stream file, {found[0].before} in the table"


def describe_merge(summary: Mapping[str, str], stream: str) -> str:
    """Describe what a merge did by the summary of its snapshot; empty for another snapshot."""
    text = summary.get(keys.merge_key(stream))
    if text is None or summary.get(keys.KIND) != keys.MERGE:
        return ""
    try:
        position = MergePosition.model_validate_json(text)
    except ValidationError:
        return "by a newer release"
    why = f"; rebuilt: {position.rebuilt}" if position.rebuilt else ""
    return f"{position.counts.text}{why}"


def find_newest(table: Table, wanted: RowsToDelete, sequence: int) -> NewestRow | None:
    """Return where the wanted row is from, and whether it is marked; None if there is none.

    A key that was deleted twice has two recorded deletes, of which the newest counts. `sequence` is
    the number of values that decide before the coordinates.
    """
    kept: list[pa.Table] = []

    def flag(rows: pa.Table) -> Flags:
        flags = wanted.flag(rows)
        kept.append(rows.filter(pa.array(flags)))
        return flags

    names = [field.name for field in table.schema().fields]
    columns = (*wanted.columns, *(name for name in (SEQUENCE, DELETED_AT) if name in names))
    held = collect_offsets(find_rows(table, replace(wanted, columns=columns, flag=flag)))
    places = {(t, p, int(offset)) for (t, p), offsets in held.items() for offset in offsets}
    rows = (row for each in kept for row in each.to_pylist())
    visible = (row for row in rows if _read_place(row) in places)
    return choose_newest(visible, sequence if SEQUENCE in names else 0)


def choose_newest(rows: Iterable[Mapping[str, Any]], sequence: int) -> NewestRow | None:
    """Return the newest row: by the sequence, then by coordinates, as in a merge."""
    newest = max(rows, key=lambda row: _read_order(row, sequence), default=None)
    if newest is None:
        return None
    return NewestRow(_read_place(newest), is_marked=newest.get(DELETED_AT) is not None)


def _read_order(row: Mapping[str, Any], sequence: int) -> tuple[object, ...]:
    topic, partition, offset = _read_place(row)
    if not sequence:
        return offset, partition
    values = [row[SEQUENCE].get(f"s{index}") for index in range(sequence)]
    return (*((value is not None, value) for value in values), topic, partition, offset)


def _read_place(row: Mapping[str, Any]) -> Place:
    at = row[keys.KAFKA_COLUMN]
    return at["topic"], at["partition"], at["offset"]
