"""Dead letters: records that could not become rows, kept whole in `<table>__dead_letters`.

They are published before the batch, keyed by attempt and coordinate. A dead letter counts only if
main's ancestry names its attempt, and is open until a redrive restores it (protocol.md, Dead
letters); both are decided here, for one partition or for a whole table.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotsUpdate, TableUpdate

from frazil.errors import StageLostError
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch, reset_branch
from frazil.iceberg.catalog import NewTable, TableStore, dead_letters_name, translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.parquet_files import write_rows
from frazil.iceberg.table_compatibility import require_writable_table
from frazil.iceberg.table_schema import build_dead_letters_schema
from frazil.ingest.messages import BatchPlan, Staged
from frazil.kafka.consumer import KafkaRecord
from frazil.ledger import keys
from frazil.ledger.coordinates import NO_OFFSETS, Coordinates, Offsets, Partition, join_dead_letters
from frazil.ledger.history import (
    UNCLAIMED,
    Spans,
    Step,
    list_attempts,
    list_spans,
    locate_spans,
)

Flags = npt.NDArray[np.bool_]
Indexes = npt.NDArray[np.int64]
"""Indexes of steps on main's ancestry; `UNCLAIMED` where there is none."""
_NESTED = ("topic", "partition", "offset", "schema_id")
_PLAIN = ("attempt", "reason", "quarantined_at", "resolved_by")
_TYPES: Mapping[str, pa.DataType] = {
    "topic": pa.string(),
    "partition": pa.int64(),
    "offset": pa.int64(),
    "schema_id": pa.int64(),
    "attempt": pa.string(),
    "reason": pa.string(),
    "quarantined_at": pa.timestamp("us", tz="UTC"),
    "resolved_by": pa.string(),
}


def ensure_dead_letters_table(store: TableStore, table_name: str) -> None:
    """Create the dead-letter table with one empty snapshot, so that branches can start there.

    Raises:
        IncompatibleTableError: another engine changed it so that it cannot be written.
    """
    name = dead_letters_name(table_name)
    table = store.find(name) or store.create(name, NewTable(build_dead_letters_schema()))
    require_writable_table(table)
    if table.current_snapshot() is not None:
        return
    retry_commit(f"preparing {name}", lambda: _first_snapshot(store, name))


def _first_snapshot(store: TableStore, name: str) -> None:
    table = store.load(name)
    if table.current_snapshot() is not None:
        return
    added = commits.build_append(table, {keys.KIND: keys.BOOTSTRAP})
    updates = commits.move_main(added)
    commit_once(store, table, {commits.MAIN: None}, updates)


def stage_isolated_records(
    store: TableStore,
    plan: BatchPlan,
    attempt: str,
    records: Mapping[KafkaRecord, str],
    *,
    has_others: bool,
) -> None:
    """Stage dead letters of isolated records together with those that Spark staged, if any.

    Args:
        store: the catalog.
        plan: the batch.
        attempt: the staging branch.
        records: each record with the type of the error that it causes.
        has_others: whether Spark staged dead letters on the branch.

    Raises:
        StageLostError: the branch with Spark's dead letters is gone.
        CommitContentionError, UnavailableError: nothing is visible; a later run stages again.
    """
    name = dead_letters_name(plan.table)
    if not has_others:
        create_branch(store, name, attempt)
    table = store.load(name)
    rows = [_describe_record(plan, attempt, *each) for each in records.items()]
    files = [write_rows(table, rows)]
    retry_commit(
        f"staging dead letters of batch {plan.batch_id}",
        lambda: _try_stage(store, name, attempt, files, has_others=has_others),
    )


def _describe_record(
    plan: BatchPlan, attempt: str, record: KafkaRecord, detail: str
) -> dict[str, object]:
    time_ms = record.timestamp_ms
    kafka = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": None if time_ms is None else time_ms * 1000,
        "timestamp_type": record.timestamp_type,
        "key": record.key,
        "headers": record.headers and [{"key": k, "value": v} for k, v in record.headers],
    }
    return {
        keys.KAFKA_COLUMN: kafka,
        "value": record.value,
        "reason": keys.DECODER_FAILED,
        "detail": detail,
        "batch_id": plan.batch_id,
        "attempt": attempt,
        "stream": plan.stream,
        "quarantined_at": datetime.now(UTC),
    }


