"""### Verify the source: does a state table hold the rows of its source table?

**What.** `verify` reads the state table and the source table in PostgreSQL, in a transaction that
cannot write, and compares each row; its result, as JSON, is the task's XCom. Keys that differ are
compared again until they are equal, shown to be different, or the wait is over. `judge` fails if a
key is missing, extra, duplicate or different, or if keys could not be decided because changes have
not arrived. It shows counts and names of columns, no keys and no values.

**When.** Whenever you trigger it, also while the source is being written.

**Inputs.** The stream; the connection of the source's PostgreSQL, whose user may read the table.
The source table only if it has another name than the rows say, as in a copy. Nothing is written.

**What a retry does.** Compares again.

**How to stop.** Mark the task as failed.
"""

from airflow.sdk import Param

from frazil.state_tables.messages import SourceCheck, SourceCheckRequest
from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.outcomes import require_same_rows
from frazil_airflow.params import Params, read_form, stream_param, text_param
from frazil_airflow.tasks import frazil_task


@frazil_task
def verify(params: Params, run_id: str) -> SourceCheck:
    """Check the form and compare; nothing is written."""
    from frazil.state_tables.source_check import verify_source
    from frazil.workspace import open_workspace

    request = read_form(SourceCheckRequest, params)
    return verify_source(open_workspace(request.stream, run_id), request, print)


@frazil_task
def judge(checked: str) -> str:
    """Fail if keys are different, or cannot be decided because changes have not arrived."""
    return require_same_rows(SourceCheck.model_validate_json(checked))


@manual_dag(
    "verify_source",
    "Compare a state table with its source in PostgreSQL, row by row; writes nothing",
    {
        "stream": stream_param(),
        "connection": Param(
            type="string",
            minLength=1,
            title="Connection",
            description="Connection of the source's PostgreSQL: `shop_db`.",
        ),
        "table": text_param(
            "Source table", "Default: the table that the rows name. Example: `public.customers`."
        ),
        "wait_seconds": Param(
            default=60,
            type="integer",
            minimum=0,
            maximum=86_400,
            title="Wait",
            description="Seconds during which differing keys are compared again, for example `60`.",
        ),
    },
    changes_tables=False,
)
def compare_with_source() -> None:
    """Compare, then succeed or fail."""
    judge(verify())
