"""### Move cluster: go on with a topic's copy on another Kafka cluster.

**What.** `look` translates each partition's next offset into the copy's: the last records that were
read must stand right before it there, and nowhere behind it. It shows old offset, new offset and
evidence, and refuses what cannot be told. As a dry run, which is the default, the run ends there.
`move` records it in one empty snapshot with the new cluster's id and offsets; the next run of
`ingest__<stream>` reads on from exactly there.

**When.** After the stream's Kafka connection was pointed to the new cluster; until then nothing
reads from there, for its id is refused. Nothing needs to be paused: a batch that was planned on the
old cluster is superseded.

**Inputs.** The stream; `old_connection`, if the old cluster still answers, to compare bytes on both
sides; `next`, offsets on the new cluster where a person knows what cannot be told. With `dry_run`
off also who you are and why; both stay in the table.

**What a retry does.** Nothing twice: the same words are one decision.

**How to stop.** Mark the task as failed before `move`. Afterwards point the connection back and
move back the same way.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil.ledger.offsets import OFFSET_LOCATION_PATTERN
from frazil.migration.messages import MovePlan, MoveRequest
from frazil_airflow.params import ask_dry_run, ask_person, ask_stream, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.migration.messages import Moved


@frazil_task
def look(params: "Mapping[str, object]", run_id: str) -> MovePlan:
    """Check the form, and translate every offset; nothing is written."""
    from frazil.migration.cluster_move import plan_move
    from frazil.workspace import open_workspace

    request = read_form(MoveRequest, params)
    return plan_move(open_workspace(request.stream, run_id), request)


@frazil_task
def move(planned: str, run_id: str) -> "Moved":
    """Record the move, on a look of its own; a repetition finds it there."""
    from frazil.migration.cluster_move import move_cluster as move_stream
    from frazil.workspace import open_workspace

    plan = MovePlan.parse(planned)
    return move_stream(open_workspace(plan.stream, run_id), plan)


@dag(
    dag_id="move_cluster",
    description="Go on with a topic's copy on another cluster; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("move"),
        "old_connection": Param(
            default=None,
            type=["null", "string"],
            title="Old connection",
            description="Connection of the old cluster, as `kafka_old`, if it answers: records "
            "are compared byte by byte.",
        ),
        "next": Param(
            default=None,
            type=["null", "array"],
            items={"type": "string", "pattern": OFFSET_LOCATION_PATTERN},
            title="Next offsets",
            description="Only where the look asks for it, one per line: `flights:0:4711`, the next "
            "offset to read on the new cluster.",
        ),
        **ask_person("mirror promoted"),
    },
)
def move_cluster() -> None:
    """Look, then move."""
    move(look())


move_cluster()
