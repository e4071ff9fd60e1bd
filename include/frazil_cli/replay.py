"""`replay` and `backfill`: read offset ranges again, or offsets below the first one."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.messages import count_noun
from frazil_cli.output import (
    ADD_NO_DRY_RUN,
    DryRun,
    Json,
    Offsets,
    StreamName,
    cli_run_id,
    console,
    print_json,
    print_result,
    progress_console,
    report_progress,
)

if TYPE_CHECKING:
    from frazil.recovery.messages import BackfillPlan
    from frazil.workspace import Workspace

Since = Annotated[
    str | None, typer.Option(help="Records of this instant or later, such as 2026-01-31T08:00Z.")
]
Until = Annotated[str | None, typer.Option(help="Records before this instant.")]
WindowRecords = Annotated[
    int | None, typer.Option(min=1, help="Records per window; default: batch.max_records.")
]
MaxRecords = Annotated[
    int | None, typer.Option(min=1, help="Stop after this many records; run again to continue.")
]
NewestFirst = Annotated[
    bool, typer.Option("--newest-first/--oldest-first", help="Order of the windows.")
]

SHOWN_WINDOWS = 10


def replay(
    stream: StreamName,
    offsets: Offsets = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Read offset ranges again and replace their rows in one commit; no duplicates.

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
    if dry_run:
        print_result(planned, f"{planned.text}\n{ADD_NO_DRY_RUN}", as_json=as_json)
    else:
        progress_console.print(planned.text, markup=False)
        done = do_replay(work, planned)
        print_result(done, f"{stream}: {done.text}", as_json=as_json)


def backfill(  # noqa: PLR0913, PLR0917 - each argument is an option
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
    """Read records before the first offset of a stream, in windows; resumes after an interruption.

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
        return
    lines = [f"{stream}: {planned.text}", *(w.text for w in planned.windows[:SHOWN_WINDOWS])]
    if len(planned.windows) > SHOWN_WINDOWS:
        lines.append(f"… and {len(planned.windows) - SHOWN_WINDOWS} more")
    print_result(planned, "\n".join([*lines, ADD_NO_DRY_RUN]), as_json=as_json)


def _fill(work: "Workspace", planned: "BackfillPlan", *, as_json: bool) -> None:
    """Fill the windows in order; print a progress line after each."""
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
    done_text = f"{count_noun(rows, 'row')} in {count_noun(len(filled), 'window')}"
    text = f"{done_text}; {count_noun(planned.left, 'offset')} left"
    console.print(f"{planned.stream}: {text}", markup=False)
