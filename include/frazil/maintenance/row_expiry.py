"""Row expiry: delete rows older than the stream file keeps, listed in a snapshot; offsets stay.

The cutoff is a midnight in UTC, so a file is rewritten at most once a day. A record that arrives
too old is ingested as usual and expires with the next run. With a state table, expired keys are
deleted from all tables of the stream, as are changes that newer ones replaced (decision record 41).
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import IsNull
from pyiceberg.table import DataScan, Table

from frazil.errors import StageStaleError
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.data_files import read_dead_letters
from frazil.iceberg.live_files import Flags
from frazil.iceberg.row_changes import RowsToDelete, count_rows, find_rows
from frazil.iceberg.table_view import TableView
from frazil.ledger import keys
from frazil.ledger.coordinates import (
    Offsets,
    Partition,
    count_coordinates,
    join_coordinates,
    spread_runs,
)
from frazil.ledger.deletions import Deletion, parse_deleted
from frazil.ledger.history import trace_steps
from frazil.ledger.offsets import OffsetRange, Ranges, describe_offset, encode_ranges
from frazil.ledger.recovery_point import History
from frazil.maintenance.delete_memory import forget_deletes
from frazil.maintenance.expired_rows import (
    EarlierTimes,
    decide_cutoff,
    find_earlier_times,
    find_state_times,
    flag_undated,
    list_own_topics,
    match_older,
    select_expired_rows,
    select_undated_rows,
)
from frazil.maintenance.messages import RowExpiryReport
from frazil.maintenance.row_deletion import (
    delete_changes,
    delete_rows,
    find_no_dead_letters,
    select_rows_at,
)
from frazil.maintenance.state_erasure import delete_state_rows
from frazil.maintenance.tables import (
    note_maintenance,
    now_ms,
    read_base_table,
    summarize_table,
)
from frazil.messages import count_noun
from frazil.schemas.inferred_columns import with_event_key
from frazil.state_tables.merge_rules import (
    MergePlan,
    find_operation,
    find_position,
    list_since,
    plan_merge,
)
from frazil.state_tables.messages import MergePosition
from frazil.state_tables.tables import map_names, require_own_state, require_state
from frazil.state_tables.trim_rules import (
    PLACE,
    Trimming,
    choose_trimmed,
    count_waiting,
    drop_headers,
    find_cut,
    find_holding,
    find_open,
    flag_below,
    flag_deletes,
    flag_keys,
    flag_runs,
    limit_deletes,
    list_places,
    list_read_columns,
    select_keys,
    split_newest,
)
from frazil.streams.models import ExpireRows, Stream
from frazil.streams.timestamps import DAY_MS
from frazil.workspace import Workspace


def expire_rows(work: Workspace, *, dry_run: bool = False) -> RowExpiryReport:
    """Delete the stream's rows that are older than `maintenance.expire_rows` keeps.

    Raises:
        TableError: a stream on the table is halted.
        IncompatibleTableError: the column is not a date or timestamp.
        TargetError: a file with expired rows is not a Parquet file.
        CommitContentionError, UnavailableError: run again.
    """
    if work.stream.table.state is not None:
        return _expire_state(work, dry_run=dry_run)
    stream, view = work.stream, TableView(work.store, work.stream.table.name)
    before = summarize_table(work, view)
    rule = stream.maintenance.expire_rows
    empty = RowExpiryReport(stream=stream.stream, dry_run=dry_run, before=before, after=before)
    if rule is None:
        return empty
    cutoff = decide_cutoff(now_ms(), rule.keep_days)
    limits: dict[str, object] = {"column": rule.column, "before_at": cutoff}
    if read_base_table(work, view) is None:
        return empty.model_copy(update=limits)
    expired, columns = _choose_expired(view, stream, rule, cutoff, dry_run=dry_run)
    limits |= columns
    if dry_run:
        rows = count_rows(find_rows(view.table, expired))
        return empty.model_copy(update={**limits, "rows": rows})
    properties = {
        keys.TARGET: f"{rule.column} before {cutoff.isoformat()}",
        keys.BY: stream.owner,
        keys.REASON: f"maintenance.expire_rows: {rule.column}, {rule.keep_days} days",
    }
    deletion = Deletion(keys.EXPIRE_ROWS, stream.stream, work.run_id, properties)
    landed, view = delete_rows(view, expired, deletion, find_no_dead_letters)
    results = {
        "rows": sum(int(each.entry.summary[keys.ROWS_DELETED]) for each in landed),
        "snapshot_ids": tuple(each.entry.snapshot_id for each in landed),
        "after": summarize_table(work, view),
    }
    return note_maintenance(work, "expire_rows", empty.model_copy(update={**limits, **results}))


def _choose_expired(
    view: TableView, stream: Stream, rule: ExpireRows, cutoff: datetime, *, dry_run: bool
) -> tuple[RowsToDelete, dict[str, object]]:
    """Return the rows to delete, and report fields: columns that hold, or may hold, their times.

    Rows without a time are counted in a dry run only: they stay, so that each daily run would read
    all their files again.
    """
    own, earlier = (
        list_own_topics(view.history, stream),
        find_earlier_times(view.table, rule.column),
    )
    fields: dict[str, object] = {"earlier_columns": earlier.times, "other_columns": earlier.others}
    if earlier.others and dry_run:
        undated = select_undated_rows(rule, own, earlier)
        fields["undated"] = count_rows(find_rows(view.table, undated))
    schema = view.table.schema()
    return select_expired_rows(schema, stream, rule, cutoff, own, earlier.times), fields


@dataclass(frozen=True)
class _Folded:
    """The changes that a state has folded at its merge position, without those removed since.

    `state` is the table at that position: merges may go on meanwhile.
    `open_dead_letters` are the offsets of the dead letters that were open there: each may become an
    older change, or has become one that is not folded yet.
    """

    position: MergePosition
    state: Table
    changes: pa.Table
    history: History
    open_dead_letters: Mapping[Partition, Offsets]

    @property
    def oldest_open(self) -> dict[Partition, int]:
        """Return the offset of the oldest open dead letter of each partition that has one."""
        return {each: int(offsets[0]) for each, offsets in self.open_dead_letters.items()}


def _expire_state(work: Workspace, *, dry_run: bool) -> RowExpiryReport:
    """Expire keys of a state table, then trim its changes, as far as the file asks for it."""
    stream, before = work.stream, summarize_table(work)
    rule, kept = stream.maintenance.expire_rows, stream.changes.keep_days
    report = RowExpiryReport(stream=stream.stream, dry_run=dry_run, before=before, after=before)
    if kept is not None:
        report = report.model_copy(update={"trimmed_before": decide_cutoff(now_ms(), kept)})
    if rule is not None:
        limits = {"column": rule.column, "before_at": decide_cutoff(now_ms(), rule.keep_days)}
        report = report.model_copy(update=limits)
    base = None if rule is None and kept is None else read_base_table(work)
    if base is None:
        return report
    work = with_event_key(work, base.view)
    folded = _read_folded(work)
    if isinstance(folded, str):
        return report.model_copy(update={"problem": folded})
    if report.before_at is not None and rule is not None:
        report, folded = _expire_keys(work, folded, report)
    if report.trimmed_before is not None:
        report = _trim(work, folded, report)
    if dry_run:
        return report
    done = report.model_copy(update={"after": summarize_table(work)})
    return note_maintenance(work, "expire_rows", done)


def _read_folded(work: Workspace) -> _Folded | str:
    """Read the changes at the merge position; a text says why nothing can be removed now."""
    stream = work.stream
    view = TableView(work.store, stream.table.name)
    state = TableView(work.store, require_state(stream).name)
    wait = f"nothing was removed: `frazil merge {stream.stream}` first"
    position = find_position(state.history, stream.stream) if state.found is not None else None
    if position is None:
        return f"no merge has been published; {wait}"
    require_own_state(stream, state.table)
    plan = plan_merge(view.history, stream, position)
    if plan is not None and plan.added is None:
        return f"the next merge folds all changes ({plan.reason}); {wait}"
    snapshot = view.table.snapshot_by_id(position.snapshot_id)
    with translated_errors(f"reading {stream.table.name}"):
        scan = view.table.scan(snapshot_id=None if snapshot is None else position.snapshot_id)
        names = [field.name for field in scan.projection().fields]
        scan = scan.select(*list_read_columns(stream, names))
        changes = _read_events(scan) if stream.value.change_events else scan.to_arrow()
    since = list_since(view.history, position.snapshot_id) or []
    removed = join_coordinates(parse_deleted(entry.summary) for entry in since)
    leaves = select_rows_at(removed).flag(changes)
    if snapshot is None and plan is not None:  # expired: the head was read
        leaves |= flag_runs(changes, plan.added or {})
    changes = changes.filter(pa.array(~leaves))
    dead_letters = read_dead_letters(work.store.find(stream.dead_letters_table))
    steps = trace_steps(replace(view.history, head=position.snapshot_id), stream.stream)
    open_dead_letters = find_open(dead_letters, steps)
    return _Folded(position, state.table, changes, view.history, open_dead_letters)


def _read_events(scan: DataScan) -> pa.Table:
    """Read change events batch by batch: their headers would be most of what is held in memory."""
    reader = scan.to_arrow_batch_reader()
    parts = [drop_headers(pa.Table.from_batches([batch])) for batch in reader]
    return pa.concat_tables(parts) if parts else reader.schema.empty_table()


def _expire_keys(
    work: Workspace, folded: _Folded, report: RowExpiryReport
) -> tuple[RowExpiryReport, _Folded]:
    """Delete all changes, the row and recorded deletes of the keys whose rows are too old.

    Return the changes that are left to trim, too; after a dry run those that would be left.
    """
    stream, rule = work.stream, work.stream.maintenance.expire_rows
    assert rule is not None  # noqa: S101 - the caller has looked
    assert report.before_at is not None  # noqa: S101 - set together with the rule
    state = TableView(work.store, require_state(stream).name)
    changes = TableView(work.store, stream.table.name).table
    names = map_names(folded.state, changes.schema())
    column, earlier = find_state_times(folded.state, names, changes, rule.column)
    update = _describe_times(folded, column, earlier, dry_run=report.dry_run)
    old = _find_old(work, folded, changes, (column, *earlier.times), report.before_at)
    old = old.filter(pa.array(~_flag_touched(work, folded, old, state)))
    update["rows"] = len(old)
    gone, left = _part_changes(folded, old, stream.table.id_columns, report)
    if report.dry_run:
        return report.model_copy(update=update), left
    at_position = replace(folded.history, head=folded.position.snapshot_id)
    merged = find_cut(at_position, stream.stream, sys.maxsize)
    words = {
        keys.TARGET: f"{rule.column} before {report.before_at.isoformat()}",
        keys.BY: stream.owner,
        keys.REASON: f"maintenance.expire_rows: {rule.column}, {rule.keep_days} days",
    }
    if not len(old):
        forget_deletes(work, merged, words[keys.REASON])  # a run that was killed may have left some
        return report.model_copy(update=update), left
    landed = delete_changes(work, folded.position, split_newest(stream, gone), words)
    numbers = tuple(each.entry.snapshot_id for each in landed)
    deletion = Deletion(keys.EXPIRE_ROWS, stream.stream, work.run_id, words)
    require = partial(_require_untouched, work, folded, old, numbers)
    delete_state_rows(state, select_rows_at(list_places(old)), deletion, numbers, require)
    forget_deletes(work, merged, words[keys.REASON])
    return report.model_copy(update={**update, "snapshot_ids": numbers}), left


def _part_changes(
    folded: _Folded, old: pa.Table, id_columns: Sequence[str], report: RowExpiryReport
) -> tuple[pa.Table, _Folded]:
    """Return the changes of the old keys, and those that are left if they are to be trimmed."""
    is_gone = pa.array(flag_keys(folded.changes, old, id_columns))
    gone = folded.changes.filter(is_gone)
    if report.trimmed_before is None or not len(gone):
        return gone, folded
    return gone, replace(folded, changes=folded.changes.filter(pc.invert(is_gone)))


def _describe_times(
    folded: _Folded, column: str, earlier: EarlierTimes, *, dry_run: bool
) -> dict[str, object]:
    """Return report fields: columns that hold, or may hold, the times of the state's rows.

    As with any table, rows without a time are counted in a dry run only.
    """
    state, times = folded.state, (column, *earlier.times)
    fields: dict[str, object] = {"earlier_columns": earlier.times, "other_columns": earlier.others}
    if earlier.others and dry_run:
        with translated_errors(f"reading {'.'.join(state.name())}"):
            scan = state.scan(IsNull(term=column), selected_fields=(*times, *earlier.others))
            rows = scan.to_arrow()
        fields["undated"] = pc.sum(flag_undated(rows, times, earlier.others)).as_py() or 0
    return fields


def _find_old(
    work: Workspace, folded: _Folded, changes: Table, names: Sequence[str], before_at: datetime
) -> pa.Table:
    """Read the keys whose row or delete is too old at the merge position, with its coordinate.

    The first of the columns that is not null has a row's time.
    """
    stream, state = work.stream, folded.state
    condition = match_older(state.schema(), stream, names, before_at)
    with translated_errors(f"reading {'.'.join(state.name())}"):
        old = state.scan(condition, _list_key(stream)).to_arrow()
    deleted = _find_deleted(work, folded, changes, before_at)
    if deleted is not None:
        # A delete that marked its row is there already.
        deleted = deleted.filter(pa.array(~select_rows_at(list_places(old)).flag(deleted)))
        # The change table's key may have been widened since the merge.
        old = pa.concat_tables([old, deleted], promote_options="permissive")
    if stream.sequence:
        return old
    # A dead letter below a change may become an older change of its key.
    free = {p: folded.oldest_open.get(p, sys.maxsize) for p in list_places(old)}
    return old.filter(pa.array(flag_below(old, free)))


def _find_deleted(
    work: Workspace, folded: _Folded, changes: Table, before_at: datetime
) -> pa.Table | None:
    """Read the deleted keys whose delete is too old, with its coordinate; None if there are none.

    A delete may lack the column, but must not keep its key's values without end: then the
    timestamp of its record has its time.
    """
    stream, rule = work.stream, work.stream.maintenance.expire_rows
    operation = find_operation(stream, folded.changes.column_names)
    if rule is None or operation is None:
        return None
    times = (rule.column, *find_earlier_times(changes, rule.column).times, keys.EVENT_TIME)
    condition = match_older(changes.schema(), stream, tuple(dict.fromkeys(times)), before_at)
    parts = []
    with translated_errors(f"reading {stream.table.name}"):
        scan = changes.scan(condition, (*_list_key(stream), operation))
        for batch in scan.to_arrow_batch_reader():
            rows = pa.Table.from_batches([batch])
            parts.append(rows.filter(pa.array(flag_deletes(stream, rows))))
    if not parts:
        return None
    old = pa.concat_tables(parts).drop_columns([operation])
    _, newest = split_newest(stream, select_keys(folded.changes, old, stream.table.id_columns))
    return old.filter(pa.array(select_rows_at(newest).flag(old)))


def _flag_touched(
    work: Workspace, folded: _Folded, old: pa.Table, state: TableView, gone: Iterable[int] = ()
) -> Flags:
    """Flag the rows whose key has a change that was merged after the changes were read.

    The snapshots `gone` have deleted changes since then.

    Raises:
        StageStaleError: the merge folded more than added changes.
    """
    stream, view = work.stream, TableView(work.store, work.stream.table.name)
    position, before = find_position(state.history, stream.stream), folded.position
    merged = replace(view.history, head=position.snapshot_id if position else None)
    followed = before.model_copy(update={"erased": (*before.erased, *gone)})
    plan = plan_merge(merged, stream, followed)
    if position is not None and plan is None:
        return np.zeros(len(old), dtype=np.bool_)
    if plan is None or plan.added is None:
        raise StageStaleError(
            f"stream {stream.stream}: all changes were merged again while they were read; nothing "
            "more was removed",
            "run again",
        )
    return flag_keys(old, _read_added(view.table, plan, stream), stream.table.id_columns)


def _read_added(changes: Table, plan: MergePlan, stream: Stream) -> pa.Table:
    """Read key and coordinate of the changes that a merge added."""
    runs = {(t, p): found for t, parts in (plan.added or {}).items() for p, found in parts.items()}
    places = select_rows_at({each: spread_runs(found) for each, found in runs.items()})
    with translated_errors(f"reading {stream.table.name}"):
        snapshot_id = plan.head if changes.snapshot_by_id(plan.head) is not None else None
        scan = changes.scan(places.condition, _list_key(stream), snapshot_id=snapshot_id)
        rows = scan.to_arrow()
    return rows.filter(pa.array(places.flag(rows)))


def _list_key(stream: Stream) -> tuple[str, ...]:
    """List the columns of key and coordinate."""
    return (*stream.table.id_columns, *(f"{keys.KAFKA_COLUMN}.{name}" for name in PLACE))


def _require_untouched(
    work: Workspace, folded: _Folded, old: pa.Table, gone: Iterable[int], state: TableView
) -> None:
    """Raise if a merge has folded changes of expired keys whose older changes are gone.

    The state does not follow then, so the next merge folds all changes that are left.
    """
    position = find_position(state.history, work.stream.stream)
    history = TableView(work.store, work.stream.table.name).history
    merged = replace(history, head=position.snapshot_id if position else None)
    since = list_since(merged, folded.position.snapshot_id) or []
    if {*gone} <= {entry.snapshot_id for entry in since}:
        return  # a merge has folded what is left
    touched = int(np.count_nonzero(_flag_touched(work, folded, old, state, gone)))
    if touched:
        raise StageStaleError(
            f"stream {work.stream.stream}: {count_noun(touched, 'key')} got changes that were "
            "merged while older ones were removed; no row was removed",
            f"run again after the next merge, which folds all changes: `frazil merge "
            f"{work.stream.stream}`",
        )


def _trim(work: Workspace, folded: _Folded, report: RowExpiryReport) -> RowExpiryReport:
    """Delete the changes that newer ones have replaced, and deletes that nothing can precede."""
    stream, before = work.stream, report.trimmed_before
    assert before is not None  # noqa: S101 - the caller has looked
    before_ms = int(before.timestamp() * 1000)
    if waiting := count_waiting(stream, folded.history, folded.position, before_ms):
        return report.model_copy(update={"waiting": waiting})
    # Newer batches are not read here, so the ranges below the cut must not contain them.
    history = replace(folded.history, head=folded.position.snapshot_id)
    cut = find_cut(history, stream.stream, before_ms)
    longer_ms = before_ms - (stream.changes.keep_days or 0) * DAY_MS
    released = find_cut(history, stream.stream, longer_ms)
    if holding := find_holding(stream, released, cut, folded.open_dead_letters):
        cut = find_cut(history, stream.stream, before_ms, holding)
        held_by = tuple(describe_offset(*each, offset) for each, offset in sorted(holding.items()))
        report = report.model_copy(update={"held_by": held_by})
    trimming = Trimming(cut, limit_deletes(stream, cut, folded.oldest_open))
    gone = choose_trimmed(stream, folded.changes, trimming)
    if report.dry_run:
        return report.model_copy(update={"trimmed": sum(map(count_coordinates, gone))})
    words = {
        keys.TARGET: f"changes published before {before.isoformat()}",
        keys.BY: stream.owner,
        keys.REASON: f"changes.keep_days: {stream.changes.keep_days}",
        keys.FOLDED: str(folded.position.snapshot_id),
        keys.TRIMMED: encode_ranges(_ranges_below(cut)),
    }
    landed = delete_changes(work, folded.position, gone, words)
    forget_deletes(work, trimming.deletes, words[keys.REASON])
    numbers = tuple(each.entry.snapshot_id for each in landed)
    update = {"trimmed": sum(int(each.entry.summary[keys.ROWS_DELETED]) for each in landed)}
    return report.model_copy(update={**update, "snapshot_ids": (*report.snapshot_ids, *numbers)})


def _ranges_below(cut: Mapping[Partition, int]) -> Ranges:
    """Return the ranges from offset 0 up to the cut of each partition."""
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for (topic, number), end in cut.items():
        if end:
            ranges.setdefault(topic, {})[number] = OffsetRange(0, end)
    return ranges
