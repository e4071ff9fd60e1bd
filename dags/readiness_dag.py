"""### Readiness: what stands between each stream and production?

**What.** One task instance per stream judges retention against the worst outage, alerts, rollback
window, expectations, dead letters, schema decisions, small files and authentication. Each line has
its evidence in the log; a red one fails the instance and says the fix. A warning ends green.

**When.** Once a day, and whenever you trigger it.

**Inputs.** The stream file, the topic's configuration and offsets, the table. It writes nothing.

**What a retry does.** Looks again, once, for a broker or catalog that did not answer.

**How to stop.** Pause the DAG.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil_airflow.dag_loading import list_stream_names
from frazil_airflow.outcomes import refuse_unready
from frazil_airflow.params import ReadinessForm, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.observability.readiness import Scorecard


@frazil_task
def judge_stream(stream: str, params: "Mapping[str, object]", run_id: str) -> "Scorecard":
    """Check the form, and judge one stream; a red line fails the task, with its fix."""
    from frazil.observability.readiness import check_readiness
    from frazil.workspace import open_workspace

    hours = read_form(ReadinessForm, params).outage_hours
    return refuse_unready(check_readiness(open_workspace(stream, run_id), hours))


@dag(
    dag_id="readiness",
    description="Scorecard of every stream, with evidence and fixes",
    doc_md=__doc__,
    schedule="@daily",
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=1),
    default_args=task_defaults("frazil") | {"retries": 1},
    tags=["frazil", "fleet"],
    params={
        "outage_hours": Param(
            default=72,
            type="integer",
            minimum=1,
            title="Worst outage",
            description="Hours that Kafka's retention has to cover, as `72`.",
        ),
    },
)
def readiness() -> None:
    """Map one task over the streams."""
    judge_stream.override(
        map_index_template="{{ task.op_kwargs['stream'] }}", max_active_tis_per_dagrun=2
    ).expand(stream=list_stream_names())


readiness()