def _try_stage(
    store: TableStore, name: str, attempt: str, files: Sequence[DataFile], *, has_others: bool
) -> None:
    table = store.load(name)
    ref = table.metadata.refs.get(attempt)
    snapshot = table.snapshot_by_id(ref.snapshot_id) if ref else None
    if ref is None or snapshot is None:
        raise StageLostError(
            f"branch {attempt} of {name} is gone; the dead letters of this attempt are lost",
            "run again: the next run plans and stages the batch again",
        )
    written = commits.read_added_files(table, ref.snapshot_id)
    if {file.file_path for file in files} <= {file.file_path for file in written}:
        return  # an earlier attempt was committed, but its response was lost
    base = ref.snapshot_id
    if has_others and snapshot.parent_snapshot_id is not None:
        base, files = snapshot.parent_snapshot_id, [*written, *files]
    added = commits.build_append(reset_branch(table, attempt, base), {}, files, attempt)
    updates: list[TableUpdate] = [added, commits.set_branch(attempt, added.snapshot.snapshot_id)]
    if base != ref.snapshot_id:
        updates.append(RemoveSnapshotsUpdate(snapshot_ids=[ref.snapshot_id]))
    commit_once(store, table, {attempt: ref.snapshot_id}, updates)


def publish_dead_letters(store: TableStore, plan: BatchPlan, staged: Staged) -> None:
    """Publish the staged dead letters of one attempt, unless they are in the table already.

    Raises:
        StageLostError: their branch no longer exists and their rows are not in the table.
    """
    if staged.dead_letters_snapshot_id is None:
        return
    name = dead_letters_name(plan.table)
    retry_commit(
        f"publishing dead letters of batch {plan.batch_id}",
        lambda: _try_publish(store, name, plan, staged),
    )


def _try_publish(store: TableStore, name: str, plan: BatchPlan, staged: Staged) -> None:
    table = store.load(name)
    if has_dead_letters(table, staged.attempt):
        return
    snapshot_id = staged.dead_letters_snapshot_id
    branch = table.metadata.refs.get(staged.attempt)
    if snapshot_id is None or branch is None or branch.snapshot_id != snapshot_id:
        raise StageLostError(
            f"batch {plan.batch_id}: branch {staged.attempt} of {name} is gone; the dead letters "
            "of this attempt are not in the table",
            "run again: the next run plans and stages the batch again",
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
        *commits.move_main(added),
        *commits.drop_branch(staged.attempt, snapshot_id),
    ]
    heads = {commits.MAIN: head.snapshot_id if head else None, staged.attempt: snapshot_id}
    commit_once(store, table, heads, updates)


def has_dead_letters(table: Table, attempt: str) -> bool:
    """Return whether the table has rows of an attempt; its snapshot may have expired."""
    with translated_errors("reading dead letters"):
        scan = table.scan(
            row_filter=f"attempt = '{attempt}'", selected_fields=("attempt",), limit=1
        )
        return bool(scan.to_arrow().num_rows)


@dataclass(frozen=True)
class Resolved:
    """Dead letters of one partition that a redrive restored; their batches lie before `before`."""

    offsets: Offsets
    before: int


@dataclass(frozen=True)
class Resolution:
    """For each dead letter whether it is open, and the index of the redrive that restored it.

    `incarnation_ends` are the steps that ended the topic incarnation it was read from; `UNCLAIMED`
    for the current one.
    """

    is_open: Flags
    resolved_by_step: Indexes
    incarnation_ends: Indexes


def list_resolved(steps: tuple[Step, ...]) -> dict[Partition, dict[int, Resolved]]:
    """Return by partition the dead letters that each redrive restored, by its index."""
    indexes: dict[int | None, int] = {s.entry.snapshot_id: i for i, s in enumerate(steps)}
    found: defaultdict[Partition, dict[int, Resolved]] = defaultdict(dict)
    for index, step in enumerate(steps):
        before = step.resolved_before
        end = index if before is None else indexes.get(before, 0)
        for partition, offsets in step.resolved.items():
            found[partition][index] = Resolved(offsets, end)
    return dict(found)


