"""### Review schema: a person decides what a changed stream file may do to its table.

**What.** `show` compares the table with the stream file. `ask` waits for a person: the change, what
it does to the table, the first offsets to be read with it, and three answers. *Accept* lets the
table follow, in one commit that says who decided and why. *Quarantine* lets the stream go on with
the table as it is: records whose registered schema asks for the change become dead letters, which
`replay_dead_letters` brings back once somebody accepts. *Stop* lets the stream rest until its file
changes or somebody accepts. No answer loses a value: columns are added, widened, renamed or set
aside, never deleted. Other streams go on.

**When.** An ingest run that meets such a change starts this DAG, once for each change; start it by
hand to see what waits. Answer under *Required Actions*, by the REST API, or with
`frazil review-schema`; whichever comes first counts.

**Inputs.** The stream; the review's id, where the answer must be to exactly that review.

*Quarantine* needs a schema id in front of each value and columns that no file lists; where nothing
tells such records from others, the question says so, and that answer is refused.

**What a retry does.** Looks again. An answer to a review that is over changes nothing.

**How to stop.** Mark the run as failed: the stream goes on waiting.
"""

from datetime import timedelta
from typing import TYPE_CHECKING, TypedDict

from airflow.providers.standard.operators.hitl import HITLOperator
from airflow.sdk import Param, dag
from airflow.sdk.exceptions import AirflowSkipException

from frazil_airflow.dag_runs import REVIEW_DAG
from frazil_airflow.params import ReviewForm, ask_stream, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

ACCEPT, QUARANTINE, STOP = "Accept", "Quarantine", "Stop"


class Answer(TypedDict):
    """What `ask` gives: the choice, the form, and who answered."""

    chosen_options: list[str]
    params_input: dict[str, str]
    responded_by_user: dict[str, str] | None


@frazil_task
def show(params: "Mapping[str, object]", run_id: str) -> dict[str, object]:
    """Check the form, and compare the table with the stream file; nothing is written."""
    from frazil.schemas.review import show_schema_review
    from frazil.workspace import open_workspace

    form = read_form(ReviewForm, params)
    shown = show_schema_review(open_workspace(form.stream, run_id))
    wanted = form.review or shown.facts.get("review")
    if not shown.facts or wanted != shown.facts["review"]:
        raise AirflowSkipException(f"nothing to decide: {shown.text}")
    return {"text": shown.text, **shown.facts}


@frazil_task
def decide(
    shown: dict[str, str], answer: Answer, params: "Mapping[str, object]", run_id: str
) -> str:
    """Make the change, or write down who put it aside or stopped it."""
    from frazil.ledger.authors import Author
    from frazil.schemas.evolution import accept_schema, quarantine_schema, stop_schema
    from frazil.workspace import open_workspace

    (choice,) = answer["chosen_options"]
    who = answer["responded_by_user"] or {}
    author = Author(
        by=who.get("name") or who.get("id") or "unknown",
        reason=answer["params_input"].get("reason") or f"{choice} in Airflow, run {run_id}",
    )
    acts = {ACCEPT: accept_schema, QUARANTINE: quarantine_schema, STOP: stop_schema}
    work = open_workspace(read_form(ReviewForm, params).stream, run_id)
    decision = acts[choice](work, author, shown["review"])
    return f"{decision.kind}: {decision.text}"


@dag(
    dag_id=REVIEW_DAG,
    description="A person decides what a changed stream file may do to its table",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=64,
    is_paused_upon_creation=False,
    default_args=task_defaults("frazil"),
    params={
        "stream": ask_stream(),
        "review": Param(
            None,
            type=["null", "string"],
            title="Review",
            description="Id of the review that is meant, as `frazil review-schema` shows it; "
            "empty: whatever waits now.",
        ),
    },
    tags=["frazil", "decision"],
)
def review_schema() -> None:
    """Show, ask, decide."""
    shown = show()
    ask = HITLOperator(
        task_id="ask",
        subject="{{ params.stream }}: may the table follow?",
        body="{{ ti.xcom_pull(task_ids='show')['text'] }}",
        options=[ACCEPT, QUARANTINE, STOP],
        params={
            "reason": Param(
                "",
                type="string",
                title="Reason",
                description="Why; it is kept with the table.",
            )
        },
        doc_md="Wait for a person: the change, its effects, three answers.",
        response_timeout=timedelta(days=30),
    )
    shown >> ask
    decide(shown, ask.output)


review_schema()
