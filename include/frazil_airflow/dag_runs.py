"""Airflow from within a task: trigger a run, read whether a DAG is paused or its tasks wait.

This is the only module that uses Airflow's messages between a task and its supervisor: operators
that trigger runs would be two more tasks in each ingest DAG. tests/e2e fails if they change.
"""

import logging
import re
import time

from airflow.sdk import get_current_context
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import DagResult, ErrorResponse, GetDag, TriggerDagRun

from frazil.environment import DEFAULT_POOL, choose_pool
from frazil.errors import SchemaReviewError
from frazil.ingest.messages import BatchPlan
from frazil.ledger.offsets import count_offsets
from frazil.streams.models import Stream

REVIEW_DAG = "review_schema"

log = logging.getLogger(__name__)


def trigger_schema_review(error: SchemaReviewError, stream: str) -> None:
    """Trigger the DAG `review_schema` once for each review, whose id is part of the run's id."""
    conf = {"stream": stream, "review": error.review_id}
    _trigger(REVIEW_DAG, f"{stream}__{error.review_id}", conf)


def trigger_catch_up(stream: Stream, plan: BatchPlan) -> None:
    """Trigger the next run after a batch of `max_records`, or one that ended too late.

    The batch's id is part of the run's id, so that a repeated publish triggers no second run. A run
    without new records skips its tasks.
    """
    if stream.batch.is_continuous:  # Airflow starts the next run itself
        return
    seconds = time.time() - plan.ended_at_ms / 1000 if plan.ended_at_ms else 0
    is_full = count_offsets(plan.offset_ranges) >= stream.batch.max_records
    if is_full or seconds > stream.freshness.warn_seconds:
        _trigger(f"ingest__{stream.stream}", f"catch_up__{plan.batch_id}", {})


def is_paused(dag_id: str) -> bool:
    """Return whether a DAG is paused; False if Airflow does not answer."""
    try:
        answer = task_runner.SUPERVISOR_COMMS.send(GetDag(dag_id=dag_id))
    except Exception as failure:  # noqa: BLE001 - the watch goes on without this cause
        log.warning("cannot read whether DAG %s is paused: %s", dag_id, failure)
        return False
    return isinstance(answer, DagResult) and answer.is_paused


def find_awaited_pool(stream: Stream) -> str:
    """Return the table's pool if tasks of the stream wait for a slot of it; otherwise "".

    The default pool is always there. Without an answer of Airflow it is "" too.
    """
    pool = choose_pool(stream.table.name)
    if pool == DEFAULT_POOL:
        return ""
    try:
        own = get_current_context()["ti"]
        waiting = own.get_ti_count(dag_id=f"ingest__{stream.stream}", states=["scheduled"])
    except Exception as failure:  # noqa: BLE001 - the watch goes on without this cause
        log.warning("cannot read whether tasks of %s wait: %s", stream.stream, failure)
        return ""
    return pool if waiting else ""


def ask_again(run_id: str, stream: str, review_id: str) -> None:
    """Trigger a review again that had no answer, or one that could not be applied."""
    _trigger(REVIEW_DAG, name_next_question(run_id), {"stream": stream, "review": review_id})


def name_next_question(run_id: str) -> str:
    """Return the id of the run that asks again: `…__again`, then `…__again2`.

    It counts because Airflow limits the length of ids, and runs no id twice.
    """
    asked = re.search(r"__again(\d*)$", run_id)
    if asked is None:
        return f"{run_id}__again"
    return f"{run_id[: asked.start()]}__again{int(asked[1] or 1) + 1}"


def _trigger(dag_id: str, run_id: str, conf: dict[str, str]) -> None:
    """Trigger a run; a failure is only logged, because the stream's schedule goes on."""
    try:
        answer = task_runner.SUPERVISOR_COMMS.send(
            TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=conf)
        )
    except Exception as failure:  # noqa: BLE001 - see above
        log.warning("DAG %s was not triggered: %s", dag_id, failure)
        return
    if isinstance(answer, ErrorResponse):
        log.info("DAG %s, run %s: %s", dag_id, run_id, answer.error.value)
