"""Schema changes that wait for a person: `review-schema`."""

from typing import Annotated

import typer

from frazil.cli.output import Json, StreamName, cli_run_id, console, print_json


def review_schema(
    stream: StreamName,
    accept: Annotated[
        bool | None,
        typer.Option("--accept/--stop", help="Let the table follow, or let the stream rest."),
    ] = None,
    by: Annotated[str, typer.Option("--by", help="Who decides; kept with the table.")] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the table.")] = "",
    review: Annotated[
        str | None, typer.Option("--review", help="Id of what was seen; another one is refused.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what the stream file asks of its table; accept it or stop the stream.

    Example: frazil review-schema flights --accept --by jane@example.org --reason "new feed"
    """
    from frazil.authors import Author
    from frazil.evolution import accept_schema, stop_schema
    from frazil.schema_review import show_schema_review
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    if accept is None:
        shown = show_schema_review(work)
        text, facts = shown.text, dict(shown.facts)
    else:
        decide = accept_schema if accept else stop_schema
        decision = decide(work, Author(by, reason), review)
        text, facts = f"{decision.kind}: {decision.text}", {"decision": decision.kind}
    if as_json:
        print_json({"stream": stream, "text": text, **facts})
    else:
        console.print(f"{stream}: {text}", markup=False)
