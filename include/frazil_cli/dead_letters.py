"""Dead letters: which there are, and bringing them back."""

from typing import Annotated

import typer

from frazil_cli.output import Json, StreamName, cli_run_id, console, print_json, print_table


def dead_letters(stream: StreamName, as_json: Json = False) -> None:
    """Show a stream's dead letters that count, by reason; never their content.

    Example: frazil dead-letters flights
    """
    from frazil.observability.dead_letter_report import report_dead_letters
    from frazil.workspace import open_workspace

    answer = report_dead_letters(open_workspace(stream, cli_run_id()))
    if as_json:
        print_json(answer)
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
        for group in answer.groups
    ]
    columns = ("reason", "open", "resolved", "first seen (UTC)", "last seen (UTC)", "for example")
    print_table(f"Dead letters of {stream}", columns, rows)
    console.print(answer.text, markup=False)


def replay_dead_letters(  # noqa: PLR0913, PLR0917 - one for each option
    stream: StreamName,
    reason: Annotated[
        list[str] | None, typer.Option(help="Only letters with this reason; may be repeated.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Only letters quarantined at this instant or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Only letters quarantined before this instant.")
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option(help="Only topic:partition:start-end, the end exclusive; may be repeated."),
    ] = None,
    schema_id: Annotated[
        list[int] | None,
        typer.Option(help="Only letters with this schema id; may be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--no-dry-run", help="Show what would come back; no write.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Decode dead letters again by today's stream file, and bring back those that fit.

    Example: frazil replay-dead-letters flights --reason type_mismatch --no-dry-run
    """
    from frazil.recovery.messages import parse_choice
    from frazil.recovery.redrive import redrive_letters
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
    answer = redrive_letters(open_workspace(stream, cli_run_id()), choice)
    if as_json:
        print_json(answer)
        return
    console.print(f"{stream}: {answer.text}", markup=False)
    if dry_run:
        console.print("Nothing was written; the same with --no-dry-run does it")
