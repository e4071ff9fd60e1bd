"""### Maintenance: keep one table small, fast and able to go back.

**What.** `compact` rewrites small files into large ones. `expire_snapshots` forgets old
snapshots, after their ledger entries are archived, and never the recovery point, the rollback
window or a staged branch. `remove_orphans` deletes old files that nothing refers to. `expire_rows`
takes out rows that are older than the stream file says, in a snapshot that lists them; without
`maintenance.expire_rows` it takes none. `report` says what the table looks like afterwards and
records the timeline. No other task adds, changes or loses a row, and no offset moves.

**When.** On `maintenance.schedule` of the stream file, without one each hour in the stream's own
minute, or whenever you trigger it.

**Inputs.** The stream file's `maintenance` section, the table, its ledger archive. `rewrite_all`
compacts every file, also the large ones: after another partition spec or sort order, so that all
are laid out by the present one. `dry_run` says what each task would do, and writes nothing.

**What a retry does.** Looks at the table again and does what is left to do; a task that finished
finds nothing, but for `rewrite_all`, which rewrites again. Batches go on meanwhile.

**How to stop.** Pause the DAG. Marking a running task as failed ends its Spark work; what it had
written is referred to by nothing, and a later `remove_orphans` takes it away.
"""

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import TriggerRule, dag

from frazil.streams.models import Stream
from frazil.streams.schedules import default_maintenance_schedule
from frazil_airflow.dag_loading import load_streams_to_parse
from frazil_airflow.params import MaintenanceForm, ask_maintenance, read_form
from frazil_airflow.tasks import choose_pool, dag_tags, frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.maintenance.messages import (
        CompactReport,
        ExpireReport,
        OrphanReport,
        RowExpiryReport,
        TableReport,
    )

log = logging.getLogger(__name__)


@frazil_task
def compact(stream: str, params: "Mapping[str, object]", run_id: str) -> "CompactReport":
    """Rewrite small files and manifests; rows stay what they are."""
    from frazil.maintenance.compaction import compact_table
    from frazil.workspace import open_workspace

    form = read_form(MaintenanceForm, params)
    work = open_workspace(stream, run_id)
    return compact_table(work, dry_run=form.dry_run, rewrite_all=form.rewrite_all)


@frazil_task
def expire_snapshots(stream: str, params: "Mapping[str, object]", run_id: str) -> "ExpireReport":
    """Archive the ledger, then forget snapshots that nothing needs."""
    from frazil.maintenance.snapshot_expiry import expire_snapshots as expire
    from frazil.workspace import open_workspace

    dry_run = read_form(MaintenanceForm, params).dry_run
    return expire(open_workspace(stream, run_id), dry_run=dry_run)


@frazil_task
def remove_orphans(stream: str, params: "Mapping[str, object]", run_id: str) -> "OrphanReport":
    """Delete files that no snapshot and no branch refers to, once they are old enough."""
    from frazil.maintenance.orphans import remove_orphans as remove
    from frazil.workspace import open_workspace

    dry_run = read_form(MaintenanceForm, params).dry_run
    return remove(open_workspace(stream, run_id), dry_run=dry_run)


@frazil_task
def expire_rows(stream: str, params: "Mapping[str, object]", run_id: str) -> "RowExpiryReport":
    """Take out rows that are older than the stream file says; none where it says nothing."""
    from frazil.maintenance.row_expiry import expire_rows as expire
    from frazil.workspace import open_workspace

    dry_run = read_form(MaintenanceForm, params).dry_run
    return expire(open_workspace(stream, run_id), dry_run=dry_run)


@frazil_task
def report(stream: str, run_id: str) -> "TableReport":
    """Say how many files, bytes and snapshots the table has now, and record the timeline."""
    from frazil.errors import FrazilError
    from frazil.maintenance.tables import summarize_table
    from frazil.observability.timeline_table import record_timeline
    from frazil.workspace import open_workspace

    work = open_workspace(stream, run_id)
    summary = summarize_table(work)
    try:
        record_timeline(work)
    except FrazilError as error:
        log.warning("the timeline is recorded by the next run: %s", error)
    return summary


def maintain_dag(stream: Stream) -> None:
    """Define `maintain__<stream>`."""

    @dag(
        dag_id=f"maintain__{stream.stream}",
        description=f"Compaction, expiry and orphan removal of {stream.table.name}",
        doc_md=__doc__,
        schedule=stream.maintenance.schedule or default_maintenance_schedule(stream.stream),
        catchup=False,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=6),
        default_args=task_defaults(stream.owner) | {"pool": choose_pool(stream)},
        tags=dag_tags(stream),
    )
    def maintain() -> None:
        name = stream.stream
        compacted = compact(name)
        # A table that could not be compacted still needs its expiry: each runs whatever came
        # before. The report needs all four, so that the run is as red as its reddest task.
        after = {"trigger_rule": TriggerRule.ALL_DONE}
        expired = expire_snapshots.override(**after)(name)
        removed = remove_orphans.override(**after)(name)

        shortened = expire_rows.override(**after)(name)

        compacted >> expired >> removed >> shortened
        [compacted, expired, removed, shortened] >> report(name)

    # Put on last: each task would copy the form, a fifth of the parse of many streams.
    maintain().params.update(ask_maintenance())


for each in load_streams_to_parse("maintain"):
    maintain_dag(each)
