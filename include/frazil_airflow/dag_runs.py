"""Airflow from within a task: start a run (a question, the next batch), see whether a DAG rests.

The one place of Airflow's messages between a task and its supervisor: tasks of their own in every
ingest DAG would be the public way. Pinned version; tests/e2e fails if it changes.
"""

import logging
import time

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagResult, ErrorResponse, GetDag, TriggerDagRun

from frazil.errors import SchemaReviewError
from frazil.ingest.messages import BatchPlan
from frazil.ledger.offsets import count_offsets
from frazil.streams.models import Stream

REVIEW_DAG = "review_schema"

log = logging.getLogger(__name__)


def ask_for_review(error: SchemaReviewError, stream: str) -> None:
    """Start the DAG that puts the question, once for each review: its run has the review's name."""
    conf = {"stream": stream, "review": error.review_id}
    _start(REVIEW_DAG, f"{stream}__{error.review_id}", conf)


def catch_up(stream: Stream, plan: BatchPlan) -> None:
    """Start the next run where a batch was as large as it may be: more waits (features B6).

    So where it took so long that what came meanwhile is late already. Its run has the batch's name,
    so that a repeated publish starts no second one. A run too many finds nothing and skips.
    """
    if stream.batch.is_continuous:  # the next run starts anyway, and only one may
        return
    seconds = time.time() - plan.ended_at_ms / 1000 if plan.ended_at_ms else 0
    is_full = count_offsets(plan.offset_ranges) >= stream.batch.max_records
    if is_full or seconds > stream.freshness.warn_seconds:
        _start(f"ingest__{stream.stream}", f"catch_up__{plan.batch_id}", {})


def is_paused(dag_id: str) -> bool:
    """Say whether people paused a DAG; one that cannot be asked about is not called paused."""
    try:
        answer = task_runner.SUPERVISOR_COMMS.send(GetDag(dag_id=dag_id))
    except Exception as failure:  # noqa: BLE001 - a cause less to name, no failure of the watch
        log.warning("whether DAG %s is paused is not known: %s", dag_id, failure)
        return False
    return isinstance(answer, DagResult) and answer.is_paused


def _start(dag_id: str, run_id: str, conf: dict[str, str]) -> None:
    """Start a run; whatever goes wrong is only logged, since the schedule or a person goes on."""
    try:
        answer = task_runner.SUPERVISOR_COMMS.send(
            TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=conf)
        )
    except Exception as failure:  # noqa: BLE001 - see above
        log.warning("DAG %s was not started: %s", dag_id, failure)
        return
    if isinstance(answer, ErrorResponse):
        log.info("DAG %s, run %s: %s", dag_id, run_id, answer.error.value)
