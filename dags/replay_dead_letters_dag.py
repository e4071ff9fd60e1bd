"""### Replay dead letters: bring back records that did not fit, once their fault is mended.

**What.** `check_parameters` looks at the form again. `redrive` decodes the chosen letters' raw
bytes by today's stream file. As a dry run, which is the default, it says how many would come back
and why the others still fail. Else it stages those that decode, lets the stream's suite judge them,
and publishes them in a snapshot that lists each record. No offset moves.

**When.** Whenever you trigger it, first as a dry run: after the stream file was mended, or the
release that decodes.

**Inputs.** The stream, and which of its letters: by reason, by the time they were quarantined, by
offsets, by schema id. What is left empty chooses all. `frazil dead-letters` shows what there is.

**What a retry does.** Nothing twice: a letter that is back does not count any more. A killed run is
finished by the next one. Where another writer is faster three times the run fails and says so; run
it again.

**How to stop.** Mark the task as failed: that ends its Spark work, and what it had staged is
invisible. To undo a redrive that was published, roll the table back.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil.ledger.keys import DEAD_LETTER_REASONS
from frazil.recovery.messages import DeadLetterChoice, parse_choice
from frazil_airflow.params import ask_dry_run, ask_instant, ask_offsets, ask_stream
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.recovery.messages import RedriveAnswer


@frazil_task
def check_parameters(params: "Mapping[str, object]", run_id: str) -> DeadLetterChoice:
    """Refuse what the form let through: an unknown stream, an unknown field, an empty range."""
    from frazil.workspace import open_workspace

    choice = parse_choice(dict(params))
    open_workspace(choice.stream, run_id)
    return choice


@frazil_task
def redrive(choice: str, run_id: str) -> "RedriveAnswer":
    """Decode the letters again, and bring back those that fit unless this is a dry run."""
    from frazil.recovery.redrive import redrive_letters
    from frazil.workspace import open_workspace

    chosen = DeadLetterChoice.parse(choice)
    return redrive_letters(open_workspace(chosen.stream, run_id), chosen)


@dag(
    dag_id="replay_dead_letters",
    description="Dead letters come back into their table; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=2),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("come back"),
        "reasons": Param(
            default=None,
            type=["null", "array"],
            items={"type": "string", "enum": list(DEAD_LETTER_REASONS)},
            examples=list(DEAD_LETTER_REASONS),
            title="Reasons",
            description="Only letters with one of these reasons.",
        ),
        "since": ask_instant(
            "Quarantined since", "Only letters quarantined at this instant or later."
        ),
        "until": ask_instant("Quarantined before", "Only letters quarantined before this instant."),
        "offsets": ask_offsets("Only letters of these ranges; empty for all."),
        "schema_ids": Param(
            default=None,
            type=["null", "array"],
            items={"type": "integer", "minimum": 0},
            title="Schema ids",
            description="Only letters whose value names one of these schemas: `[7, 8]`.",
        ),
    },
)
def replay_dead_letters() -> None:
    """Check the form, then bring letters back."""
    redrive(check_parameters())


replay_dead_letters()
