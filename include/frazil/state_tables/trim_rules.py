"""Which changes leave a change table: those that newer ones have replaced; pure functions.

The newest change of each key below the cut stays, so that the fold of what is left is the fold of
everything: the state can be folded again at any time, whatever is rolled back or replayed above the
cut. Kafka keeps a compacted topic in the same way.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from frazil.iceberg.data_files import flag_in, flag_partition, flag_whole, split_coordinates
from frazil.ingest.dead_letters import list_resolved, select_open
from frazil.ledger import keys
from frazil.ledger.coordinates import (
    FIRST_TIMESTAMP_MS,
    Coordinates,
    Offsets,
    Partition,
    join_coordinates,
)
from frazil.ledger.history import Spans, Step, list_attempts, list_spans
from frazil.ledger.offsets import Runs
from frazil.ledger.recovery_point import History, walk_ancestors
from frazil.ledger.state import parse_state
from frazil.state_tables.merge_rules import (
    FLATTENED_OPERATION,
    UNAVAILABLE,
    find_operation,
    list_since,
    list_unfolded,
)
from frazil.state_tables.messages import MergePosition
from frazil.streams.change_events import SOURCE, SOURCE_SEQUENCES
from frazil.streams.models import Stream
from frazil.streams.timestamps import DAY_MS

Flags = npt.NDArray[np.bool_]
Limits = Mapping[Partition, int]
PLACE = ("topic", "partition", "offset")
_OLD_KEY = "__debezium.oldkey"


@dataclass(frozen=True)
class Trimming:
    """Where the history is cut: changes below `cut` may go, of deletes those below `deletes`."""

    cut: Limits
    deletes: Limits


def find_cut(
    history: History, stream: str, before_ms: int, holding: Limits | None = None
) -> dict[Partition, int]:
    """Return the next offsets of the newest batch that was published before an instant.

    `holding`: offsets that the batch, and all before it, must not have read.
    """
    key = keys.state_key(stream)
    for entry in walk_ancestors(history):
        if key in entry.summary and entry.committed_at_ms < before_ms:
            offsets = parse_state(entry.summary[key]).offsets
            ends = {(t, p): end for t, every in offsets.items() for p, end in enumerate(every)}
            if all(ends.get(each, 0) <= offset for each, offset in (holding or {}).items()):
                return ends
    return {}


def find_holding(
    stream: Stream, released: Limits, cut: Limits, open_dead_letters: Mapping[Partition, Offsets]
) -> dict[Partition, int]:
    """Return, by partition, the oldest open dead letter that prevents trimming below the cut.

    Once restored, a change event may need values of an older change, even of another key if its key
    changed. Dead letters below `released` no longer prevent trimming, since some can never be
    restored.
    """
    found = dict[Partition, int]()
    of_events = open_dead_letters if stream.value.change_events is not None else {}
    for each, offsets in of_events.items():
        place = int(np.searchsorted(offsets, released.get(each, 0)))
        if place < len(offsets) and offsets[place] < cut.get(each, 0):
            found[each] = int(offsets[place])
    return found


def count_waiting(stream: Stream, history: History, position: MergePosition, before_ms: int) -> int:
    """Count the batches of change events that are not merged, and as old as changes that may go.

    A row whose key changed may need values of the old key's changes, even if these are replaced.
    Its event may be in a batch up to a day behind them.
    """
    if stream.value.change_events is None:
        return 0
    since = list_since(history, position.snapshot_id) or []
    unfolded = list_unfolded(history, since, position.erased)
    return sum(entry.committed_at_ms < before_ms + DAY_MS for entry in unfolded)


def limit_deletes(stream: Stream, cut: Limits, oldest_open: Limits) -> dict[Partition, int]:
    """Return the offsets below which a delete may be forgotten.

    An older change of its key must not come any more. By Kafka's order only a dead letter below it
    can still become one; by a sequence any later record can, so no delete is forgotten.
    """
    is_kept = stream.sequence or stream.table.deletes == "mark" or stream.value.change_events
    if is_kept:
        return {}
    return {each: min(end, oldest_open.get(each, end)) for each, end in cut.items()}


def list_read_columns(stream: Stream, names: Iterable[str]) -> tuple[str, ...]:
    """List the columns of a change table that decide which changes may go."""
    known = [*names]
    operation = find_operation(stream, known)
    events = (UNAVAILABLE, f"{SOURCE}.lsn", f"{keys.KAFKA_COLUMN}.headers")
    names = (
        *stream.table.id_columns,
        *(name for name in stream.sequence if name != keys.EVENT_TIME),
        *((operation,) if operation is not None else ()),
        *(f"{keys.KAFKA_COLUMN}.{name}" for name in (*PLACE, "timestamp")),
        *(events if stream.value.change_events is not None else ()),
    )
    return tuple(dict.fromkeys(names))


def drop_headers(changes: pa.Table) -> pa.Table:
    """Return change events with the headers of those alone that did not carry all values.

    Only these headers are read: the row of such an event may have had another key.
    """
    kafka = changes[keys.KAFKA_COLUMN].combine_chunks()
    fields = {field.name: kafka.field(field.name) for field in kafka.type}
    headers = fields["headers"]
    none = pa.nulls(len(headers), headers.type)
    fields["headers"] = pc.if_else(pa.array(_flag_lacking(changes)), headers, none)
    kafka = pc.make_struct(*fields.values(), field_names=[*fields])
    index = changes.column_names.index(keys.KAFKA_COLUMN)
    return changes.set_column(index, keys.KAFKA_COLUMN, kafka)


def sort_changes(stream: Stream, changes: pa.Table) -> tuple[pa.Array, Flags]:
    """Return the order of changes by key, then from old to new, and which is its key's newest."""
    kafka = changes[keys.KAFKA_COLUMN].combine_chunks()
    last = PLACE if stream.sequence else ("offset",)
    columns = [
        *(_plain(changes[name].combine_chunks()) for name in stream.table.id_columns),
        *(_read_sequence(changes, name) for name in stream.sequence),
        *(pc.struct_field(kafka, name) for name in last),
    ]
    sortable = pa.table({f"c{index}": column for index, column in enumerate(columns)})
    # Nulls first, as in Spark: a column of the sequence may have become required later.
    indexes = pc.sort_indices(
        sortable, [(name, "ascending", "at_start") for name in sortable.column_names]
    )
    ordered = sortable.take(indexes)
    is_last = np.zeros(len(ordered), dtype=np.bool_)
    for index in range(len(stream.table.id_columns)):
        column = ordered[f"c{index}"].combine_chunks()
        is_last[:-1] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    is_last[-1:] = True
    return indexes, is_last


