"""### Ingest: one Kafka topic becomes one Iceberg table, batch by batch.

**What.** Each run publishes one batch. `plan` chooses exact offset ranges after the recovery point,
which it reads from the table. `stage` appends those records to a staging branch with Spark. `check`
checks the staged rows: error budget, record counts, expectations. `publish` makes rows and offsets
visible in one commit. If the stream has a state table, `merge` then folds the changes into it. Both
update the asset of their table.
With `batch: {tasks: one}` one task, `ingest`, does the first four steps.

**When.** On `batch.schedule` of the stream file, at a second derived from the stream's name so that
streams do not all begin at once, or whenever you trigger it; there are no parameters. Without new
records a run succeeds after `plan` and skips the other tasks, except `merge`. A batch of
`batch.max_records` is followed at once by a run `catch_up__…`, until the table has caught up. With
`schedule: continuous` each run follows the one before: its first task, `wait`, ends when Kafka has
new records; the triggerer checks every second, without a worker.

Airflow's Backfill is not allowed here, because no run reads the records of a date: trigger the DAG
`backfill` to read older records, or `replay` to read a range again.

**Inputs.** The stream file, the topic, the table. Airflow stores no state of the stream: without
its database the next run continues from the table's recovery point.

**What a retry does.** Nothing twice. `publish` finds a published batch by its id, `stage` writes to
a new branch, `merge` goes on after its last slice, also if a run was stopped after two hours. A
task is retried three times if broker, catalog or Spark server did not answer; a gap, a failed check
or a superseded plan ends it at once, with the next command in its log.

**How to stop.** Pause the DAG. If you mark a running task as failed, its Spark job ends;
maintenance removes the staging branch, which no reader sees.
"""

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from airflow.sdk import TriggerRule, XComArg, dag

from frazil.environment import choose_pool
from frazil.ingest.messages import BatchPlan, NothingToRead, Published, Staged, Verdict
from frazil.state_tables.messages import Merged
from frazil.streams.models import Stream
from frazil.streams.timestamps import spread
from frazil_airflow.assets import state_assets, table_asset
from frazil_airflow.dag_loading import load_streams_to_parse
from frazil_airflow.tasks import RUN_TYPES, dag_tags, frazil_task, log_result, task_defaults

if TYPE_CHECKING:
    from frazil.workspace import Workspace

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
"""Start of continuous DAGs: without one their second run gets the date of the first."""


@frazil_task
def plan(stream: str, run_id: str) -> BatchPlan | NothingToRead:
    """Choose the next offset ranges; only a first run or a schema change writes to the table."""
    from frazil.workspace import open_workspace

    return plan_or_review(open_workspace(stream, run_id))


@frazil_task
def stage(stream: str, planned: str, run_id: str) -> Staged:
    """Append the planned records to a staging branch; main does not change."""
    from frazil.ingest.staging import stage_batch
    from frazil.workspace import open_workspace

    return stage_batch(open_workspace(stream, run_id), BatchPlan.parse(planned))


@frazil_task
def check(stream: str, planned: str, staged: str, run_id: str) -> Verdict:
    """Check the staged rows before readers see them; a failure blocks only this stream."""
    from frazil.ingest.checking import check_batch
    from frazil.workspace import open_workspace

    work = open_workspace(stream, run_id)
    return check_batch(work, BatchPlan.parse(planned), Staged.parse(staged))


@frazil_task
def publish(stream: str, planned: str, staged: str, verdict: str, run_id: str) -> Published:
    """Make rows and offsets visible in one commit, and update the table's asset."""
    from frazil.ingest.pipeline import publish_staged
    from frazil.workspace import open_workspace
    from frazil_airflow.dag_runs import trigger_catch_up

    plan, work = BatchPlan.parse(planned), open_workspace(stream, run_id)
    published = publish_staged(work, plan, Staged.parse(staged), Verdict.parse(verdict))
    trigger_catch_up(work.stream, plan)
    return published


