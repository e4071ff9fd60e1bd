"""### Readiness: is each stream ready for production?

**What.** One task instance per stream checks retention against the longest outage, alerts, rollback
window, expectations, dead letters, schema decisions, small files and authentication. The log has
the evidence of each check; a failed check fails the instance and shows the fix. Warnings do not.

**When.** Once a day, and whenever you trigger it.

**Inputs.** The stream file, the topic's configuration and offsets, the table. It writes nothing.

**What a retry does.** Checks again, once, after a broker or catalog did not answer.

**How to stop.** Pause the DAG.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil_airflow.dag_loading import list_stream_names
from frazil_airflow.outcomes import require_ready
from frazil_airflow.params import Params, ReadinessForm, read_form
from frazil_airflow.tasks import RUN_TYPES, frazil_task, task_defaults

if TYPE_CHECKING:
    from frazil.observability.readiness import Scorecard


@frazil_task
def judge_stream(stream: str, params: Params, run_id: str) -> "Scorecard":
    """Check the form and one stream; a failed check fails the task, with its fix."""
    from frazil.observability.readiness import check_readiness
    from frazil.workspace import open_workspace

    hours = read_form(ReadinessForm, params).outage_hours
    return require_ready(check_readiness(open_workspace(stream, run_id), hours))


@dag(
    dag_id="readiness",
    description="Scorecard of every stream, with evidence and fixes",
    doc_md=__doc__,
    schedule="@daily",
    catchup=False,
    allowed_run_types=RUN_TYPES,
    max_active_runs=1,
    is_paused_upon_creation=False,
    dagrun_timeout=timedelta(hours=1),
    default_args=task_defaults("frazil") | {"retries": 1},
    tags=["frazil", "fleet"],
    params={
        "outage_hours": Param(
            default=72,
            type="integer",
            minimum=1,
            title="Longest outage",
            description="Hours that Kafka's retention must cover, for example `72`.",
        ),
    },
)
def readiness() -> None:
    """Map a task over the streams."""
    judge_stream.override(
        map_index_template="{{ task.op_kwargs['stream'] }}", max_active_tis_per_dagrun=2
    ).expand(stream=list_stream_names())


readiness()
