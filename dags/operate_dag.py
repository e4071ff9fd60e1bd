"""### Operate: one stream's decisions and repairs, for those who may trigger this DAG.

**What.** Each action does the same as the DAG of its name, for this stream only: the permissions on
this DAG decide who may operate the stream. `begin` checks the form and shows what would change;
a decision of one step (`accept_gap`, `adopt`, `waive`) is recorded there. A dry run, the default,
writes nothing. `rewind` does a rollback, and waits for a second person if it removes more rows than
the site allows (`FRAZIL_APPROVAL_ROWS`). `finish` does the other actions.

**When.** Whenever you trigger it, first as a dry run.

**Inputs.** The action, and the fields that its own DAG has: a field of another action is refused.
With Dry run off the decisions also need a reason; the table keeps it, with your name.

**What a retry does.** Nothing twice, as in the action's own DAG.

**How to stop.** Mark the task as failed.
"""

import inspect
from collections.abc import Iterable, Mapping
from datetime import timedelta

from airflow.sdk import Context, Param
from airflow.sdk.exceptions import AirflowSkipException

from frazil.ledger.keys import DEAD_LETTER_REASONS
from frazil.ledger.offsets import OFFSET_LOCATION_PATTERN
from frazil.messages import Message
from frazil.recovery.messages import RecoveryPlan
from frazil.streams.models import Stream
from frazil_airflow.approval import RollBack
from frazil_airflow.assets import MERGED
from frazil_airflow.dag_loading import load_function, load_operated_streams
from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.params import (
    Params,
    choose_fields,
    count_param,
    dry_run_param,
    flag_param,
    instant_param,
    offsets_param,
    reason_param,
    text_param,
)
from frazil_airflow.tasks import dag_tags, frazil_task, read_params, task_defaults

ACTIONS: Mapping[str, tuple[str, ...]] = {
    "accept_gap": ("accept",),
    "adopt": ("adopt",),
    "backfill": ("preview", "fill_all"),
    "erase": ("preview", "erase"),
    "merge": ("preview", "merge"),
    "move_cluster": ("preview", "move"),
    "recover": ("preview", ""),
    "replay": ("preview", "replay"),
    "replay_dead_letters": ("check_parameters", "redrive"),
    "waive": ("waive",),
}
"""Action, which is also a DAG → the tasks of that DAG that begin and finish it.

The task `rewind` of this DAG finishes `recover`. Only streams with a state table have `merge`.
"""


def list_param(title: str, description: str, **items: object) -> Param:
    """Return an optional field for several values."""
    return Param(
        default=None,
        type=["null", "array"],
        items={"type": "string", **items},
        title=title,
        description=description,
    )


def action_param(actions: Iterable[str]) -> Param:
    """Return the field for the action."""
    return Param(
        default="replay",
        type="string",
        enum=[*actions],
        title="Action",
        description="The DAG with this name describes it and its fields.",
    )


