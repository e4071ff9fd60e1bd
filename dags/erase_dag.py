"""### Erase: delete every row and dead letter of a key, on a named person's decision.

**What.** `preview` counts the rows and dead letters that have one of the keys, and lists where they
can still be read afterwards: in older snapshots until they expire, in Kafka until its retention. As
a dry run, the default, the run ends there. `erase` deletes the rows in one commit that lists their
offsets, then the dead letters. Offsets do not change, and a replay leaves out erased records.

**When.** Whenever you trigger it, first as a dry run. Batches and maintenance continue meanwhile.

**Inputs.** The stream, and the keys as `column=value`, here or in a file that the worker can read.
Airflow stores the values of the form: prefer the file, or delete the run afterwards. With
Dry run off also Reason, which names no person: the table keeps it, with your name.

**What a retry does.** Nothing twice: erased rows are not found again. If a run was killed after it
deleted the rows, its retry or the next erasure of the table deletes the dead letters.

**How to stop.** Mark the task as failed; what is erased stays erased.
"""

from typing import TYPE_CHECKING

from airflow.sdk import Param

from frazil.maintenance.messages import ErasurePlan
from frazil_airflow.manual_dag import manual_dag, require_as_asked
from frazil_airflow.params import Params, read_erasure, text_param
from frazil_airflow.tasks import frazil_task

if TYPE_CHECKING:
    from frazil.maintenance.messages import Erased

KEYS = "One per line: `customer_id=4711`; `_kafka.key=…` is the key of the Kafka record."
KEYS_FILE = "Path on the worker, for example `/run/secrets/keys`; one key per line, or CSV."


@frazil_task
def preview(params: Params, run_id: str) -> ErasurePlan:
    """Check the form and count what would be erased; the plan contains no key."""
    from frazil.maintenance.erasure import plan_erasure
    from frazil.workspace import open_workspace

    request = read_erasure(params)
    return plan_erasure(open_workspace(request.stream, run_id), request)


@frazil_task
def erase(planned: str, params: Params, run_id: str) -> "Erased":
    """Count again, then delete the rows and the dead letters that are there."""
    from frazil.maintenance.erasure import erase as erase_keys
    from frazil.workspace import open_workspace

    request = read_erasure(params)
    work = open_workspace(request.stream, run_id)
    plan = require_as_asked(ErasurePlan.parse(planned), request, work)
    return erase_keys(work, plan, request)


@manual_dag(
    "erase",
    "Delete every row and dead letter of a key",
    {
        "keys": Param(
            default=None,
            type=["null", "array"],
            items={"type": "string", "pattern": "^[^=]+="},
            title="Keys",
            description=KEYS,
        ),
        "keys_file": text_param("File of keys", KEYS_FILE),
    },
    reason="Why, without naming a person: `request 12`.",
)
def erase_keys() -> None:
    """Count, then erase."""
    erase(preview())
