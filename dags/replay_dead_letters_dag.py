"""### Replay dead letters: restore rejected records after their fault was fixed.

**What.** `check_parameters` checks the form. `redrive` decodes the raw bytes of the chosen dead
letters with the current stream file. As a dry run, the default, it counts how many would be
restored and why the others still fail. Otherwise it stages those that decode, checks them with the
stream's suite, and publishes them in a snapshot that lists each record. Offsets do not change.

**When.** Whenever you trigger it, first as a dry run: after the stream file was fixed, or a release
that decodes the records was installed.

**Inputs.** The stream, and which of its dead letters: by reason, by the time of quarantine, by
offsets, by schema id. Empty fields choose all. `frazil dead-letters` lists the open ones.

**What a retry does.** Nothing twice: a restored dead letter is not open any more. The next run
finishes a killed one. After three commit conflicts with other writers the run fails; trigger it
again.

**How to stop.** Mark the task as failed: its Spark job ends, and staged rows stay invisible. To
undo a published run, roll the table back.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param

from frazil.ledger.keys import DEAD_LETTER_REASONS
from frazil.recovery.messages import DeadLetterChoice
from frazil_airflow.manual_dag import manual_dag, require_as_asked
from frazil_airflow.params import Params, instant_param, offsets_param, read_form
from frazil_airflow.tasks import frazil_task

if TYPE_CHECKING:
    from frazil.recovery.messages import RedriveReport

SINCE = "Only dead letters quarantined at this time or later."
UNTIL = "Only dead letters quarantined before this time."


@frazil_task
def check_parameters(params: Params, run_id: str) -> DeadLetterChoice:
    """Check the form again: stream, fields and ranges must exist."""
    from frazil.workspace import open_workspace

    choice = read_form(DeadLetterChoice, params)
    open_workspace(choice.stream, run_id)
    return choice


@frazil_task
def redrive(planned: str, params: Params, run_id: str) -> "RedriveReport":
    """Decode the dead letters again; publish those that fit unless this is a dry run."""
    from frazil.recovery.redrive import redrive_dead_letters
    from frazil.workspace import open_workspace

    choice = read_form(DeadLetterChoice, params)
    work = open_workspace(choice.stream, run_id)
    chosen = require_as_asked(DeadLetterChoice.parse(planned), choice, work)
    return redrive_dead_letters(work, chosen)


@manual_dag(
    "replay_dead_letters",
    "Restore dead letters to their table",
    {
        "reasons": Param(
            default=None,
            type=["null", "array"],
            items={"type": "string", "enum": list(DEAD_LETTER_REASONS)},
            examples=list(DEAD_LETTER_REASONS),
            title="Reasons",
            description="Only dead letters with one of these reasons.",
        ),
        "since": instant_param("Quarantined since", SINCE),
        "until": instant_param("Quarantined before", UNTIL),
        "offsets": offsets_param("Only dead letters of these ranges; empty for all."),
        "schema_ids": Param(
            default=None,
            type=["null", "array"],
            items={"type": "integer", "minimum": 0},
            title="Schema ids",
            description="Only dead letters whose value has one of these schema ids: `[7, 8]`.",
        ),
    },
    dagrun_timeout=timedelta(hours=2),
)
def replay_dead_letters() -> None:
    """Check the form, then restore dead letters."""
    redrive(check_parameters())
