"""A batch over given ranges that moves no offset: what replays and backfills share.

The range is staged and judged by the same functions as every batch, and its rows come in the place
of those that are there, in one commit (decision record 14).
"""

from frazil import keys
from frazil.archive import archive_new_entries
from frazil.audit_ledger import trace_steps
from frazil.batch_schemas import find_latest_ids, read_met_ids
from frazil.checking import judge_batch
from frazil.contracts import BatchPlan, plain_offsets, plain_ranges
from frazil.dead_letters import ensure_dead_letters_table, publish_dead_letters
from frazil.errors import (
    BudgetExceededError,
    IncompatibleTableError,
    MissingTableError,
    QualityFailedError,
)
from frazil.failpoints import reach_failpoint
from frazil.fingerprints import read_fingerprint
from frazil.ledger import History, RecoveryPoint, find_batch, find_recovery_point
from frazil.offsets import Ranges
from frazil.planning import name_rules, refuse_other_source
from frazil.publishing import Landed, drop_stage, load_with_history, refuse_incomplete
from frazil.replacing import publish_replacement
from frazil.replay import choose_left_out, refuse_newly_erased, refuse_unkept, replay_id
from frazil.staging import fill_branch
from frazil.table_schema import list_misfits
from frazil.workspace import Workspace


def open_ledger(work: Workspace, what: str) -> tuple[History, RecoveryPoint]:
    """Load the ledger of a stream that has begun, and whose table fits it.

    Raises:
        MissingTableError: there is nothing to `what` before the first batch.
        IncompatibleTableError: the stream file no longer fits the table.
    """
    name = work.stream.stream
    table, history = load_with_history(work.store, work.stream.table.name)
    point = find_recovery_point(history, name)
    if point is None:
        raise MissingTableError(
            f"stream {name} has not begun: there is nothing to {what}",
            f"`frazil run {name}` begins at source.start",
        )
    misfits = list_misfits(table.schema(), work.stream.parsed_columns)
    if misfits:
        raise IncompatibleTableError(
            f"stream {name}: table {work.stream.table.name} does not fit: {'; '.join(misfits)}",
            "change value.columns in the stream file",
        )
    return history, point


def freeze_ranges(
    work: Workspace, history: History, point: RecoveryPoint, ranges: Ranges, run_id: str
) -> BatchPlan:
    """Write the plan down; `run_id` is what tells it from another plan of the same ranges."""
    table, rules = work.store.load(work.stream.table.name), read_fingerprint(work)
    state, latest = point.state, find_latest_ids(work)
    return BatchPlan(
        stream=work.stream.stream,
        table=work.stream.table.name,
        table_uuid=history.table_uuid,
        base_epoch=state.epoch,
        base_batch=state.batch,
        batch_id=replay_id(
            history.table_uuid,
            work.stream.stream,
            ranges,
            name_rules(rules.transform_version, latest),
            run_id,
        ),
        ranges=plain_ranges(ranges),
        topic_ids=dict(state.topic_ids),
        cluster_id=state.cluster_id,
        next_offsets=plain_offsets(state.offsets),
        schema_id=table.metadata.current_schema_id,
        spec_id=table.metadata.default_spec_id,
        suite_hash=rules.suite_hash,
        stream_hash=rules.stream_hash,
        transform_version=rules.transform_version,
        latest_schemas=latest,
        left_out=choose_left_out(trace_steps(history, work.stream.stream), ranges),
    )


def refuse_unkept_ranges(
    work: Workspace, ranges: Ranges, point: RecoveryPoint, *, compacted: bool = False
) -> None:
    """Ask Kafka, before a stage and after it, whether it delivers all of the ranges.

    `compacted` allows a topic of which compaction took records: where no row is at stake.
    """
    for topic in ranges:
        facts = work.kafka.fetch_topic(topic, work.stream.source.isolation)
        refuse_other_source(work.stream.stream, point.state, [facts])
        policy = work.kafka.fetch_topic_settings(topic).get("cleanup.policy", "delete")
        refuse_unkept(work.stream.stream, ranges, facts, point.state, "" if compacted else policy)


def put_in_place(
    work: Workspace, batch: BatchPlan, point: RecoveryPoint, kind: str, failed_step: str
) -> Landed:
    """Stage, judge and publish given ranges; a repetition finds them there.

    Raises:
        BudgetExceededError, QualityFailedError: nothing was written, and no stream is blocked;
            `failed_step` is what to do.
        StageStaleError, StageLostError, NotReplayableError, TableError: nothing was written.
        CommitContentionError, JobFailedError, UnavailableError: run again.
    """

    def refuse_source() -> None:
        is_new = kind == keys.BACKFILL
        refuse_unkept_ranges(work, batch.offset_ranges, point, compacted=is_new)

    _, history = load_with_history(work.store, batch.table)
    found = find_batch(history, batch.batch_id)
    if found is not None:
        return Landed(found, was_there=True)
    refuse_source()
    if work.stream.errors.tolerance == "quarantine":
        ensure_dead_letters_table(work.store, batch.table)
    remembered = read_met_ids(history, batch.stream)
    staged = fill_branch(work, batch, refuse_source, remembered, beside=True)
    reach_failpoint("replay.after-stage")
    try:
        verdict = judge_batch(work, batch, staged)
    except (BudgetExceededError, QualityFailedError) as error:
        drop_stage(work.store, batch.table, staged)
        raise type(error)(error.facts, failed_step) from error
    refuse_incomplete(batch, staged, verdict)
    _, history = load_with_history(work.store, batch.table)
    refuse_newly_erased(trace_steps(history, batch.stream), batch)
    publish_dead_letters(work.store, batch, staged)
    landed = publish_replacement(work, batch, staged, verdict, kind)
    reach_failpoint("replay.after-commit")
    archive_new_entries(work.store, load_with_history(work.store, batch.table)[1])
    return landed
