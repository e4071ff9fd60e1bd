"""The command that shows and decides pending schema changes: `review-schema`."""

from typing import Annotated

import typer

from frazil.errors import ConfigurationError
from frazil_cli.output import Json, StreamName, cli_run_id, console, print_json


def review_schema(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    accept: Annotated[
        bool, typer.Option("--accept", help="Apply the change to the table.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Reject it; the stream stays stopped.")
    ] = False,
    quarantine: Annotated[
        bool,
        typer.Option(
            "--quarantine",
            help="Continue; records whose schema requires it become dead letters.",
        ),
    ] = False,
    by: Annotated[str, typer.Option("--by", help="Decided by; stored with the table.")] = "",
    reason: Annotated[str, typer.Option("--reason", help="Reason; stored with the table.")] = "",
    review: Annotated[
        str | None,
        typer.Option("--review", help="Decide only if this review is pending."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the schema change that the stream file or a new registered schema needs; decide it.

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
            "use one of them",
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
