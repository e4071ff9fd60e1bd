"""Which changes a merge has to fold, and what makes it rebuild or halt; pure functions.

The fold of a key is its newest change: a merge may fold the added changes alone where nothing but
additions happened to the change table since the merge position. After anything else (a rollback, a
replay, another writer) all changes are folded again, which is right whatever happened.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Literal

from pydantic import ValidationError

from frazil.errors import MergeHaltedError
from frazil.ledger import keys
from frazil.ledger.coordinates import parse_coordinates, plain_runs
from frazil.ledger.history import list_reused, trace_steps
from frazil.ledger.offsets import Runs, describe_partition, parse_ranges
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors
from frazil.ledger.state import parse_state
from frazil.messages import count_noun
from frazil.state_tables.messages import MergeCounts, MergePosition, MergeResult
from frazil.streams.models import Stream
from frazil.streams.state_sections import NEW_LOG_STEP

FOLD_CODE = 1
"""Increase it when the same changes would become other rows."""
FIRST_MERGE = "first merge"
BY_REQUEST = "by request"
CAME_LATE = "a change came after newer ones of its key"
MOST_WAITING = 1_000
"""The most pending deletes that a snapshot's summary lists; a rebuild finds all of them."""
MOST_HIDDEN, HIDDEN_RATIO = 1_000_000, 2
"""A merge waits for compaction where more rows than this are hidden, and twice as many as seen."""
FLATTENED_OPERATION = "_op"
UNAVAILABLE = "_unavailable"
DELETED_AT = "_deleted_at"
NO_DELETE_TIME_MS = 0
"""`_deleted_at` of a delete whose record has no time: null would mean that the row lives on."""
_QUIET = frozenset({keys.BOOTSTRAP, keys.CARRY})
"""Kinds of snapshots that add and remove no rows; nor does a gap, but it may reuse offsets."""
_SPARK_COUNTS = "spark.merge-into.num-target-rows-"


@dataclass(frozen=True)
class Rest:
    """What a slice of a merge leaves to the next one: newer changes, by offset, and their number.

    The changes are read at the snapshot `head`. `erased` are newer snapshots whose erasures the
    state has followed already.
    """

    head: int
    runs: Runs
    changes: int
    erased: tuple[int, ...] = ()


@dataclass(frozen=True)
class MergePlan:
    """The offsets to fold, or all changes and the reason for it; a slice leaves a rest.

    The merge position moves to the snapshot `head` of the change table.
    """

    head: int
    added: Runs | None
    reason: str = ""
    rest: Rest | None = None

    @property
    def read_at(self) -> int:
        """Return the snapshot at which the changes are read: the table's head, also for a slice."""
        return self.rest.head if self.rest else self.head

    def count_added(self) -> int | None:
        """Return the number of offsets to fold; None for all changes."""
        if self.added is None:
            return None
        runs = (run for parts in self.added.values() for found in parts.values() for run in found)
        return sum(end - start for start, end in runs)

    def identify(self, state: History, before: MergePosition | None, rules: str) -> str:
        """Return an id that is equal for a repetition of the same merge.

        A rebuild may be needed again for the same changes, where others have changed the state.
        """
        position = before.snapshot_id if before else None
        is_rebuild = self.added is None
        parts = [state.table_uuid, position, self.head, rules, is_rebuild]
        parts += [state.head] if is_rebuild else []
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def hash_rules(stream: Stream, ids: Sequence[str] | None = None) -> str:
    """Hash the rules that determine the rows of a state table from its changes.

    `ids` are the key columns in the order of the hash to compare with; the order has no effect on
    the rows.
    """
    table, ids = stream.table, stream.table.id_columns if ids is None else ids
    parts = [FOLD_CODE, ids, table.cdc_field, table.deletes, stream.sequence]
    if not is_added(stream, UNAVAILABLE):  # earlier releases left such a column out
        parts.append(UNAVAILABLE)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def find_operation(stream: Stream, names: Iterable[str]) -> str | None:
    """Return the column of a change table that holds the operation; None if there is none.

    A table keeps the column that `tombstones: delete` added once the file no longer says so.
    """
    if stream.table.cdc_field is not None:
        return stream.table.cdc_field
    is_there = FLATTENED_OPERATION in names and is_added(stream, FLATTENED_OPERATION)
    return FLATTENED_OPERATION if is_there else None


def is_added(stream: Stream, name: str) -> bool:
    """Return whether Frazil adds the column of this name, rather than the stream file."""
    own = {*stream.value.typed_columns, *stream.key.typed_columns}
    return stream.value.change_events is not None or name not in own


