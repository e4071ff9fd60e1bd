"""Ask for a person: a task that met a schema review starts the DAG that puts the question.

The one place of Airflow's messages between a task and its supervisor: a fifth task in every ingest
DAG would be the public way. Pinned version; tests/e2e/test_schema_review.py fails if it changes.
"""

import logging

from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

from frazil.errors import SchemaReviewError

DAG_ID = "review_schema"

log = logging.getLogger(__name__)


def ask_for_review(error: SchemaReviewError, stream: str) -> None:
    """Start the DAG once for each review: its run has the review's name.

    Whatever goes wrong here is only logged: the error itself names the command.
    """
    run_id = f"{stream}__{error.review_id}"
    question = TriggerDagRun(
        dag_id=DAG_ID, run_id=run_id, conf={"stream": stream, "review": error.review_id}
    )
    try:
        answer = task_runner.SUPERVISOR_COMMS.send(question)
    except Exception as failure:  # noqa: BLE001 - the review waits whether it is asked for or not
        log.warning("DAG %s was not started: %s", DAG_ID, failure)
        return
    if isinstance(answer, ErrorResponse):
        log.info("DAG %s, run %s: %s", DAG_ID, run_id, answer.error.value)
