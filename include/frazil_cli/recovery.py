"""What a named person decides: `waive`, `accept-gap`, `recover`."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from frazil.errors import ConfigurationError
from frazil_cli.output import Json, StreamName, cli_run_id, console, print_json, progress_console

if TYPE_CHECKING:
    from frazil.ledger.authors import Decision
    from frazil.recovery.messages import Answer, Recovered, RecoveryPlan

NOTHING_WRITTEN = "Nothing was written; --by, --reason and --no-dry-run do it"
MaybeBy = Annotated[str, typer.Option("--by", help="Who decides; needed to write.")]
MaybeWhy = Annotated[str, typer.Option("--reason", help="Why; needed to write.")]
Reingest = Annotated[bool, typer.Option("--reingest", help="Read again what others rolled back.")]
Skip = Annotated[
    bool, typer.Option("--skip", help="Leave out what others rolled back, as a recorded gap.")
]
NewTable = Annotated[
    bool, typer.Option("--new-table", help="Start over in a table that was created again.")
]
AcceptLost = Annotated[
    bool, typer.Option("--accept-gap", help="Give up what Kafka no longer holds.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run/--no-dry-run", help="Show what would be done; write nothing.")
]


def waive(
    stream: StreamName,
    batch: Annotated[str, typer.Option(help="Id of the blocked batch.")],
    by: MaybeBy = "",
    reason: MaybeWhy = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Let a blocked batch pass, exactly as it was planned.

    Example: frazil waive flights --batch 1f2e… --by jane@example.org --reason "known outage"
    --no-dry-run
    """
    from frazil.ledger.authors import Author
    from frazil.recovery.decisions import waive_batch
    from frazil.workspace import open_workspace

    author = None if dry_run else Author(by, reason)
    decision = waive_batch(open_workspace(stream, cli_run_id()), batch, author)
    show_decision(stream, decision, dry_run=dry_run, as_json=as_json)


def accept_gap(
    stream: StreamName,
    by: MaybeBy = "",
    reason: MaybeWhy = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Record that Kafka lost records before they were read, and go on.

    Example: frazil accept-gap flights --by jane@example.org --reason "paused over the holidays"
    --no-dry-run
    """
    from frazil.ledger.authors import Author
    from frazil.recovery.decisions import accept_gap as decide
    from frazil.workspace import open_workspace

    author = None if dry_run else Author(by, reason)
    decision = decide(open_workspace(stream, cli_run_id()), author)
    show_decision(stream, decision, dry_run=dry_run, as_json=as_json)


def recover(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    to_snapshot: Annotated[
        int | None, typer.Option(help="Go back to this snapshot of main's ancestry.")
    ] = None,
    to_time: Annotated[
        str | None, typer.Option(help="Go back to the table of this instant, as 2026-01-31T08:00Z.")
    ] = None,
    to_offset: Annotated[
        str | None, typer.Option(help="Go back to before TOPIC:PARTITION:OFFSET was read.")
    ] = None,
    reingest: Reingest = False,
    skip: Skip = False,
    new_table: NewTable = False,
    accept_lost: AcceptLost = False,
    by: MaybeBy = "",
    reason: MaybeWhy = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Roll rows and offsets back together, or answer a halt.

    Example: frazil recover flights --to-snapshot 4711 --by jane@example.org --reason "bad release"
    --no-dry-run
    """
    from frazil.recovery.messages import RecoverRequest
    from frazil.recovery.rollback import plan_recovery
    from frazil.recovery.rollback import recover as do_recover
    from frazil.workspace import open_workspace

    request = RecoverRequest(
        stream=stream,
        to_snapshot=to_snapshot,
        to_time=to_time,
        to_offset=to_offset,
        answer=_choose_answer(stream, reingest=reingest, skip=skip, new_table=new_table),
        accept_gap=accept_lost,
        by=by,
        reason=reason,
        dry_run=dry_run,
    )
    work = open_workspace(stream, cli_run_id())
    planned = plan_recovery(work, request)
    _show_plan(planned, as_json=as_json)
    if not dry_run:
        _show_recovered(do_recover(work, planned), as_json=as_json)


def _choose_answer(stream: str, **flags: bool) -> "Answer | None":
    """Take the one answer to a halt that was given, if any."""
    given = [name.replace("_", "-") for name, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise ConfigurationError(
            f"recover of stream {stream} needs exactly one way; given: --{' and --'.join(given)}",
            f"`frazil status {stream}` says which one fits",
        )
    return cast("Answer", given[0]) if given else None


def _show_plan(planned: "RecoveryPlan", *, as_json: bool) -> None:
    """Show what is about to happen: as the answer of a dry run, else beside the answer."""
    if not planned.request.dry_run:
        progress_console.print(planned.text, markup=False)
    elif as_json:
        print_json(planned)
    else:
        console.print(f"{planned.text}\n{NOTHING_WRITTEN}", markup=False)


def _show_recovered(done: "Recovered", *, as_json: bool) -> None:
    if as_json:
        print_json({**done.model_dump(mode="json"), "decision": done.kind})
    else:
        console.print(f"{done.stream}: {done.outcome} {done.kind}: {done.text}", markup=False)


def show_decision(
    stream: str, decision: "Decision", *, dry_run: bool = False, as_json: bool = False
) -> None:
    """Show what was decided, or would be."""
    if as_json:
        answer = {"stream": stream, "decision": decision.kind, "text": decision.text}
        print_json({**answer, "dry_run": dry_run, "snapshot_id": decision.snapshot_id})
        return
    console.print(f"{stream}: {decision.kind}: {decision.text}", markup=False)
    if dry_run:
        console.print(NOTHING_WRITTEN)
