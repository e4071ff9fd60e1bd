"""`drill`: break a scratch stream on purpose, and see it mended."""

from typing import Annotated

import typer

from frazil.cli.output import Json, cli_run_id, console, print_json, print_table


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
    from frazil.drills import DRILLS, run_drill
    from frazil.workspace import open_workspace

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
