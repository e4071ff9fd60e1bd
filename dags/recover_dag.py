"""### Recover: roll a table back, rows and offsets together, or resolve a halted stream.

**What.** `preview` lists the rows that would be removed, what each stream would read again and what
readers would see; it fails if Kafka no longer has the records. As a dry run, the default, the run
ends there. `rewind` waits for a second person under *Required Actions* if more rows would be
removed than the site allows (`FRAZIL_APPROVAL_ROWS`, 100,000), if records or backfilled windows
cannot be read again, if changes of other writers are undone, if erased rows come back, and for
`skip`. It fails if the user who triggered the run approves it. Then it rolls back in one commit;
the next run of `ingest__<stream>` reads exactly the removed range again.

**When.** Whenever you trigger it, first as a dry run. Pause nothing: a batch that is under way is
superseded.

**Inputs.** The stream and exactly one of To snapshot, To time, Before offset, or Resolution of the
halt, which `frazil status` shows. With Dry run off also Reason; the table keeps it, with your name.

**What a retry does.** Nothing twice: the same person, reason and target are one decision. To
roll back to the same target again, enter another reason.

An approval is for one try: if the commit fails after it, a retry asks again.

**How to stop.** Reject the approval, or mark `rewind` as failed while it waits. The state before
the rollback stays readable under a tag for the rollback window.
"""

from datetime import timedelta

from airflow.sdk import Param

from frazil.ledger.offsets import OFFSET_LOCATION_PATTERN
from frazil.recovery.messages import RecoverRequest, RecoveryPlan
from frazil_airflow.approval import RollBack
from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.params import (
    Params,
    count_param,
    flag_param,
    instant_param,
    read_form,
    text_param,
)
from frazil_airflow.tasks import frazil_task, read_params

SNAPSHOT = (
    "Id of an ancestor of main, for example `4711471147114711471`; `frazil snapshots` and the page "
    "Frazil list them. Text, because forms round long numbers."
)
ANSWER = (
    "After another writer's rollback `reingest` reads the range again and `skip` leaves it out; "
    "`new-table` starts over at source.start, after the table was dropped or created again."
)


@frazil_task
def preview(params: Params, run_id: str) -> RecoveryPlan:
    """Check the form and show what would be removed; nothing is written."""
    return plan_form(params, run_id)


def plan_form(params: Params, run_id: str) -> RecoveryPlan:
    """Plan what the form of a run asks for."""
    from frazil.recovery.rollback import plan_recovery
    from frazil.workspace import open_workspace

    request = read_form(RecoverRequest, params)
    return plan_recovery(open_workspace(request.stream, run_id), request)


@manual_dag(
    "recover",
    "Roll rows and offsets back together, or resolve a halted stream",
    {
        "to_snapshot": text_param("To snapshot", SNAPSHOT, pattern=r"^\d{1,19}$"),
        "to_time": instant_param("To time", "The table as of this time."),
        "to_offset": text_param(
            "Before offset",
            "The table before this record was read: `flights:0:4711`.",
            pattern=OFFSET_LOCATION_PATTERN,
        ),
        "answer": Param(
            default=None,
            type=["null", "string"],
            enum=[None, "reingest", "skip", "new-table"],
            title="Resolution of the halt",
            description=ANSWER,
        ),
        "accept_gap": flag_param(
            "Accept gap", "Roll back although Kafka no longer has every record; recorded as a gap."
        ),
        "approval_rows": count_param(
            "Rows without approval", "Lower than the site's limit, for example `1000`.", minimum=0
        ),
    },
    reason="Why: `release 4.2 wrote wrong amounts`.",
    dagrun_timeout=timedelta(days=2),
)
def recover() -> None:
    """Plan, wait for an approval if the plan needs one, roll back."""
    rewind = RollBack(
        task_id="rewind",
        plan=lambda context: plan_form(read_params(context), context["run_id"]),
        doc_md="Wait for a second person's approval if the plan needs one, and roll back.",
    )

    preview() >> rewind
