"""STAGE: Spark fills a branch; then its rows are compared with the plan and the counters."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pyiceberg.table import Table

from frazil.errors import (
    ConservationError,
    FrazilError,
    RecordsNotIsolatedError,
    SparkUnavailableError,
    StageLostError,
    UnknownSchemaIdError,
)
from frazil.failpoints import reach_failpoint
from frazil.iceberg.branches import (
    create_branch_on,
    drop_staging_branch,
    has_earlier_attempt,
    name_branch,
)
from frazil.iceberg.catalog import dead_letters_name, snapshot_summary, translated_errors
from frazil.iceberg.data_files import iterate_coordinates, split_coordinates
from frazil.iceberg.table_view import TableView, iterate_views
from frazil.ingest.batch_schemas import (
    BatchSchemas,
    add_unknown_schemas,
    describe_key,
    describe_limits,
    read_known_schema_ids,
    require_reviewed_schemas,
    select_batch_schemas,
)
from frazil.ingest.blocked_batches import record_block, require_same_rules
from frazil.ingest.error_budget import count_bad_records, dispose
from frazil.ingest.fast_path import choose_evaluation, choose_write_options, plan_fast_path
from frazil.ingest.fast_path_files import stage_fast_path_files
from frazil.ingest.isolation import (
    RESTART_SECONDS,
    Isolated,
    JobParts,
    PartJob,
    describe_part,
    explain_rest,
    may_isolate,
    read_isolated,
    read_unreadable_records,
    require_publishable,
    search_failing_records,
    select_own,
    stage_isolated,
    suspected_records,
)
from frazil.ingest.messages import BatchPlan, StageCounters, Staged, StageRequest, StageResult
from frazil.ingest.planning import check_sources
from frazil.ingest.publishing import check_base, find_published
from frazil.ingest.snapshot_summaries import find_late_bound
from frazil.kafka.client_settings import to_spark_options
from frazil.ledger import keys
from frazil.ledger.offsets import OffsetRange, count_offsets, describe_range, slice_ranges
from frazil.ledger.recovery_point import LedgerEntry
from frazil.ledger.state import StreamState
from frazil.ledger.usage import read_and_reset_usage
from frazil.quality.compiler import compile_suite
from frazil.quality.rules import CompiledSuite
from frazil.quality.suite_files import load_suite
from frazil.schemas.column_decoding import value_path
from frazil.schemas.inferred_columns import with_columns
from frazil.workspace import Workspace

GOOD_COLUMN = "_frazil_good"
MAX_LOOKUPS = 5
"""How often a batch is read again to look up schema ids that the first read did not expect."""
_NOTHING_PLANNED = OffsetRange(0, 0)
Seen = dict[tuple[str, int], NDArray[np.bool_]]
"""Per topic and partition one flag for each planned offset: whether a staged row has it."""


def stage_batch(work: Workspace, plan: BatchPlan) -> Staged:
    """Stage a plan on a new branch; a plan that is on main already stages nothing.

    Raises:
        SupersededError: another run published first; nothing was staged.
        StageStaleError: the stream file, the suite, the table's layout or the columns that schemas
            require changed since the plan.
        RetentionGapError, TopicRecreatedError: Kafka's topic changed since the plan.
        ConservationError: the staged rows are not those that Kafka delivered.
        SparkUnavailableError, JobFailedError, StorageError: the Spark job failed.
        RegistryUnavailableError, UnknownSchemaIdError, SchemaMisfitError: the batch waits.
        RecordsNotIsolatedError: too many records make the job fail; the stream is blocked.
    """
    view = TableView(work.store, plan.table)
    work = with_columns(work, view)
    published = find_published(view.history, plan)
    if published is not None:
        return _found_published(plan, published)
    require_same_rules(work, plan)
    check_base(view.history, plan)
    expected_ids = read_known_schema_ids(view.history, plan.stream)
    try:
        return fill_branch(
            work, plan, lambda: require_unchanged_source(work, plan), expected_ids, view=view
        )
    except RecordsNotIsolatedError as error:
        record_block(work, plan, "", error)
        raise


@dataclass(frozen=True)
class StageInput:
    """What all attempts to stage one batch have in common.

    `is_beside` as in `name_branch`; `is_repeated` if an earlier attempt of the batch failed.
    """

    work: Workspace
    plan: BatchPlan
    require_source: Callable[[], None]
    is_beside: bool
    is_repeated: bool
    views: Iterator[TableView]
    given: Mapping[str, object] = field(default_factory=dict)
    """Fields of the request with records that the job does not read from Kafka."""
    attempts: list[str] = field(default_factory=list)
    """The branches of the attempts so far."""


def fill_branch(
    work: Workspace,
    plan: BatchPlan,
    require_source: Callable[[], None],
    expected_ids: Sequence[int] = (),
    *,
    beside: bool = False,
    view: TableView | None = None,
) -> Staged:
    """Fill a new branch with the plan's ranges by Spark, and compare its rows with the counters.

    Records that make the job fail are found and become dead letters (`isolation.py`).

    Args:
        work: the stream with its table's columns.
        plan: the ranges.
        require_source: raises if Kafka's topic changed; called after the read.
        expected_ids: schema ids that the batch's records probably carry.
        beside: as in `name_branch`.
        view: the table as the caller loaded it; loaded here otherwise.
    """
    schemas = select_batch_schemas(work, plan, expected_ids)
    first = view or TableView(work.store, plan.table)
    is_repeated = has_earlier_attempt(first.table, plan.stream, plan.base_epoch, beside=beside)
    stage = StageInput(work, plan, require_source, beside, is_repeated, iterate_views(first))
    try:
        return _fill(stage, schemas)
    except FrazilError as error:
        if not may_isolate(error, is_repeated=is_repeated):
            raise
        failure = error
    return _fill_without_failing_records(stage, schemas, failure)


def _fill(stage: StageInput, schemas: BatchSchemas, isolated: Isolated | None = None) -> Staged:
    work, plan = stage.work, stage.plan
    attempt, base_head, result = _run_attempt(stage, schemas, isolated)
    for _ in range(MAX_LOOKUPS):
        if not result.unknown_ids:
            break
        drop_staging_branch(work.store, plan.table, attempt)
        schemas = add_unknown_schemas(work, plan, schemas, result)
        attempt, base_head, result = _run_attempt(stage, schemas, isolated)
    require_known_schema_ids(plan, result)
    require_reviewed_schemas(work, plan, result.value_schema_ids)
    stage.require_source()
    with suspected_records(f"reading the staged rows of batch {plan.batch_id}"):
        table = None
        if result.files:
            reach_failpoint("stage.before-files")
            table = stage_fast_path_files(work.store, plan, (attempt, base_head), result.files)
        if isolated is not None:  # its jobs use no fast path
            result = stage_isolated(work, plan, attempt, result, isolated)
        staged = assemble_staged(work, plan, result, (attempt, base_head), table)
        if stage.is_repeated or isolated is not None:
            require_publishable(work, plan, staged.snapshot_id)
    reach_failpoint("stage.before-return")
    return staged


def _run_attempt(
    stage: StageInput, schemas: BatchSchemas, isolated: Isolated | None
) -> tuple[str, int, StageResult]:
    """Fill a new branch by Spark; return the branch, main's head below it, and the counters."""
    work, plan = stage.work, stage.plan
    reach_failpoint("stage.before-branch")
    attempt = name_branch(plan.stream, plan.base_epoch, beside=stage.is_beside)
    view = create_branch_on(next(stage.views), attempt)
    base_head = view.table.metadata.refs[attempt].snapshot_id
    stage.attempts.append(attempt)
    reach_failpoint("stage.after-branch")
    request = build_request(work, plan, attempt, schemas, view).model_copy(update=stage.given)
    if isolated is not None:
        counted = {"isolated": isolated.runs, "isolated_records": len(isolated.own)}
        request = request.model_copy(update={**counted, "fast_path": None})
    return attempt, base_head, work.engine.run_job("stage_batch", request, StageResult)


