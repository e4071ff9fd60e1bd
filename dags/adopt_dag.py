"""### Adopt: take over a table that another writer filled.

**What.** `adopt` reads the offsets of the rows that are there and asks Kafka about what they leave
open. As a dry run, which is the default, it says where reading would go on. Else one commit writes
an empty snapshot with these offsets, name and reason, and adds the column `_kafka`; no row is
touched. Doubled rows, holes, another log and a writer that still commits are refused.

**When.** Once, after the other writer was stopped; `compare` first shows that both tables hold the
same.

**Inputs.** The stream, whose file names the table; `columns`, where the rows' coordinates are not
recognised; `accept_holes`, to give up offsets that have no row. With `dry_run` off also who you are
and why; both stay in the table.

**What a retry does.** Nothing twice: the same words are one decision. A table that is Frazil's
already is refused.

**How to stop.** Mark the task as failed; until its commit nothing is written. docs/migrate.md has
the way back.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

from airflow.sdk import Param, dag

from frazil_airflow.outcomes import tell_decision
from frazil_airflow.params import (
    AdoptionForm,
    ask_dry_run,
    ask_person,
    ask_stream,
    ask_text,
    read_form,
)
from frazil_airflow.tasks import frazil_task, task_defaults

if TYPE_CHECKING:
    from collections.abc import Mapping


@frazil_task
def adopt(params: "Mapping[str, object]", run_id: str) -> str:
    """Check the form, then say what would be taken over, or do it; a repetition finds it there."""
    from frazil.migration.adoption import adopt_table
    from frazil.workspace import open_workspace

    form = read_form(AdoptionForm, params)
    decision = adopt_table(
        open_workspace(form.stream, run_id),
        form.author,
        named_columns=form.columns,
        accept_holes=form.accept_holes,
    )
    return tell_decision(decision, dry_run=form.dry_run)


@dag(
    dag_id="adopt",
    description="Take over a table that another writer filled; a dry run by default",
    doc_md=__doc__,
    schedule=None,
    catchup=False,
    max_active_runs=1,
    dagrun_timeout=timedelta(hours=6),
    default_args=task_defaults("frazil"),
    tags=["frazil", "manual"],
    params={
        "stream": ask_stream(),
        "dry_run": ask_dry_run("be taken over"),
        "columns": ask_text(
            "Columns", "Only where they are not recognised: `partition=p,offset=o`."
        ),
        "accept_holes": Param(
            default=False,
            type="boolean",
            title="Give up holes",
            description="Go on although offsets between the rows have none; the snapshot says so.",
        ),
        **ask_person("away from the connector"),
    },
)
def adopt_stream() -> None:
    """Look, or take over."""
    adopt()


adopt_stream()
