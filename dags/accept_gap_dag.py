"""### Accept gap: continue after records that Kafka deleted before they were read.

**What.** `accept` compares the recovery point with the offsets that Kafka still has. As a dry run,
the default, it lists the lost offsets and the offset at which reading would continue. Otherwise it
records both, with name and reason, in one snapshot without rows; the next run of `ingest__<stream>`
continues there. Only partitions with a gap change. The same works for a topic that was created
again.

**When.** After `plan` failed with a gap or another topic id. The stream stays stopped until then.

**Inputs.** The stream. Stop merges is needed if offsets start over and the stream has a state
table, which can no longer be merged after such a gap; the dry run says what to do instead. With Dry
run off also Reason; the table keeps it, with your name.

**What a retry does.** Nothing twice: the same person and reason are one decision. It fails if Kafka
still has every record.

**How to stop.** Mark the task as failed. To undo a recorded gap, roll the table back to the
snapshot before it; deleted records stay lost.
"""

from datetime import timedelta

from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.outcomes import describe_decision
from frazil_airflow.params import GapForm, Params, flag_param, read_form
from frazil_airflow.tasks import frazil_task

STOP = "If offsets start over: record the gap although the state table can no longer be merged."


@frazil_task
def accept(params: Params, run_id: str) -> str:
    """Check the form; list the lost offsets, or record that they are accepted."""
    from frazil.recovery.decisions import accept_gap as decide
    from frazil.workspace import open_workspace

    form = read_form(GapForm, params)
    work = open_workspace(form.stream, run_id)
    decision = decide(work, form.author, stop_merges=form.stop_merges)
    return describe_decision(decision, dry_run=form.dry_run)


@manual_dag(
    "accept_gap",
    "Continue after records that Kafka deleted",
    {"stop_merges": flag_param("Stop merges", STOP)},
    reason="Why: `paused over the holidays`.",
    dagrun_timeout=timedelta(hours=1),
)
def accept_gap() -> None:
    """Run the one task."""
    accept()
