"""`erase`: rows and dead letters of a key, shown or taken out."""

from typing import Annotated

import typer

from frazil.cli.decisions import NOTHING_WRITTEN, DryRun, MaybeBy, MaybeWhy
from frazil.cli.output import (
    Json,
    StreamName,
    cli_run_id,
    console,
    print_json,
    progress_console,
)


def erase(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    key: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=VALUE; `_kafka.key=VALUE` is the record's own; repeatable."),
    ] = None,
    keys_file: Annotated[
        str | None,
        typer.Option(help="File of them, one per line: a shell remembers what it was told."),
    ] = None,
    by: MaybeBy = "",
    reason: MaybeWhy = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Take out every row and dead letter that has one of the keys; offsets do not move.

    Example: frazil erase orders --key customer_id=4711 --by jane@example.org --reason "request 12"
    --no-dry-run
    """
    from frazil.erasing import erase as do_erase
    from frazil.erasing import plan_erasure
    from frazil.erasure_messages import ErasureRequest
    from frazil.workspace import open_workspace

    request = ErasureRequest(
        stream=stream,
        keys=tuple(key or ()),
        keys_file=keys_file,
        by=by,
        reason=reason,
        dry_run=dry_run,
    )
    work = open_workspace(stream, cli_run_id())
    planned = plan_erasure(work, request)
    if dry_run and as_json:
        print_json(planned)
    elif dry_run:
        console.print(f"{planned.text}\n{NOTHING_WRITTEN}", markup=False)
    else:
        progress_console.print(planned.text, markup=False)
        done = do_erase(work, planned, request)
        if as_json:
            print_json(done)
        else:
            console.print(f"{stream}: {done.outcome}: {done.text}", markup=False)
