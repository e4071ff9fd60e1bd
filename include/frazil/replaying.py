"""REPLAY: read exact offsets again and put what they are today in place of what is there.

`plan_replay` looks and compares, `replay` stages, checks and publishes by the same functions as a
batch. Offsets do not move; the snapshot has an id of its own, by which a repetition finds it.
"""

from frazil.archive import archive_new_entries
from frazil.audit_ledger import trace_steps
from frazil.checking import judge_batch
from frazil.contracts import BatchPlan, plain_offsets, plain_ranges
from frazil.dead_letters import ensure_dead_letters_table, publish_dead_letters
from frazil.derived_columns import with_columns
from frazil.errors import (
    BudgetExceededError,
    ConfigurationError,
    IncompatibleTableError,
    MissingTableError,
    NotReplayableError,
    QualityFailedError,
)
from frazil.failpoints import reach_failpoint
from frazil.fingerprints import read_fingerprint, refuse_other_rules
from frazil.ledger import RecoveryPoint, find_adopted, find_batch, find_recovery_point
from frazil.offsets import Ranges, describe_ranges
from frazil.planning import refuse_other_source
from frazil.publishing import Landed, drop_stage, load_with_history, refuse_incomplete
from frazil.recovery import read_instant
from frazil.replacing import publish_replacement
from frazil.replay import (
    choose_between,
    choose_left_out,
    choose_offsets,
    refuse_above,
    refuse_adopted,
    refuse_newly_erased,
    refuse_unclear,
    refuse_unkept,
    replay_id,
)
from frazil.replay_messages import Differences, Replayed, ReplayPlan, ReplayRequest
from frazil.staging import build_request, fill_branch
from frazil.table_schema import list_misfits
from frazil.workspace import Workspace

_FAILED_STEP = "nothing was written; mend the suite, the budget or the records, then replay again"


def plan_replay(work: Workspace, request: ReplayRequest) -> ReplayPlan:
    """Freeze ranges and rules, and compare the table with what Kafka's records would be today.

    Raises:
        ConfigurationError: the request is unclear.
        TargetError: a range ends above the recovery point.
        NotReplayableError: Kafka no longer delivers every record of it.
        TableError, SourceError, UnavailableError: nothing was written.
    """
    refuse_unclear(request)
    work = with_columns(work)
    table, history = load_with_history(work.store, work.stream.table.name)
    point = find_recovery_point(history, work.stream.stream)
    if point is None:
        raise MissingTableError(
            f"stream {work.stream.stream} has not begun: there is nothing to replay",
            f"`frazil run {work.stream.stream}` begins at source.start",
        )
    _refuse_misfits(work)
    ranges = _choose_ranges(work, request, point)
    refuse_above(work.stream.stream, ranges, point.state)
    refuse_adopted(work.stream.stream, ranges, find_adopted(history, work.stream.stream))
    _refuse_unkept(work, ranges, point)
    rules = read_fingerprint(work)
    batch = BatchPlan(
        stream=work.stream.stream,
        table=work.stream.table.name,
        table_uuid=history.table_uuid,
        base_epoch=point.state.epoch,
        base_batch=point.state.batch,
        batch_id=replay_id(
            history.table_uuid, work.stream.stream, ranges, rules.transform_version, work.run_id
        ),
        ranges=plain_ranges(ranges),
        topic_ids=dict(point.state.topic_ids),
        cluster_id=point.state.cluster_id,
        next_offsets=plain_offsets(point.state.offsets),
        schema_id=table.metadata.current_schema_id,
        spec_id=table.metadata.default_spec_id,
        suite_hash=rules.suite_hash,
        stream_hash=rules.stream_hash,
        transform_version=rules.transform_version,
        left_out=choose_left_out(trace_steps(history, work.stream.stream), ranges),
    )
    return _compare(work, batch, dry_run=request.dry_run)


def _refuse_misfits(work: Workspace) -> None:
    stream = work.stream
    misfits = list_misfits(work.store.load(stream.table.name).schema(), stream.parsed_columns)
    if misfits:
        raise IncompatibleTableError(
            f"stream {stream.stream}: table {stream.table.name} does not fit: {'; '.join(misfits)}",
            "change value.columns in the stream file",
        )


def _choose_ranges(work: Workspace, request: ReplayRequest, point: RecoveryPoint) -> Ranges:
    if request.offsets:
        return choose_offsets(request.offsets)
    isolation = work.stream.source.isolation
    since_ms = read_instant(request.since, "--since") if request.since else 0
    until_ms = read_instant(request.until, "--until") if request.until else None
    ranges: Ranges = {}
    for topic in work.stream.source.names:
        below = point.state.offsets.get(topic, ())
        if not below:
            continue  # it joined the list and was not read yet
        since = work.kafka.fetch_offsets_at(topic, len(below), since_ms, isolation)
        until = below
        if until_ms is not None:
            until = work.kafka.fetch_offsets_at(topic, len(below), until_ms, isolation)
        ranges = {**ranges, **choose_between(topic, since, until, below)}
    return ranges


