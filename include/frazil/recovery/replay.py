"""REPLAY: read exact offsets again and replace their rows by what the records decode to today.

`plan_replay` compares table and Kafka; `replay` stages, checks and publishes with the functions of
a batch. No offset moves. The snapshot has its own id, by which a repetition finds it.
"""

from collections.abc import Mapping
from functools import partial

from frazil.errors import BudgetExceededError, FrazilError, NotReplayableError
from frazil.iceberg.table_view import TableView
from frazil.ingest.batch_schemas import read_seen_schema_ids, select_batch_schemas
from frazil.ingest.blocked_batches import require_same_rules
from frazil.ingest.isolation import (
    JobParts,
    PartJob,
    describe_part,
    may_isolate,
    read_isolated,
    read_unreadable_records,
    search_failing_records,
)
from frazil.ingest.messages import BatchPlan, StageRequest
from frazil.ingest.staging import build_request
from frazil.ledger import keys
from frazil.ledger.authors import require_not_dry_run
from frazil.ledger.coordinates import Partition
from frazil.ledger.history import trace_steps
from frazil.ledger.offsets import (
    OffsetRange,
    Ranges,
    Runs,
    count_offsets,
    describe_ranges,
    parse_offset_ranges,
    slice_ranges,
)
from frazil.ledger.recovery_point import (
    PublishedBatch,
    RecoveryPoint,
    find_adopted,
    find_batch,
)
from frazil.messages import count_noun
from frazil.recovery.backfill_rules import find_first_published
from frazil.recovery.messages import (
    CompareRangeRequest,
    Differences,
    Replayed,
    ReplayPlan,
    ReplayRequest,
)
from frazil.recovery.range_overwrite import (
    open_ledger,
    overwrite_ranges,
    plan_ranges,
    require_retained_ranges,
)
from frazil.recovery.replay_rules import (
    count_bad,
    explain_refusal,
    list_erased_offsets,
    require_at_or_above_beginning,
    require_below_recovery_point,
    require_not_adopted,
    require_one_incarnation,
    select_offsets_between,
    validate_one_selection,
)
from frazil.streams.timestamps import read_span
from frazil.workspace import Workspace

_FAILED_STEP = (
    "nothing was written; fix the suite, the error budget or the records, then replay again"
)


def plan_replay(work: Workspace, request: ReplayRequest) -> ReplayPlan:
    """Plan the ranges with the present rules, and compare their rows with Kafka's records.

    Raises:
        ConfigurationError: the request is ambiguous.
        TargetError: a range ends above the recovery point, or was never read.
        SchemaChangeError: a pending schema change must be applied first.
        NotReplayableError: Kafka no longer delivers every record of the ranges.
        TableError, SourceError, UnavailableError: nothing was written.
    """
    validate_one_selection(request)
    work, view, point = open_ledger(work, settled=True)
    name = work.stream.stream
    steps = trace_steps(view.history, name)
    ranges = _choose_ranges(work, request, point, find_first_published(steps))
    require_below_recovery_point(name, ranges, point.state)
    require_not_adopted(name, ranges, find_adopted(view.history, name))
    require_one_incarnation(name, ranges, steps)
    require_at_or_above_beginning(name, ranges, steps)
    require_retained_ranges(work, ranges, point)
    batch = plan_ranges(work, view, point, ranges, work.run_id)
    return _compare(work, view, batch, dry_run=request.dry_run)


def _choose_ranges(
    work: Workspace, request: ReplayRequest, point: RecoveryPoint, first: Mapping[Partition, int]
) -> Ranges:
    if request.offsets:
        return parse_offset_ranges(request.offsets)
    isolation = work.stream.source.isolation
    since_ms, until_ms = read_span(request.since, request.until)
    ranges: Ranges = {}
    for topic in work.stream.source.names:
        below = point.state.offsets.get(topic, ())
        if not below:
            continue  # a new topic that was not read yet
        since = work.kafka.fetch_offsets_at(topic, len(below), since_ms or 0, isolation)
        until = below
        if until_ms is not None:
            until = work.kafka.fetch_offsets_at(topic, len(below), until_ms, isolation)
        ranges = {**ranges, **select_offsets_between(topic, since, until, below, first)}
    return ranges


def compare_ranges(
    work: Workspace,
    view: TableView,
    batch: BatchPlan,
    samples: int = 0,
    older: Mapping[str, Runs] | None = None,
) -> Differences:
    """Compare rows with Kafka's records decoded today, and list rows that differ.

    `samples` is the most rows to list; `older` are the offsets whose rows were written before a
    column existed, by column.
    """
    schemas = select_batch_schemas(work, batch, read_seen_schema_ids(view.history, batch.stream))
    staging = build_request(work, batch, "", schemas, view).model_copy(update={"fast_path": None})
    request = CompareRangeRequest(**staging.model_dump(), samples=samples, older=dict(older or {}))
    try:
        return work.engine.run_job("compare_range", request, Differences)
    except FrazilError as error:
        if not may_isolate(error, is_repeated=True):
            raise
        return _compare_without_failing_records(work, batch, request, error)


