"""Taking over another writer's table: `frazil adopt`."""

from typing import Annotated

import typer

from frazil.cli.decisions import DryRun, MaybeBy, MaybeWhy, show_decision
from frazil.cli.output import Json, StreamName, cli_run_id


def adopt(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    columns: Annotated[
        str | None,
        typer.Option(help="Where the rows' coordinates are: partition=COLUMN,offset=COLUMN,…"),
    ] = None,
    accept_holes: Annotated[
        bool, typer.Option("--accept-holes", help="Give up offsets that have no row.")
    ] = False,
    by: MaybeBy = "",
    reason: MaybeWhy = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Take over a table that another writer filled, and read on where its rows end.

    Example: frazil adopt flights --by jane@example.org --reason "away from the connector"
    --no-dry-run
    """
    from frazil.adopting import adopt_table
    from frazil.authors import Author
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    author = None if dry_run else Author(by, reason)
    decision = adopt_table(work, author, named_columns=columns, accept_holes=accept_holes)
    show_decision(stream, decision, dry_run=dry_run, as_json=as_json)
