"""What a named person decides: `waive`, `accept-gap`, `recover`."""

from typing import Annotated

import typer

from frazil.cli.output import Json, StreamName, cli_run_id, console, print_json
from frazil.errors import ConfigurationError

By = Annotated[str, typer.Option("--by", help="Who decides; kept in the table's history.")]
Why = Annotated[str, typer.Option("--reason", help="Why; kept in the table's history.")]


def waive(
    stream: StreamName,
    batch: Annotated[str, typer.Option(help="Id of the blocked batch.")],
    by: By,
    reason: Why,
    as_json: Json = False,
) -> None:
    """Let a blocked batch pass, exactly as it was planned.

    Example: frazil waive flights --batch 1f2e… --by jane@example.org --reason "known outage"
    """
    from frazil.authors import Author
    from frazil.decisions import waive_batch
    from frazil.workspace import open_workspace

    decision = waive_batch(open_workspace(stream, cli_run_id()), batch, Author(by, reason))
    _show(stream, decision.kind, decision.text, as_json=as_json)


def accept_gap(stream: StreamName, by: By, reason: Why, as_json: Json = False) -> None:
    """Record that Kafka lost records before they were read, and go on.

    Example: frazil accept-gap flights --by jane@example.org --reason "paused over the holidays"
    """
    from frazil.authors import Author
    from frazil.decisions import accept_gap as decide
    from frazil.workspace import open_workspace

    decision = decide(open_workspace(stream, cli_run_id()), Author(by, reason))
    _show(stream, decision.kind, decision.text, as_json=as_json)


def recover(
    stream: StreamName,
    by: By,
    reason: Why,
    reingest: Annotated[
        bool, typer.Option("--reingest", help="Read again what others rolled back.")
    ] = False,
    new_table: Annotated[
        bool, typer.Option("--new-table", help="Start over in a table that was created again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Answer a halt: a rollback by others, or a table that was dropped and created.

    Example: frazil recover flights --reingest --by jane@example.org --reason "restore of Tuesday"
    """
    from frazil import decisions
    from frazil.authors import Author
    from frazil.workspace import open_workspace

    if reingest == new_table:
        raise ConfigurationError(
            "recover needs exactly one of --reingest and --new-table",
            f"`frazil status {stream}` says which one fits",
        )
    decide = decisions.reingest if reingest else decisions.start_over
    decision = decide(open_workspace(stream, cli_run_id()), Author(by, reason))
    _show(stream, decision.kind, decision.text, as_json=as_json)


def _show(stream: str, kind: str, text: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"stream": stream, "decision": kind, "text": text})
    else:
        console.print(f"{stream}: {kind}: {text}", markup=False)
