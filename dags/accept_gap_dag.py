"""### Accept gap: go on where Kafka deleted records that were not read.

**What.** `accept` compares the recovery point with what Kafka still has. As a dry run, which is the
default, it says which offsets are lost for good and where reading would go on. Else it records
them, with name and reason, in one empty snapshot; the next run of `ingest__<stream>` reads on from
there. Only partitions with a gap move. The same goes on after a topic was created again.

**When.** After `plan` failed with a gap or another topic id; until somebody decides, the stream
stays where it is.

**Inputs.** The stream. With `dry_run` off also who you are and why; both stay in the table.

**What a retry does.** Nothing twice: the same words are one decision. Where Kafka still has
everything, it is refused.

**How to stop.** Mark the task as failed. What is recorded is undone by a rollback to the snapshot
before it, but that brings no record back.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import dag

from frazil_airflow.outcomes import tell_decision
from frazil_airflow.params import DecisionForm, ask_dry_run, ask_person, ask_stream, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping


@frazil_task
def accept(params: "Mapping[str, object]", run_id: str) -> str:
    """Check the form, then say what is lost, or record it; a repetition finds it there."""
    from frazil.recovery.decisions import accept_gap as decide
    from frazil.workspace import open_workspace

    form = read_form(DecisionForm, params)
    decision = decide(open_workspace(form.stream, run_id), form.author)
    return tell_decision(decision, dry_run=form.dry_run)


@dag(
    dag_id="accept_gap",
    description="Go on where Kafka deleted records that were not read; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=1),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("be lost"),
        **ask_person("paused over the holidays"),
    },
)
def accept_gap() -> None:
    """Look, or decide."""
    accept()


accept_gap()