@frazil_task
def ingest(stream: str, run_id: str) -> Published | NothingToRead:
    """Plan, stage, check and publish a batch in this task, for streams with `tasks: one`."""
    from frazil.ingest.checking import check_batch
    from frazil.ingest.pipeline import publish_staged
    from frazil.ingest.staging import stage_batch
    from frazil.workspace import open_workspace
    from frazil_airflow.dag_runs import trigger_catch_up

    work = open_workspace(stream, run_id)
    planned = plan_or_review(work)
    if isinstance(planned, NothingToRead):
        return planned
    log_result(planned)
    staged = stage_batch(work, planned)
    log_result(staged)
    verdict = check_batch(work, planned, staged)
    log_result(verdict)
    published = publish_staged(work, planned, staged, verdict)
    trigger_catch_up(work.stream, planned)
    return published


def plan_or_review(work: "Workspace") -> BatchPlan | NothingToRead:
    """Plan the next batch; ask for a review of a schema change that needs one."""
    from frazil.errors import SchemaReviewError
    from frazil.ingest.pipeline import plan_next_batch

    try:
        return plan_next_batch(work)
    except SchemaReviewError as error:
        from frazil_airflow.dag_runs import trigger_schema_review

        trigger_schema_review(error, work.stream.stream)
        raise


@frazil_task
def merge(stream: str, run_id: str) -> Merged:
    """Bring the state table up to date, and update its asset; a failure stops no batch."""
    from frazil.state_tables.merge import merge_changes
    from frazil.workspace import open_workspace

    return merge_changes(open_workspace(stream, run_id))


def ingest_dag(stream: Stream) -> None:
    """Define `ingest__<stream>`."""

    @dag(
        dag_id=f"ingest__{stream.stream}",
        description=f"{', '.join(stream.source.names)} → {stream.table.name}. For older records "
        "trigger the DAG backfill, not Airflow's Backfill",
        doc_md=__doc__,
        schedule="@continuous"
        if stream.batch.is_continuous
        else spread(stream.batch.schedule, stream.stream),
        start_date=LONG_AGO if stream.batch.is_continuous else None,
        catchup=False,
        allowed_run_types=(*RUN_TYPES, "asset_materialization"),
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=2),
        default_args=task_defaults(stream.owner),
        tags=dag_tags(stream),
    )
    def batch() -> None:
        name, pool = stream.stream, choose_pool(stream.table.name)
        first, done = one_task(stream) if stream.batch.tasks == "one" else four_tasks(stream)
        if stream.table.state is not None and stream.merge.schedule == "each_batch":
            # A batch that an earlier run published and did not merge is merged without a new one.
            rule, outlets = TriggerRule.NONE_FAILED, state_assets(stream)
            done >> merge.override(
                priority_weight=5, pool=pool, trigger_rule=rule, outlets=outlets
            )(name)
        if stream.batch.is_continuous:
            from frazil_airflow.record_trigger import WaitForRecords

            WaitForRecords(task_id="wait", stream=name) >> first

    batch()


def four_tasks(stream: Stream) -> tuple[XComArg, XComArg]:
    """Add a task for each step; return the first and the last one."""
    name, pool = stream.stream, choose_pool(stream.table.name)
    # A batch near its end runs before a new one, and every batch before maintenance.
    planned = plan.override(priority_weight=2)(name)
    staged = stage.override(priority_weight=3, pool=pool)(name, planned)
    verdict = check.override(priority_weight=4)(name, planned, staged)
    published = publish.override(priority_weight=5, pool=pool, outlets=[table_asset(stream)])
    return planned, published(name, planned, staged, verdict)


def one_task(stream: Stream) -> tuple[XComArg, XComArg]:
    """Add the task of all steps; return it as the first and the last one."""
    pool, outlets = choose_pool(stream.table.name), [table_asset(stream)]
    done = ingest.override(priority_weight=2, pool=pool, outlets=outlets)(stream.stream)
    return done, done


for each in load_streams_to_parse("ingest"):
    ingest_dag(each)
