"""REDRIVE: decode dead letters again with the present stream file and publish those that fit.

The snapshot of a redrive lists the records that it restored (protocol.md, Dead letters), so a
killed run can be repeated: restored dead letters are no longer open.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil.errors import (
    CommitContentionError,
    ConservationError,
    FrazilError,
    JobFailedError,
    QualityFailedError,
    StageStaleError,
)
from frazil.failpoints import reach_failpoint
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branch, drop_abandoned_branch, name_branch
from frazil.iceberg.catalog import TableStore, translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.data_files import read_coordinates
from frazil.iceberg.ledger_archive import archive_new_entries, load_with_history
from frazil.ingest.batch_schemas import find_latest_schema_ids, select_dead_letter_schemas
from frazil.ingest.blocked_batches import read_rules_fingerprint, require_same_rules
from frazil.ingest.bootstrap import require_matching_schema
from frazil.ingest.checking import judge_rows
from frazil.ingest.dead_letters import (
    DeadLetterIndex,
    Indexes,
    group_dead_letters,
    list_slices,
    read_dead_letter_index,
)
from frazil.ingest.isolation import (
    JobParts,
    PartJob,
    may_isolate,
    require_publishable,
    search_failing_records,
    suspected_records,
)
from frazil.ingest.messages import BatchPlan, Staged, StageResult, Verdict
from frazil.ingest.planning import PlanInput, TableFacts
from frazil.ingest.publishing import require_staging_branch
from frazil.ingest.staging import build_request, find_staged_snapshot
from frazil.ledger import keys
from frazil.ledger.coordinates import covering_ranges, plain_runs
from frazil.ledger.history import UNCLAIMED, Step, trace_steps
from frazil.ledger.offsets import OffsetRange, Runs, describe_ranges
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    PublishedBatch,
    RecoveryPoint,
    find_batch,
    require_recovery_point,
)
from frazil.messages import count_noun
from frazil.recovery.messages import (
    DeadLetterChoice,
    MarkRequest,
    MarkResult,
    Redriven,
    RedriveReport,
    RedriveRequest,
    RedriveResult,
)
from frazil.recovery.redrive_rules import (
    RedrivePlan,
    choose_dead_letters,
    find_incarnation_end,
    plan_redrive,
    require_append_only,
    require_planned_dead_letters,
    split_dead_letters,
    summarize_redrive,
    validate_choice,
)
from frazil.schemas.review import open_with_settled_schema
from frazil.workspace import Workspace

Process = Callable[[Workspace, DeadLetterIndex, Indexes], "Portion"]

STAGE_ATTEMPTS = 3
"""How often a portion is staged if another writer changes its dead letters first."""

MARK_ATTEMPTS = 3
"""How often the marks are written if a batch commits dead letters at the same time."""


@dataclass(frozen=True)
class RedriveView:
    """The stream's table and ledger at one head."""

    table: Table
    history: History
    point: RecoveryPoint
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class _Chosen:
    """The dead letters of one redrive, all of the topic incarnation that ended at `end`."""

    index: DeadLetterIndex
    positions: Indexes
    end: int | None

    def require_open(self, batch: BatchPlan, steps: tuple[Step, ...]) -> None:
        """Require that other commits since the stage left all of them open.

        Raises:
            StageStaleError: a replay, redrive, erasure or rollback resolved one or lost its batch.
        """
        resolution = self.index.with_steps(steps).resolution
        is_open = resolution.is_open[self.positions]
        ends = resolution.incarnation_ends[self.positions]
        if is_open.all() and find_incarnation_end(steps, ends) == self.end:
            return
        raise StageStaleError(
            f"redrive {batch.batch_id}: {count_noun(int((~is_open).sum()), 'dead letter')} of "
            f"{batch.table} that it staged changed meanwhile: another writer was faster",
            "run again, which stages what is open then",
        )


@dataclass(frozen=True)
class Portion:
    """Result of one portion of dead letters."""

    rows: int
    failing: dict[str, int]
    redriven: Redriven | None = None