def _refuse_unkept(work: Workspace, ranges: Ranges, point: RecoveryPoint) -> None:
    """Ask Kafka, before the stage and after it, whether it delivers all of the ranges."""
    for topic in ranges:
        facts = work.kafka.fetch_topic(topic, work.stream.source.isolation)
        refuse_other_source(work.stream.stream, point.state, [facts])
        policy = work.kafka.fetch_topic_settings(topic).get("cleanup.policy", "delete")
        refuse_unkept(work.stream.stream, ranges, facts, point.state, policy)


def _compare(work: Workspace, batch: BatchPlan, *, dry_run: bool) -> ReplayPlan:
    request = build_request(work, batch, "").model_copy(update={"direct": None})
    found = work.engine.run_job("compare_range", request, Differences)
    if found.undelivered:
        raise NotReplayableError(
            f"stream {batch.stream}: {batch.table} has {found.undelivered} rows of "
            f"{describe_ranges(batch.offset_ranges)} that Kafka no longer delivers; a replay would "
            "take them for good",
            "leave their offsets out; nothing was written",
        )
    return ReplayPlan(
        stream=batch.stream,
        table=batch.table,
        dry_run=dry_run,
        batch=batch,
        differences=found,
        text=f"{describe_ranges(batch.offset_ranges)}: {found.text}{_say_left_out(batch)}",
    )


def _say_left_out(batch: BatchPlan) -> str:
    runs = [run for parts in batch.left_out.values() for each in parts.values() for run in each]
    erased = sum(end - start for start, end in runs)
    return f"; {erased} erased records are left out" if erased else ""


def replay(work: Workspace, plan: ReplayPlan) -> Replayed:
    """Stage, check and publish what was planned; any repetition finds it there.

    Raises:
        ConfigurationError: the plan is a dry run.
        BudgetExceededError, QualityFailedError: nothing was written, and no stream is blocked.
        StageStaleError, StageLostError, NotReplayableError, TableError: nothing was written.
        CommitContentionError, JobFailedError, UnavailableError: run again.
    """
    if plan.dry_run:
        raise ConfigurationError(
            f"stream {plan.stream}: this plan is a dry run, nothing was written",
            "plan again with the dry run switched off",
        )
    work, batch = with_columns(work), plan.batch
    _, history = load_with_history(work.store, batch.table)
    found = find_batch(history, batch.batch_id)
    if found is not None:
        return _describe(batch, Landed(found, was_there=True))
    point = find_recovery_point(history, batch.stream)
    if point is None:
        raise MissingTableError(
            f"stream {batch.stream} has not begun in {batch.table}", f"`frazil run {batch.stream}`"
        )
    refuse_other_rules(work, batch)
    ranges = batch.offset_ranges
    left_out = choose_left_out(trace_steps(history, batch.stream), ranges)
    batch = batch.model_copy(update={"left_out": left_out})
    _refuse_unkept(work, ranges, point)
    if work.stream.errors.tolerance == "quarantine":
        ensure_dead_letters_table(work.store, batch.table)
    staged = fill_branch(work, batch, lambda: _refuse_unkept(work, ranges, point))
    reach_failpoint("replay.after-stage")
    try:
        verdict = judge_batch(work, batch, staged)
    except (BudgetExceededError, QualityFailedError) as error:
        drop_stage(work.store, batch.table, staged)
        raise type(error)(error.facts, _FAILED_STEP) from error
    refuse_incomplete(batch, staged, verdict)
    _, history = load_with_history(work.store, batch.table)
    refuse_newly_erased(trace_steps(history, batch.stream), batch)
    publish_dead_letters(work.store, batch, staged)
    landed = publish_replacement(work, batch, staged, verdict)
    reach_failpoint("replay.after-commit")
    archive_new_entries(work.store, load_with_history(work.store, batch.table)[1])
    return _describe(batch, landed)


def _describe(batch: BatchPlan, landed: Landed) -> Replayed:
    """Say what is on main now, from its own summary."""
    summary = landed.entry.summary
    return Replayed(
        stream=batch.stream,
        table=batch.table,
        batch_id=batch.batch_id,
        outcome="ALREADY" if landed.was_there else "REPLAYED",
        snapshot_id=landed.entry.snapshot_id,
        rows_written=int(summary["frazil.rows-written"]),
        rows_deleted=int(summary["frazil.rows-deleted"]),
        rows_quarantined=int(summary["frazil.rows-quarantined"]),
        rows_skipped=int(summary["frazil.rows-skipped"]),
        ranges=batch.ranges,
    )