def find_position(state: History, stream: str, *, rebuild: bool = False) -> MergePosition | None:
    """Return the merge position of the newest state snapshot that has one; None for none.

    A `rebuild` only needs what this release knows of the position of a newer one: the change table
    and its key, which must still be the same.

    Raises:
        MergeHaltedError: this release cannot read the position.
    """
    for entry in walk_ancestors(state, beyond_metadata=False):
        text = entry.summary.get(keys.merge_key(stream))
        if text is not None:
            try:
                extra: Literal["ignore", "forbid"] = "ignore" if rebuild else "forbid"
                return MergePosition.model_validate_json(text, extra=extra)
            except ValidationError as error:
                instead = "" if rebuild else f", or `frazil merge {stream} --rebuild`"
                raise MergeHaltedError(
                    f"state table {state.table}: snapshot {entry.snapshot_id} has a merge position "
                    "that this release cannot read; nothing was written",
                    f"use the newest release that wrote this table{instead}",
                ) from error
    return None


def find_merged(state: History, stream: str) -> LedgerEntry | None:
    """Return the newest state snapshot with a merge position, even an unreadable one."""
    key = keys.merge_key(stream)
    entries = walk_ancestors(state, beyond_metadata=False)
    return next((entry for entry in entries if key in entry.summary), None)


def has_position(state: History, stream: str) -> bool:
    """Return whether the state has a merge position, even one that this release cannot read."""
    return find_merged(state, stream) is not None


def plan_merge(
    changes: History, stream: Stream, before: MergePosition | None, *, rebuild: str = ""
) -> MergePlan | None:
    """Decide what to fold; None if the state has folded all changes.

    `rebuild` is the reason to fold all of them.

    Raises:
        MergeHaltedError: the change table or the rules are not those of the merge position.
    """
    head = changes.head
    if head is None:
        return None
    _require_same_key(changes, stream, before)
    reason = rebuild or FIRST_MERGE
    if before is not None and not rebuild:
        _require_same_rules(changes, stream, before)
        since = list_since(changes, before.snapshot_id)
        if since is None:
            reason = f"snapshot {before.snapshot_id} is no longer on main of {changes.table}"
        else:
            added, obstacle = _collect_added(changes, since, before.erased)
            if not obstacle:
                return MergePlan(head, added) if added else None
            reason = obstacle
    _require_one_log(changes, stream)
    return MergePlan(head, None, reason)


def _require_one_log(changes: History, stream: Stream) -> None:
    """Raise if offsets started over: changes of both logs have the same coordinates."""
    for step in trace_steps(changes, stream.stream):
        reused = list_reused(step.kind, step.before, step.after)
        if reused:
            where = ", ".join(describe_partition(topic, number) for topic, number in reused)
            raise MergeHaltedError(
                f"stream {stream.stream}: the offsets of {where} started over ({step} of "
                f"{changes.table}): changes of both logs have the same coordinates and no order; "
                "nothing was written, the state stays as the last merge left it",
                NEW_LOG_STEP,
            )


def _require_same_key(changes: History, stream: Stream, before: MergePosition | None) -> None:
    if before is not None and {*before.id_columns} != {*stream.table.id_columns}:
        raise MergeHaltedError(
            f"stream {stream.stream}: the key of its state table is "
            f"{', '.join(before.id_columns)}, that of the stream file is "
            f"{', '.join(stream.table.id_columns)}; nothing was written",
            "restore table.id_columns, or the columns of the key under value.columns, or give the "
            "stream a new name and table",
        )
    if before is not None and before.table_uuid != changes.table_uuid:
        raise MergeHaltedError(
            f"stream {stream.stream}: change table {changes.table} has uuid {changes.table_uuid}, "
            f"but the state was folded from {before.table_uuid}: it was dropped and created again",
            "restore the old change table, or give the stream a new name and table",
        )


def _require_same_rules(changes: History, stream: Stream, before: MergePosition) -> None:
    if before.rules != hash_rules(stream, before.id_columns):
        raise MergeHaltedError(
            f"stream {stream.stream}: order, cdc_field or deletes changed since the last merge of "
            f"{changes.table}, or what a column means; nothing was written",
            f"restore them, or fold all changes by the new rules: `frazil merge {stream.stream} "
            "--rebuild`",
        )


def require_compacted(stream: str, state: History) -> None:
    """Check that delete files do not hide many more rows than readers see.

    Each merge would hide more, and make reads of the state slower, its own as well.

    Raises:
        MergeHaltedError: compaction is behind.
    """
    head = state.entries.get(state.head or 0)
    if head is None:
        return
    hidden = int(head.summary.get("total-position-deletes", "0"))
    rows = int(head.summary.get("total-records", "0"))
    if hidden > max(MOST_HIDDEN, HIDDEN_RATIO * (rows - hidden)):
        raise MergeHaltedError(
            f"stream {stream}: delete files of state table {state.table} list {hidden:,} of "
            f"{rows:,} rows: compaction is behind; the merge waits, nothing was written",
            f"`frazil maintain {stream} --only compact --no-dry-run`, then `frazil merge {stream}`",
        )


