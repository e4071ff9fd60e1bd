"""REDRIVE: decode dead letters again by today's stream file, and publish those that fit.

What a redrive brought back is said by its snapshot, which lists the records (protocol.md, Dead
letters). So it may be killed anywhere and run again: letters that are back do not count any more.
"""

from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.table import Table

from frazil.errors import (
    ConservationError,
    JobFailedError,
    MissingTableError,
    QualityFailedError,
    StageStaleError,
)
from frazil.failpoints import reach_failpoint
from frazil.iceberg.branches import create_branch, drop_abandoned_branch, name_branch
from frazil.iceberg.data_files import read_coordinates
from frazil.iceberg.fast_forward import FastForward, fast_forward_main
from frazil.iceberg.ledger_archive import archive_new_entries, load_with_history
from frazil.ingest.batch_schemas import find_latest_schema_ids, select_letter_schemas
from frazil.ingest.blocked_batches import read_rules_fingerprint, require_same_rules
from frazil.ingest.bootstrap import require_matching_schema
from frazil.ingest.checking import judge_rows
from frazil.ingest.dead_letters import (
    DeadLetterIndex,
    Indexes,
    group_dead_letters,
    read_dead_letter_index,
)
from frazil.ingest.messages import Staged, Verdict
from frazil.ingest.planning import PlanInput, TableFacts
from frazil.ingest.publishing import require_staging_branch
from frazil.ingest.staging import build_request, find_staged_snapshot
from frazil.ledger import keys
from frazil.ledger.coordinates import plain_runs
from frazil.ledger.history import UNCLAIMED, Step, trace_steps
from frazil.ledger.offsets import Runs
from frazil.ledger.recovery_point import History, RecoveryPoint, find_recovery_point
from frazil.recovery.messages import (
    DeadLetterChoice,
    MarkRequest,
    MarkResult,
    RedriveAnswer,
    Redriven,
    RedriveRequest,
    RedriveResult,
)
from frazil.recovery.redrive_rules import (
    RedrivePlan,
    choose_dead_letters,
    find_end,
    plan_redrive,
    require_append_only,
    require_planned_rows,
    split_dead_letters,
    summarize_redrive,
    validate_choice,
)
from frazil.schemas.review import open_with_settled_schema
from frazil.workspace import Workspace

TURNS = 3
"""How often a portion is staged again when another writer was faster."""


@dataclass(frozen=True)
class RedriveView:
    """One look at the table: what a redrive is decided on."""

    table: Table
    history: History
    point: RecoveryPoint
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Portion:
    """What became of one portion of letters."""

    rows: int
    failing: dict[str, int]
    redriven: Redriven | None = None


def redrive_letters(work: Workspace, choice: DeadLetterChoice) -> RedriveAnswer:
    """Bring chosen dead letters back into the table, or say in a dry run which would come back.

    Raises:
        MissingTableError: the stream has not begun.
        TableError: the ledger halts; nothing was written.
        ConfigurationError: the stream merges by key, or never read what the choice names.
        SchemaChangeError: a person or the next run changes the table first.
        IncompatibleTableError: the table cannot hold what the stream file asks for.
        StageStaleError: another writer was faster each time; run again.
        QualityFailedError: the suite refuses the rows; they wait on their branch.
        ConservationError: the staged rows are not the letters that were planned.
        JobFailedError, UnavailableError: run again.
    """
    work = open_with_settled_schema(work)
    stream = work.stream
    look = load_redrive_view(work)
    require_append_only(look.steps, stream.stream)
    require_matching_schema(stream, look.table.schema())
    letters = work.store.find(stream.dead_letters_table)
    book = read_dead_letter_index(letters, stream.stream, look.steps)
    validate_choice(choice, look.steps, book.rows)
    places = choose_dead_letters(book.rows, book.lots.is_open, choice)
    treat = _preview if choice.dry_run else _bring_back
    portions = [
        treat(work, book, portion) for portion in split_dead_letters(places, book.lots.ends)
    ]
    failing: Counter[str] = Counter()
    for portion in portions:
        failing.update(portion.failing)
    return RedriveAnswer(
        stream=stream.stream,
        table=stream.table.name,
        dry_run=choice.dry_run,
        letters=len(places),
        rows=sum(portion.rows for portion in portions),
        failing=dict(failing),
        redrives=tuple(p.redriven for p in portions if p.redriven is not None),
        marked=0 if choice.dry_run or letters is None else mark_resolved(work),
    )