def _fill_without_failing_records(
    stage: StageInput, schemas: BatchSchemas, failure: FrazilError
) -> Staged:
    """Find the records that make the job fail, and stage the others.

    Raises:
        RecordsNotIsolatedError: the search reached its limit.
        FrazilError: `failure`, if no record causes it.
    """
    work, plan = stage.work, stage.plan
    stage = replace(stage, given=read_unreadable_records(work, plan))
    if stage.given:
        try:
            return _fill(stage, schemas)
        except FrazilError as error:
            if not may_isolate(error, is_repeated=stage.is_repeated):
                raise
            failure = error
    subject = f"stream {plan.stream}: batch {plan.batch_id}"
    known = [schemas]
    parts = _build_parts(stage, known)
    found = search_failing_records(parts, failure, subject, waived=plan.waived is not None)
    isolated = read_isolated(work, plan, found, select_own(parts, found, work.stream.route))
    try:
        try:
            return _fill(stage, known[-1], isolated)
        except SparkUnavailableError as error:
            if not error.is_record_suspected:
                raise
        # A job of another stream may have ended the server.
        work.engine.wait_until_reachable(RESTART_SECONDS)
        return _fill(stage, known[-1], isolated)
    except FrazilError as error:
        raise explain_rest(error, len(found)) from error


