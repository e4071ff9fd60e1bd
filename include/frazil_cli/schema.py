"""`review-schema`: schema changes that need a decision."""

from typing import Annotated

import typer

from frazil.errors import ConfigurationError
from frazil_cli.output import By, Json, Reason, StreamName, cli_run_id, print_result


def review_schema(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    accept: Annotated[
        bool, typer.Option("--accept", help="Apply the change to the table.")
    ] = False,
    stop: Annotated[
        bool, typer.Option("--stop", help="Keep the table as it is; the stream stays stopped.")
    ] = False,
    quarantine: Annotated[
        bool,
        typer.Option(
            "--quarantine",
            help="Continue without the change; records that need it become dead letters.",
        ),
    ] = False,
    by: By = "",
    reason: Reason = "",
    review: Annotated[
        str | None,
        typer.Option(
            "--review",
            help="Id of the review that you read; refuse any other.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the schema change that waits for a decision, or decide it.

    Example: frazil review-schema flights --accept --by jane@example.org --reason "new feed"
    """
    from frazil.ledger.authors import Author
    from frazil.schemas.evolution import accept_schema, quarantine_schema, stop_schema
    from frazil.schemas.review import show_schema_review
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    decisions = {accept_schema: accept, stop_schema: stop, quarantine_schema: quarantine}
    chosen = [decide for decide, is_chosen in decisions.items() if is_chosen]
    if len(chosen) > 1:
        raise ConfigurationError(
            "--accept, --stop and --quarantine exclude each other; nothing was changed",
            "use one of the three",
        )
    if not chosen:
        shown = show_schema_review(work)
        text, facts = shown.text, dict(shown.facts)
    else:
        decision = chosen[0](work, Author(by, reason), review)
        text, facts = f"{decision.kind}: {decision.text}", {"decision": decision.kind}
    print_result({"stream": stream, "text": text, **facts}, f"{stream}: {text}", as_json=as_json)