def load_redrive_view(work: Workspace) -> RedriveView:
    """Look at the table afresh.

    Raises:
        MissingTableError: the stream has not begun.
        TableError: the ledger halts.
    """
    table, history = load_with_history(work.store, work.stream.table.name)
    point = _require_point(history, work.stream.stream)
    return RedriveView(table, history, point, trace_steps(history, work.stream.stream))


def _require_point(history: History, stream: str) -> RecoveryPoint:
    point = find_recovery_point(history, stream)
    if point is None:
        raise MissingTableError(
            f"stream {stream} has not begun: table {history.table} has no state of it",
            f"`frazil run {stream}` begins at source.start",
        )
    return point


def _preview(work: Workspace, book: DeadLetterIndex, places: Indexes) -> Portion:
    """Decode and count; write nothing."""
    plan = _plan(work, load_redrive_view(work), book, places)
    result = _run_job(work, plan, branch="", dry_run=True)
    return Portion(result.rows_good, result.failing)


def _bring_back(work: Workspace, book: DeadLetterIndex, places: Indexes) -> Portion:
    """Bring one portion back; where main moved meanwhile, stage again on the new head."""
    for _ in range(TURNS - 1):
        try:
            return _bring_back_once(work, book, places)
        except StageStaleError:
            continue
    return _bring_back_once(work, book, places)


def _bring_back_once(work: Workspace, book: DeadLetterIndex, places: Indexes) -> Portion:
    """Stage on head what counts there, judge it and seal it."""
    look = load_redrive_view(work)
    book = book.judged_by(look.steps)
    places = places[book.lots.is_open[places]]
    if not len(places):
        return Portion(0, {})
    before = find_end(look.steps, book.lots.ends[places])
    plan = replace(_plan(work, look, book, places), before=before)
    reach_failpoint("redrive.before-branch")
    branch = name_branch(plan.batch.stream, plan.batch.base_epoch, beside=True)
    base_head = create_branch(work.store, plan.batch.table, branch)
    reach_failpoint("redrive.after-branch")
    try:
        portion = _stage_and_seal(work, look, plan, (branch, base_head))
    except StageStaleError:
        drop_abandoned_branch(work.store, plan.batch.table, branch)
        raise
    if portion.redriven is None or portion.redriven.outcome == "ALREADY":
        drop_abandoned_branch(work.store, plan.batch.table, branch)
    return portion


def _plan(
    work: Workspace, look: RedriveView, book: DeadLetterIndex, places: Indexes
) -> RedrivePlan:
    metadata = look.table.metadata
    facts = TableFacts(
        str(metadata.table_uuid), metadata.current_schema_id, metadata.default_spec_id
    )
    rules, latest = read_rules_fingerprint(work), find_latest_schema_ids(work)
    given = PlanInput(work.stream, look.point.state, (), facts, rules.suite_hash, latest)
    return plan_redrive(book.rows.take(places), given, rules)


def _run_job(work: Workspace, plan: RedrivePlan, branch: str, *, dry_run: bool) -> RedriveResult:
    """Let Spark decode the letters, and see that it read exactly those."""
    schemas = select_letter_schemas(work, plan.batch, plan.schema_ids)
    stage = build_request(work, plan.batch, branch, schemas)
    # No Kafka, so nothing of its settings; no Python workers, which read Kafka's records only.
    given = stage.model_copy(update={"kafka_options": {}, "direct": None}).model_dump()
    request = RedriveRequest(**given, letters=plan.runs, dry_run=dry_run)
    result = work.engine.run_job("redrive_letters", request, RedriveResult)
    if result.rows_read != plan.count:
        raise ConservationError(
            f"redrive {plan.batch.batch_id}: {plan.count} letters count, Spark found "
            f"{result.rows_read} of them in {request.dead_letters_table}",
            "nothing is visible; run again, and report this if it comes back",
        )
    return result