def _build_parts(stage: StageInput, known: list[BatchSchemas]) -> JobParts:
    """Describe how parts of the batch are staged; `known` gets further schemas at its end."""
    work, plan = stage.work, stage.plan

    def build(span: OffsetRange, branch: str) -> StageRequest:
        # A waived part writes its dead letters, whatever its share of bad records is.
        update = {"ranges": slice_ranges(plan.ranges, span), "fast_path": None, "waived": True}
        request = build_request(work, plan, branch, known[-1])
        return request.model_copy(update={**stage.given, **update})

    def check(result: StageResult, branch: str, base_head: int) -> None:
        with suspected_records(f"reading staged rows of batch {plan.batch_id}"):
            snapshot_id = find_staged_snapshot(work, plan, result, (branch, base_head))
            require_publishable(work, plan, snapshot_id)

    def learn(result: StageResult) -> None:
        known.append(add_unknown_schemas(work, plan, known[-1], result))

    count, describe = count_offsets(plan.offset_ranges), partial(describe_part, plan.ranges)
    job = PartJob("stage_batch", StageResult, count, build, describe, check, learn)
    route = work.stream.route
    is_routed = route is not None and route.takes is not None
    return JobParts(work, plan, job, len(stage.attempts), is_routed)


def require_known_schema_ids(plan: BatchPlan, result: StageResult) -> None:
    """Raise if records still carry unknown schema ids after `MAX_LOOKUPS` reads."""
    if result.unknown_ids:
        raise UnknownSchemaIdError(
            f"batch {plan.batch_id}: after {MAX_LOOKUPS} reads records still carry new schema ids: "
            f"{result.unknown_ids}, first at {result.unknown_first}",
            "the values were probably not written with a schema registry: set another `convert`",
        )


def build_request(
    work: Workspace,
    plan: BatchPlan,
    attempt: str,
    schemas: BatchSchemas | None = None,
    view: TableView | None = None,
) -> StageRequest:
    """Build the request of the Spark job `stage_batch`."""
    schemas = select_batch_schemas(work, plan) if schemas is None else schemas
    stream, wire, suite = work.stream, schemas.get("value"), work.suite_file
    metrics = {metric.name: metric.sql for metric in compile_checks(work).metrics}
    table = (view or TableView(work.store, plan.table)).table
    return StageRequest(
        catalog=work.store.preset.name,
        table=plan.table,
        branch=attempt,
        stream=plan.stream,
        batch_id=plan.batch_id,
        ranges=plan.ranges,
        left_out=plan.left_out,
        kafka_options=to_spark_options(work.kafka_config),
        convert=stream.value.convert,
        columns=stream.typed_columns,
        isolation=stream.source.isolation,
        metrics=metrics,
        write_options=choose_write_options(stream),
        errors=stream.errors.model_dump(mode="json"),
        waived=plan.ignores_budget,
        dead_letters_table=dead_letters_name(plan.table),
        session_conf=work.store.preset.spark_conf() | choose_evaluation(plan),
        fast_path=plan_fast_path(table, stream, plan, metrics, wire, suite),
        is_flat=stream.value.is_flat,
        wire=wire,
        key=describe_key(work, schemas),
        route=stream.route,
        events=stream.value.change_events,
        limits=describe_limits(work, table),
        late_before_ms=find_late_bound(stream, plan),
        max_bytes_per_second=stream.batch.max_bytes_per_second,
    )


