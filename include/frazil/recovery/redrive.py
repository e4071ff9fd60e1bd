"""REDRIVE: decode dead letters again with the present stream file and publish those that fit.

The snapshot of a redrive lists the records that it restored (protocol.md, Dead letters), so a
killed run can be repeated: restored dead letters are no longer open.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
from frazil.iceberg.branches import create_branch_on, drop_branches, name_branch
from frazil.iceberg.catalog import translated_errors
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.data_files import read_coordinates
from frazil.iceberg.ledger_archive import archive_new_entries
from frazil.iceberg.table_view import TableView, iterate_views
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
    require_planned_dead_letters,
    split_dead_letters,
    summarize_redrive,
    validate_choice,
)
from frazil.schemas.review import open_with_settled_schema
from frazil.workspace import Workspace

Process = Callable[[Workspace, TableView, DeadLetterIndex, Indexes], "Portion"]

STAGE_ATTEMPTS = 3
"""How often a portion is staged if another writer changes its dead letters first."""

MARK_ATTEMPTS = 3
"""How often the marks are written if a batch commits dead letters at the same time."""


@dataclass(frozen=True)
class _Ledger:
    """The stream's table with its recovery point and its steps on main's ancestry."""

    view: TableView
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
    """Result of one portion of dead letters, and the table after it."""

    rows: int
    failing: dict[str, int]
    view: TableView
    redriven: Redriven | None = None


def redrive_dead_letters(work: Workspace, choice: DeadLetterChoice) -> RedriveReport:
    """Restore chosen dead letters as rows, or count in a dry run which would be restored.

    Raises:
        MissingTableError: the stream has not begun.
        TableError: the stream is halted.
        ConfigurationError: the stream never read what the choice names.
        SchemaChangeError: a pending schema change must be applied first.
        IncompatibleTableError: the stream file does not fit the table.
        StageStaleError: another writer changed the dead letters in every attempt; run again.
        CommitContentionError: every commit met a conflict; run again.
        QualityFailedError: the suite rejects the rows; they stay on their staging branch.
        ConservationError: the staged rows are not the planned dead letters.
        JobFailedError, UnavailableError: run again.
    """
    view = TableView(work.store, work.stream.table.name)
    work = open_with_settled_schema(work, view)
    stream, steps = work.stream, _read_ledger(work, view).steps
    require_matching_schema(stream, view.table.schema())
    dead_letters = work.store.find(stream.dead_letters_table)
    index = read_dead_letter_index(dead_letters, stream.stream, steps)
    validate_choice(choice, steps, index.rows)
    chosen = choose_dead_letters(index.rows, index.resolution.is_open, choice)
    process = _preview if choice.dry_run else _restore
    parts = split_dead_letters(chosen, index.resolution.incarnation_ends)
    portions: list[Portion] = []
    for part in parts:
        portions.append(_process_others(process, work, view, index, part))
        view = portions[-1].view
    return RedriveReport(
        stream=stream.stream,
        table=stream.table.name,
        dry_run=choice.dry_run,
        dead_letters=len(chosen),
        rows=sum(portion.rows for portion in portions),
        failing=dict(sum((Counter(each.failing) for each in portions), Counter())),
        redrives=tuple(p.redriven for p in portions if p.redriven is not None),
        marked=0 if choice.dry_run or dead_letters is None else mark_resolved(work, view, index),
    )


def _process_others(
    process: Process,
    work: Workspace,
    view: TableView,
    index: DeadLetterIndex,
    positions: Indexes,
) -> Portion:
    """Process one portion; dead letters that make the job fail are found and stay dead letters."""
    try:
        return process(work, view, index, positions)
    except FrazilError as error:
        if not may_isolate(error, is_repeated=True):
            raise
        failure = error
    parts = _build_parts(work, view.reload(), index, positions, writes=process is _restore)
    found = search_failing_records(parts, failure, f"stream {work.stream.stream}: redrive")
    others = np.delete(positions, [span.start for span in found])
    view = view.reload()
    portion = process(work, view, index, others) if len(others) else Portion(0, {}, view)
    return replace(portion, failing={**portion.failing, keys.DECODER_FAILED: len(found)})


def _build_parts(
    work: Workspace, view: TableView, index: DeadLetterIndex, positions: Indexes, *, writes: bool
) -> JobParts:
    """Describe how parts of a portion are decoded, and staged on branches if `writes`."""
    ledger = _read_ledger(work, view)
    batch = _plan(work, ledger, index, positions).batch

    def build(span: OffsetRange, branch: str) -> RedriveRequest:
        plan = _plan(work, ledger, index, positions[span.start : span.end])
        return _build_request(work, view, plan, branch, dry_run=not writes)

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


def _read_ledger(work: Workspace, view: TableView) -> _Ledger:
    """Return the recovery point and the steps of the view's main.

    Raises:
        MissingTableError: the stream has not begun.
        TableError: the stream is halted.
    """
    point = require_recovery_point(view.history, work.stream.stream)
    return _Ledger(view, point, trace_steps(view.history, work.stream.stream))


def _preview(
    work: Workspace, view: TableView, index: DeadLetterIndex, positions: Indexes
) -> Portion:
    """Decode and count; write nothing."""
    plan = _plan(work, _read_ledger(work, view), index, positions)
    result = _run_job(work, view, plan, branch="", dry_run=True)
    return Portion(result.rows_good, result.failing, view)


def _restore(
    work: Workspace, view: TableView, index: DeadLetterIndex, positions: Indexes
) -> Portion:
    """Restore one portion; if its dead letters changed meanwhile, stage those that are open."""
    views = iterate_views(view)
    for _ in range(STAGE_ATTEMPTS - 1):
        try:
            return _try_restore(work, next(views), index, positions)
        except StageStaleError:
            continue
    return _try_restore(work, next(views), index, positions)


def _try_restore(
    work: Workspace, view: TableView, index: DeadLetterIndex, positions: Indexes
) -> Portion:
    """Stage the dead letters that are open at the head, check and publish them."""
    ledger = _read_ledger(work, view)
    index = index.with_steps(ledger.steps)
    positions = positions[index.resolution.is_open[positions]]
    if not len(positions):
        return Portion(0, {}, view)
    end = find_incarnation_end(ledger.steps, index.resolution.incarnation_ends[positions])
    plan = replace(_plan(work, ledger, index, positions), before_snapshot_id=end)
    reach_failpoint("redrive.before-branch")
    branch = name_branch(plan.batch.stream, plan.batch.base_epoch, beside=True)
    view = create_branch_on(view, branch)
    reach_failpoint("redrive.after-branch")
    chosen = _Chosen(index, positions, end)
    try:
        portion = _stage_and_publish(work, view, plan, branch, chosen)
    except StageStaleError:
        drop_branches(view.reload(), [branch])
        raise
    if portion.redriven is None or portion.redriven.outcome == "ALREADY":
        return replace(portion, view=drop_branches(portion.view, [branch]))
    return portion


def _plan(
    work: Workspace, ledger: _Ledger, index: DeadLetterIndex, positions: Indexes
) -> RedrivePlan:
    metadata = ledger.view.table.metadata
    facts = TableFacts(
        str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id
    )
    rules, latest = read_rules_fingerprint(work), find_latest_schema_ids(work)
    plan_input = PlanInput(work.stream, ledger.point.state, (), facts, rules.suite_hash, latest)
    return plan_redrive(index.rows.take(positions), plan_input, rules)


def _build_request(
    work: Workspace, view: TableView, plan: RedrivePlan, branch: str, *, dry_run: bool
) -> RedriveRequest:
    schemas = select_dead_letter_schemas(work, plan.batch, plan.schema_ids)
    stage = build_request(work, plan.batch, branch, schemas, view)
    # The job reads no Kafka, and the fast path reads records of Kafka only.
    fields = stage.model_copy(update={"kafka_options": {}, "fast_path": None}).model_dump()
    return RedriveRequest(**fields, dead_letters=plan.runs, dry_run=dry_run)


def _run_job(
    work: Workspace, view: TableView, plan: RedrivePlan, branch: str, *, dry_run: bool
) -> RedriveResult:
    """Decode the dead letters in Spark, and check that it found exactly those."""
    request = _build_request(work, view, plan, branch, dry_run=dry_run)
    result = work.engine.run_job("redrive_letters", request, RedriveResult)
    if result.rows_read != plan.count:
        raise ConservationError(
            f"redrive {plan.batch.batch_id}: planned {count_noun(plan.count, 'dead letter')}, "
            f"Spark found {result.rows_read} of them in {request.dead_letters_table}",
            "nothing was published; run again, and report this if it happens again",
        )
    return result


def _stage_and_publish(
    work: Workspace, view: TableView, plan: RedrivePlan, branch: str, chosen: _Chosen
) -> Portion:
    """Stage, check and publish on a head on which the dead letters are open."""
    attempt = branch, view.table.metadata.refs[branch].snapshot_id
    result = _run_job(work, view, plan, branch, dry_run=False)
    view = view.reload()
    snapshot_id = find_staged_snapshot(work, plan.batch, result, attempt, view.table)
    if snapshot_id is None:
        return Portion(0, result.failing, view)
    coordinates = read_coordinates(view.table, snapshot_id)
    require_planned_dead_letters(plan, coordinates)
    staged = _describe_staged(plan, result, attempt, snapshot_id)
    verdict, views = judge_redrive(work, plan, staged, view), iterate_views(view)
    summary = summarize_redrive(staged, verdict, coordinates, plan.before_snapshot_id, work.run_id)
    landed = retry_commit(
        f"publishing redrive {plan.batch.batch_id} on {plan.batch.table}",
        lambda: _try_publish(next(views), plan, staged, summary, chosen),
    )
    view = view.reload()
    archive_new_entries(work.store, view.history)
    redriven = Redriven(
        redrive_id=plan.batch.batch_id,
        outcome="ALREADY" if landed.already_published else "PUBLISHED",
        snapshot_id=landed.entry.snapshot_id,
        rows_written=int(landed.entry.summary[keys.ROWS_WRITTEN]),
    )
    return Portion(redriven.rows_written, result.failing, view, redriven)


def _try_publish(
    view: TableView,
    plan: RedrivePlan,
    staged: Staged,
    summary: Mapping[str, str],
    chosen: _Chosen,
) -> PublishedBatch:
    """Append the staged files to the view's main, unless a dead letter is no longer open."""
    batch, table, history = plan.batch, view.table, view.history
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
        *commits.move_main(added),
        *commits.drop_branch(staged.attempt, staged.snapshot_id),
    ]
    heads = {commits.MAIN: history.head, staged.attempt: staged.snapshot_id}
    commit_once(view.store, table, heads, updates)
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


def judge_redrive(work: Workspace, plan: RedrivePlan, staged: Staged, view: TableView) -> Verdict:
    """Judge the staged rows by the stream's suite, as CHECK does for a batch.

    Raises:
        QualityFailedError: a blocking expectation failed; the stream itself is not blocked.
        StageStaleError: the stream file or the suite changed since the plan.
    """
    require_same_rules(work, plan.batch)
    results = judge_rows(work, plan.batch, staged, view)
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


def mark_resolved(work: Workspace, view: TableView, index: DeadLetterIndex) -> int:
    """Write the redrive's id into resolved dead letters that lack it; return their number.

    It also repairs marks that a killed run did not write or a rollback made wrong.

    Raises:
        JobFailedError, UnavailableError: rows and ledger are correct; run again to mark.
    """
    steps = trace_steps(view.history, work.stream.stream)
    index = index.with_steps(steps)
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
