"""`readiness`: is a stream ready for production?"""

from typing import Annotated

import typer

from frazil.cli.each_stream import ask_streams
from frazil.cli.output import (
    Json,
    console,
    describe_error,
    print_error,
    print_json,
    print_table,
)


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

    cards, errors = ask_streams(stream, lambda work: check_readiness(work, outage_hours))
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