def _read_sequence(changes: pa.Table, name: str) -> pa.Array:
    """Return a column of the sequence.

    Events without the field, and records without a time, come before all others.
    """
    head, _, field = name.partition(".")
    column = changes[head].combine_chunks()
    if name in SOURCE_SEQUENCES:
        return pc.fill_null(pc.struct_field(column, field), -1)
    if name == keys.EVENT_TIME:
        times = pc.struct_field(column, field)
        lowest = pa.scalar(FIRST_TIMESTAMP_MS * 1000, pa.int64()).cast(times.type)
        return pc.fill_null(times, lowest)
    return _plain(column)


def _plain(column: pa.Array) -> pa.Array:
    """Return a column as it can be sorted: uuids as their bytes."""
    return column.storage if isinstance(column, pa.ExtensionArray) else column


def choose_trimmed(
    stream: Stream, changes: pa.Table, trimming: Trimming
) -> tuple[Coordinates, Coordinates]:
    """Return the coordinates of the changes that may leave: replaced ones, and deletes.

    A delete leaves after all older changes of its key, which would become its row again.
    """
    old = changes.filter(pa.array(flag_below(changes, trimming.cut)))
    if not len(old):
        return {}, {}
    indexes, is_last = sort_changes(stream, old)
    ordered = old.take(indexes)
    is_delete, is_whole = flag_deletes(stream, ordered), np.ones(len(ordered), dtype=np.bool_)
    keys_of = np.concatenate([[0], np.cumsum(is_last)[:-1]])
    if stream.value.change_events is not None:
        is_whole = ~is_delete & ~_flag_lacking(ordered)
    base = np.full(len(ordered), -1)
    places = np.flatnonzero(is_whole)
    np.maximum.at(base, keys_of[places], places)
    goes = np.arange(len(ordered)) < base[keys_of]
    goes |= is_last & is_delete & flag_below(ordered, trimming.deletes)
    if stream.value.change_events is not None:
        for end in np.flatnonzero(_flag_named(ordered, changes)).tolist():
            first = int(np.searchsorted(keys_of, keys_of[end]))
            whole = np.flatnonzero(is_whole[first:end])
            goes[first + (int(whole[-1]) if len(whole) else 0) : end + 1] = False
    first, last = (pa.array(goes & flags) for flags in (~is_last, is_last))
    return _read_places(ordered.filter(first)), _read_places(ordered.filter(last))


def split_newest(stream: Stream, changes: pa.Table) -> tuple[Coordinates, Coordinates]:
    """Return the coordinates of replaced changes, and of the newest one of each key."""
    indexes, is_last = sort_changes(stream, changes)
    ordered = changes.take(indexes)
    first, last = (ordered.filter(pa.array(flags)) for flags in (~is_last, is_last))
    return _read_places(first), _read_places(last)


