"""### Waive: publish a blocked batch although its check failed, exactly as it was planned.

**What.** `waive` shows why the batch is blocked and where its rows are staged. As a dry run, the
default, that is all. Otherwise it records name and reason, and the next run of `ingest__<stream>`
publishes exactly that batch, without further records in it.

**When.** After a check failed and you looked at the rows. If you change the suite or the stream
file instead, the stream continues without a waiver.

**Inputs.** The stream and the id of the batch, which `frazil status` and the failed task show. With
Dry run off also Reason; the snapshot keeps it, with your name.

**What a retry does.** Records the same again. It fails once the batch is published.

**How to stop.** Mark the task as failed. A waiver ends as soon as the suite or the stream file
changes.
"""

from datetime import timedelta

from airflow.sdk import Param

from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.outcomes import describe_decision
from frazil_airflow.params import Params, WaiverForm, read_form
from frazil_airflow.tasks import frazil_task


@frazil_task
def waive(params: Params, run_id: str) -> str:
    """Check the form; show what is blocked, or record the waiver."""
    from frazil.recovery.decisions import waive_batch
    from frazil.workspace import open_workspace

    form = read_form(WaiverForm, params)
    decision = waive_batch(open_workspace(form.stream, run_id), form.batch, form.author)
    return describe_decision(decision, dry_run=form.dry_run)


@manual_dag(
    "waive",
    "Publish a blocked batch exactly as it was planned",
    {
        "batch": Param(
            type="string",
            pattern=r"^[0-9a-f]{32}$",
            title="Batch",
            description="Id of the blocked batch, 32 hex digits; `frazil status` shows it.",
        ),
    },
    reason="Why: `known outage of the sensor`.",
    dagrun_timeout=timedelta(hours=1),
)
def waive_blocked() -> None:
    """Run the one task."""
    waive()
