"""Translate Frazil's results and errors into the end and the log of an Airflow task."""

import logging
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator, TriggerRule
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)

from frazil.errors import FrazilError, SupersededError, UnavailableError
from frazil.ingest.messages import BatchPlan, NothingToRead, Published, Staged, Verdict
from frazil.ledger.offsets import describe_ranges, unpack_ranges
from frazil.observability.freshness import DOWN

if TYPE_CHECKING:
    from frazil.ledger.authors import Decision
    from frazil.migration.messages import Comparison
    from frazil.observability.freshness import FreshnessReport
    from frazil.observability.readiness import Scorecard
    from frazil.state_tables.messages import SourceCheck
    from frazil_stack.drills.catalogue import DrillReport


def choose_outcome(error: FrazilError) -> Exception:
    """Return the exception that makes Airflow skip the task, retry it, or fail it at once.

    A superseded task is skipped: another run was faster and nothing was written. An error that is
    not retryable needs a person or the next run's new plan, so a retry would only take time.
    """
    if isinstance(error, SupersededError):
        return AirflowSkipException(str(error))
    return error if error.retryable else AirflowFailException(f"{error.code}: {error}")


def require_fresh(report: "FreshnessReport") -> "FreshnessReport":
    """Return the report of a stream that is fresh or has a warning.

    Raises:
        UnavailableError: broker or catalog did not answer; the task is retried.
        AirflowFailException: the delay is longer than the stream file allows.
    """
    if report.cause in DOWN:  # may answer again in ten seconds
        raise UnavailableError(report.text, str(report.next_step))
    if report.level == "fail":
        raise AirflowFailException(describe(report))
    return report


def require_ready(card: "Scorecard") -> "Scorecard":
    """Return a scorecard without failed checks; warnings are allowed.

    Raises:
        AirflowFailException: a check failed.
    """
    if not card.ready:
        raise AirflowFailException(card.text)
    return card


def require_passed(report: "DrillReport") -> "DrillReport":
    """Return the report of a drill that passed.

    Raises:
        AirflowSkipException: the drill cannot run here.
        AirflowFailException: the drill did not pass.
    """
    if report.skipped:
        raise AirflowSkipException(report.text)
    if not report.passed:
        raise AirflowFailException(report.text)
    return report


def require_equal(compared: "Comparison") -> str:
    """Return the text of a comparison whose sides are equal.

    Raises:
        AirflowFailException: the sides differ, or have no offsets in common.
    """
    text = "\n".join((f"{compared.verdict}: {compared.text}", *compared.findings))
    if compared.verdict != "equal":
        raise AirflowFailException(text)
    return text


def require_same_rows(checked: "SourceCheck") -> str:
    """Return the text of a comparison that found no key different from its source.

    Raises:
        AirflowFailException: keys are different, or changes have not arrived.
    """
    if checked.verdict != "equal":
        raise AirflowFailException(f"{checked.text}\nNext: {checked.next_step}")
    return checked.text


def describe_decision(decision: "Decision", *, dry_run: bool) -> str:
    """Describe a decision; of a dry run also how to apply it."""
    text = f"{decision.kind}: {decision.text}"
    apply = "Nothing was written. To apply: enter a reason and turn off Dry run."
    return f"{text}\n{apply}" if dry_run else text


def choose_log_level(result: object) -> int:
    """Return WARNING for a result of level `warn`, otherwise INFO."""
    return logging.WARNING if getattr(result, "level", None) == "warn" else logging.INFO


def skip_downstream(task: BaseOperator) -> DownstreamTasksSkipped:
    """Return the exception that ends a task as a success and skips the tasks after it.

    Tasks with a trigger rule other than `all_success` follow that rule.
    """
    relatives = task.get_flat_relatives(upstream=False)
    tasks = sorted(t.task_id for t in relatives if t.trigger_rule == TriggerRule.ALL_SUCCESS)
    return DownstreamTasksSkipped(tasks=tasks)  # type: ignore[no-untyped-call]


def describe(result: object) -> str:
    """Describe the result of a step for the task's log."""
    match result:
        case NothingToRead():
            return f"no new records; {result.table} stays at epoch {result.epoch}"
        case BatchPlan():
            ranges = describe_ranges(unpack_ranges(result.ranges))
            return f"batch {result.batch_id} after epoch {result.base_epoch}: {ranges}"
        case Staged():
            return (
                f"records read: {result.rows_read}; rows staged on {result.attempt}: "
                f"{result.rows_written}; dead letters: {result.rows_quarantined}; "
                f"records skipped: {result.rows_skipped}"
            )
        case Verdict():
            failed = [each.line for each in result.results if not each.success]
            count = f"failed expectations: {len(failed)} of {len(result.results)}"
            return "\n".join((f"{result.outcome}: {count}", *failed))
        case Published():
            ranges = describe_ranges(unpack_ranges(result.ranges))
            return (
                f"{result.outcome}: snapshot {result.snapshot_id} of {result.table}, epoch "
                f"{result.epoch}, rows: {result.rows_written}, offsets: {ranges}"
                + (f"\n{result.warning}" if result.warning else "")
            )
    next_step = getattr(result, "next_step", None)
    return f"{getattr(result, 'text', result)}" + (f"\nNext: {next_step}" if next_step else "")