def redrive_dead_letters(work: Workspace, choice: DeadLetterChoice) -> RedriveReport:
    """Restore chosen dead letters as rows, or count in a dry run which would be restored.

    Raises:
        MissingTableError: the stream has not begun.
        TableError: the stream is halted.
        ConfigurationError: the stream merges by key, or never read what the choice names.
        SchemaChangeError: a pending schema change must be applied first.
        IncompatibleTableError: the stream file does not fit the table.
        StageStaleError: another writer changed the dead letters in every attempt; run again.
        CommitContentionError: every commit met a conflict; run again.
        QualityFailedError: the suite rejects the rows; they stay on their staging branch.
        ConservationError: the staged rows are not the planned dead letters.
        JobFailedError, UnavailableError: run again.
    """
    work = open_with_settled_schema(work)
    stream = work.stream
    view = load_redrive_view(work)
    require_append_only(view.steps, stream.stream)
    require_matching_schema(stream, view.table.schema())
    dead_letters = work.store.find(stream.dead_letters_table)
    index = read_dead_letter_index(dead_letters, stream.stream, view.steps)
    validate_choice(choice, view.steps, index.rows)
    chosen = choose_dead_letters(index.rows, index.resolution.is_open, choice)
    process = _preview if choice.dry_run else _restore
    parts = split_dead_letters(chosen, index.resolution.incarnation_ends)
    portions = [_process_others(process, work, index, part) for part in parts]
    failing: Counter[str] = Counter()
    for portion in portions:
        failing.update(portion.failing)
    return RedriveReport(
        stream=stream.stream,
        table=stream.table.name,
        dry_run=choice.dry_run,
        dead_letters=len(chosen),
        rows=sum(portion.rows for portion in portions),
        failing=dict(failing),
        redrives=tuple(p.redriven for p in portions if p.redriven is not None),
        marked=0 if choice.dry_run or dead_letters is None else mark_resolved(work),
    )


def _process_others(
    process: Process, work: Workspace, index: DeadLetterIndex, positions: Indexes
) -> Portion:
    """Process one portion; dead letters that make the job fail are found and stay dead letters."""
    try:
        return process(work, index, positions)
    except FrazilError as error:
        if not may_isolate(error, is_repeated=True):
            raise
        failure = error
    parts = _build_parts(work, index, positions, writes=process is _restore)
    found = search_failing_records(parts, failure, f"stream {work.stream.stream}: redrive")
    others = np.delete(positions, [span.start for span in found])
    portion = process(work, index, others) if len(others) else Portion(0, {})
    return replace(portion, failing={**portion.failing, keys.DECODER_FAILED: len(found)})


def _build_parts(
    work: Workspace, index: DeadLetterIndex, positions: Indexes, *, writes: bool
) -> JobParts:
    """Describe how parts of a portion are decoded, and staged on branches if `writes`."""
    view = load_redrive_view(work)
    batch = _plan(work, view, index, positions).batch

    def build(span: OffsetRange, branch: str) -> RedriveRequest:
        plan = _plan(work, view, index, positions[span.start : span.end])
        return _build_request(work, plan, branch, dry_run=not writes)

    def describe(span: OffsetRange) -> str:
        rows = index.rows.take(positions[span.start : span.end])
        coordinates = {p: rows["offset"].to_numpy()[a:b] for p, a, b in list_slices(rows)}
        return describe_ranges(covering_ranges(coordinates))

    def check(result: StageResult, branch: str, base_head: int) -> None:
        with suspected_records("reading staged rows of a redrive"):
            snapshot_id = find_staged_snapshot(work, batch, result, (branch, base_head))
            require_publishable(work, batch, snapshot_id)

    checked = check if writes else None
    job = PartJob("redrive_letters", RedriveResult, len(positions), build, describe, checked)
    return JobParts(work, batch, job)


def load_redrive_view(work: Workspace) -> RedriveView:
    """Load the table and its ledger.

    Raises:
        MissingTableError: the stream has not begun.
        TableError: the stream is halted.
    """
    table, history = load_with_history(work.store, work.stream.table.name)
    point = require_recovery_point(history, work.stream.stream)
    return RedriveView(table, history, point, trace_steps(history, work.stream.stream))


def _preview(work: Workspace, index: DeadLetterIndex, positions: Indexes) -> Portion:
    """Decode and count; write nothing."""
    plan = _plan(work, load_redrive_view(work), index, positions)
    result = _run_job(work, plan, branch="", dry_run=True)
    return Portion(result.rows_good, result.failing)


def _restore(work: Workspace, index: DeadLetterIndex, positions: Indexes) -> Portion:
    """Restore one portion; if its dead letters changed meanwhile, stage those that are open."""
    for _ in range(STAGE_ATTEMPTS - 1):
        try:
            return _try_restore(work, index, positions)
        except StageStaleError:
            continue
    return _try_restore(work, index, positions)


def _try_restore(work: Workspace, index: DeadLetterIndex, positions: Indexes) -> Portion:
    """Stage the dead letters that are open at the head, check and publish them."""
    view = load_redrive_view(work)
    index = index.with_steps(view.steps)
    positions = positions[index.resolution.is_open[positions]]
    if not len(positions):
        return Portion(0, {})
    end = find_incarnation_end(view.steps, index.resolution.incarnation_ends[positions])
    plan = replace(_plan(work, view, index, positions), before_snapshot_id=end)
    reach_failpoint("redrive.before-branch")
    branch = name_branch(plan.batch.stream, plan.batch.base_epoch, beside=True)
    base_head = create_branch(work.store, plan.batch.table, branch)
    reach_failpoint("redrive.after-branch")
    chosen = _Chosen(index, positions, end)
    try:
        portion = _stage_and_publish(work, plan, (branch, base_head), chosen)
    except StageStaleError:
        drop_abandoned_branch(work.store, plan.batch.table, branch)
        raise
    if portion.redriven is None or portion.redriven.outcome == "ALREADY":
        drop_abandoned_branch(work.store, plan.batch.table, branch)
    return portion


