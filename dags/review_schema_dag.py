"""### Review schema: accept, quarantine or stop a schema change of a table.

**What.** `show` compares the table with the stream file and the registered schemas. `decide` shows
the change, its effect on the table and the next offsets to read, waits for a person's decision, and
applies it. *Accept* changes the table, in one commit that records who decided and why. *Quarantine*
continues with the table as it is: records whose registered schema requires the change become dead
letters, which `replay_dead_letters` restores after an *Accept*. *Stop* keeps the stream stopped
until its file changes or the change is accepted. No decision loses a value: columns are added,
widened or renamed, and kept under another name, but never deleted. Other streams continue.

**When.** An ingest run that needs a decision starts this DAG, once for each change; trigger it
yourself to see a pending change. Decide under *Required Actions*, through the REST API, or with
`frazil review-schema`; the first decision counts.

**Inputs.** The stream; a review id, if the decision is for that review only.

*Quarantine* needs values with a schema id and a stream file that lists no columns. Where it is
unavailable the text gives the reason, and it is not offered. If a decision cannot be applied, or
none comes within 30 days, the question is asked again in a run `…__again`.

**What a retry does.** Compares again. A decision on a closed review changes nothing.

**How to stop.** Mark the run as failed: the change stays pending, and the stream waits.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context, Param
from airflow.sdk.exceptions import (
    AirflowFailException,
    AirflowSkipException,
    TaskAwaitingInput,
)

from frazil_airflow.approval import name_of
from frazil_airflow.dag_runs import REVIEW_DAG, ask_again
from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.params import Params, ReviewForm, read_form, stream_param, text_param
from frazil_airflow.tasks import frazil_task, log_result, run_as_task

ACCEPT, QUARANTINE, STOP = "Accept", "Quarantine", "Stop"
ASKED_AGAIN = "Nothing was written, and the question is asked again in another run."


class Decide(HITLOperator):
    """Ask for a decision, with only those answers that can be applied, and apply it.

    The same task asks and writes, because users may overwrite the results (XComs) of tasks.
    """

    def execute(self, context: Context) -> object:
        """Leave out the answers that would fail, and wait."""
        with run_as_task(context, {}):
            text, facts = read_change(read_form_of(context), context["run_id"])
        self.options, self.body = list_options(facts), text
        self.subject = f"Apply this schema change to {facts['table']}?"
        try:
            return super().execute(context)
        except TaskAwaitingInput as waiting:
            waiting.kwargs = {"review": facts["review"]}
            raise

    def execute_complete(self, context: Context, event: dict[str, Any], review: str = "") -> object:
        """Apply the answer of the person whom Airflow names; without one in time ask again.

        Raises:
            AirflowFailException: no user answered in time, or the answer cannot be applied.
        """
        form, run_id = read_form_of(context), context["run_id"]
        if event.get("error_type") == "timeout":
            ask_again(run_id, str(form["stream"]), review)
            limit = f"{self.response_timeout.days} days" if self.response_timeout else "time"
            raise AirflowFailException(f"Not decided: no answer within {limit}. {ASKED_AGAIN}")
        answer = super().execute_complete(context, event)
        (choice,) = answer["chosen_options"]
        by = name_of(answer["responded_by_user"]) or "unknown"
        given = str(answer["params_input"].get("reason") or "").strip()
        reason = given or f"{choice} in Airflow, run {run_id}"
        with run_as_task(context, {}):
            return log_result(decide(form, run_id, review, choice, (by, reason)))


def read_form_of(context: Context) -> Params:
    """Return the form of the run, without the fields of the question."""
    return {name: context["params"].get(name) for name in ReviewForm.model_fields}


@frazil_task
def show(params: Params, run_id: str) -> str:
    """Check the form and describe the pending change; skip the run if there is none."""
    return read_change(params, run_id)[0]


def read_change(params: Params, run_id: str) -> tuple[str, Mapping[str, Any]]:
    """Return text and facts of the pending change.

    Raises:
        AirflowSkipException: no change waits, or not the one that the form names.
    """
    from frazil.schemas.review import show_schema_review
    from frazil.workspace import open_workspace

    form = read_form(ReviewForm, params)
    shown = show_schema_review(open_workspace(form.stream, run_id))
    wanted = form.review or shown.facts.get("review")
    if not shown.facts or wanted != shown.facts["review"]:
        raise AirflowSkipException(f"No change to decide: {shown.text}")
    return shown.text, shown.facts


def list_options(facts: Mapping[str, object]) -> list[str]:
    """List the answers to a review that can be applied."""
    is_reviewed = not facts["impossible"] and facts["policy"] not in {"fail", "quarantine"}
    accept = [] if facts["impossible"] else [ACCEPT]
    return [*accept, *([QUARANTINE] if is_reviewed and not facts["barred"] else []), STOP]


def decide(
    params: Params, run_id: str, review: str, choice: str, signature: tuple[str, str]
) -> str:
    """Apply the change, or record who quarantined or stopped it; `signature` is name and reason."""
    from frazil.errors import FrazilError, NothingToDecideError
    from frazil.ledger.authors import Author
    from frazil.schemas.evolution import accept_schema, quarantine_schema, stop_schema
    from frazil.workspace import open_workspace

    decisions = {ACCEPT: accept_schema, QUARANTINE: quarantine_schema, STOP: stop_schema}
    work = open_workspace(read_form(ReviewForm, params).stream, run_id)
    try:
        decision = decisions[choice](work, Author(*signature), review)
    except NothingToDecideError:
        raise
    except FrazilError as error:
        if not error.retryable:  # the question would be gone, and the stream would still wait
            ask_again(run_id, work.stream.stream, review)
        raise
    return f"{decision.kind}: {decision.text}"


@manual_dag(
    REVIEW_DAG,
    "Accept, quarantine or stop a schema change of a table",
    {
        "stream": stream_param(),
        "review": text_param(
            "Review", "Review id, as `frazil review-schema` shows it; empty: the pending one."
        ),
    },
    changes_tables=False,
    max_active_runs=64,
    dagrun_timeout=None,  # the question waits up to 30 days
    tags=["frazil", "decision"],
)
def review_schema() -> None:
    """Show a pending change, wait for a decision, apply it."""
    ask = Decide(
        task_id="decide",
        subject="Apply this schema change?",
        options=[ACCEPT, QUARANTINE, STOP],
        params={
            "reason": Param(
                "",
                type="string",
                title="Reason",
                description="Stored with the table.",
            )
        },
        doc_md="Wait for a decision on the change, and apply it.",
        response_timeout=timedelta(days=30),
    )
    show() >> ask
