"""`replay`: exact offsets again, shown or done."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from frazil_cli.output import (
    Json,
    StreamName,
    cli_run_id,
    console,
    print_json,
    progress_console,
    report_progress,
)

if TYPE_CHECKING:
    from frazil.recovery.messages import BackfillPlan
    from frazil.workspace import Workspace


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
    from frazil.recovery.messages import ReplayRequest
    from frazil.recovery.replay import plan_replay
    from frazil.recovery.replay import replay as do_replay
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


SHOWN_WINDOWS = 10


WindowRecords = Annotated[
    int | None, typer.Option(min=1, help="Records of a window; by default batch.max_records.")
]


MaxRecords = Annotated[
    int | None, typer.Option(min=1, help="Stop after so many; run again to go on.")
]


NewestFirst = Annotated[
    bool, typer.Option("--newest-first/--oldest-first", help="Which end to begin with.")
]


DryRun = Annotated[bool, typer.Option("--dry-run/--no-dry-run", help="Show the windows; no write.")]


def backfill(  # noqa: PLR0913, PLR0917 - one for each option
    stream: StreamName,
    offsets: Offsets = None,
    since: Since = None,
    until: Until = None,
    window_records: WindowRecords = None,
    max_records: MaxRecords = None,
    newest_first: NewestFirst = False,
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Read what lies below a stream's beginning, in windows; any run goes on where one ended.

    Example: frazil backfill flights --since 2026-01-01T00:00Z --no-dry-run
    """
    from frazil.recovery.backfill import plan_backfill
    from frazil.recovery.messages import BackfillRequest
    from frazil.workspace import open_workspace

    request = BackfillRequest(
        stream=stream,
        offsets=tuple(offsets or ()),
        since=since,
        until=until,
        window_records=window_records,
        max_records=max_records,
        order="newest" if newest_first else "oldest",
        dry_run=dry_run,
    )
    work = open_workspace(stream, cli_run_id())
    planned = plan_backfill(work, request)
    if not dry_run:
        _fill(work, planned, as_json=as_json)
    elif as_json:
        print_json(planned)
    else:
        console.print(f"{stream}: {planned.text}", markup=False)
        for window in planned.windows[:SHOWN_WINDOWS]:
            console.print(window.text, markup=False)
        if len(planned.windows) > SHOWN_WINDOWS:
            console.print(f"and {len(planned.windows) - SHOWN_WINDOWS} more")
        console.print("Nothing was written; --no-dry-run does it")


def _fill(work: "Workspace", planned: "BackfillPlan", *, as_json: bool) -> None:
    """Fill one window after the other, with a line for each."""
    from frazil.recovery.backfill import fill_window

    progress_console.print(f"{planned.stream}: {planned.text}", markup=False)
    started, filled = time.monotonic(), []
    for window in planned.windows:
        done = fill_window(work, window)
        filled.append(done)
        report_progress(done.text, started)
    if as_json:
        print_json({"plan": planned, "filled": filled})
        return
    rows = sum(each.rows_written for each in filled)
    told = f"{rows} rows in {len(filled)} windows; {planned.left} offsets left"
    console.print(f"{planned.stream}: {told}", markup=False)
