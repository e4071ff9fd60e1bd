"""The commit of a replay: rows of exactly the range give way to staged ones, in one snapshot.

Which files are concerned is asked of the head that the commit asserts, turn by turn, so neither a
batch nor a compaction that lands between stage and publish makes the stage stale. Of a file that
also holds other rows, those are written again as they are (decision record 14).
"""

from collections.abc import Iterable, Mapping

import numpy as np
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.update import TableUpdate

from frazil import commits, keys
from frazil.audit_ledger import Step, is_history_cut, trace_steps
from frazil.audit_reading import KafkaAuditedLog
from frazil.backfill import refuse_filled
from frazil.contracts import BatchPlan, Staged, Verdict
from frazil.coordinates import NO_OFFSETS, Offsets, Partition
from frazil.errors import NotReplayableError, TableRecreatedError
from frazil.failpoints import reach_failpoint
from frazil.ledger import History, LedgerEntry, find_batch, find_recovery_point
from frazil.offsets import OffsetRange, Ranges, iterate_ranges
from frazil.publishing import (
    Landed,
    commit_turn,
    load_with_history,
    refuse_lost_stage,
)
from frazil.replay import (
    refuse_above,
    refuse_ambiguous,
    refuse_newly_erased,
    refuse_other_topic,
    refuse_rewound,
)
from frazil.rewriting import (
    COORDINATE,
    Affected,
    Survivors,
    collect_offsets,
    count_rows,
    write_survivors,
)
from frazil.staged_frame import read_files
from frazil.staged_rows import iterate_coordinates, split_coordinates
from frazil.summaries import summarize_ranges
from frazil.tables import translated_errors
from frazil.turns import take_turns
from frazil.workspace import Workspace


def publish_replacement(
    work: Workspace, plan: BatchPlan, staged: Staged, verdict: Verdict, kind: str = keys.REPLAY
) -> Landed:
    """Publish staged and judged ranges; any repetition finds them there.

    Raises:
        TargetError: the range ends above the recovery point now, or a file is of an older spec.
        NotReplayableError: rows would go that Kafka no longer delivers.
        StageLostError, StageStaleError: nothing was written.
        TableError: the ledger halts.
    """
    summary = summarize_ranges(kind, plan, staged, verdict, work.run_id)
    known = Survivors(plan.stream)
    return take_turns(
        f"publishing {kind} {plan.batch_id} of stream {plan.stream}",
        lambda: _publish_turn(work, plan, staged, summary, known),
    )


def _publish_turn(
    work: Workspace,
    plan: BatchPlan,
    staged: Staged,
    told: Mapping[str, str],
    known: Survivors,
) -> Landed:
    """Take one turn; its first line decides whether an earlier one with no answer landed."""
    table, history = load_with_history(work.store, plan.table)
    found = find_batch(history, plan.batch_id)
    if found is not None:
        return Landed(found, was_there=True)
    _refuse_recreated(history, plan)
    steps = _refuse_overtaken(history, plan, told[keys.KIND])
    refuse_lost_stage(table, plan, staged)
    # What the ledger proved to be free has no rows, unless a part of the ledger is lost.
    is_free = told[keys.KIND] == keys.BACKFILL and not is_history_cut(steps)
    affected = () if is_free else find_affected(table, plan.offset_ranges)
    _refuse_undelivered(work, plan, collect_gone(table, staged, affected))
    summary = {**told, keys.ROWS_DELETED: str(count_rows(affected))}
    files = commits.read_added_files(table, staged.snapshot_id) if staged.snapshot_id else []
    files += write_survivors(table, affected, known)
    with translated_errors(f"writing the manifests of replay {plan.batch_id}"):
        removed = [file.task.file for file in affected]
        added = commits.build_overwrite(table, summary, files, removed)
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, added.snapshot.snapshot_id),
        *commits.drop_branch(staged.attempt, staged.snapshot_id),
    ]
    heads = {commits.MAIN: history.head, staged.attempt: staged.snapshot_id or staged.base_head}
    reach_failpoint("replay.before-commit")
    commit_turn(work.store, table, heads, updates)
    entry = LedgerEntry(
        added.snapshot.snapshot_id, history.head, added.snapshot.timestamp_ms, summary
    )
    return Landed(entry, was_there=False)


def _refuse_recreated(history: History, plan: BatchPlan) -> None:
    if history.table_uuid != plan.table_uuid:
        raise TableRecreatedError(
            f"table {plan.table} has uuid {history.table_uuid}, replay {plan.batch_id} was planned "
            f"for uuid {plan.table_uuid}",
            f"`frazil replay {plan.stream}` shows what would change in the table that is there",
        )


