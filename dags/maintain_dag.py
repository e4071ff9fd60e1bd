"""### Maintenance: compact one table, expire what is old, remove orphan files.

**What.** `compact` rewrites small files into large ones. `expire_snapshots` expires old snapshots
after their ledger entries are archived, but never the recovery point, the rollback window or a
staging branch. `remove_orphans` deletes old files that nothing refers to. `expire_rows` deletes
rows older than `maintenance.expire_rows` of the stream file, in a snapshot that lists them, and
changes of a state table that `changes.keep_days` does not keep; without these settings it deletes
nothing. `report` describes the table afterwards and records the timeline. No other task adds,
changes or deletes a row, and offsets do not change.

**When.** On `maintenance.schedule` of the stream file, by default once an hour at a minute derived
from the stream's name, or whenever you trigger it.

**Inputs.** The stream file's `maintenance` section, the table, its ledger archive. Rewrite all
rewrites every file, also large ones: use it after the partition spec or the sort order changed. Dry
run shows what each task would do, and writes nothing.

**What a retry does.** Reads the table again and does what is left; a task that had finished finds
nothing to do, except that Rewrite all rewrites again. Batches continue meanwhile.

**How to stop.** Pause the DAG. If you mark a running task as failed, its Spark job ends; a later
`remove_orphans` deletes the files it had written.
"""

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import TriggerRule, dag

from frazil.environment import choose_pool
from frazil.streams.models import Stream
from frazil.streams.timestamps import default_maintenance_schedule
from frazil_airflow.dag_loading import load_streams_to_parse
from frazil_airflow.params import MaintenanceForm, Params, maintenance_params, read_form
from frazil_airflow.tasks import RUN_TYPES, dag_tags, frazil_task, task_defaults

if TYPE_CHECKING:
    from frazil.maintenance.messages import (
        CompactReport,
        ExpireReport,
        OrphanReport,
        RowExpiryReport,
        TableReport,
    )

log = logging.getLogger(__name__)


@frazil_task
def compact(stream: str, params: Params, run_id: str) -> "CompactReport":
    """Rewrite small files and manifests; rows do not change."""
    from frazil.maintenance.compaction import compact_table
    from frazil.workspace import open_workspace

    form = read_form(MaintenanceForm, params)
    work = open_workspace(stream, run_id)
    return compact_table(work, dry_run=form.dry_run, rewrite_all=form.rewrite_all)


@frazil_task
def expire_snapshots(stream: str, params: Params, run_id: str) -> "ExpireReport":
    """Archive the ledger, then expire snapshots that nothing needs."""
    from frazil.maintenance.snapshot_expiry import expire_snapshots as expire
    from frazil.workspace import open_workspace

    dry_run = read_form(MaintenanceForm, params).dry_run
    return expire(open_workspace(stream, run_id), dry_run=dry_run)


@frazil_task
def remove_orphans(stream: str, params: Params, run_id: str) -> "OrphanReport":
    """Delete files that no snapshot and no branch refers to, once they are old enough."""
    from frazil.maintenance.orphans import remove_orphans as remove
    from frazil.workspace import open_workspace

    dry_run = read_form(MaintenanceForm, params).dry_run
    return remove(open_workspace(stream, run_id), dry_run=dry_run)


@frazil_task
def expire_rows(stream: str, params: Params, run_id: str) -> "RowExpiryReport":
    """Delete rows older than `maintenance.expire_rows`, and changes older than `changes`."""
    from frazil.maintenance.row_expiry import expire_rows as expire
    from frazil.workspace import open_workspace

    dry_run = read_form(MaintenanceForm, params).dry_run
    return expire(open_workspace(stream, run_id), dry_run=dry_run)


@frazil_task
def report(stream: str, run_id: str) -> "TableReport":
    """Return how many files, bytes and snapshots the table has, and record the timeline."""
    from frazil.errors import FrazilError
    from frazil.maintenance.tables import summarize_table
    from frazil.observability.timeline_table import record_timeline
    from frazil.workspace import open_workspace

    work = open_workspace(stream, run_id)
    summary = summarize_table(work)
    try:
        record_timeline(work)
    except FrazilError as error:
        log.warning("the timeline was not recorded; the next run records it: %s", error)
    return summary


def maintain_dag(stream: Stream) -> None:
    """Define `maintain__<stream>`."""

    @dag(
        dag_id=f"maintain__{stream.stream}",
        description=f"Compaction, expiry and orphan removal of {stream.table.name}",
        doc_md=__doc__,
        schedule=stream.maintenance.schedule or default_maintenance_schedule(stream.stream),
        catchup=False,
        allowed_run_types=RUN_TYPES,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=6),
        default_args=task_defaults(stream.owner) | {"pool": choose_pool(stream.table.name)},
        tags=dag_tags(stream),
    )
    def maintain() -> None:
        name = stream.stream
        compacted = compact(name)
        # A table that could not be compacted still needs its expiry: each task runs even if one
        # before it failed. The report needs all four, so that one failure fails the run.
        after = {"trigger_rule": TriggerRule.ALL_DONE}
        expired = expire_snapshots.override(**after)(name)
        removed = remove_orphans.override(**after)(name)

        shortened = expire_rows.override(**after)(name)

        compacted >> expired >> removed >> shortened
        [compacted, expired, removed, shortened] >> report(name)

    # Added last: otherwise each task copies the form, a fifth of the parse of many streams.
    maintain().params.update(maintenance_params())


for each in load_streams_to_parse("maintain"):
    maintain_dag(each)