def _plan(
    work: Workspace, view: RedriveView, index: DeadLetterIndex, positions: Indexes
) -> RedrivePlan:
    metadata = view.table.metadata
    facts = TableFacts(
        str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id
    )
    rules, latest = read_rules_fingerprint(work), find_latest_schema_ids(work)
    plan_input = PlanInput(work.stream, view.point.state, (), facts, rules.suite_hash, latest)
    return plan_redrive(index.rows.take(positions), plan_input, rules)


def _build_request(
    work: Workspace, plan: RedrivePlan, branch: str, *, dry_run: bool
) -> RedriveRequest:
    schemas = select_dead_letter_schemas(work, plan.batch, plan.schema_ids)
    stage = build_request(work, plan.batch, branch, schemas)
    # The job reads no Kafka, and the fast path reads records of Kafka only.
    fields = stage.model_copy(update={"kafka_options": {}, "fast_path": None}).model_dump()
    return RedriveRequest(**fields, dead_letters=plan.runs, dry_run=dry_run)


def _run_job(work: Workspace, plan: RedrivePlan, branch: str, *, dry_run: bool) -> RedriveResult:
    """Decode the dead letters in Spark, and check that it found exactly those."""
    request = _build_request(work, plan, branch, dry_run=dry_run)
    result = work.engine.run_job("redrive_letters", request, RedriveResult)
    if result.rows_read != plan.count:
        raise ConservationError(
            f"redrive {plan.batch.batch_id}: planned {count_noun(plan.count, 'dead letter')}, "
            f"Spark found {result.rows_read} of them in {request.dead_letters_table}",
            "nothing was published; run again, and report this if it happens again",
        )
    return result


def _stage_and_publish(
    work: Workspace, plan: RedrivePlan, attempt: tuple[str, int], chosen: _Chosen
) -> Portion:
    """Stage, check and publish on a head on which the dead letters are open."""
    branch, _ = attempt
    result = _run_job(work, plan, branch, dry_run=False)
    snapshot_id = find_staged_snapshot(work, plan.batch, result, attempt)
    if snapshot_id is None:
        return Portion(0, result.failing)
    coordinates = read_coordinates(work.store.load(plan.batch.table), snapshot_id)
    require_planned_dead_letters(plan, coordinates)
    staged = _describe_staged(plan, result, attempt, snapshot_id)
    verdict = judge_redrive(work, plan, staged)
    summary = summarize_redrive(staged, verdict, coordinates, plan.before_snapshot_id, work.run_id)
    landed = retry_commit(
        f"publishing redrive {plan.batch.batch_id} on {plan.batch.table}",
        partial(_try_publish, work.store, plan, staged, summary, chosen),
    )
    _, history = load_with_history(work.store, plan.batch.table)
    archive_new_entries(work.store, history)
    redriven = Redriven(
        redrive_id=plan.batch.batch_id,
        outcome="ALREADY" if landed.already_published else "PUBLISHED",
        snapshot_id=landed.entry.snapshot_id,
        rows_written=int(landed.entry.summary[keys.ROWS_WRITTEN]),
    )
    return Portion(redriven.rows_written, result.failing, redriven)


def _try_publish(
    store: TableStore,
    plan: RedrivePlan,
    staged: Staged,
    summary: Mapping[str, str],
    chosen: _Chosen,
) -> PublishedBatch:
    """Append the staged files to main as it is now, unless a dead letter is no longer open."""
    batch = plan.batch
    table, history = load_with_history(store, batch.table)
    found = find_batch(history, batch.batch_id)
    if found is not None:
        return PublishedBatch(found, already_published=True)
    require_recovery_point(history, batch.stream)
    require_staging_branch(table, batch, staged)
    chosen.require_open(batch, trace_steps(history, batch.stream))
    reach_failpoint("redrive.before-commit")
    summary = {**summary, keys.SOURCE_SNAPSHOT_ID: str(staged.snapshot_id)}
    files = commits.read_added_files(table, staged.snapshot_id or 0)
    doing = f"writing the manifest of redrive {batch.batch_id}"
    with suspected_records(doing, StageStaleError), translated_errors(doing):
        added = commits.build_append(table, summary, files)
    updates: list[TableUpdate] = [
        added,
        commits.set_branch(commits.MAIN, added.snapshot.snapshot_id),
        *commits.drop_branch(staged.attempt, staged.snapshot_id),
    ]
    heads = {commits.MAIN: history.head, staged.attempt: staged.snapshot_id}
    commit_once(store, table, heads, updates)
    reach_failpoint("redrive.after-commit")
    snapshot = added.snapshot
    entry = LedgerEntry(snapshot.snapshot_id, history.head, snapshot.timestamp_ms, summary)
    return PublishedBatch(entry, already_published=False)