def _refuse_overtaken(history: History, plan: BatchPlan, kind: str) -> tuple[Step, ...]:
    """Refuse what the ledger no longer allows; give what it says."""
    point, steps = find_recovery_point(history, plan.stream), trace_steps(history, plan.stream)
    refuse_rewound(plan, steps)
    if point is not None:
        refuse_above(plan.stream, plan.offset_ranges, point.state)
        refuse_other_topic(plan, point.state)
    refuse_ambiguous(plan.stream, plan.offset_ranges, steps)
    refuse_newly_erased(steps, plan)
    if kind == keys.BACKFILL:
        refuse_filled(plan.stream, plan.offset_ranges, steps)
    return steps


def collect_gone(
    table: Table, staged: Staged, affected: Iterable[Affected]
) -> dict[Partition, Offsets]:
    """Collect the offsets that have a row now and none in the stage."""
    coming: dict[Partition, list[Offsets]] = {}
    if staged.snapshot_id is not None:
        for coordinates in iterate_coordinates(table, staged.snapshot_id):
            for topic, partition, offsets in split_coordinates(coordinates):
                coming.setdefault((topic, partition), []).append(offsets)
    gone = {
        partition: np.setdiff1d(now, np.concatenate(coming.get(partition, [NO_OFFSETS])))
        for partition, now in collect_offsets(affected).items()
    }
    return {partition: offsets for partition, offsets in gone.items() if len(offsets)}


def _refuse_undelivered(
    work: Workspace, plan: BatchPlan, gone: Mapping[Partition, Offsets]
) -> None:
    """See that Kafka delivers each record whose row goes: it is bad today, not lost."""
    log = KafkaAuditedLog(work.kafka, work.kafka_config)
    for (topic, partition), offsets in gone.items():
        spans = {partition: OffsetRange(int(offsets.min()), int(offsets.max()) + 1)}
        delivered = log.fetch_delivered(topic, spans, work.stream.source.isolation)[partition]
        lost = np.setdiff1d(offsets, delivered)
        if len(lost):
            raise NotReplayableError(
                f"stream {plan.stream}: {plan.table} has {len(lost)} rows of {topic}-{partition} "
                f"that Kafka no longer delivers, the first at offset {lost[0]}; a replay would "
                "take them for good",
                f"leave their offsets out: `frazil replay {plan.stream} --offsets …`; nothing was "
                "written",
            )


def find_affected(table: Table, ranges: Ranges) -> tuple[Affected, ...]:
    """Find the files of main's head that hold rows of the ranges.

    Raises:
        StorageError, CatalogUnavailableError: a file cannot be read.
    """
    with translated_errors(f"looking for rows of a range in {'.'.join(table.name())}"):
        tasks = list(table.scan(row_filter=_filter(ranges)).plan_files())
        found = [_look_into(table, task, ranges) for task in tasks]
    return tuple(affected for affected in found if affected is not None)


def _filter(ranges: Ranges) -> str:
    """Write the condition that prunes files by their bounds."""
    topic, partition, offset = COORDINATE
    return " or ".join(
        f"({topic} = '{name}' and {partition} = {number} "
        f"and {offset} >= {span.start} and {offset} < {span.end})"
        for name, number, span in iterate_ranges(ranges)
    )


def _look_into(table: Table, task: FileScanTask, ranges: Ranges) -> Affected | None:
    """Read a file's coordinates and mark those in a range; None where there are none."""
    rows = read_files(table, table.schema().select(*COORDINATE), [task])
    kafka = rows[keys.KAFKA_COLUMN].combine_chunks()
    topics = kafka.field("topic").dictionary_encode()
    codes = topics.indices.to_numpy(zero_copy_only=False)
    names = {name: code for code, name in enumerate(topics.dictionary.to_pylist())}
    numbers = kafka.field("partition").to_numpy(zero_copy_only=False)
    offsets = kafka.field("offset").to_numpy(zero_copy_only=False)
    is_inside = np.zeros(len(offsets), dtype=np.bool_)
    inside: dict[Partition, Offsets] = {}
    for topic, partition, span in iterate_ranges(ranges):
        own = (codes == names.get(topic, -1)) & (numbers == partition)
        own &= (offsets >= span.start) & (offsets < span.end)
        if own.any():
            is_inside |= own
            # With rows of an earlier writer among them, which have none, they are floats.
            inside[topic, partition] = offsets[own].astype(np.int64)
    return Affected(task, is_inside, inside) if inside else None