def compile_checks(work: Workspace) -> CompiledSuite:
    """Compile the stream's suite to metrics, which Spark counts while it writes the rows."""
    if work.suite_file is None:
        return CompiledSuite((), (), ())
    suite = load_suite(work.suite_file)
    stream = work.stream
    paths = {column.name: value_path(column) for column in stream.parsed_columns}
    has_events = stream.value.change_events is not None
    return compile_suite(suite, stream.typed_columns, GOOD_COLUMN, paths, has_events=has_events)


def assemble_staged(
    work: Workspace,
    plan: BatchPlan,
    result: StageResult,
    attempt: tuple[str, int],
    table: Table | None = None,
) -> Staged:
    """Compare the branch with the counters, and build the message of the stage.

    `table` is the table as the last commit to the branch returned it; loaded here otherwise.
    """
    branch, base_head = attempt
    disposal = dispose(work.stream.errors, count_bad_records(work.stream, result))
    return Staged(
        stream=plan.stream,
        batch_id=plan.batch_id,
        attempt=branch,
        snapshot_id=find_staged_snapshot(work, plan, result, attempt, table),
        base_head=base_head,
        rows_written=result.rows_good,
        rows_quarantined=disposal.quarantined,
        rows_skipped=disposal.skipped + result.rows_routed_elsewhere,
        dead_letters_snapshot_id=_dead_letters_snapshot(work, plan, result, branch),
        ended_at_ms=time.time_ns() // 1_000_000,
        used=read_and_reset_usage(),
        **{name: getattr(result, name) for name in StageCounters.model_fields},
    )


def find_staged_snapshot(
    work: Workspace,
    plan: BatchPlan,
    result: StageResult,
    attempt: tuple[str, int],
    table: Table | None = None,
) -> int | None:
    """Return the staged snapshot, the branch's only one; None if the batch has no good row.

    Raises:
        StageLostError: the branch is gone.
        ConservationError: it does not hold exactly the counted rows, each planned offset once.
    """
    branch, base_head = attempt
    table = table or TableView(work.store, plan.table).table
    if (ref := table.metadata.refs.get(branch)) is None:
        raise StageLostError(
            f"batch {plan.batch_id}: branch {branch} of {plan.table} was removed while Spark wrote",
            "run again: the next run plans and stages the batch again",
        )
    if ref.snapshot_id == base_head and result.rows_good == 0:
        return None
    snapshot = table.snapshot_by_id(ref.snapshot_id)
    parent = snapshot.parent_snapshot_id if snapshot else None
    added = int(snapshot_summary(snapshot.summary if snapshot else None).get("added-records", "0"))
    if ref.snapshot_id == base_head or parent != base_head or added != result.rows_good:
        raise ConservationError(
            f"batch {plan.batch_id}: branch {branch} of {plan.table} should hold one snapshot with "
            f"{result.rows_good} rows on head {base_head}; it holds snapshot {ref.snapshot_id} "
            f"with {added} added rows on {parent}",
            "nothing is visible; run again, and report this if it happens again",
        )
    require_exact_offsets(table, ref.snapshot_id, plan)
    return ref.snapshot_id if result.rows_good else None


