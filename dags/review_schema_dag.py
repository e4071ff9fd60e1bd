"""### Review schema: accept, quarantine or stop a schema change of a table.

**What.** `show` compares the table with the stream file and the registered schemas. `ask` waits for
a person's decision; it shows the change, its effect on the table and the next offsets to read.
*Accept* changes the table, in one commit that records who decided and why. *Quarantine* continues
with the table as it is: records whose registered schema requires the change become dead letters,
which `replay_dead_letters` restores after an *Accept*. *Stop* keeps the stream stopped until its
file changes or the change is accepted. No decision loses a value: columns are added, widened or
renamed, and kept under another name, but never deleted. Other streams continue.

**When.** An ingest run that needs a decision starts this DAG, once for each change; trigger it
yourself to see a pending change. Decide under *Required Actions*, through the REST API, or with
`frazil review-schema`; the first decision counts.

**Inputs.** The stream; a review id, if the decision is for that review only.

*Quarantine* needs values with a schema id and a stream file that lists no columns. Where it is
unavailable the text gives the reason, and it is not offered. If a decision cannot be applied, the
question is asked again in a run `…__again`.

**What a retry does.** Compares again. A decision on a closed review changes nothing.

**How to stop.** Mark the run as failed: the change stays pending, and the stream waits.
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import TypedDict

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Context, Param
from airflow.sdk.exceptions import AirflowSkipException

from frazil_airflow.dag_runs import REVIEW_DAG
from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.params import Params, ReviewForm, read_form, stream_param, text_param
from frazil_airflow.tasks import frazil_task

ACCEPT, QUARANTINE, STOP = "Accept", "Quarantine", "Stop"


class AskDecision(HITLOperator):
    """Ask for a decision, with only those answers that can be applied."""

    def execute(self, context: Context) -> object:
        """Leave out the answers that would fail, and wait."""
        shown = context["ti"].xcom_pull(task_ids="show")
        self.options = [each for each in self.options if each in shown["options"]]
        return super().execute(context)


class Answer(TypedDict):
    """The result of `ask`: the choice, the form, and the user who decided."""

    chosen_options: list[str]
    params_input: dict[str, str]
    responded_by_user: dict[str, str] | None


@frazil_task
def show(params: Params, run_id: str) -> dict[str, object]:
    """Check the form and describe the pending change; skip the run if there is none."""
    from frazil.schemas.review import show_schema_review
    from frazil.workspace import open_workspace

    form = read_form(ReviewForm, params)
    shown = show_schema_review(open_workspace(form.stream, run_id))
    wanted = form.review or shown.facts.get("review")
    if not shown.facts or wanted != shown.facts["review"]:
        raise AirflowSkipException(f"No change to decide: {shown.text}")
    return {"text": shown.text, "options": list_options(shown.facts), **shown.facts}


def list_options(facts: Mapping[str, object]) -> list[str]:
    """List the answers to a review that can be applied."""
    is_reviewed = not facts["impossible"] and facts["policy"] not in {"fail", "quarantine"}
    accept = [] if facts["impossible"] else [ACCEPT]
    return [*accept, *([QUARANTINE] if is_reviewed and not facts["barred"] else []), STOP]


@frazil_task
def decide(shown: dict[str, str], answer: Answer, params: Params, run_id: str) -> str:
    """Apply the change, or record who quarantined or stopped it."""
    from frazil.errors import FrazilError, NothingToDecideError
    from frazil.ledger.authors import Author
    from frazil.schemas.evolution import accept_schema, quarantine_schema, stop_schema
    from frazil.workspace import open_workspace
    from frazil_airflow.dag_runs import ask_again

    (choice,) = answer["chosen_options"]
    who = answer["responded_by_user"] or {}
    author = Author(
        by=who.get("name") or who.get("id") or "unknown",
        reason=answer["params_input"].get("reason") or f"{choice} in Airflow, run {run_id}",
    )
    decisions = {ACCEPT: accept_schema, QUARANTINE: quarantine_schema, STOP: stop_schema}
    work = open_workspace(read_form(ReviewForm, params).stream, run_id)
    try:
        decision = decisions[choice](work, author, shown["review"])
    except NothingToDecideError:
        raise
    except FrazilError as error:
        if not error.retryable:  # the question would be gone, and the stream would still wait
            ask_again(run_id, work.stream.stream, shown["review"])
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
    shown = show()
    ask = AskDecision(
        task_id="ask",
        subject="Apply this schema change to {{ ti.xcom_pull(task_ids='show')['table'] }}?",
        body="{{ ti.xcom_pull(task_ids='show')['text'] }}",
        options=[ACCEPT, QUARANTINE, STOP],
        params={
            "reason": Param(
                "",
                type="string",
                title="Reason",
                description="Stored with the table.",
            )
        },
        doc_md="Wait for a decision on the change.",
        response_timeout=timedelta(days=30),
    )
    shown >> ask
    decide(shown, ask.output)
