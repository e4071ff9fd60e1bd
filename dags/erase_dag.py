"""### Erase: take out every row and dead letter of a key, on a named person's word.

**What.** `look` counts what has one of the keys, in the table and in its dead letters, and says
from where it can still be read: older snapshots until they expire, Kafka until its retention. As a
dry run, which is the default, the run ends there. `erase` takes the rows out in one commit that
lists them by offset, then the letters. No offset moves, and a replay leaves out what was erased.

**When.** Whenever you trigger it, first as a dry run. Batches and maintenance go on meanwhile.

**Inputs.** The stream, and the keys as `column=value`, here or in a file that the worker can read.
Airflow keeps what a form was filled with: prefer the file, or delete the run afterwards. With
`dry_run` off also who you are and why; both stay in the table, so name no person in the reason.

**What a retry does.** Nothing twice: what is gone is found gone. A run that was killed after the
rows went is finished by its retry, or by the next erasure of the table.

**How to stop.** Mark the task as failed; what is erased stays erased.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil.maintenance.messages import ErasurePlan
from frazil_airflow.params import ask_dry_run, ask_person, ask_stream, read_erasure
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.maintenance.messages import Erased


@frazil_task
def look(params: "Mapping[str, object]", run_id: str) -> ErasurePlan:
    """Check the form and count what would go; nothing is written, no key is handed on."""
    from frazil.maintenance.erasure import plan_erasure
    from frazil.workspace import open_workspace

    request = read_erasure(params)
    return plan_erasure(open_workspace(request.stream, run_id), request)


@frazil_task
def erase(planned: str, params: "Mapping[str, object]", run_id: str) -> "Erased":
    """Take out rows, then letters, on a look of its own; a repetition finds what is left."""
    from frazil.maintenance.erasure import erase as erase_keys
    from frazil.workspace import open_workspace

    request = read_erasure(params)
    work = open_workspace(request.stream, run_id)
    return erase_keys(work, ErasurePlan.parse(planned), request)


@dag(
    dag_id="erase",
    description="Take out every row and dead letter of a key; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("go"),
        "keys": Param(
            default=None,
            type=["null", "array"],
            items={"type": "string", "pattern": "^[^=]+=.+$"},
            title="Keys",
            description="One per line: `customer_id=4711`; `_kafka.key=…` is the record's own key.",
        ),
        "keys_file": Param(
            default=None,
            type=["null", "string"],
            title="File of keys",
            description="Path on the worker, as `/run/secrets/keys`, with one key per line.",
        ),
        **ask_person("request 12", "Why, without naming anybody"),
    },
)
def erase_keys() -> None:
    """Look, then erase."""
    erase(look())


erase_keys()