def _describe_staged(
    plan: RedrivePlan, result: RedriveResult, attempt: tuple[str, int], snapshot_id: int
) -> Staged:
    """Describe the stage by what decoded; what still fails stays a dead letter of its batch."""
    branch, base_head = attempt
    partitions = (
        part.model_copy(update={"rows_read": part.rows_good}) for part in result.partitions
    )
    return Staged(
        stream=plan.batch.stream,
        batch_id=plan.batch.batch_id,
        attempt=branch,
        snapshot_id=snapshot_id,
        base_head=base_head,
        rows_read=result.rows_good,
        rows_written=result.rows_good,
        rows_quarantined=0,
        rows_skipped=0,
        partitions=tuple(part for part in partitions if part.rows_good),
        metrics=result.metrics,
        min_timestamp_ms=result.min_timestamp_ms,
        max_timestamp_ms=result.max_timestamp_ms,
    )


def judge_redrive(work: Workspace, plan: RedrivePlan, staged: Staged) -> Verdict:
    """Judge the staged rows by the stream's suite, as CHECK does for a batch.

    Raises:
        QualityFailedError: a blocking expectation failed; the stream itself is not blocked.
        StageStaleError: the stream file or the suite changed since the plan.
    """
    require_same_rules(work, plan.batch)
    results = judge_rows(work, plan.batch, staged)
    failed = [result for result in results if not result.success and result.blocking]
    if failed and work.stream.quality.on_failure == "block":
        raise QualityFailedError(
            f"stream {staged.stream}: redrive {staged.batch_id}: "
            f"{count_noun(len(failed), 'expectation')} of suite {work.stream.quality.suite} failed:"
            f" {'; '.join(r.line for r in failed[:5])}; "
            f"{count_noun(staged.rows_written, 'row')} can be inspected on branch {staged.attempt} "
            f"of {plan.batch.table}, the dead letters stay open",
            "fix the suite, or choose fewer dead letters: `frazil replay-dead-letters "
            f"{staged.stream} --reason REASON --offsets TOPIC:PARTITION:START-END`",
        )
    return Verdict(
        stream=staged.stream,
        batch_id=staged.batch_id,
        attempt=staged.attempt,
        outcome="passed" if all(result.success for result in results) else "warned",
        suite=work.stream.quality.suite,
        suite_hash=plan.batch.suite_hash,
        results=results,
    )


def mark_resolved(work: Workspace) -> int:
    """Write the redrive's id into resolved dead letters that lack it; return their number.

    It also repairs marks that a killed run did not write or a rollback made wrong.

    Raises:
        JobFailedError, UnavailableError: rows and ledger are correct; run again to mark.
    """
    stream = work.stream
    dead_letters = work.store.find(stream.dead_letters_table)
    _, history = load_with_history(work.store, stream.table.name)
    steps = trace_steps(history, stream.stream)
    index = read_dead_letter_index(dead_letters, stream.stream, steps)
    marks: dict[str, dict[str, Runs]] = {}
    count = 0
    for step in sorted({*index.resolution.resolved_by_step.tolist()} - {UNCLAIMED}):
        redrive_id = steps[step].entry.summary[keys.BATCH_ID]
        resolved = index.rows.filter(pa.array(index.resolution.resolved_by_step == step))
        is_marked = pc.equal(resolved["resolved_by"], redrive_id)
        unmarked = resolved.filter(pc.invert(pc.fill_null(is_marked, False)))  # noqa: FBT003
        if len(unmarked):
            by_attempt = group_dead_letters(unmarked).items()
            marks[redrive_id] = {attempt: plain_runs(held) for attempt, held in by_attempt}
            count += len(unmarked)
    if marks:
        reach_failpoint("redrive.before-mark")
        _run_mark_job(work, marks)
        reach_failpoint("redrive.after-mark")
    return count


def _run_mark_job(work: Workspace, marks: dict[str, dict[str, Runs]]) -> None:
    request = MarkRequest(
        catalog=work.store.preset.name,
        table=work.stream.dead_letters_table,
        marks=marks,
        session_conf=work.store.preset.spark_conf(),
    )
    for _ in range(MARK_ATTEMPTS - 1):
        try:
            work.engine.run_job("mark_letters", request, MarkResult)
        except (CommitContentionError, JobFailedError):
            continue
        return
    work.engine.run_job("mark_letters", request, MarkResult)
