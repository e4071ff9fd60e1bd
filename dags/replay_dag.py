"""### Replay: read exact offsets again, without duplicates.

**What.** `preview` compares the table's rows of a range with the rows that Kafka's records would
become with the current stream file. It fails if Kafka no longer has all of them: records past their
retention, or a compacted topic. As a dry run, the default, the run ends there. `replay` stages the
range, checks it like a batch, and replaces the rows of the range with the staged ones in one
commit. Offsets do not change.

**When.** Whenever you trigger it, first as a dry run: after the stream file or the decoding was
fixed, or to verify a range. Batches and maintenance continue meanwhile.

**Inputs.** The stream, and either Offsets or Records since and before. The range must lie below the
recovery point; `frazil snapshots` lists what was published.

**What a retry does.** Nothing twice: a published replay is found by the id of its run. A new run
replaces the rows again; the table still has each record once.

**How to stop.** Mark the task as failed: its Spark job ends, and staged rows stay invisible.
"""

from typing import TYPE_CHECKING

from frazil.recovery.messages import ReplayPlan, ReplayRequest
from frazil_airflow.manual_dag import manual_dag, require_as_asked
from frazil_airflow.params import Params, instant_param, offsets_param, read_form
from frazil_airflow.tasks import frazil_task

if TYPE_CHECKING:
    from frazil.recovery.messages import Replayed

UNTIL = "Records before this time; if empty, up to the recovery point."


@frazil_task
def preview(params: Params, run_id: str) -> ReplayPlan:
    """Check the form and compare the table with Kafka; nothing is written."""
    from frazil.recovery.replay import plan_replay
    from frazil.workspace import open_workspace

    request = read_form(ReplayRequest, params)
    return plan_replay(open_workspace(request.stream, run_id), request)


@frazil_task
def replay(planned: str, params: Params, run_id: str) -> "Replayed":
    """Stage, check and publish the range; a retry finds a published one."""
    from frazil.recovery.replay import replay as replay_range
    from frazil.workspace import open_workspace

    request = read_form(ReplayRequest, params)
    work = open_workspace(request.stream, run_id)
    return replay_range(work, require_as_asked(ReplayPlan.parse(planned), request, work))


@manual_dag(
    "replay",
    "Read exact offsets again, without duplicates",
    {
        "offsets": offsets_param(),
        "since": instant_param("Records since", "Records of this time or later."),
        "until": instant_param("Records before", UNTIL),
    },
)
def replay_offsets() -> None:
    """Compare, then replay."""
    replay(preview())
