"""CHECK: conservation, error budget, then expectations; a failure blocks the stream."""

import time

import pyarrow as pa

from frazil.errors import (
    BudgetExceededError,
    ConservationError,
    QualityFailedError,
    StageStaleError,
)
from frazil.failpoints import reach_failpoint
from frazil.iceberg.data_files import NeedsColumns, read_staged_frame
from frazil.iceberg.table_view import TableView
from frazil.ingest.blocked_batches import record_block, require_same_rules
from frazil.ingest.error_budget import BadRecords, explain_excess, explain_truncates
from frazil.ingest.messages import BatchPlan, ExpectationOutcome, Staged, Verdict
from frazil.ingest.staging import compile_checks
from frazil.ledger.usage import read_and_reset_usage
from frazil.messages import count_noun
from frazil.quality.event_rows import EventColumns
from frazil.quality.expectations import Expectation
from frazil.quality.judge import judge_suite
from frazil.schemas.inferred_columns import with_columns
from frazil.streams.models import Stream
from frazil.streams.routes import count_own_records
from frazil.workspace import Workspace


def check_batch(work: Workspace, plan: BatchPlan, staged: Staged) -> Verdict:
    """Judge a staged batch before its rows are visible.

    Raises:
        BudgetExceededError, QualityFailedError: the stream is blocked; main and offsets are
            unchanged.
        ConservationError: the counts of records do not add up; this cannot be waived.
        StageStaleError: the stream file or the suite changed since the plan.
    """
    view = TableView(work.store, plan.table)
    work = with_columns(work, view)
    try:
        return judge_batch(work, plan, staged, view)
    except (BudgetExceededError, QualityFailedError) as error:
        reach_failpoint("check.before-block")
        record_block(work, plan, staged.attempt, error)
        reach_failpoint("check.after-block")
        raise


def judge_batch(
    work: Workspace, plan: BatchPlan, staged: Staged, view: TableView | None = None
) -> Verdict:
    """Judge a staged batch without writing anything.

    Raises:
        BudgetExceededError, QualityFailedError, ConservationError, StageStaleError: as in
            `check_batch`.
    """
    if staged.already_published or staged.rows_read == 0:
        return _verdict(plan, staged, "empty", ())
    require_same_rules(work, plan)
    require_conservation(plan, staged)
    require_within_budget(work, plan, staged)
    results = judge_rows(work, plan, staged, view)
    reach_failpoint("check.before-verdict")
    failed = [r for r in results if not r.success and r.blocking]
    if failed and work.stream.quality.on_failure == "block" and plan.waived is None:
        raise _quality_error(work, plan, staged, failed)
    if plan.waived is not None:
        return _verdict(plan, staged, "waived", results, work)
    outcome = "passed" if all(r.success for r in results) else "warned"
    return _verdict(plan, staged, outcome, results, work)


def require_conservation(plan: BatchPlan, staged: Staged) -> None:
    """Require read = written + quarantined + skipped, in total and per partition."""
    parts = staged.rows_written + staged.rows_quarantined + staged.rows_skipped
    by_partition = sum(p.rows_read for p in staged.partitions)
    good = sum(p.rows_good for p in staged.partitions)
    if staged.partitions and (by_partition, good) != (staged.rows_read, staged.rows_written):
        parts = -1
    if parts != staged.rows_read:
        raise ConservationError(
            f"batch {plan.batch_id}: read {staged.rows_read} records, written "
            f"{staged.rows_written}, quarantined {staged.rows_quarantined}, skipped "
            f"{staged.rows_skipped}; by partition {by_partition} read, {good} good",
            "nothing is visible; run again, and report this if it happens again",
        )