def _compare(work: Workspace, view: TableView, batch: BatchPlan, *, dry_run: bool) -> ReplayPlan:
    found = compare_ranges(work, view, batch)
    if found.undelivered:
        raise NotReplayableError(
            f"stream {batch.stream}: {batch.table} has {count_noun(found.undelivered, 'row')} of "
            f"{describe_ranges(batch.offset_ranges)} that Kafka no longer delivers; a replay would "
            "delete them for good",
            f"leave their offsets out: `frazil replay {batch.stream} --offsets …`; nothing was "
            "written",
        )
    refusal = explain_refusal(work.stream, found)
    budget = f"it would be refused: {refusal}" if refusal else "within the error budget"
    counts = f"{found.text}{_describe_left_out(batch)}; {budget}"
    return ReplayPlan(
        stream=batch.stream,
        table=batch.table,
        dry_run=dry_run,
        batch=batch,
        differences=found,
        text=f"{describe_ranges(batch.offset_ranges)}: {counts}",
    )


def _compare_without_failing_records(
    work: Workspace, batch: BatchPlan, request: StageRequest, failure: FrazilError
) -> Differences:
    """Find the records that make the job fail, and compare the others."""
    request = request.model_copy(update=read_unreadable_records(work, batch))
    if request.given:
        try:
            return work.engine.run_job("compare_range", request, Differences)
        except FrazilError as error:
            if not may_isolate(error, is_repeated=True):
                raise
            failure = error

    def build(span: OffsetRange, _: str) -> StageRequest:
        return request.model_copy(update={"ranges": slice_ranges(batch.ranges, span)})

    describe = partial(describe_part, batch.ranges)
    job = PartJob("compare_range", Differences, count_offsets(batch.offset_ranges), build, describe)
    subject = f"stream {batch.stream}: replay {batch.batch_id}"
    failing = search_failing_records(JobParts(work, batch, job), failure, subject)
    isolated = read_isolated(work, batch, failing)
    update = {"isolated": isolated.runs, "isolated_records": len(isolated.own)}
    return work.engine.run_job("compare_range", request.model_copy(update=update), Differences)


def _describe_left_out(batch: BatchPlan) -> str:
    runs = [run for parts in batch.left_out.values() for each in parts.values() for run in each]
    erased = sum(end - start for start, end in runs)
    return f"; {count_noun(erased, 'erased record')} left out" if erased else ""


def replay(work: Workspace, plan: ReplayPlan) -> Replayed:
    """Stage, check and publish a planned replay; a repetition finds it done.

    Raises:
        ConfigurationError: the plan is a dry run.
        BudgetExceededError, QualityFailedError: nothing was written, and no stream is blocked.
        StageStaleError, StageLostError, NotReplayableError, TableError: nothing was written.
        CommitContentionError, JobFailedError, UnavailableError: run again.
    """
    require_not_dry_run(plan.stream, dry_run=plan.dry_run)
    batch = plan.batch
    work, view, point = open_ledger(work)
    found = find_batch(view.history, batch.batch_id)
    if found is not None:
        return _describe(batch, PublishedBatch(found, already_published=True))
    require_same_rules(work, batch)
    refusal = explain_refusal(work.stream, plan.differences)
    if refusal is not None:
        raise BudgetExceededError(
            f"stream {batch.stream}: replay of {describe_ranges(batch.offset_ranges)}: {refusal}",
            _FAILED_STEP,
        )
    left_out = list_erased_offsets(trace_steps(view.history, batch.stream), batch.offset_ranges)
    bad = count_bad(plan.differences)
    decided = {"left_out": left_out, "decided_bad": bad, "waived": None}
    batch = batch.model_copy(update=decided)
    return _describe(batch, overwrite_ranges(work, view, batch, point, keys.REPLAY, _FAILED_STEP))


def _describe(batch: BatchPlan, landed: PublishedBatch) -> Replayed:
    """Build the outcome from the summary of the published snapshot."""
    summary = landed.entry.summary
    return Replayed(
        stream=batch.stream,
        table=batch.table,
        batch_id=batch.batch_id,
        outcome="ALREADY" if landed.already_published else "REPLAYED",
        snapshot_id=landed.entry.snapshot_id,
        rows_written=int(summary["frazil.rows-written"]),
        rows_deleted=int(summary["frazil.rows-deleted"]),
        rows_quarantined=int(summary["frazil.rows-quarantined"]),
        rows_skipped=int(summary["frazil.rows-skipped"]),
        ranges=batch.ranges,
    )
