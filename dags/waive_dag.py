"""### Waive: let a blocked batch pass, exactly as it was planned.

**What.** `waive` shows why the batch is blocked and where its rows wait. As a dry run, which is the
default, that is all. Else it writes name and reason beside the plan, and the next run of
`ingest__<stream>` publishes exactly that batch, never with more records that would hide the bad
ones.

**When.** After a check failed and somebody looked at the rows. To change the suite or the stream
file lets the stream go on as well, and needs no waiver.

**Inputs.** The stream and the id of the batch, as `frazil status` and the failed task say it. With
`dry_run` off also who you are and why; both stay with the snapshot.

**What a retry does.** Writes the same again. Once the batch is published it is refused.

**How to stop.** Mark the task as failed. A waiver is void as soon as the suite or the stream file
changes.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil_airflow.outcomes import tell_decision
from frazil_airflow.params import WaiverForm, ask_dry_run, ask_person, ask_stream, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping


@frazil_task
def waive(params: "Mapping[str, object]", run_id: str) -> str:
    """Check the form, then show what is blocked, or let it pass."""
    from frazil.recovery.decisions import waive_batch
    from frazil.workspace import open_workspace

    form = read_form(WaiverForm, params)
    decision = waive_batch(open_workspace(form.stream, run_id), form.batch, form.author)
    return tell_decision(decision, dry_run=form.dry_run)


@dag(
    dag_id="waive",
    description="Let a blocked batch pass, exactly as it was planned; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=1),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("pass"),
        "batch": Param(
            type="string",
            pattern=r"^[0-9a-f]{32}$",
            title="Batch",
            description="Id of the blocked batch, 32 hex digits; `frazil status` shows it.",
        ),
        **ask_person("known outage of the sensor"),
    },
)
def waive_blocked() -> None:
    """Look, or decide."""
    waive()


waive_blocked()