FORM = {
    "action": action_param(action for action in ACTIONS if action != "merge"),
    "dry_run": dry_run_param(),
    "reason": reason_param("Why, for a decision, for example `release 4.2 wrote wrong amounts`."),
    "offsets": offsets_param("For backfill and replays."),
    "since": instant_param(
        "Records since", "For backfill and replays; of dead letters, the time of quarantine."
    ),
    "until": instant_param(
        "Records before", "For backfill and replays; of dead letters, the time of quarantine."
    ),
    "order": text_param("Order", "For backfill: `oldest` or `newest` first."),
    "window_records": count_param(
        "Records per window", "For backfill, for example `1000000`.", minimum=1
    ),
    "max_records": count_param(
        "Maximum records", "For backfill, for example `5000000`.", minimum=1
    ),
    "reasons": list_param(
        "Reasons of dead letters", "For `replay_dead_letters`.", enum=list(DEAD_LETTER_REASONS)
    ),
    "schema_ids": list_param(
        "Schema ids", "For `replay_dead_letters`, for example `[7, 8]`.", type="integer", minimum=0
    ),
    "to_snapshot": text_param(
        "To snapshot", "For recover, for example `4711471147114711471`.", pattern=r"^\d{1,19}$"
    ),
    "to_time": instant_param("To time", "For recover."),
    "to_offset": text_param(
        "Before offset",
        "For recover, for example `flights:0:4711`.",
        pattern=OFFSET_LOCATION_PATTERN,
    ),
    "answer": text_param(
        "Resolution of the halt", "For recover: `reingest`, `skip` or `new-table`."
    ),
    "accept_gap": flag_param("Accept gap", "For recover."),
    "approval_rows": count_param(
        "Rows without approval", "For recover, for example `1000`.", minimum=0
    ),
    "batch": text_param(
        "Batch", "For waive: 32 hex digits, as in `frazil status`.", pattern=r"^[0-9a-f]{32}$"
    ),
    "keys": list_param(
        "Keys", "For erase, one per line, for example `customer_id=4711`.", pattern="^[^=]+="
    ),
    "keys_file": text_param(
        "File of keys", "For erase, on the worker, for example `/run/secrets/keys`."
    ),
    "old_connection": text_param("Old connection", "For move_cluster, for example `kafka_old`."),
    "next": list_param(
        "Next offsets",
        "For move_cluster, for example `flights:0:4711`.",
        pattern=OFFSET_LOCATION_PATTERN,
    ),
    "columns": text_param("Columns", "For adopt, for example `partition=p,offset=o`."),
    "accept_holes": flag_param("Accept holes", "For adopt."),
    "stop_merges": flag_param("Stop merges", "For accept_gap."),
}
STATE_FORM = FORM | {
    "action": action_param(ACTIONS),
    "rebuild": flag_param("Rebuild", "For merge."),
}
"""The form of a stream with a state table."""


class Decided(Message):
    """A decision of one step: nothing is left to do."""

    text: str

    @property
    def ends_run(self) -> bool:
        """Return True: the run ends here."""
        return True


@frazil_task
def begin(stream: str, params: Params, run_id: str) -> object:
    """Check the form and show what would change; record a decision of one step."""
    action = str(params["action"])
    first, *more = ACTIONS[action]
    result = load_function(action, first)(params=choose_fields(stream, params), run_id=run_id)
    return result if more else Decided(text=str(result))


@frazil_task
def finish(stream: str, planned: str, params: Params, run_id: str) -> object:
    """Do what was planned; a retry finds what is done."""
    action = str(params["action"])
    if action == "recover":
        raise AirflowSkipException("the task rewind has finished this action")
    given = {"planned": planned, "params": choose_fields(stream, params), "run_id": run_id}
    finisher = load_function(action, ACTIONS[action][-1])
    return finisher(**{name: given[name] for name in inspect.signature(finisher).parameters})


def plan_of(context: Context) -> RecoveryPlan | None:
    """Return the plan of a rollback; None for another action."""
    params = read_params(context)
    if params["action"] != "recover":
        return None
    stream = context["dag"].dag_id.partition("__")[2]
    preview = load_function("recover", "preview")
    plan = preview(params=choose_fields(stream, params), run_id=context["run_id"])
    return RecoveryPlan.model_validate(plan)


def operate_dag(stream: Stream) -> None:
    """Define `operate__<stream>`."""

    @manual_dag(
        f"operate__{stream.stream}",
        f"Decisions and repairs of {stream.stream}; a dry run by default",
        changes_tables=False,
        dagrun_timeout=timedelta(days=7),
        default_args=task_defaults(stream.owner),
        tags=dag_tags(stream),
    )
    def operate() -> None:
        name = stream.stream
        begun = begin(name)
        rewind = RollBack(
            task_id="rewind",
            plan=plan_of,
            doc_md="Roll back, if that is the action, once a second person has approved it.",
        )
        outlets = [] if stream.table.state is None else [MERGED]
        begun >> rewind >> finish.override(outlets=outlets)(name, begun)

    # Added last, as in the DAGs of maintenance: otherwise each task copies the form.
    operate.params.update(FORM if stream.table.state is None else STATE_FORM)


for each in load_operated_streams():
    operate_dag(each)
