"""### Backfill: read records before a stream's beginning, in windows, beside the live stream.

**What.** `preview` lists the offsets that Kafka keeps below those at which the stream began, leaves
out what is in the table already, and cuts the rest into windows. As a dry run, the default, the run
ends there. `fill` is one task per window: staged, checked and published like a batch, one window at
a time over all runs. The offsets of the live stream do not change.

**When.** Whenever you trigger it, first as a dry run: after a stream began at `latest`, or at a
time that was too late. Batches and maintenance continue meanwhile.

**Inputs.** The stream; Offsets, or Records since and before, for a part; the records of a window
and of the whole run, and whether the oldest or the newest window comes first.

**What a retry does.** Nothing twice: the ledger lists the filled windows. A new run with the same
form fills those that are missing. If a window fails after its retries, no further one starts.

**How to stop.** Mark the run as failed: published windows stay, a staged one stays invisible.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param

from frazil.recovery.messages import BackfillPlan, BackfillRequest, Window
from frazil_airflow.manual_dag import manual_dag, require_as_asked
from frazil_airflow.params import (
    Params,
    count_param,
    instant_param,
    offsets_param,
    read_form,
)
from frazil_airflow.tasks import frazil_task

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.recovery.messages import Filled

NAME_OF_WINDOW = "{% set w = task.op_kwargs['window'] %}{{ w['number'] }} of {{ w['count'] }}"
EVERYTHING = "If this and both times are empty: all that Kafka keeps below the stream's beginning."
UNTIL = "Records before this time; if empty, up to the stream's beginning."
IN_ALL = "The run ends after this many records, for example `5000000`; the next run continues."


@frazil_task
def preview(params: Params, run_id: str) -> BackfillPlan:
    """Check the form and choose the windows; nothing is written."""
    from frazil.recovery.backfill import plan_backfill
    from frazil.workspace import open_workspace

    request = read_form(BackfillRequest, params)
    return plan_backfill(open_workspace(request.stream, run_id), request)


@frazil_task
def list_windows(planned: str, params: Params, run_id: str) -> list[object]:
    """Return the windows, one for each task."""
    return [window.model_dump(mode="json") for window in read_windows(planned, params, run_id)]


def read_windows(planned: str, params: Params, run_id: str) -> "tuple[Window, ...]":
    """Return the planned windows, if they are what the form asks for and this is no dry run."""
    from frazil.ledger.authors import require_not_dry_run
    from frazil.workspace import open_workspace

    request = read_form(BackfillRequest, params)
    require_not_dry_run(request.stream, dry_run=request.dry_run)
    work = open_workspace(request.stream, run_id)
    return require_as_asked(BackfillPlan.parse(planned), request, work).windows


@frazil_task
def fill(window: "Mapping[str, object]", params: Params, run_id: str) -> "Filled":
    """Stage, check and publish one window; a retry finds a published one."""
    from frazil.ledger.authors import require_not_dry_run
    from frazil.recovery.backfill import fill_window
    from frazil.workspace import open_workspace

    request = read_form(BackfillRequest, params)
    require_not_dry_run(request.stream, dry_run=request.dry_run)
    work = open_workspace(request.stream, run_id)
    return fill_window(work, require_as_asked(Window.model_validate(window), request, work))


def fill_all(planned: str, params: Params, run_id: str) -> str:
    """Fill one window after the other in one task, for the DAG of one stream."""
    windows = read_windows(planned, params, run_id)
    filled = [fill.function(each.model_dump(mode="json"), params, run_id) for each in windows]
    return "\n".join(each.text for each in filled)


@manual_dag(
    "backfill",
    "Read records before a stream's beginning, in windows",
    {
        "offsets": offsets_param(EVERYTHING),
        "since": instant_param("Records since", "Records of this time or later."),
        "until": instant_param("Records before", UNTIL),
        "order": Param(
            default="oldest",
            type="string",
            enum=["oldest", "newest"],
            title="Order",
            description="Which window comes first.",
        ),
        "window_records": count_param(
            "Records per window", "Default: `batch.max_records` of the stream.", minimum=1
        ),
        "max_records": count_param("Maximum records", IN_ALL, minimum=1),
    },
    max_active_runs=4,
    fail_fast=True,
    dagrun_timeout=timedelta(days=7),
)
def backfill() -> None:
    """Choose the windows, then fill one after the other."""
    windows = list_windows(preview())
    # One window over all runs: batches of live streams keep their slots.
    one_by_one = fill.override(map_index_template=NAME_OF_WINDOW, max_active_tis_per_dag=1)
    one_by_one.expand(window=windows)