def _dead_letters_snapshot(
    work: Workspace, plan: BatchPlan, result: StageResult, branch: str
) -> int | None:
    """Return the staged snapshot of the dead letters; None if the batch has none.

    Raises:
        ConservationError: it does not hold exactly the counted dead letters.
    """
    if result.rows_dead == 0:
        return None
    name = dead_letters_name(plan.table)
    table = work.store.load(name)
    ref = table.metadata.refs.get(branch)
    snapshot = table.snapshot_by_id(ref.snapshot_id) if ref else None
    added = int(snapshot_summary(snapshot.summary if snapshot else None).get("added-records", "0"))
    expected = result.rows_read - result.rows_good - result.rows_routed_elsewhere
    if snapshot is None or added != expected or result.rows_dead != expected:
        raise ConservationError(
            f"batch {plan.batch_id}: {expected} bad records were counted, but {name} branch "
            f"{branch} holds {added} dead letters",
            "nothing is visible; run again, and report this if it happens again",
        )
    return snapshot.snapshot_id


def require_unchanged_source(work: Workspace, plan: BatchPlan) -> None:
    """Require after the read that topic, cluster and first offsets are those of the plan."""
    for topic, ranges in plan.offset_ranges.items():
        facts = work.kafka.fetch_topic(topic, work.stream.source.isolation)
        starts = [0] * len(facts.partitions)
        for partition in range(len(facts.partitions)):
            planned = ranges.get(partition)
            known = plan.next_offsets[topic]
            after = known[partition] if partition < len(known) else 0
            starts[partition] = planned.start if planned else after
        offsets = {topic: tuple(starts)}
        state = StreamState(
            plan.base_epoch, plan.base_batch, offsets, plan.topic_ids, plan.cluster_id
        )
        check_sources(plan.stream, state, [facts])


def _found_published(plan: BatchPlan, entry: LedgerEntry) -> Staged:
    """Return the message for a batch that is on main already; the next steps only confirm it."""
    summary = entry.summary
    return Staged(
        stream=plan.stream,
        batch_id=plan.batch_id,
        attempt=summary.get(keys.ATTEMPT, ""),
        snapshot_id=None,
        base_head=entry.parent_id or 0,
        rows_read=int(summary.get(keys.ROWS_READ, "0")),
        rows_written=int(summary.get(keys.ROWS_WRITTEN, "0")),
        rows_quarantined=int(summary.get(keys.ROWS_QUARANTINED, "0")),
        rows_skipped=int(summary.get(keys.ROWS_SKIPPED, "0")),
        already_published=True,
    )


def require_exact_offsets(table: Table, snapshot_id: int, plan: BatchPlan) -> None:
    """Read the offsets of the staged rows, and raise if one is not planned or staged twice.

    Counters cannot prove it: offsets 0, 0, 3, 3 have the count, ends and sum of 0, 1, 2, 3.

    Raises:
        ConservationError: an offset lies outside its range, or two rows have it.
    """
    seen: Seen = {}
    with translated_errors(f"reading staged rows of {'.'.join(table.name())}"):
        for coordinates in iterate_coordinates(table, snapshot_id):
            for topic, partition, offsets in split_coordinates(coordinates):
                _flag(seen, plan, (topic, partition), offsets)


def _flag(seen: Seen, plan: BatchPlan, key: tuple[str, int], offsets: NDArray[np.int64]) -> None:
    """Flag offsets of one topic and partition; raise outside its range or if flagged before."""
    topic, partition = key
    ranges: Mapping[int, OffsetRange] = plan.offset_ranges.get(topic, {})
    planned = ranges.get(partition, _NOTHING_PLANNED)
    outside = int(offsets.min()) < planned.start or int(offsets.max()) >= planned.end
    doubled = 0
    if not outside:
        flags = seen.setdefault(key, np.zeros(planned.width, dtype=np.bool_))
        before = int(np.count_nonzero(flags))
        flags[offsets - planned.start] = True
        doubled = before + len(offsets) - int(np.count_nonzero(flags))
    if outside or doubled:
        raise ConservationError(
            f"batch {plan.batch_id}: planned range "
            f"{describe_range(topic, partition, planned)} holds offsets {offsets.min()} to "
            f"{offsets.max()}; duplicates: {doubled}",
            "nothing is visible; run again, and report this if it happens again",
        )