def list_since(changes: History, position: int) -> list[LedgerEntry] | None:
    """List the snapshots above the position, newest first; None if it is not on main."""
    since: list[LedgerEntry] = []
    for entry in walk_ancestors(changes):
        if entry.snapshot_id == position:
            return since
        since.append(entry)
    return None


def _collect_added(
    changes: History, since: list[LedgerEntry], followed: Iterable[int]
) -> tuple[Runs, str]:
    """Return the offsets that these snapshots added, or the first that did more than add.

    The state has `followed` some of them already.
    """
    parts = []
    for entry in list_unfolded(changes, since, followed):
        part = read_added(entry)
        if part is None:
            what = entry.summary.get(keys.KIND) or entry.summary.get("operation", "")
            return {}, f"{what} snapshot {entry.snapshot_id} of the change table"
        parts.append(part)
    return join_added(parts), ""


def read_added(entry: LedgerEntry) -> Runs | None:
    """Return the offsets that a snapshot of the change table added; None if it did not only add."""
    summary, kind = entry.summary, entry.summary.get(keys.KIND, "")
    if kind == keys.INGEST and keys.RANGES in summary:
        ranges = parse_ranges(summary[keys.RANGES])
        return {
            topic: {number: [(span.start, span.end)] for number, span in by_partition.items()}
            for topic, by_partition in ranges.items()
        }
    if kind == keys.REDRIVE and keys.COORDINATES in summary:
        return plain_runs(parse_coordinates(summary[keys.COORDINATES]))
    return None


def join_added(parts: Iterable[Runs]) -> Runs:
    """Join the offsets that snapshots added."""
    runs: Runs = {}
    for part in parts:
        for topic, by_partition in part.items():
            for number, found in by_partition.items():
                runs.setdefault(topic, {}).setdefault(number, []).extend(found)
    return {t: {p: _join_runs(found) for p, found in each.items()} for t, each in runs.items()}


def list_unfolded(
    changes: History, since: Sequence[LedgerEntry], followed: Iterable[int]
) -> list[LedgerEntry]:
    """List the snapshots that changed rows in a way that the state has not followed, newest first.

    `since` are the snapshots above the merge position.
    """
    known = frozenset(followed)
    new = [entry for entry in since if entry.snapshot_id not in known]
    numbers = {entry.snapshot_id for entry in since}
    staged = {entry.summary.get(keys.SOURCE_SNAPSHOT_ID) for entry in new}
    return [
        entry
        for entry in new
        if not (
            _is_quiet(entry, staged)
            or is_trimmed_behind(entry, numbers)
            or _is_plain_gap(changes, entry)
        )
    ]


def list_waiting(
    changes: History, merged: LedgerEntry | None, position: MergePosition | None
) -> list[LedgerEntry]:
    """List the snapshots of the change table that no merge has folded, newest first.

    `merged` is the state's newest snapshot with a position. Where that position is unreadable or
    no longer on main, those count that were committed after it.
    """
    if merged is None:
        return list_unfolded(changes, list(walk_ancestors(changes)), ())
    since = None if position is None else list_since(changes, position.snapshot_id)
    if since is None or position is None:
        later = takewhile(
            lambda entry: entry.committed_at_ms > merged.committed_at_ms, walk_ancestors(changes)
        )
        # Of a rollback without a snapshot of its own only the head is known.
        return list_unfolded(changes, list(later), ()) or list(islice(walk_ancestors(changes), 1))
    return list_unfolded(changes, since, position.erased)


def _is_quiet(entry: LedgerEntry, staged: set[str | None]) -> bool:
    """Return whether a snapshot changes no rows, or was staged for one that is on main."""
    kind = entry.summary.get(keys.KIND, "")
    is_staged = not kind and str(entry.snapshot_id) in staged
    return kind in _QUIET or is_staged or entry.summary.get("operation") == "replace"


def _is_plain_gap(changes: History, entry: LedgerEntry) -> bool:
    """Return whether a snapshot records a gap that lost only records that were never read.

    After another tool's rollback, `recover --skip` records a gap that lost published changes. A
    merge that was killed may have recorded their deletes, which only a rebuild leaves out. Such a
    gap raises the epoch by more than 1, or it has no new offset or topic id (only a redrive was
    rolled back).
    """
    stream = entry.summary.get(keys.STREAM)
    if entry.summary.get(keys.KIND) != keys.GAP or stream is None:
        return False
    key = keys.state_key(stream)
    line = walk_ancestors(replace(changes, head=entry.snapshot_id))
    texts = islice((each.summary[key] for each in line if key in each.summary), 2)
    match [*map(parse_state, texts)]:
        case [after, before]:
            moved = (after.offsets, after.topic_ids) != (before.offsets, before.topic_ids)
            is_next = moved and after.epoch == before.epoch + 1
            return is_next and not list_reused(keys.GAP, before, after)
    return False  # where offsets went on from is not known


