"""`dead-letters` and `replay-dead-letters`: list dead letters, and ingest them again."""

from typing import Annotated

import typer

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
    print_table,
)


def dead_letters(stream: StreamName, as_json: Json = False) -> None:
    """List the dead letters of a stream by reason, without the records' contents.

    Example: frazil dead-letters flights
    """
    from frazil.observability.dead_letter_report import report_dead_letters
    from frazil.workspace import open_workspace

    report = report_dead_letters(open_workspace(stream, cli_run_id()))
    if as_json:
        print_json(report)
        return
    rows = [
        (
            group.reason,
            group.open,
            group.resolved,
            f"{group.first_seen_at:%Y-%m-%d %H:%M:%S}",
            f"{group.last_seen_at:%Y-%m-%d %H:%M:%S}",
            ", ".join(group.samples),
        )
        for group in report.groups
    ]
    columns = ("reason", "open", "resolved", "first seen (UTC)", "last seen (UTC)", "examples")
    print_table(f"Dead letters of {stream}", columns, rows)
    console.print(report.text, markup=False)


def replay_dead_letters(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    reason: Annotated[
        list[str] | None, typer.Option(help="Only dead letters with this reason; repeatable.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only dead letters quarantined at this instant or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only dead letters quarantined before this instant.")
    ] = None,
    offsets: Offsets = None,
    schema_id: Annotated[
        list[int] | None,
        typer.Option(help="Only dead letters with this schema id; repeatable."),
    ] = None,
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Decode dead letters again with the current stream file, and ingest those that are valid.

    Example: frazil replay-dead-letters flights --reason type_mismatch --no-dry-run
    """
    from frazil.recovery.messages import parse_choice
    from frazil.recovery.redrive import redrive_dead_letters
    from frazil.workspace import open_workspace

    choice = parse_choice(
        {
            "stream": stream,
            "reasons": reason or (),
            "since": since,
            "until": until,
            "offsets": offsets or (),
            "schema_ids": schema_id or (),
            "dry_run": dry_run,
        }
    )
    report = redrive_dead_letters(open_workspace(stream, cli_run_id()), choice)
    text = f"{stream}: {report.text}"
    print_result(report, f"{text}\n{ADD_NO_DRY_RUN}" if dry_run else text, as_json=as_json)
