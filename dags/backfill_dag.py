"""### Backfill: what lies below a stream's beginning, in windows, beside the live stream.

**What.** `look` lists what Kafka keeps below the offsets at which the stream began, leaves out what
is in the table already, and cuts the rest into windows. As a dry run, which is the default, the run
ends there. `fill` is one task per window: staged, judged and published like a batch, one window at
a time over all runs. No offset of the live stream moves.

**When.** Whenever you trigger it, first as a dry run: after a stream began at `latest`, or at an
instant that turned out to be too late. Batches and maintenance go on meanwhile.

**Inputs.** The stream; `offsets` or instants if it is not everything; the size of a window, a limit
for all of them, and whether to begin with the oldest or the newest.

**What a retry does.** Nothing twice: what is filled stands in the ledger. A new run with the
same form goes on with what is missing. Where one window fails for good, the others do not begin.

**How to stop.** Mark the run as failed: windows that are published stay, the one that is being
staged is invisible.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil.recovery.messages import BackfillPlan, BackfillRequest, Window
from frazil_airflow.params import ask_dry_run, ask_instant, ask_offsets, ask_stream, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.recovery.messages import Filled

NAME_OF_WINDOW = "{% set w = task.op_kwargs['window'] %}{{ w['number'] }} of {{ w['count'] }}"


@frazil_task
def look(params: "Mapping[str, object]", run_id: str) -> BackfillPlan:
    """Check the form, and choose the windows; nothing is written."""
    from frazil.recovery.backfill import plan_backfill
    from frazil.workspace import open_workspace

    request = read_form(BackfillRequest, params)
    return plan_backfill(open_workspace(request.stream, run_id), request)


@frazil_task
def list_windows(planned: str) -> list[object]:
    """Hand each window to a task of its own."""
    return [window.model_dump(mode="json") for window in BackfillPlan.parse(planned).windows]


@frazil_task
def fill(window: "Mapping[str, object]", run_id: str) -> "Filled":
    """Stage, judge and publish one window; a repetition finds it there."""
    from frazil.recovery.backfill import fill_window
    from frazil.workspace import open_workspace

    wanted = Window.model_validate(window)
    return fill_window(open_workspace(wanted.stream, run_id), wanted)


@dag(
    dag_id="backfill",
    description="What lies below a stream's beginning, in windows; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=4,
    fail_fast=True,
    dagrun_timeout=timedelta(days=7),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("be read"),
        "offsets": ask_offsets(
            "All that Kafka keeps below the stream's beginning if this and the instants are empty."
        ),
        "since": ask_instant("Records since", "Records whose timestamp is this instant or later."),
        "until": ask_instant(
            "Records before", "Records before this instant; up to the beginning if left empty."
        ),
        "order": Param(
            default="oldest",
            type="string",
            enum=["oldest", "newest"],
            title="Order",
            description="Which window comes first.",
        ),
        "window_records": Param(
            default=None,
            type=["null", "integer"],
            minimum=1,
            title="Records of a window",
            description="As `100000`; by default `batch.max_records` of the stream.",
        ),
        "max_records": Param(
            default=None,
            type=["null", "integer"],
            minimum=1,
            title="Records in all",
            description="The run ends after so many, as `5000000`; the next one goes on.",
        ),
    },
)
def backfill() -> None:
    """Look, then fill one window after the other."""
    windows = list_windows(look())
    # One window over all runs: batches of live streams keep their slots.
    one_by_one = fill.override(map_index_template=NAME_OF_WINDOW, max_active_tis_per_dag=1)
    one_by_one.expand(window=windows)


backfill()
