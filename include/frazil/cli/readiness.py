"""`readiness`: is a stream ready for production?"""

from typing import Annotated

import typer

from frazil.cli.output import (
    Json,
    cli_run_id,
    console,
    describe_error,
    print_error,
    print_json,
    print_table,
)
from frazil.connections import streams_dir
from frazil.errors import FrazilError
from frazil.stream_files import load_readable_streams


def readiness(
    stream: Annotated[str | None, typer.Argument(metavar="[STREAM]")] = None,
    outage_hours: Annotated[
        int, typer.Option(min=1, help="The worst outage that retention has to cover, in hours.")
    ] = 72,
    as_json: Json = False,
) -> None:
    """Judge each stream by what production asks, with evidence, and the fix of each red line.

    Example: frazil readiness flights
    """
    from frazil.readiness import check_readiness
    from frazil.workspace import Workspace, open_workspace

    errors: list[FrazilError] = []
    if stream is not None:
        works = [open_workspace(stream, cli_run_id())]
    else:
        found, broken = load_readable_streams(streams_dir())
        works = [Workspace(each, streams_dir(), cli_run_id()) for each in found]
        errors += broken
    cards = []
    for work in works:
        try:
            cards.append(check_readiness(work, outage_hours))
        except FrazilError as error:  # what cannot be asked of one hides no other
            errors.append(error)
    if as_json:
        print_json([*cards, *(describe_error(error) for error in errors)])
    else:
        for card in cards:
            rows = [(line.name, line.mark, line.evidence) for line in card.lines]
            print_table(f"Readiness of {card.stream}", ("line", "mark", "evidence"), rows)
            console.print(card.text, markup=False)
        for failure in errors:
            print_error(failure)
    if errors or not all(card.ready for card in cards):
        raise typer.Exit(1)
