"""How an answer or an error of Frazil ends a task in Airflow."""

import logging
from typing import TYPE_CHECKING

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    DownstreamTasksSkipped,
)

from frazil.errors import FrazilError, SupersededError, UnavailableError
from frazil.ingest.messages import BatchPlan, NothingToRead, Published, Staged, Verdict
from frazil.observability.freshness import DOWN

if TYPE_CHECKING:
    from frazil.ledger.authors import Decision
    from frazil.migration.messages import Comparison
    from frazil.observability.freshness import FreshnessReport
    from frazil.observability.readiness import Scorecard
    from frazil_stack.drills.catalogue import DrillReport


def choose_outcome(error: FrazilError) -> Exception:
    """Map an error to what Airflow does about it: skip, try again, or fail at once.

    Superseded is no failure: another run was faster and nothing was written. What is not retryable
    waits for a person or for the next run's fresh plan; asking again would only cost time.
    """
    if isinstance(error, SupersededError):
        return AirflowSkipException(str(error))
    return error if error.retryable else AirflowFailException(f"{error.code}: {error}")


def refuse_stale(report: "FreshnessReport") -> "FreshnessReport":
    """Turn a verdict on freshness into the task's end; a warning ends green.

    Raises:
        UnavailableError: broker or catalog did not answer; the watch's retry looks again.
        AirflowFailException: the table is further behind than its stream file allows.
    """
    if report.cause in DOWN:  # may be gone in ten seconds
        raise UnavailableError(report.text, str(report.next_step))
    if report.level == "fail":
        raise AirflowFailException(describe(report))
    return report


def refuse_unready(card: "Scorecard") -> "Scorecard":
    """Turn a scorecard into the task's end; warnings end green.

    Raises:
        AirflowFailException: a line is red.
    """
    if not card.ready:
        raise AirflowFailException(card.text)
    return card


def refuse_failed_drill(report: "DrillReport") -> "DrillReport":
    """Turn a drill's report into the task's end.

    Raises:
        AirflowSkipException: it cannot run here.
        AirflowFailException: it did not pass.
    """
    if report.skipped:
        raise AirflowSkipException(report.text)
    if not report.passed:
        raise AirflowFailException(report.text)
    return report


def refuse_different(compared: "Comparison") -> str:
    """Turn a comparison into the task's end.

    Raises:
        AirflowFailException: the two differ, or have nothing in common.
    """
    told = "\n".join((f"{compared.verdict}: {compared.text}", *compared.findings))
    if compared.verdict != "equal":
        raise AirflowFailException(told)
    return told


def tell_decision(decision: "Decision", *, dry_run: bool) -> str:
    """Say what was decided; of a dry run that nothing was written, and what does it."""
    told = f"{decision.kind}: {decision.text}"
    if not dry_run:
        return told
    return f"{told}\nNothing was written; `by`, `reason` and `dry_run` off do it"


def choose_log_level(answer: object) -> int:
    """Log an answer that warns as a warning, so that Airflow's filter of log levels finds it."""
    return logging.WARNING if getattr(answer, "level", None) == "warn" else logging.INFO


def end_without_work(task: BaseOperator) -> DownstreamTasksSkipped:
    """End a run that found nothing to read: this task is done, the others are skipped."""
    tasks = sorted(task.get_flat_relative_ids(upstream=False))
    return DownstreamTasksSkipped(tasks=tasks)  # type: ignore[no-untyped-call]


def describe(answer: object) -> str:
    """Say for people, in the task's log, what a step did."""
    match answer:
        case NothingToRead():
            return f"nothing new in Kafka; {answer.table} stays at epoch {answer.epoch}"
        case BatchPlan():
            return f"batch {answer.batch_id} on epoch {answer.base_epoch}: {_format(answer.ranges)}"
        case Staged():
            return (
                f"read {answer.rows_read}, staged {answer.rows_written} rows on {answer.attempt}; "
                f"{answer.rows_quarantined} dead letters, {answer.rows_skipped} skipped"
            )
        case Verdict():
            failed = [result.line for result in answer.results if not result.success]
            count = f"{len(failed)} of {len(answer.results)} expectations failed"
            return "\n".join((f"{answer.outcome}: {count}", *failed))
        case Published():
            return (
                f"{answer.outcome}: {answer.rows_written} rows as snapshot {answer.snapshot_id} of "
                f"{answer.table}, epoch {answer.epoch}: {_format(answer.ranges)}"
            )
    next_step = getattr(answer, "next_step", None)
    return f"{getattr(answer, 'text', answer)}" + (f"\nNext: {next_step}" if next_step else "")


def _format(ranges: dict[str, dict[int, tuple[int, int]]]) -> str:
    return ", ".join(
        f"{topic}-{partition} [{start}, {end})"
        for topic, by_partition in ranges.items()
        for partition, (start, end) in by_partition.items()
    )