def describe_more_than_additions(
    changes: History, snapshot_id: int, followed: Iterable[int]
) -> str:
    """Describe what did more than add changes since a snapshot; empty if nothing did."""
    since = list_since(changes, snapshot_id)
    if since is None:
        return f"snapshot {snapshot_id} is no longer on main of {changes.table}"
    return _collect_added(changes, since, followed)[1]


def is_trimmed_behind(entry: LedgerEntry, since: Collection[int]) -> bool:
    """Return whether a snapshot removed only replaced changes that the state had folded.

    `since` are the snapshots above the merge position.
    """
    folded = entry.summary.get(keys.FOLDED)
    is_trim = entry.summary.get(keys.KIND) == keys.TRIM
    return is_trim and folded is not None and int(folded) not in since


def _join_runs(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join runs that touch or overlap."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(runs):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def merge_waiting(before: Iterable[int], found: Iterable[int]) -> tuple[int, ...]:
    """Return the deletes to wait for; of too many, the newest."""
    return tuple(sorted({*before, *found}, reverse=True)[:MOST_WAITING])


def require_mergeable(stream: Stream, result: MergeResult) -> None:
    """Raise if the job found changes that it cannot fold.

    Raises:
        MergeHaltedError: with their number and the coordinates of one of them.
    """
    if result.fault == "operation":
        raise MergeHaltedError(
            f"stream {stream.stream}: {count_noun(result.faulty, 'change')} with an operation that "
            f"is neither an upsert nor a delete, for example {result.example}; nothing was written",
            "set table.cdc_field to the column whose values are c, r, u, insert, update, d or "
            "delete; if it is set correctly, an older release or another engine wrote these "
            "changes: remove their keys with `frazil erase`",
        )
    if result.fault == "partition":
        names = " and ".join(stream.sequence)
        without = f" without {names}" if names else ""
        raise MergeHaltedError(
            f"stream {stream.stream}: {count_noun(result.faulty, 'key')} with changes{without} in "
            f"two partitions, for example {result.example}: their offsets have no order; nothing "
            "was written",
            f"order the changes by {_suggest_sequence(stream)}, then `frazil merge "
            f"{stream.stream} --rebuild`",
        )


def _suggest_sequence(stream: Stream) -> str:
    """Name an order that changes in several partitions have."""
    by_time = "`order: {sequence_by: [_kafka.timestamp]}`"
    if stream.value.change_events is None and stream.table.tombstones != "delete":
        own = "`order: {sequence_by: [column]}` (a change without a value is the oldest)"
        return f"a column of their own, {own}, or by the times of the records, {by_time}"
    if stream.value.change_events is None:
        return f"the times of the records, {by_time}"
    by_log = "" if stream.sequence else "the log of PostgreSQL, `order: {sequence_by: _source.lsn}`"
    return f"{by_log}{', or by ' if by_log else ''}the times of the records, {by_time}"


def describe_disagreement(
    counts: MergeCounts, summary: Mapping[str, str], *, marks: bool, rebuilt: bool
) -> str:
    """Describe how Spark's counts of a merge differ from the fold's; empty if they agree."""
    if not counts.is_balanced:
        return f"the counts do not add up: {counts.text}"
    if rebuilt or marks:  # a delete that is marked updates a row, or inserts one
        added, rows = _count_added(summary, rebuilt=rebuilt), counts.count_written(marks=marks)
        is_same = added in {None, rows}
        return "" if is_same else f"Spark wrote {count_noun(added or 0, 'row')}, not {rows}"
    expected = {
        "inserted": counts.inserted,
        "matched-updated": counts.updated,
        "matched-deleted": counts.deleted,
    }
    found = {name: summary.get(_SPARK_COUNTS + name) for name in expected}
    wrong = [
        f"{name} {text}, not {expected[name]}"
        for name, text in found.items()
        if text not in {None, str(expected[name])}
    ]
    return f"Spark counted {', '.join(wrong)}" if wrong else ""


def _count_added(summary: Mapping[str, str], *, rebuilt: bool) -> int | None:
    """Return the rows that Spark wrote by its summary; None if it counted none."""
    if rebuilt:
        return int(summary.get("added-records", "0"))
    found = [summary.get(_SPARK_COUNTS + name) for name in ("inserted", "matched-updated")]
    return sum(int(each) for each in found if each is not None) if any(found) else None