def _stage_and_seal(
    work: Workspace, look: RedriveView, plan: RedrivePlan, attempt: tuple[str, int]
) -> Portion:
    """Stage, judge and seal on the head that the letters were counted on."""
    branch, base_head = attempt
    if base_head != look.history.head:
        raise StageStaleError(
            f"redrive {plan.batch.batch_id}: main of {plan.batch.table} moved from "
            f"{look.history.head} to {base_head} before the stage",
            "run again: it stages on the new head",
        )
    result = _run_job(work, plan, branch, dry_run=False)
    snapshot_id = find_staged_snapshot(work, plan.batch, result, branch, base_head)
    if snapshot_id is None:
        return Portion(0, result.failing)
    coordinates = read_coordinates(work.store.load(plan.batch.table), snapshot_id)
    require_planned_rows(plan, coordinates)
    staged = _describe_staged(plan, result, attempt, snapshot_id)
    verdict = judge_redrive(work, plan, staged)
    reach_failpoint("redrive.before-seal")
    summary = summarize_redrive(staged, verdict, coordinates, plan.before, work.run_id)
    seal = FastForward(plan.batch.table, branch, snapshot_id, summary)

    def refuse(table: Table, history: History) -> None:
        _require_point(history, plan.batch.stream)
        require_staging_branch(table, plan.batch, staged)

    landed = fast_forward_main(work.store, seal, refuse)
    _, history = load_with_history(work.store, plan.batch.table)
    archive_new_entries(work.store, history)
    redriven = Redriven(
        redrive_id=plan.batch.batch_id,
        outcome="ALREADY" if landed.already_published else "PUBLISHED",
        snapshot_id=landed.entry.snapshot_id,
        rows_written=int(landed.entry.summary[keys.ROWS_WRITTEN]),
    )
    return Portion(redriven.rows_written, result.failing, redriven)


def _describe_staged(
    plan: RedrivePlan, result: RedriveResult, attempt: tuple[str, int], snapshot_id: int
) -> Staged:
    """Count only what decoded: what still fails stays a letter of the batch that read it."""
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
    """Judge the staged rows by the stream's suite, as CHECK judges a batch.

    Raises:
        QualityFailedError: a blocking expectation failed; the stream itself is not blocked.
        StageStaleError: a file changed since the plan.
    """
    require_same_rules(work, plan.batch)
    results = judge_rows(work, plan.batch, staged)
    failed = [result for result in results if not result.success and result.blocking]
    if failed and work.stream.quality.on_failure == "block":
        raise QualityFailedError(
            f"stream {staged.stream}: redrive {staged.batch_id}: {len(failed)} expectations of "
            f"suite {work.stream.quality.suite} failed: {'; '.join(r.line for r in failed[:5])}; "
            f"the {staged.rows_written} rows wait on branch {staged.attempt} of "
            f"{plan.batch.table}, the letters stay letters",
            "mend the suite, or choose fewer letters: `frazil replay-dead-letters "
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


MARK_ATTEMPTS = 3
"""A batch that publishes its letters meanwhile may win against the rewrite of the files."""


def mark_resolved(work: Workspace) -> int:
    """Mark the letters that a redrive brought back and that do not say so; give their count.

    What a killed run left unmarked the next one marks; what a rollback made wrong, too.

    Raises:
        JobFailedError, UnavailableError: rows and ledger are right; run again to mark.
    """
    stream = work.stream
    letters = work.store.find(stream.dead_letters_table)
    _, history = load_with_history(work.store, stream.table.name)
    steps = trace_steps(history, stream.stream)
    book = read_dead_letter_index(letters, stream.stream, steps)
    marks: dict[str, dict[str, Runs]] = {}
    count = 0
    for place in sorted({*book.lots.takers.tolist()} - {UNCLAIMED}):
        redrive_id = steps[place].entry.summary[keys.BATCH_ID]
        taken = book.rows.filter(pa.array(book.lots.takers == place))
        is_marked = pc.fill_null(pc.equal(taken["resolved_by"], redrive_id), False)  # noqa: FBT003
        unmarked = taken.filter(pc.invert(is_marked))
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
        except JobFailedError:
            continue
        return
    work.engine.run_job("mark_letters", request, MarkResult)
