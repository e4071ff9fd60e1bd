"""### Watch: is each table as fresh as its stream file requires?

**What.** `watch_fleet` measures for each stream how long the oldest record in Kafka that is not in
the table has waited, and determines the cause of a delay. Its log has a line for each stream, a
warning for a delay above `warn_seconds`. A stream whose delay is above `fail_seconds`, or whose
stream file is broken, gets a task instance of its own, named after it, which fails: so every
failing stream is visible. If none fails, `watch_stream` is skipped. Each run first refreshes the
topics of stream files with a `topic_pattern`: a new topic is a new stream, and gets its DAGs with
the next parse.

**When.** Every minute, apart from the ingest DAGs, so that it also reports when those do not run.

**Inputs.** Offsets and timestamps from Kafka, snapshots from the tables, and from Airflow whether
the stream's ingest DAG is paused or its tasks wait for a slot of the table's pool. It writes only
the lists of topics, and a note of its last run for `frazil status` and `frazil readiness`, both for
this machine.

**What a retry does.** Checks again. There is one, ten seconds later, after a broker or catalog did
not answer; too long a delay fails at once, and the next run checks again.

**How to stop.** Pause the DAG. To stop it for one stream, raise `freshness` in its stream file.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import dag

from frazil_airflow.dag_loading import list_stream_names
from frazil_airflow.metrics import send_gauges
from frazil_airflow.outcomes import require_fresh
from frazil_airflow.tasks import RUN_TYPES, frazil_task, task_defaults

if TYPE_CHECKING:
    from frazil.observability.freshness import FreshnessReport


@frazil_task
def watch_fleet(run_id: str) -> list[str]:
    """Check the freshness of all streams; return the names of those that fail."""
    from frazil_airflow.freshness_watch import find_failing, refresh_topic_lists

    refresh_topic_lists()
    return find_failing(list_stream_names(), run_id)


@frazil_task
def watch_stream(stream: str, run_id: str) -> "FreshnessReport":
    """Check one stream's freshness; fail if its delay is above `fail_seconds`."""
    from frazil.observability.watch import watch_stream as compare_clocks
    from frazil.workspace import open_workspace
    from frazil_airflow.dag_runs import find_awaited_pool, is_paused

    work, paused = open_workspace(stream, run_id), is_paused(f"ingest__{stream}")
    pool = find_awaited_pool(work.stream)
    return require_fresh(send_gauges(compare_clocks(work, is_paused=paused, pool=pool)))


@dag(
    dag_id="watch",
    description="Freshness of every stream, with the cause of each delay",
    doc_md=__doc__,
    schedule="* * * * *",
    catchup=False,
    allowed_run_types=RUN_TYPES,
    max_active_runs=1,
    is_paused_upon_creation=False,
    dagrun_timeout=timedelta(minutes=10),
    default_args=task_defaults("frazil") | {"retries": 1},
    tags=["frazil", "fleet"],
)
def watch() -> None:
    """Map a task over the streams that fail."""
    first = 6  # above all tasks of ingest: a waiting watch reports nothing
    failing = watch_fleet.override(priority_weight=first)()
    watch_stream.override(
        map_index_template="{{ task.op_kwargs['stream'] }}",
        priority_weight=first,
        max_active_tis_per_dagrun=2,  # the other slots stay free for ingest
    ).expand(stream=failing)


watch()
