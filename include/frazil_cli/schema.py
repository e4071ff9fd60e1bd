"""Schema changes that wait for a person: `review-schema`."""

from typing import Annotated

import typer

from frazil.errors import ConfigurationError
from frazil_cli.output import Json, StreamName, cli_run_id, console, print_json


def review_schema(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    accept: Annotated[bool, typer.Option("--accept", help="Let the table follow.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Let the stream rest.")] = False,
    quarantine: Annotated[
        bool,
        typer.Option(
            "--quarantine", help="Go on; records whose schema asks for it become dead letters."
        ),
    ] = False,
    by: Annotated[str, typer.Option("--by", help="Who decides; kept with the table.")] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why; kept with the table.")] = "",
    review: Annotated[
        str | None, typer.Option("--review", help="Id of what was seen; another one is refused.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what the stream file or a newer schema asks of the table; answer it.

    Example: frazil review-schema flights --accept --by jane@example.org --reason "new feed"
    """
    from frazil.ledger.authors import Author
    from frazil.schemas.evolution import accept_schema, quarantine_schema, stop_schema
    from frazil.schemas.review import show_schema_review
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    answers = {accept_schema: accept, stop_schema: stop, quarantine_schema: quarantine}
    chosen = [decide for decide, is_chosen in answers.items() if is_chosen]
    if len(chosen) > 1:
        raise ConfigurationError(
            "--accept, --stop and --quarantine exclude each other; nothing was decided",
            "give one of them",
        )
    if not chosen:
        shown = show_schema_review(work)
        text, facts = shown.text, dict(shown.facts)
    else:
        decision = chosen[0](work, Author(by, reason), review)
        text, facts = f"{decision.kind}: {decision.text}", {"decision": decision.kind}
    if as_json:
        print_json({"stream": stream, "text": text, **facts})
    else:
        console.print(f"{stream}: {text}", markup=False)
