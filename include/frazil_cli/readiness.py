"""`readiness` and `drill`: is a stream ready for production?"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from frazil_cli.output import (
    LONG_READ_SECONDS,
    AnyStream,
    Json,
    cli_run_id,
    console,
    print_all,
    print_json,
    print_result,
    print_table,
    read_streams,
)

if TYPE_CHECKING:
    from frazil.observability.readiness import Scorecard


def readiness(
    stream: AnyStream = None,
    outage_hours: Annotated[
        int, typer.Option(min=1, help="Longest outage that retention must cover, in hours.")
    ] = 72,
    as_json: Json = False,
) -> None:
    """Check whether each stream is ready for production; exit 1 unless all are ready.

    Example: frazil readiness flights
    """
    from frazil.observability.readiness import check_readiness

    cards, errors = read_streams(
        stream, lambda work: check_readiness(work, outage_hours), LONG_READ_SECONDS
    )
    print_all(cards, errors, _print_cards, as_json=as_json)
    if not all(card.ready for card in cards):
        raise typer.Exit(1)


def _print_cards(cards: "Sequence[Scorecard]") -> None:
    for card in cards:
        rows = [(line.name, line.mark, line.evidence) for line in card.lines]
        print_table(f"Readiness of {card.stream}", ("requirement", "result", "evidence"), rows)
        console.print(card.text, markup=False)


def drill(
    name: Annotated[str | None, typer.Argument(help="Name of the drill.", metavar="DRILL")] = None,
    like: Annotated[
        str | None,
        typer.Option(help="Stream whose connections the scratch stream uses; default: flights."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the topic and the table afterwards.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run one drill on a scratch stream, next to the real ones; without a name, list the drills.

    Example: frazil drill killed_writer --like flights
    """
    from frazil.errors import UnknownStreamError
    from frazil.workspace import open_workspace
    from frazil_stack.drills.catalogue import DRILLS, run_drill

    if name is None:
        listed = {known: each.injected for known, each in DRILLS.items()}
        if as_json:
            print_json(listed)
        else:
            print_table("Drills", ("drill", "injected failure"), list(listed.items()))
        return
    try:
        work = open_workspace(like or "flights", cli_run_id())
    except UnknownStreamError as error:
        if like is not None:
            raise
        next_step = f"name one of your streams: `frazil drill {name} --like STREAM`"
        raise UnknownStreamError(error.facts, next_step) from error
    report = run_drill(work, name, keep=keep)
    print_result(report, report.text, as_json=as_json)
    if not (report.passed or report.skipped):
        raise typer.Exit(1)
