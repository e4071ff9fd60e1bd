"""### Drill: cause one known failure on a scratch stream, and recover from it.

**What.** `run_drill` creates a topic and a table of its own, causes one failure, runs the
documented commands and checks the result with `frazil audit`. The report says what was caused, what
was observed, and after how many seconds rows were published again. If the drill does not pass, the
run fails.

**When.** Whenever you trigger it: before going to production, after an upgrade, once a quarter.

**Inputs.** The drill, and the stream whose connections it uses. That stream does not change; the
drill needs the right to create and delete topics and tables. `mirror_promoted` and `broker_restart`
start a broker of their own with the embedded stack's files, and `merge_killed` a PostgreSQL, if it
is installed on the worker; where that is impossible they are skipped.

**What a retry does.** There is none; each run has its own scratch stream.

**How to stop.** Mark the task as failed; the topic and tables named `frazil_drill_…` may remain.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param

from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.outcomes import require_passed
from frazil_airflow.params import DrillForm, Params, flag_param, read_form, stream_param
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from frazil_stack.drills.catalogue import DrillReport

DRILLS = (
    "killed_writer",
    "lost_commit_answer",
    "catalog_down",
    "catalog_forbidden",
    "retention_overtakes",
    "topic_recreated",
    "bad_schema",
    "replay",
    "mirror_promoted",
    "broker_restart",
    "rollback",
    "merge_killed",
)
"""Those of `frazil_stack.drills.catalogue`, which is too heavy for a parse; a test compares."""


@frazil_task
def run_drill(params: Params, run_id: str) -> "DrillReport":
    """Check the form, and run the drill."""
    from frazil.workspace import open_workspace
    from frazil_stack.drills.catalogue import run_drill as run

    form = read_form(DrillForm, params)
    work = open_workspace(form.stream, run_id)
    return require_passed(run(work, form.drill, keep=form.keep))


@manual_dag(
    "drill",
    "Cause one known failure on a scratch stream, and recover as documented",
    {
        "stream": stream_param(),
        "drill": Param(
            default="killed_writer",
            type="string",
            enum=list(DRILLS),
            title="Drill",
            description="The failure to cause; `frazil drill` describes each.",
        ),
        "keep": flag_param("Keep", "Keep the scratch stream, to inspect it."),
    },
    changes_tables=False,
    dagrun_timeout=timedelta(minutes=30),
    default_args=task_defaults("frazil") | {"retries": 0},
)
def drill() -> None:
    """Run the one task."""
    run_drill()
