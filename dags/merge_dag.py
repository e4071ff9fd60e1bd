"""### Merge: bring a state table to the newest changes, or fold all changes again.

**What.** `preview` shows what a merge would fold: the changes since the last merge, or all of them
and why. As a dry run, the default, the run ends there; it also ends if there is nothing to merge.
`merge` does the same as the task `merge` of `ingest__<stream>`: rows and merge position change in
one commit, or in one for each slice of many changes. With Rebuild it folds all changes and replaces
the rows.

**When.** Whenever you trigger it: for streams with `merge: {schedule: manual}`, whose ingest DAG
has no task `merge`, and with Rebuild after an error named `frazil merge <stream> --rebuild`. To
merge on a schedule, trigger it from a DAG of your own with Dry run off.

**Inputs.** The stream, which needs a state table (`mode: upsert`), and Rebuild. A rebuild reads the
whole change table. Batches continue meanwhile; if another merge publishes first, this one is staged
again.

**What a retry does.** Nothing twice: merged changes are not merged again. A rebuild replaces the
rows again, with the same result.

**How to stop.** Mark the task as failed: its Spark job ends, and no reader sees staged rows.
"""

from datetime import timedelta

from frazil.state_tables.messages import Merged, MergePreview
from frazil_airflow.assets import MERGED
from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.params import MergeForm, Params, flag_param, read_form
from frazil_airflow.tasks import frazil_task

REBUILD = "Fold all changes again and replace the state table's rows."


@frazil_task
def preview(params: Params, run_id: str) -> MergePreview:
    """Check the form and return what a merge would fold; nothing is written."""
    from frazil.state_tables.merge import preview_merge
    from frazil.workspace import open_workspace

    form = read_form(MergeForm, params)
    work = open_workspace(form.stream, run_id)
    return preview_merge(work, rebuild=form.rebuild, dry_run=form.dry_run)


@frazil_task
def merge(params: Params, run_id: str) -> Merged:
    """Merge the changes that are there by now."""
    from frazil.ledger.authors import require_not_dry_run
    from frazil.state_tables.merge import merge_changes
    from frazil.workspace import open_workspace

    form = read_form(MergeForm, params)
    require_not_dry_run(form.stream, dry_run=form.dry_run)
    return merge_changes(open_workspace(form.stream, run_id), rebuild=form.rebuild)


@manual_dag(
    "merge",
    "Bring a state table up to date, or fold all changes again",
    {"rebuild": flag_param("Rebuild", REBUILD)},
    max_active_runs=4,
    # A rebuild is one job over all changes; after a day its branch would count as abandoned.
    dagrun_timeout=timedelta(hours=20),
)
def merge_stream() -> None:
    """Preview, then merge."""
    preview() >> merge.override(outlets=[MERGED])()
