"""### Adopt: take over a table that another writer filled.

**What.** `adopt` reads the Kafka offsets of the table's rows and compares them with the topic. As a
dry run, the default, it shows the offsets at which reading would continue. Otherwise one commit
adds the column `_kafka` and writes a snapshot without rows that records these offsets, name and
reason; rows do not change. It fails on duplicate rows, on missing offsets, on rows of another
topic, and while the other writer still commits.

**When.** Once, after the other writer was stopped. Run `compare` first to see that both tables hold
the same rows.

**Inputs.** The stream, whose file names the table; Columns, if the rows' Kafka coordinates are not
recognised; Accept holes, to continue although some offsets have no row. With Dry run off also
Reason; the table keeps it, with your name.

**What a retry does.** Nothing twice: the same person and reason are one decision. It fails if
Frazil already writes the table.

**How to stop.** Mark the task as failed; nothing is written before its commit. docs/migrate.md
describes how to undo an adoption.
"""

from frazil_airflow.manual_dag import manual_dag
from frazil_airflow.outcomes import describe_decision
from frazil_airflow.params import AdoptionForm, Params, flag_param, read_form, text_param
from frazil_airflow.tasks import frazil_task

COLUMNS = "Needed only if they are not recognised: `partition=p,offset=o`."
HOLES = "Accept offsets without a row between the table's rows; the snapshot records their number."


@frazil_task
def adopt(params: Params, run_id: str) -> str:
    """Check the form; preview the adoption, or adopt the table."""
    from frazil.migration.adoption import adopt_table
    from frazil.workspace import open_workspace

    form = read_form(AdoptionForm, params)
    decision = adopt_table(
        open_workspace(form.stream, run_id),
        form.author,
        named_columns=form.columns,
        accept_holes=form.accept_holes,
    )
    return describe_decision(decision, dry_run=form.dry_run)


@manual_dag(
    "adopt",
    "Take over a table that another writer filled",
    {
        "columns": text_param("Columns", COLUMNS),
        "accept_holes": flag_param("Accept holes", HOLES),
    },
    reason="Why: `replaces the Kafka Connect sink`.",
)
def adopt_stream() -> None:
    """Run the one task."""
    adopt()
