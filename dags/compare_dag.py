"""### Compare: do two tables hold the same records?

**What.** `compare` reads two tables that are filled from one topic, record by record, over the
offsets that both have read; its result, as JSON, is the task's XCom. `judge` succeeds if both are
equal; otherwise it fails with the first offsets that are missing, extra, duplicate or different.
It shows offsets and no values of records.

**When.** Whenever you trigger it, as often as you like during a parallel run.

**Inputs.** Each side: the name of a stream, or of a table with its namespace; Columns, if the
table's Kafka coordinates are not recognised. Offsets, to compare only a part. Spark joins both
tables; nothing is written, and Kafka is not read.

**What a retry does.** Compares again.

**How to stop.** Mark the task as failed.
"""

from airflow.sdk import Param

from frazil.migration.messages import CompareRequest, Comparison
from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.outcomes import require_equal
from frazil_airflow.params import (
    Params,
    flag_param,
    offsets_param,
    read_form,
    table_param,
    text_param,
)
from frazil_airflow.tasks import frazil_task

COLUMNS = "Needed only if they are not recognised: `topic=t,partition=p,offset=o`."
ROWS_ONLY = "Differences in other columns and in partitioning are listed, but do not fail the run."


@frazil_task
def compare(params: Params, run_id: str) -> Comparison:
    """Check the form and compare; nothing is written."""
    from frazil.migration.comparison import compare_tables

    return compare_tables(read_form(CompareRequest, params), run_id)


@frazil_task
def judge(compared: str) -> str:
    """Fail if the tables differ, with the first offsets."""
    return require_equal(Comparison.model_validate_json(compared))


@manual_dag(
    "compare",
    "Compare two tables filled from one topic, record by record; writes nothing",
    {
        "left": table_param("Left", "A stream, or a table with its namespace: `shop.flights`."),
        "right": table_param("Right", "The other side, likewise: `legacy.flights`."),
        "left_columns": text_param("Left columns", COLUMNS),
        "right_columns": text_param("Right columns", COLUMNS),
        "topic": text_param("Topic", "For a table without a column for it: `flights`."),
        "offsets": offsets_param("If empty: all offsets that both have read."),
        "connection": Param(
            default="iceberg_default",
            type="string",
            title="Connection",
            description="Catalog of a side that is not a stream: `iceberg_default`.",
        ),
        "rows_only": flag_param("Rows only", ROWS_ONLY),
    },
    changes_tables=False,
)
def compare_sides() -> None:
    """Compare, then succeed or fail."""
    judge(compare())
