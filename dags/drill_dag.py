"""### Drill: break a scratch stream in one known way, and see it mended.

**What.** `run_drill` makes a topic and a table of its own beside the real ones, injects one
failure, types the documented commands and lets `frazil audit` look. The report says what was
injected, what was seen, and how long it took until rows were published again. A drill that does not
pass fails the run.

**When.** Whenever you trigger it: before going to production, after an upgrade, once a quarter.

**Inputs.** The drill, and the stream whose connections are used. That stream is not touched; the
drill needs the right to create and delete topics and tables. `mirror_promoted` and `broker_restart`
start a broker of their own by the embedded stack's means; where that cannot be, they are skipped.

**What a retry does.** There is none; each run has a scratch stream of its own.

**How to stop.** Mark the task as failed; topic and tables named `frazil_drill_…` may stay behind.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil_airflow.outcomes import refuse_failed_drill
from frazil_airflow.params import DrillForm, ask_stream, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

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
)
"""Those of `frazil_stack.drills.catalogue`, which is too heavy for a parse; a test compares."""


@frazil_task
def run_drill(params: "Mapping[str, object]", run_id: str) -> "DrillReport":
    """Check the form, and run it; the report is the answer."""
    from frazil.workspace import open_workspace
    from frazil_stack.drills.catalogue import run_drill as run

    form = read_form(DrillForm, params)
    work = open_workspace(form.stream, run_id)
    return refuse_failed_drill(run(work, form.drill, keep=form.keep))


@dag(
    dag_id="drill",
    description="One known failure on a scratch stream, mended as documented",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(minutes=30),
    default_args=task_defaults("frazil") | {"retries": 0},
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "drill": Param(
            default="killed_writer",
            type="string",
            enum=list(DRILLS),
            title="Drill",
            description="What is broken and mended; `frazil drill` says how each one does it.",
        ),
        "keep": Param(
            default=False,
            type="boolean",
            title="Keep",
            description="Leave the scratch stream there, to look at it.",
        ),
    },
)
def drill() -> None:
    """Run one drill."""
    run_drill()


drill()
