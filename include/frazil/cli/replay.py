"""`replay`: exact offsets again, shown or done."""

from typing import Annotated

import typer

from frazil.cli.output import (
    Json,
    StreamName,
    cli_run_id,
    console,
    print_json,
    progress_console,
)

Offsets = Annotated[
    list[str] | None,
    typer.Option(help="topic:partition:start-end, the end exclusive; may be repeated."),
]
Since = Annotated[
    str | None, typer.Option(help="Records of this instant or later, as 2026-01-31T08:00Z.")
]
Until = Annotated[str | None, typer.Option(help="Records before this instant.")]


def replay(
    stream: StreamName,
    offsets: Offsets = None,
    since: Since = None,
    until: Until = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Show what would change; no write.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Read offsets again and put what they are today in place of their rows; nothing doubles.

    Example: frazil replay flights --offsets flights:0:100-200 --no-dry-run
    """
    from frazil.replay_messages import ReplayRequest
    from frazil.replaying import plan_replay
    from frazil.replaying import replay as do_replay
    from frazil.workspace import open_workspace

    request = ReplayRequest(
        stream=stream, offsets=tuple(offsets or ()), since=since, until=until, dry_run=dry_run
    )
    work = open_workspace(stream, cli_run_id())
    planned = plan_replay(work, request)
    if dry_run and as_json:
        print_json(planned)
    elif dry_run:
        console.print(planned.text, markup=False)
        console.print("Nothing was written; --no-dry-run does it")
    else:
        progress_console.print(planned.text, markup=False)
        done = do_replay(work, planned)
        if as_json:
            print_json(done)
        else:
            console.print(f"{stream}: {done.text}", markup=False)
