"""### Ingest: one Kafka topic becomes one Iceberg table, batch by batch.

**What.** Each run moves one batch. `plan` freezes exact offset ranges after the recovery point that
the table itself holds. `stage` lets Spark append those records to a branch that nobody reads.
`check` judges the staged rows: budget of bad records, conservation, expectations. `publish` makes
rows and offsets visible in one commit.

**When.** On `batch.schedule` of the stream file, at the stream's own second (the last field: not
all streams begin at once), or whenever you trigger it; there are no parameters. A run that finds
nothing new ends green after `plan`, the other tasks are skipped. A batch as large as
`batch.max_records` is followed at once by a run `catch_up__…`, until the table has caught up. With
`schedule: continuous` each run follows the one before: its first task, `wait`, ends when Kafka has
something new, asked each second by the triggerer without a worker.

**Inputs.** The stream file, the topic, the table. Nothing is remembered in Airflow: lose its
database and the next run goes on where the table stands.

**What a retry does.** Nothing twice. A batch that is on main already is found there by its id.
`stage` writes to a fresh branch. An unavailable broker, catalog or Spark server is tried again
three times; a gap, a failed check or a stale plan fails at once and says the next command.

**How to stop.** Pause the DAG. Marking a running task as failed ends its Spark work; the branch it
leaves is invisible and maintenance removes it.
"""

from datetime import UTC, datetime, timedelta

from airflow.sdk import dag

from frazil.ingest.messages import BatchPlan, NothingToRead, Published, Staged, Verdict
from frazil.streams.models import Stream
from frazil.streams.schedules import spread
from frazil_airflow.assets import table_asset
from frazil_airflow.dag_loading import load_streams_to_parse
from frazil_airflow.tasks import choose_pool, dag_tags, frazil_task, task_defaults

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
"""Without a start, Airflow gives the second run of `@continuous` the date of the first."""


@frazil_task
def plan(stream: str, run_id: str) -> BatchPlan | NothingToRead:
    """Freeze the next ranges. No Spark; writes only what a first run or a schema change needs."""
    from frazil.errors import SchemaReviewError
    from frazil.ingest.pipeline import plan_next_batch
    from frazil.workspace import open_workspace

    try:
        return plan_next_batch(open_workspace(stream, run_id))
    except SchemaReviewError as error:
        from frazil_airflow.dag_runs import ask_for_review

        ask_for_review(error, stream)
        raise


@frazil_task
def stage(stream: str, planned: str, run_id: str) -> Staged:
    """Append the planned records to a branch; main does not move."""
    from frazil.ingest.staging import stage_batch
    from frazil.workspace import open_workspace

    return stage_batch(open_workspace(stream, run_id), BatchPlan.parse(planned))


@frazil_task
def check(stream: str, planned: str, staged: str, run_id: str) -> Verdict:
    """Judge the staged rows before anyone can see them; a failure blocks the stream, not others."""
    from frazil.ingest.checking import check_batch
    from frazil.workspace import open_workspace

    work = open_workspace(stream, run_id)
    return check_batch(work, BatchPlan.parse(planned), Staged.parse(staged))


@frazil_task
def publish(stream: str, planned: str, staged: str, verdict: str, run_id: str) -> Published:
    """Make rows and offsets visible in one commit, and tell who waits for the table."""
    from frazil.ingest.pipeline import publish_staged
    from frazil.workspace import open_workspace
    from frazil_airflow.dag_runs import catch_up

    plan, work = BatchPlan.parse(planned), open_workspace(stream, run_id)
    published = publish_staged(work, plan, Staged.parse(staged), Verdict.parse(verdict))
    catch_up(work.stream, plan)
    return published


def ingest_dag(stream: Stream) -> None:
    """Define `ingest__<stream>`."""

    @dag(
        dag_id=f"ingest__{stream.stream}",
        description=f"{', '.join(stream.source.names)} → {stream.table.name}",
        doc_md=__doc__,
        schedule="@continuous"
        if stream.batch.is_continuous
        else spread(stream.batch.schedule, stream.stream),
        start_date=LONG_AGO if stream.batch.is_continuous else None,
        catchup=False,
        max_active_runs=1,
        dagrun_timeout=timedelta(hours=2),
        default_args=task_defaults(stream.owner),
        tags=dag_tags(stream),
    )
    def ingest() -> None:
        name, pool = stream.stream, choose_pool(stream)
        # What is nearer to its end goes first, and all of it before maintenance.
        planned = plan.override(priority_weight=2)(name)
        staged = stage.override(priority_weight=3, pool=pool)(name, planned)
        verdict = check.override(priority_weight=4)(name, planned, staged)
        published = publish.override(priority_weight=5, pool=pool, outlets=[table_asset(stream)])

        published(name, planned, staged, verdict)
        if stream.batch.is_continuous:
            from frazil_airflow.record_trigger import WaitForRecords

            WaitForRecords(task_id="wait", stream=name) >> planned

    ingest()


for each in load_streams_to_parse("ingest"):
    ingest_dag(each)
