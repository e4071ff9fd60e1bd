"""### Move cluster: continue with a topic's copy on another Kafka cluster.

**What.** `preview` translates each partition's next offset into an offset of the copy: the last
records that were read must be directly before it in the copy, and none of them after it. It shows
old offset, new offset and the evidence, and fails if the evidence is not sufficient. As a dry run,
the default, the run ends there. `move` records the new cluster's id and offsets in one snapshot
without rows; the next run of `ingest__<stream>` continues exactly there.

**When.** After the stream's Kafka connection was changed to the new cluster; until then ingest runs
fail, because the cluster id differs. Pause nothing: a batch that was planned on the old cluster is
superseded.

**Inputs.** The stream; Old connection, if the old cluster still answers, to compare the records'
bytes on both sides; Next offsets, where `preview` asks for them. With Dry run off also Reason; the
table keeps it, with your name.

**What a retry does.** Nothing twice: the same person and reason are one decision.

**How to stop.** Mark the task as failed before `move`. Afterwards change the connection back and
move back the same way.
"""

from typing import TYPE_CHECKING

from airflow.sdk import Param

from frazil.ledger.offsets import OFFSET_LOCATIONS_PATTERN
from frazil.migration.messages import MovePlan, MoveRequest
from frazil_airflow.manual_dag import manual_dag, require_as_asked
from frazil_airflow.params import Params, read_form, text_param
from frazil_airflow.tasks import frazil_task

if TYPE_CHECKING:
    from frazil.migration.messages import Moved

OLD = "Connection of the old cluster, for example `kafka_old`, if it still answers."
NEXT = "Only where `preview` asks for it, one per line: `flights:0:4711`, the next offset to read."


@frazil_task
def preview(params: Params, run_id: str) -> MovePlan:
    """Check the form and translate every offset; nothing is written."""
    from frazil.migration.cluster_move import plan_move
    from frazil.workspace import open_workspace

    request = read_form(MoveRequest, params)
    return plan_move(open_workspace(request.stream, run_id), request)


@frazil_task
def move(planned: str, params: Params, run_id: str) -> "Moved":
    """Translate again and record the move; a retry finds the recorded move."""
    from frazil.migration.cluster_move import move_cluster as move_stream
    from frazil.workspace import open_workspace

    request = read_form(MoveRequest, params)
    work = open_workspace(request.stream, run_id)
    return move_stream(work, require_as_asked(MovePlan.parse(planned), request, work))


@manual_dag(
    "move_cluster",
    "Continue with a topic's copy on another cluster",
    {
        "old_connection": text_param("Old connection", OLD),
        "next": Param(
            default=None,
            type=["null", "array"],
            items={"type": "string", "pattern": OFFSET_LOCATIONS_PATTERN},
            title="Next offsets",
            description=NEXT,
        ),
    },
    reason="Why: `mirror promoted`.",
)
def move_cluster() -> None:
    """Translate, then move."""
    move(preview())
