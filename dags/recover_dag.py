"""### Recover: roll a table back, rows and offsets together, or answer a halt.

**What.** `look` says what goes, what each stream reads again and which table readers get, and
refuses what Kafka could not give back. As a dry run, which is the default, the run ends there.
`approve` waits for a second person under *Required Actions* if more rows go than the site allows
(`FRAZIL_APPROVAL_ROWS`, 100,000), or anything that nothing brings back. `rewind` looks who answered
(never who triggered the run, and nobody where the task was marked as success) and does it in one
commit; the next run of `ingest__<stream>` reads exactly the rolled-back range again.

**When.** Whenever you trigger it, first as a dry run. Nothing needs to be paused: a batch that is
under way is superseded.

**Inputs.** The stream and exactly one way: `to_snapshot`, `to_time` or `to_offset`, or an `answer`
to a halt that `status` names. With `dry_run` off also who you are and why; both stay in the table.

**What a retry does.** Nothing twice: the same words for the same target are one decision. To go
back to it once more, give another reason.

**How to stop.** Reject the approval, or mark the task as failed before `rewind`. What a rewind left
can be read under a tag for the rollback window.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil.ledger.offsets import OFFSET_LOCATION_PATTERN
from frazil.recovery.messages import RecoverRequest, RecoveryPlan
from frazil_airflow.approval import Approval, ApproveLargeRecovery, refuse_unapproved
from frazil_airflow.params import ask_dry_run, ask_person, ask_stream, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk.types import DagRunProtocol

    from frazil.recovery.messages import Recovered


@frazil_task
def look(params: "Mapping[str, object]", run_id: str) -> RecoveryPlan:
    """Check the form, and say what would go; nothing is written."""
    from frazil.recovery.rollback import plan_recovery
    from frazil.workspace import open_workspace

    request = read_form(RecoverRequest, params)
    return plan_recovery(open_workspace(request.stream, run_id), request)


@frazil_task
def rewind(
    planned: str, answer: Approval | None, run_id: str, dag_run: "DagRunProtocol"
) -> "Recovered":
    """Go back in one commit, on a look of its own; a repetition finds it there."""
    from frazil.recovery.rollback import recover
    from frazil.workspace import open_workspace

    plan = RecoveryPlan.parse(planned)
    refuse_unapproved(plan, answer, dag_run.triggering_user_name)
    return recover(open_workspace(plan.stream, run_id), plan)


@dag(
    dag_id="recover",
    description="Roll rows and offsets back together, or answer a halt; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(days=2),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("go"),
        "to_snapshot": Param(
            default=None,
            type=["null", "string"],
            pattern=r"^\d{1,19}$",
            title="To snapshot",
            description="Id of an ancestor of main, as `4711471147114711471`; `frazil snapshots` "
            "and the page Frazil list them. A text, for forms round numbers as long as these.",
        ),
        "to_time": Param(
            default=None,
            type=["null", "string"],
            format="date-time",
            title="To time",
            description="The table of this instant, as `2026-01-31T08:00:00Z`.",
        ),
        "to_offset": Param(
            default=None,
            type=["null", "string"],
            pattern=OFFSET_LOCATION_PATTERN,
            title="To before an offset",
            description="The table before this record was read: `flights:0:4711`.",
        ),
        "answer": Param(
            default=None,
            type=["null", "string"],
            enum=[None, "reingest", "skip", "new-table"],
            title="Answer to a halt",
            description="After a rollback by others `reingest` reads again and `skip` leaves out; "
            "`new-table` starts over in a table that was created again.",
        ),
        "accept_gap": Param(
            default=False,
            type="boolean",
            title="Give up what Kafka lost",
            description="Go back although Kafka no longer holds all of it; recorded as a gap.",
        ),
        **ask_person("release 4.2 wrote wrong amounts"),
        "approval_rows": Param(
            default=None,
            type=["null", "integer"],
            minimum=0,
            title="Rows without approval",
            description="Stricter than the site's limit, as `1000`; above it two must agree.",
        ),
    },
)
def recover() -> None:
    """Look, ask where it takes much, go back."""
    planned = look()
    approve = ApproveLargeRecovery(
        task_id="approve",
        planned=planned,
        doc_md="Wait for a second person where the rollback takes much.",
    )

    planned >> approve >> rewind(planned, approve.output)


recover()