def resolve_dead_letters(
    offsets: Offsets, indexes: Indexes, spans: Spans, resolved: Mapping[int, Resolved]
) -> Resolution:
    """Return which dead letters of one partition are open (protocol.md, Dead letters).

    A dead letter is open if its attempt is the last of its topic incarnation that covers its
    coordinate, and no later redrive lists that coordinate. If two incarnations have a dead letter
    there, `Resolved.before` decides which one the redrive restored.

    Args:
        offsets: offsets of the dead letters, ascending.
        indexes: the index of each one's attempt on main's ancestry.
        spans: what the stream's steps published of the partition.
        resolved: what each redrive restored of the partition, by its index.
    """
    restarts = np.array([*spans.restarts, UNCLAIMED], dtype=np.int64)
    ends = restarts[np.searchsorted(restarts[:-1], indexes)]
    is_read, next_reads = _find_reads(offsets, indexes, spans)
    is_last = is_read & ((next_reads == UNCLAIMED) | ((ends != UNCLAIMED) & (next_reads > ends)))
    resolved_by_step = np.full(len(offsets), UNCLAIMED, dtype=np.int64)
    for index, listed in sorted(resolved.items()):
        places = _find_places(offsets, listed.offsets)
        reads, again = indexes[places], next_reads[places]
        is_newest = (reads < listed.before) & ((again == UNCLAIMED) | (again >= listed.before))
        is_listed = is_last[places] & is_newest & (resolved_by_step[places] == UNCLAIMED)
        resolved_by_step[places[is_listed]] = index
    return Resolution(
        is_open=is_last & (resolved_by_step == UNCLAIMED),
        resolved_by_step=resolved_by_step,
        incarnation_ends=ends,
    )


def _find_reads(offsets: Offsets, indexes: Indexes, spans: Spans) -> tuple[Flags, Indexes]:
    """Return whether each dead letter's step read it, and the next step that read its offset."""
    is_read = np.zeros(len(offsets), dtype=np.bool_)
    next_reads = np.full(len(offsets), UNCLAIMED, dtype=np.int64)
    for span, covered in locate_spans(offsets, spans.all):
        own, again = indexes[covered], next_reads[covered]
        is_read[covered] |= own == span.index
        again[(own < span.index) & (again == UNCLAIMED)] = span.index
    return is_read, next_reads


def _find_places(offsets: Offsets, listed: Offsets) -> Indexes:
    """Return the positions of the listed offsets; several dead letters may have the same offset."""
    unique = np.unique(listed)
    lows, highs = np.searchsorted(offsets, unique), np.searchsorted(offsets, unique, "right")
    counts = highs - lows
    before = np.cumsum(counts) - counts
    places: Indexes = np.arange(counts.sum()) + np.repeat(lows - before, counts)
    return places


def select_open(
    dead_letters: Mapping[str, Offsets],
    spans: Spans,
    attempts: Mapping[int, str],
    resolved: Mapping[int, Resolved],
) -> tuple[Offsets, Offsets]:
    """Return the offsets of a partition's open dead letters, and of those a redrive restored.

    `dead_letters` maps an attempt to its dead letters, `attempts` a batch's index to the attempt
    that main's ancestry names, `resolved` a redrive's index to what it restored.
    """
    by_attempt = {attempt: index for index, attempt in attempts.items()}
    known = {name: offsets for name, offsets in dead_letters.items() if name in by_attempt}
    offsets = np.concatenate([NO_OFFSETS, *known.values()])
    indexes = np.concatenate(
        [NO_OFFSETS, *(np.full(len(each), by_attempt[name]) for name, each in known.items())]
    )
    order = np.argsort(offsets, kind="stable")
    offsets, resolution = (
        offsets[order],
        resolve_dead_letters(offsets[order], indexes[order], spans, resolved),
    )
    return offsets[resolution.is_open], offsets[resolution.resolved_by_step != UNCLAIMED]


@dataclass(frozen=True)
class DeadLetterIndex:
    """The dead letters of one stream, sorted by partition and offset, and their resolution.

    Columns of `rows`: `topic`, `partition`, `offset`, `schema_id`, `attempt`, `reason`,
    `quarantined_at`, `resolved_by`.
    """

    rows: pa.Table
    resolution: Resolution

    def with_steps(self, steps: tuple[Step, ...]) -> "DeadLetterIndex":
        """Return the same dead letters resolved by other steps of main's ancestry."""
        return replace(self, resolution=_resolve_rows(self.rows, steps))


def read_dead_letter_index(
    table: Table | None, stream: str, steps: tuple[Step, ...]
) -> DeadLetterIndex:
    """Read a stream's dead letters without their values, and resolve them by main's ancestry.

    Raises:
        CatalogUnavailableError, StorageError: the dead letters cannot be read.
    """
    rows = _sort_rows(_read_rows(table, stream))
    return DeadLetterIndex(rows, _resolve_rows(rows, steps))


