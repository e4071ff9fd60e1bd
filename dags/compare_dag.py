"""### Compare: does another writer's table hold the same?

**What.** `compare` reads two tables that one topic fills, record by record, over the offsets that
both have read; its answer, as JSON, is the task's XCom. `judge` ends green where both are equal;
else it fails with the first offsets that are missing, extra, doubled or changed. Offsets are shown,
never what is in a record.

**When.** Whenever you trigger it, as often as you like during a parallel run.

**Inputs.** A stream's name or a table's, with its namespace, on each side; where a table keeps its
coordinates, if they are not recognised. Offsets, where not all that both have read shall be judged.
It writes nothing and asks neither Spark nor Kafka.

**What a retry does.** Reads again.

**How to stop.** Mark the task as failed.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil.migration.messages import CompareRequest, Comparison
from frazil_airflow.outcomes import refuse_different
from frazil_airflow.params import ask_offsets, ask_side, ask_text, read_form
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS = "Only where they are not recognised: `topic=t,partition=p,offset=o`."


@frazil_task
def compare(params: "Mapping[str, object]", run_id: str) -> Comparison:
    """Check the form, and compare; nothing is written."""
    from frazil.migration.comparison import compare_tables

    return compare_tables(read_form(CompareRequest, params), run_id)


@frazil_task
def judge(compared: str) -> str:
    """Fail where the two differ, with the first offsets."""
    return refuse_different(Comparison.model_validate_json(compared))


@dag(
    dag_id="compare",
    description="Two tables that one topic fills, record by record; writes nothing",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "left": ask_side("Left", "A stream, or a table with its namespace: `shop.flights`."),
        "right": ask_side("Right", "What it is compared with, likewise: `legacy.flights`."),
        "left_columns": ask_text("Left columns", COLUMNS),
        "right_columns": ask_text("Right columns", COLUMNS),
        "topic": ask_text("Topic", "Of a table that has no column for it: `flights`."),
        "offsets": ask_offsets("Empty: all that both have read."),
        "connection": Param(
            default="iceberg_default",
            type="string",
            title="Connection",
            description="Catalog of a side that is no stream: `iceberg_default`.",
        ),
        "rows_only": Param(
            default=False,
            type="boolean",
            title="Rows only",
            description="Other columns and partitioning are shown, and do not decide.",
        ),
    },
)
def compare_sides() -> None:
    """Compare, then judge."""
    judge(compare())


compare_sides()
