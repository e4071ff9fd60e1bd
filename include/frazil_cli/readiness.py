"""`readiness`: is a stream ready for production?"""

from typing import Annotated

import typer

from frazil_cli.output import (
    Json,
    ask_streams,
    cli_run_id,
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
    from frazil.observability.readiness import check_readiness

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


def drill(
    name: Annotated[str | None, typer.Argument(metavar="[DRILL]")] = None,
    like: Annotated[
        str, typer.Option(help="Stream whose connections the scratch stream uses.")
    ] = "flights",
    keep: Annotated[bool, typer.Option("--keep", help="Leave topic and table to look at.")] = False,
    as_json: Json = False,
) -> None:
    """Run one drill on a scratch stream beside the real ones; without a name, list them.

    Example: frazil drill killed_writer --like flights
    """
    from frazil.workspace import open_workspace
    from frazil_stack.drills.catalogue import DRILLS, run_drill

    if name is None:
        listed = {known: each.injected for known, each in DRILLS.items()}
        if as_json:
            print_json(listed)
        else:
            print_table("Drills", ("drill", "what is injected"), list(listed.items()))
        return
    report = run_drill(open_workspace(like, cli_run_id()), name, keep=keep)
    if as_json:
        print_json(report)
    else:
        console.print(report.text, markup=False)
    if not (report.passed or report.skipped):
        raise typer.Exit(1)
