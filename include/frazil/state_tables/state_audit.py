"""AUDIT of a state table: fold its changes again, by other code than the merge, and compare.

The changes are sorted by key and order; the last of each key is the row that the state must have.
Both tables are read by PyIceberg and held in memory.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table

from frazil.errors import FrazilError
from frazil.iceberg.catalog import TableStore, translated_errors
from frazil.iceberg.table_view import TableView
from frazil.ledger import keys
from frazil.ledger.coordinates import parse_coordinates
from frazil.ledger.offsets import Runs, describe_offset
from frazil.ledger.recovery_point import History, LedgerEntry, for_reading, walk_ancestors
from frazil.messages import count_noun
from frazil.state_tables.fill_audit import fill_newest
from frazil.state_tables.followed_schema import list_former_names
from frazil.state_tables.merge_rules import (
    DELETED_AT,
    NO_DELETE_TIME_MS,
    UNAVAILABLE,
    find_position,
    is_trimmed_behind,
    list_since,
    plan_merge,
)
from frazil.state_tables.messages import MergeCounts, MergePosition
from frazil.state_tables.tables import map_names, require_state
from frazil.state_tables.trim_rules import flag_deletes, flag_runs, sort_changes
from frazil.streams.models import Stream
from frazil.streams.state_sections import MEMORY

StateInvariant = Literal["M1", "M4", "M5"]
Findings = Iterator[tuple[StateInvariant, str]]
_PLACE = ("topic", "partition", "offset")
_SHOWN = 5


@dataclass(frozen=True)
class StateAudit:
    """Broken invariants of a state table with a text, and merge snapshots that were not checked.

    A newer release wrote the counts of the latter, the newest first. They are no finding: the rows
    are compared all the same.
    """

    findings: tuple[tuple[StateInvariant, str], ...] = ()
    unchecked_merges: tuple[int, ...] = ()


def audit_state(store: TableStore, stream: Stream) -> StateAudit:
    """Audit a state table; there are no findings if it is right, or does not exist yet.

    A state that is behind its changes is compared with the changes that it has folded. Where their
    snapshot is expired, the newest one is read without what was added since.

    Raises:
        MergeHaltedError: this release cannot read the newest merge position.
    """
    view = TableView(store, require_state(stream).name)
    if view.found is None:
        return StateAudit()
    history = for_reading(view.history)
    merges = [*_read_counts(history, stream.stream)]
    return StateAudit(
        findings=(*_check_counts(merges), *_check_rows(store, stream, view, history)),
        unchecked_merges=tuple(number for number, counts in merges if counts is None),
    )


def _check_rows(store: TableStore, stream: Stream, view: TableView, history: History) -> Findings:
    """Compare the rows of the state with its changes."""
    name, changes = require_state(stream).name, TableView(store, stream.table.name)
    position = find_position(history, stream.stream)
    if position is None:
        if view.table.scan().count():
            yield "M1", f"state table {name} has rows and no merge position"
        return
    try:
        plan = plan_merge(for_reading(changes.history), stream, position)
    except FrazilError as error:
        yield "M1", error.facts
        return
    unfolded: Runs = {}
    if changes.table.snapshot_by_id(position.snapshot_id) is None:
        if plan is not None and plan.added is None:
            yield "M1", f"{name}: the changes that it has folded are expired: merge, then audit"
            return
        unfolded = (plan.added if plan is not None else None) or {}
        position = position.model_copy(update={"snapshot_id": changes.history.head})
    erased = _list_removed(changes.history, position)
    folded = _drop_erased(_read_folded(stream, changes.table, position, view.table), erased)
    folded = folded.filter(pa.array(~flag_runs(folded, unfolded)))
    newest = _find_newest(stream, folded)
    yield from _compare(stream, view.table, newest, folded)
    if stream.table.deletes == "remove":
        yield from _check_memory(store, stream, newest, position.memory)


def _list_removed(changes: History, position: MergePosition) -> list[LedgerEntry]:
    """List the snapshots that removed changes which the state has folded, or followed."""
    since = list_since(changes, position.snapshot_id) or []
    numbers = {entry.snapshot_id for entry in since}
    return [
        entry
        for entry in since
        if entry.snapshot_id in position.erased or is_trimmed_behind(entry, numbers)
    ]


def _check_counts(merges: Sequence[tuple[int, MergeCounts | None]]) -> Findings:
    for snapshot_id, counts in merges:
        if counts is not None and not counts.is_balanced:
            yield "M4", f"merge snapshot {snapshot_id}: {counts.text}: not balanced"


def _read_counts(history: History, stream: str) -> Iterator[tuple[int, MergeCounts | None]]:
    """Yield each merge snapshot with its counts, None if this release cannot read them."""
    for entry in walk_ancestors(history, beyond_metadata=False):
        text = entry.summary.get(keys.merge_key(stream))
        if text is not None:
            try:
                counts = MergeCounts.model_validate(json.loads(text)["counts"])
            except (ValueError, LookupError, TypeError):
                counts = None
            yield entry.snapshot_id, counts


def _read_folded(stream: Stream, changes: Table, position: MergePosition, state: Table) -> pa.Table:
    """Read the changes that the state has folded; columns have the names that the state has."""
    with translated_errors(f"reading {'.'.join(changes.name())}"):
        scan = changes.scan(snapshot_id=position.snapshot_id)
        schema = scan.projection()
        names, folded = map_names(state, schema), scan.to_arrow()
    taken = {*names.values()}  # a column of the state, or replaced by one that it does not have yet
    folded = folded.select([n for n in folded.column_names if n in names or n not in taken])
    names = {name: names.get(name, name) for name in folded.column_names}
    if stream.value.change_events is not None:
        written = stream.value.typed_columns
        former = list_former_names(changes.schemas(), schema, written)
        meant = {old: [names[n] for n in found if n in names] for old, found in former.items()}
        folded = _rename_lacks(folded, {name: [new] for name, new in names.items()} | meant)
    return folded.rename_columns([names[name] for name in folded.column_names])


def _rename_lacks(folded: pa.Table, names: Mapping[str, Sequence[str]]) -> pa.Table:
    """Rename the columns that events lack to the names in the state."""
    lists = folded[UNAVAILABLE].to_pylist()
    lacks = [each and [new for n in each for new in names.get(n, [n])] for each in lists]
    column = pa.array(lacks, folded.schema.field(UNAVAILABLE).type)
    return folded.set_column(folded.column_names.index(UNAVAILABLE), UNAVAILABLE, column)


def _find_newest(stream: Stream, folded: pa.Table) -> pa.Table:
    """Return the newest change of each key, deletes included."""
    marking = stream.table.model_copy(update={"deletes": "mark"})
    return _fold(stream.model_copy(update={"table": marking}), folded)


def _check_memory(store: TableStore, stream: Stream, newest: pa.Table, memory: str) -> Findings:
    """Yield keys whose newest change is a delete that the delete memory lacks."""
    name = require_state(stream).deletes_name
    table = store.find(name)
    held: set[tuple[str, int, int]] = set()
    if table is not None:
        with translated_errors(f"reading {name}"):
            held = set(_coordinates(table.scan(EqualTo(term=MEMORY, value=memory)).to_arrow()))
    deleted = newest.filter(pa.array(flag_deletes(stream, newest)))
    places = [place for place in _coordinates(deleted) if place not in held]
    if places:
        shown = ", ".join(describe_offset(*place) for place in places[:_SHOWN])
        yield "M1", f"{name} lacks {count_noun(len(places), 'delete')}: {shown}"


def _coordinates(rows: pa.Table) -> list[tuple[str, int, int]]:
    kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
    return list(zip(*(kafka.field(name).to_pylist() for name in _PLACE), strict=True))


def _compare(stream: Stream, state: Table, newest: pa.Table, folded: pa.Table) -> Findings:
    """Compare the state with the newest change of each key, of the changes that it has folded."""
    ids = [*stream.table.id_columns]
    with translated_errors(f"reading {'.'.join(state.name())}"):
        rows = state.scan().to_arrow()
    removes = stream.table.deletes == "remove"
    want = newest.filter(pc.invert(pa.array(flag_deletes(stream, newest)))) if removes else newest
    keys_of = [
        dict(zip(_texts(each, ids), range(len(each)), strict=False)) for each in (want, rows)
    ]
    expected, found = keys_of
    if len(found) < len(rows):
        yield "M1", f"{count_noun(len(rows) - len(found), 'row')} with the key of another row"
    missing = [key for key in expected if key not in found]
    extra = [key for key in found if key not in expected]
    if missing:
        yield (
            "M1",
            f"{count_noun(len(missing), 'key')} without a row: {_places(want, expected, missing)}",
        )
    there = set(_coordinates(folded)) if extra else set()
    of_rows = _coordinates(rows) if extra else []
    lost = [key for key in extra if of_rows[found[key]] not in there]
    unknown = [key for key in extra if of_rows[found[key]] in there]
    if lost:
        what = count_noun(len(lost), "row")
        yield "M5", f"{what} whose change left the change table: {_places(rows, found, lost)}"
    if unknown:
        what = count_noun(len(unknown), "row")
        yield "M1", f"{what} whose key is deleted or unknown: {_places(rows, found, unknown)}"
    both = [key for key in expected if key in found]
    have = rows.take(pa.array([found[key] for key in both], pa.int64()))
    wanted = want.take(pa.array([expected[key] for key in both], pa.int64()))
    wrong = _find_differing(have, wanted)
    if wrong:
        names = ", ".join(_place(wanted, index) for index in wrong[:_SHOWN])
        yield "M1", f"{count_noun(len(wrong), 'row')} not like the newest change: {names}"


def _drop_erased(changes: pa.Table, erased: Sequence[LedgerEntry]) -> pa.Table:
    """Return the changes without those that later erasures list."""
    if not erased or not len(changes):
        return changes
    kafka = changes[keys.KAFKA_COLUMN].combine_chunks()
    topics = kafka.field("topic").to_numpy(zero_copy_only=False)
    numbers, offsets = (np.asarray(kafka.field(name)) for name in ("partition", "offset"))
    stays = np.ones(len(changes), dtype=bool)
    for entry in erased:
        listed = parse_coordinates(entry.summary.get(keys.COORDINATES, "{}"))
        for (topic, number), taken in listed.items():
            stays &= ~((topics == topic) & (numbers == number) & np.isin(offsets, taken))
    return changes.filter(pa.array(stays))


def _fold(stream: Stream, changes: pa.Table) -> pa.Table:
    """Return the newest change of each key, without deletes unless those are marked."""
    if not len(changes):
        return changes
    indexes, is_last = sort_changes(stream, changes)
    if stream.value.change_events is not None:
        ids = stream.table.id_columns
        return _without_deletes(stream, fill_newest(changes.take(indexes), is_last, ids))
    newest = changes.take(indexes.filter(pa.array(is_last)))
    return _without_deletes(stream, newest)


def _without_deletes(stream: Stream, newest: pa.Table) -> pa.Table:
    deletes = pa.array(flag_deletes(stream, newest))
    if stream.table.deletes == "remove":
        return newest.filter(pc.invert(deletes))
    times = pc.struct_field(newest[keys.KAFKA_COLUMN].combine_chunks(), "timestamp")
    times = pc.fill_null(times, pa.scalar(NO_DELETE_TIME_MS, pa.int64()).cast(times.type))
    return newest.append_column(DELETED_AT, pc.if_else(deletes, times, pa.scalar(None, times.type)))


def _texts(table: pa.Table, ids: list[str]) -> list[tuple[object, ...]]:
    return list(zip(*(table[name].to_pylist() for name in ids), strict=True))


def _find_differing(have: pa.Table, wanted: pa.Table) -> list[int]:
    """List the indexes of rows that differ in a column; what only one table has must be null."""
    wrong: set[int] = set()
    for name in have.column_names:
        mine = have[name].combine_chunks()
        theirs = (
            wanted[name].combine_chunks().cast(mine.type)
            if name in wanted.column_names
            else pa.nulls(len(have), mine.type)
        )
        if not mine.equals(theirs):
            pairs = zip(mine.to_pylist(), theirs.to_pylist(), strict=True)
            wrong |= {index for index, (a, b) in enumerate(pairs) if repr(a) != repr(b)}
    return sorted(wrong)


def _places(
    table: pa.Table, indexes: dict[tuple[object, ...], int], keys_: list[tuple[object, ...]]
) -> str:
    """Name rows by the coordinates of their change; keys are values of records."""
    shown = ", ".join(_place(table, indexes[key]) for key in keys_[:_SHOWN])
    return shown + (f" and {len(keys_) - _SHOWN} more" if len(keys_) > _SHOWN else "")


def _place(table: pa.Table, index: int) -> str:
    at = table[keys.KAFKA_COLUMN][index].as_py()
    return describe_offset(at["topic"], at["partition"], at["offset"])
