"""`backfill`: what lies below a stream's beginning, in windows, shown or done."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.output import (
    Json,
    StreamName,
    cli_run_id,
    console,
    print_json,
    progress_console,
    report_progress,
)
from frazil.cli.replay import Offsets, Since, Until

if TYPE_CHECKING:
    from frazil.backfill_messages import BackfillPlan
    from frazil.workspace import Workspace

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
    from frazil.backfill_messages import BackfillRequest
    from frazil.backfilling import plan_backfill
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
    from frazil.backfilling import fill_window

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
