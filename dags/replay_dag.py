"""### Replay: read exact offsets again, without duplicates.

**What.** `look` compares the table's rows of a range with what Kafka's records would be by today's
stream file, and refuses what Kafka no longer delivers in full: aged out, or a compacted topic. As
a dry run, which is the default, the run ends there. `replay` stages the range, judges it like a
batch, and puts the staged rows in the place of those that are there, in one commit. No offset
moves.

**When.** Whenever you trigger it, first as a dry run: after the stream file or the decode was
mended, or when rows of a range are doubted. Batches and maintenance go on meanwhile.

**Inputs.** The stream, and either `offsets` or instants (`since`, `until`). The range must lie
below the recovery point; `frazil snapshots` lists what was published.

**What a retry does.** Nothing twice: the replay is found by the id of its run. A new run replays
again, and the table has each record once all the same.

**How to stop.** Mark the task as failed: that ends its Spark work, and what it had staged is
invisible.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import dag

from frazil.recovery.messages import ReplayPlan, ReplayRequest
from frazil_airflow.params import ask_dry_run, ask_instant, ask_offsets, ask_stream, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.recovery.messages import Replayed


@frazil_task
def look(params: "Mapping[str, object]", run_id: str) -> ReplayPlan:
    """Check the form, and compare the table with Kafka; nothing is written."""
    from frazil.recovery.replay import plan_replay
    from frazil.workspace import open_workspace

    request = read_form(ReplayRequest, params)
    return plan_replay(open_workspace(request.stream, run_id), request)


@frazil_task
def replay(planned: str, run_id: str) -> "Replayed":
    """Stage, judge and publish the range; a repetition finds it there."""
    from frazil.recovery.replay import replay as replay_range
    from frazil.workspace import open_workspace

    plan = ReplayPlan.parse(planned)
    return replay_range(open_workspace(plan.stream, run_id), plan)


@dag(
    dag_id="replay",
    description="Exact offsets again, without duplicates; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("change"),
        "offsets": ask_offsets(),
        "since": ask_instant("Records since", "Records whose timestamp is this instant or later."),
        "until": ask_instant(
            "Records before", "Records before this instant; up to the recovery point if left empty."
        ),
    },
)
def replay_offsets() -> None:
    """Look, then replay."""
    replay(look())


replay_offsets()