def require_within_budget(work: Workspace, plan: BatchPlan, staged: Staged) -> None:
    """Raise if the batch has more bad records than the stream allows, or than a replay compared."""
    bad = staged.rows_read - staged.rows_written - staged.rows_routed_elsewhere
    if plan.decided_bad is not None and bad > plan.decided_bad:
        raise StageStaleError(
            f"stream {plan.stream}: batch {plan.batch_id}: bad records in its "
            f"ranges: {bad:,} now, {plan.decided_bad:,} when they were compared with the table",
            "run again: the ranges are compared again",
        )
    if plan.ignores_budget:
        return
    own = count_own_records(work.stream.route, staged.rows_read, staged.rows_routed_elsewhere)
    records = BadRecords(own, bad, staged.rows_invalid, staged.rows_quarantined_by_review)
    if staged.truncates:
        raise BudgetExceededError(
            f"stream {plan.stream}: batch {plan.batch_id}: {explain_truncates(staged.truncates)}; "
            "nothing of the batch is visible",
            _next_step(plan, _offer_truncates(work.stream)),
        )
    excess = explain_excess(work.stream.errors, records)
    if excess is not None:
        raise BudgetExceededError(
            f"stream {plan.stream}: batch {plan.batch_id}: {excess}; nothing of it is visible",
            _next_step(plan, "raise the budget in the stream file"),
        )


def _offer_truncates(stream: Stream) -> str:
    """Return the next step for a batch that was stopped by a truncate of its source table."""
    if stream.table.state is None:
        return "set `value: {truncate: apply}` to write them as rows with `_op` t"
    return (
        "begin a new stream with tables of its own from a new snapshot of the connector "
        f"({stream.table.state.name} would keep the truncated rows)"
    )


def judge_rows(
    work: Workspace, plan: BatchPlan, staged: Staged, view: TableView | None = None
) -> tuple[ExpectationOutcome, ...]:
    """Judge the suite by the stage's counters; read rows only for expectations without counters."""
    compiled = compile_checks(work)

    def read_rows(expectations: tuple[Expectation, ...]) -> pa.Table:
        table = (view or TableView(work.store, plan.table)).table
        needs: list[NeedsColumns] = [*expectations]
        needs += [EventColumns()] if compiled.has_events else []
        return read_staged_frame(table, staged.snapshot_id, needs)

    results = judge_suite(compiled, staged.metrics, staged.rows_written, read_rows)
    return tuple(
        ExpectationOutcome(
            type=result.type,
            column=result.column,
            success=result.success,
            blocking=result.blocking,
            line=result.line,
        )
        for result in results
    )


def _quality_error(
    work: Workspace, plan: BatchPlan, staged: Staged, failed: list[ExpectationOutcome]
) -> QualityFailedError:
    lines = "; ".join(result.line for result in failed[:5])
    more = f" (and {len(failed) - 5} more)" if len(failed) > 5 else ""  # noqa: PLR2004 - as above
    return QualityFailedError(
        f"stream {plan.stream}: batch {plan.batch_id}: "
        f"{count_noun(len(failed), 'expectation')} of suite {work.stream.quality.suite} failed: "
        f"{lines}{more}; the {count_noun(staged.rows_written, 'row')} can be inspected on "
        f"branch {staged.attempt} of {plan.table}",
        _next_step(plan, "change the suite"),
    )


def _next_step(plan: BatchPlan, remedy: str) -> str:
    return (
        f"correct the data at its source, {remedy}, or "
        f"`frazil waive {plan.stream} --batch {plan.batch_id} --by YOU --reason WHY --no-dry-run`"
    )


def _verdict(
    plan: BatchPlan,
    staged: Staged,
    outcome: str,
    results: tuple[ExpectationOutcome, ...],
    work: Workspace | None = None,
) -> Verdict:
    return Verdict.model_validate(
        {
            "stream": plan.stream,
            "batch_id": plan.batch_id,
            "attempt": staged.attempt,
            "outcome": outcome,
            "suite": work.stream.quality.suite if work else None,
            "suite_hash": plan.suite_hash,
            "results": results,
            "waived": plan.waived,
            "at_ms": time.time_ns() // 1_000_000,
            "used": read_and_reset_usage(),
        }
    )