def _read_rows(table: Table | None, stream: str) -> pa.Table:
    if table is None:
        return pa.table({name: pa.array([], _TYPES[name]) for name in (*_NESTED, *_PLAIN)})
    nested = tuple(f"{keys.KAFKA_COLUMN}.{name}" for name in _NESTED)
    with translated_errors(f"reading the dead letters of {'.'.join(table.name())}"):
        fields = (*nested, *_PLAIN)
        scan = table.scan(row_filter=f"stream = '{stream}'", selected_fields=fields)
        found = scan.to_arrow()
    kafka = found[keys.KAFKA_COLUMN].combine_chunks()
    columns = {name: pc.struct_field(kafka, name) for name in _NESTED}
    columns |= {name: found[name] for name in _PLAIN}
    return pa.table({name: column.cast(_TYPES[name]) for name, column in columns.items()})


def _sort_rows(rows: pa.Table) -> pa.Table:
    names = ("topic", "partition", "offset", "attempt")
    return rows.sort_by([(name, "ascending") for name in names]).combine_chunks()


def _resolve_rows(rows: pa.Table, steps: tuple[Step, ...]) -> Resolution:
    spans, resolved = list_spans(steps), list_resolved(steps)
    by_attempt = {attempt: index for index, attempt in list_attempts(steps).items()}
    codes = rows["attempt"].combine_chunks().fill_null("").dictionary_encode()
    attempt_indexes = np.array(
        [by_attempt.get(a, UNCLAIMED) for a in codes.dictionary.to_pylist()], np.int64
    )
    indexes = attempt_indexes[codes.indices.to_numpy()] if len(rows) else NO_OFFSETS
    offsets = rows["offset"].to_numpy()
    parts = [
        resolve_dead_letters(
            offsets[low:high],
            indexes[low:high],
            spans.get(partition, Spans()),
            resolved.get(partition, {}),
        )
        for partition, low, high in list_slices(rows)
    ]
    is_open = np.concatenate([np.empty(0, np.bool_), *(part.is_open for part in parts)])
    return Resolution(
        is_open=is_open & ~_flag_erased(rows, steps),
        resolved_by_step=np.concatenate([NO_OFFSETS, *(part.resolved_by_step for part in parts)]),
        incarnation_ends=np.concatenate([NO_OFFSETS, *(part.incarnation_ends for part in parts)]),
    )


def _flag_erased(rows: pa.Table, steps: tuple[Step, ...]) -> Flags:
    """Flag the dead letters that an erasure lists, even if their rows are still in the table."""
    flags = np.zeros(len(rows), dtype=np.bool_)
    listed = join_dead_letters(step.deleted_dead_letters for step in steps)
    if not listed:
        return flags
    attempts = rows["attempt"].to_numpy()
    offsets = rows["offset"].to_numpy()
    for partition, low, high in list_slices(rows):
        for attempt, by_partition in listed.items():
            erased = by_partition.get(partition, NO_OFFSETS)
            if len(erased):
                own = attempts[low:high] == attempt
                flags[low:high] |= own & np.isin(offsets[low:high], erased)
    return flags


def list_slices(rows: pa.Table) -> list[tuple[Partition, int, int]]:
    """Return each partition's first and last row index in rows sorted by partition."""
    if not len(rows):
        return []
    topics = rows["topic"].combine_chunks().dictionary_encode()
    names, numbers = topics.dictionary.to_pylist(), rows["partition"].to_numpy()
    codes = topics.indices.to_numpy()
    changes = np.flatnonzero((np.diff(codes) != 0) | (np.diff(numbers) != 0)) + 1
    starts = [0, *changes.tolist()]
    return [
        ((names[codes[low]], int(numbers[low])), low, high)
        for low, high in zip(starts, [*starts[1:], len(rows)], strict=True)
    ]


def group_dead_letters(rows: pa.Table) -> dict[str, Coordinates]:
    """Group dead letters, sorted by partition and offset, by attempt."""
    grouped: dict[str, Coordinates] = {}
    for attempt in pc.unique(rows["attempt"]).to_pylist():
        own = rows.filter(pc.equal(rows["attempt"], attempt))
        offsets = own["offset"].to_numpy()
        grouped[attempt] = {
            partition: offsets[low:high] for partition, low, high in list_slices(own)
        }
    return grouped
