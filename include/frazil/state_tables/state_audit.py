"""AUDIT of a state table: fold its changes again, by other code than the merge, and compare.

The changes are sorted by key and order; the last of each key is the row that the state must have.
Both tables are read by PyIceberg and held in memory.
"""

from collections.abc import Iterator, Sequence

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
from frazil.ledger.recovery_point import History, LedgerEntry, for_reading, walk_ancestors
from frazil.messages import count_noun
from frazil.state_tables.fill_audit import fill_newest
from frazil.state_tables.merge_rules import DELETED_AT, find_operation, find_position, plan_merge
from frazil.state_tables.messages import MergePosition
from frazil.state_tables.tables import require_state
from frazil.streams.models import Stream

Findings = Iterator[tuple[str, str]]
_PLACE = ("topic", "partition", "offset")
_SHOWN = 5


def audit_state(store: TableStore, stream: Stream) -> Findings:
    """Yield the broken invariants of a state table, M1 or M4, with a text; none if it is right.

    A state that is behind its changes is compared with the changes that it has folded, as long as
    the change table has that snapshot.
    """
    name = require_state(stream).name
    view, changes = TableView(store, name), TableView(store, stream.table.name)
    if view.found is None:
        return
    history = for_reading(view.history)
    position = find_position(history, stream.stream)
    yield from _check_counts(history, stream.stream)
    if position is None:
        if view.table.scan().count():
            yield "M1", f"state table {name} has rows and no merge position"
        return
    try:
        plan = plan_merge(for_reading(changes.history), stream, position)
    except FrazilError as error:
        yield "M1", error.facts
        return
    if changes.table.snapshot_by_id(position.snapshot_id) is None:
        if plan is not None:
            yield "M1", f"{name}: the changes that it has folded are expired: merge, then audit"
            return
        position = position.model_copy(update={"snapshot_id": changes.history.head})
    erased = [e for e in walk_ancestors(changes.history) if e.snapshot_id in position.erased]
    newest = _find_newest(stream, changes.table, position, erased)
    yield from _compare(stream, view.table, newest)
    if stream.table.deletes == "remove":
        yield from _check_memory(store, stream, newest, position.memory)


def _check_counts(history: History, stream: str) -> Findings:
    for entry in walk_ancestors(history, beyond_metadata=False):
        text = entry.summary.get(keys.merge_key(stream))
        if text is not None:
            counts = MergePosition.parse(text).counts
            if not counts.is_balanced:
                yield "M4", f"merge snapshot {entry.snapshot_id}: {counts.text}: not balanced"


def _find_newest(
    stream: Stream, changes: Table, position: MergePosition, erased: Sequence[LedgerEntry]
) -> pa.Table:
    """Return the newest change of each key, deletes included."""
    with translated_errors(f"reading {'.'.join(changes.name())}"):
        folded = changes.scan(snapshot_id=position.snapshot_id).to_arrow()
    marking = stream.table.model_copy(update={"deletes": "mark"})
    return _fold(stream.model_copy(update={"table": marking}), _drop_erased(folded, erased))


def _check_memory(store: TableStore, stream: Stream, newest: pa.Table, memory: str) -> Findings:
    """Yield keys whose newest change is a delete that the delete memory lacks."""
    name = require_state(stream).deletes_name
    table = store.find(name)
    held: set[tuple[object, ...]] = set()
    if table is not None:
        with translated_errors(f"reading {name}"):
            held = set(_coordinates(table.scan(EqualTo(term="memory", value=memory)).to_arrow()))
    deleted = newest.filter(_flag_deletes(stream, newest))
    places = [place for place in _coordinates(deleted) if place not in held]
    if places:
        shown = ", ".join(f"{t}-{p} offset {o}" for t, p, o in places[:_SHOWN])
        yield "M1", f"{name} lacks {count_noun(len(places), 'delete')}: {shown}"


def _coordinates(rows: pa.Table) -> list[tuple[object, ...]]:
    kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
    return list(zip(*(kafka.field(name).to_pylist() for name in _PLACE), strict=True))


def _compare(stream: Stream, state: Table, newest: pa.Table) -> Findings:
    """Compare the state with the newest change of each key."""
    ids = [*stream.table.id_columns]
    with translated_errors(f"reading {'.'.join(state.name())}"):
        rows = state.scan().to_arrow()
    removes = stream.table.deletes == "remove"
    want = newest.filter(pc.invert(_flag_deletes(stream, newest))) if removes else newest
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
    if extra:
        yield (
            "M1",
            f"{count_noun(len(extra), 'row')} whose key is deleted or unknown: "
            + _places(rows, found, extra),
        )
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
    kafka = changes[keys.KAFKA_COLUMN].combine_chunks()
    order = ["offset"] if not stream.sequence else [*stream.sequence, *_PLACE]
    names = [*stream.table.id_columns, *order]
    columns = {
        f"c{index}": pc.struct_field(kafka, name.removeprefix(f"{keys.KAFKA_COLUMN}."))
        if name in _PLACE or name == keys.EVENT_TIME
        else _plain(changes[name].combine_chunks())
        for index, name in enumerate(names)
    }
    sortable = pa.table(columns)
    indexes = pc.sort_indices(sortable, [(name, "ascending") for name in sortable.column_names])
    ordered = sortable.take(indexes)
    is_last = np.zeros(len(ordered), dtype=bool)
    for index in range(len(stream.table.id_columns)):
        column = ordered[f"c{index}"].combine_chunks()
        is_last[:-1] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    is_last[-1] = True
    if stream.value.change_events is not None:
        ids = stream.table.id_columns
        return _without_deletes(stream, fill_newest(changes.take(indexes), is_last, ids))
    newest = changes.take(indexes.filter(pa.array(is_last)))
    return _without_deletes(stream, newest)


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as it can be sorted: uuids as their bytes."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def _flag_deletes(stream: Stream, newest: pa.Table) -> pa.Array:
    operation = find_operation(stream, newest.column_names)
    if operation is None:
        return pa.array(np.zeros(len(newest), dtype=bool))
    said = pc.utf8_lower(newest[operation])
    return pc.is_in(said, pa.array(["d", "delete"])).combine_chunks()


def _without_deletes(stream: Stream, newest: pa.Table) -> pa.Table:
    deletes = _flag_deletes(stream, newest)
    if stream.table.deletes == "remove":
        return newest.filter(pc.invert(deletes))
    times = pc.struct_field(newest[keys.KAFKA_COLUMN].combine_chunks(), "timestamp")
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
    return f"{at['topic']}-{at['partition']} offset {at['offset']}"