def flag_below(rows: pa.Table, limits: Limits) -> Flags:
    """Flag the rows below the offset that is given for their partition."""
    kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
    offsets = np.asarray(kafka.field("offset"))
    flags = np.zeros(len(rows), dtype=np.bool_)
    for partition, end in limits.items():
        flags |= flag_partition(kafka, partition) & (offsets < end)
    return flags


def flag_runs(rows: pa.Table, runs: Runs) -> Flags:
    """Flag the rows whose offsets are in these runs, which ascend in each partition."""
    kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
    offsets = np.asarray(kafka.field("offset"))
    flags = np.zeros(len(rows), dtype=np.bool_)
    parts = [((topic, n), found) for topic, each in runs.items() for n, found in each.items()]
    for partition, found in parts:
        starts, ends = np.array(found, dtype=np.int64).T
        run = np.searchsorted(starts, offsets, side="right") - 1
        flags |= flag_partition(kafka, partition) & (run >= 0) & (offsets < ends[run])
    return flags


def flag_deletes(stream: Stream, changes: pa.Table) -> Flags:
    """Flag the changes that delete their key."""
    operation = find_operation(stream, changes.column_names)
    if operation is None:
        return np.zeros(len(changes), dtype=np.bool_)
    said = pc.is_in(pc.utf8_lower(changes[operation]), pa.array(["d", "delete"]))
    flags: Flags = said.combine_chunks().to_numpy(zero_copy_only=False)
    return flags


def _flag_lacking(changes: pa.Table) -> Flags:
    """Flag the change events that did not carry all values."""
    lengths = pc.fill_null(pc.list_value_length(changes[UNAVAILABLE]), 0)
    flags: Flags = pc.greater(lengths, 0).to_numpy()
    return flags


def _flag_named(ordered: pa.Table, changes: pa.Table) -> Flags:
    """Flag the deletes whose row lives on with another key and may need this one's values."""
    moved = changes.filter(pa.array(_flag_lacking(changes)))
    headers = pc.struct_field(moved[keys.KAFKA_COLUMN].combine_chunks(), "headers").to_pylist()
    has_old_key = [any(each["key"] == _OLD_KEY for each in found or ()) for found in headers]
    wanted = _read_lsn(moved.filter(pa.array(has_old_key, pa.bool_())))
    is_delete = pc.equal(pc.utf8_lower(ordered[FLATTENED_OPERATION]), "d").combine_chunks()
    named = pc.is_in(_read_lsn(ordered), value_set=wanted.drop_null())
    flags: Flags = pc.and_(is_delete, named).to_numpy(zero_copy_only=False)
    return flags


def _read_lsn(changes: pa.Table) -> pa.Array:
    return pc.struct_field(changes[SOURCE].combine_chunks(), "lsn")


def _read_places(changes: pa.Table) -> Coordinates:
    kafka = changes[keys.KAFKA_COLUMN].combine_chunks()
    return join_coordinates(
        {(topic, number): offsets} for topic, number, offsets in split_coordinates(kafka)
    )


def list_places(rows: pa.Table) -> dict[Partition, Offsets]:
    """Return the coordinates of rows, ascending in each partition."""
    return {**_read_places(rows)} if len(rows) else {}


def select_keys(changes: pa.Table, chosen: pa.Table, ids: Sequence[str]) -> pa.Table:
    """Return the changes of the keys of the chosen rows."""
    return changes.filter(pa.array(flag_keys(changes, chosen, ids)))


def flag_keys(rows: pa.Table, chosen: pa.Table, ids: Sequence[str]) -> Flags:
    """Flag the rows that have the key of a chosen row."""
    if not len(chosen):
        return np.zeros(len(rows), dtype=np.bool_)
    pair = [each.select([*ids]) for each in (rows, chosen)]
    # One of them may have been read before a column of the key was widened.
    wider = pa.unify_schemas([each.schema for each in pair], promote_options="permissive")
    rows, chosen = (each.cast(wider) for each in pair)
    wanted = {name: chosen[name].combine_chunks() for name in ids}
    return flag_whole(wanted, rows) if len(ids) > 1 else flag_in(rows[ids[0]], wanted[ids[0]])


def find_open(
    dead_letters: Mapping[Partition, Mapping[str, Offsets]], steps: tuple[Step, ...]
) -> dict[Partition, Offsets]:
    """Return the offsets of the open dead letters of each partition that has some, ascending."""
    attempts, spans, resolved = list_attempts(steps), list_spans(steps), list_resolved(steps)
    found: dict[Partition, Offsets] = {}
    for partition, held in dead_letters.items():
        own = spans.get(partition, Spans())
        open_ones, _ = select_open(held, own, attempts, resolved.get(partition, {}))
        if len(open_ones):
            found[partition] = open_ones
    return found
