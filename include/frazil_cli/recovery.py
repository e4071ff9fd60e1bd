"""`waive`, `accept-gap`, `recover`: decisions that are recorded with a name and a reason."""

from typing import TYPE_CHECKING, Annotated, cast

import typer

from frazil.errors import ConfigurationError
from frazil_cli.output import (
    ADD_AUTHOR,
    By,
    DryRun,
    Json,
    Reason,
    StreamName,
    cli_run_id,
    print_result,
    progress_console,
)

if TYPE_CHECKING:
    from frazil.ledger.authors import Decision
    from frazil.recovery.messages import HaltResolution, Recovered, RecoveryPlan

Reingest = Annotated[
    bool,
    typer.Option(
        "--reingest", help="After a rollback by another tool: read the rolled-back records again."
    ),
]
Skip = Annotated[
    bool,
    typer.Option(
        "--skip", help="After a rollback by another tool: record the rolled-back offsets as a gap."
    ),
]
NewTable = Annotated[
    bool,
    typer.Option(
        "--new-table",
        help="After the table was dropped or created again: start over at source.start, in an "
        "empty table.",
    ),
]
StopMerges = Annotated[
    bool,
    typer.Option(
        "--stop-merges",
        help="If offsets start over: record the gap although the state table can no longer be "
        "merged.",
    ),
]
AcceptLost = Annotated[
    bool, typer.Option("--accept-gap", help="Record offsets that Kafka has deleted as a gap.")
]


def waive(
    stream: StreamName,
    batch: Annotated[str, typer.Option(help="Id of the blocked batch.")],
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Publish a blocked batch with the next run, exactly as it was planned.

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
    stop_merges: StopMerges = False,
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Continue after Kafka deleted records that were not read yet; the gap is recorded.

    Example: frazil accept-gap flights --by jane@example.org --reason "paused over the holidays"
    --no-dry-run
    """
    from frazil.ledger.authors import Author
    from frazil.recovery.decisions import accept_gap as decide
    from frazil.workspace import open_workspace

    author = None if dry_run else Author(by, reason)
    decision = decide(open_workspace(stream, cli_run_id()), author, stop_merges=stop_merges)
    show_decision(stream, decision, dry_run=dry_run, as_json=as_json)


def recover(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    to_snapshot: Annotated[
        int | None, typer.Option(help="Roll back to this snapshot, an ancestor of branch main.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(help="Roll back to the table as of this instant, such as 2026-01-31T08:00Z."),
    ] = None,
    to_offset: Annotated[
        str | None, typer.Option(help="Roll back to before TOPIC:PARTITION:OFFSET was read.")
    ] = None,
    reingest: Reingest = False,
    skip: Skip = False,
    new_table: NewTable = False,
    accept_lost: AcceptLost = False,
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Roll back rows and offsets together, or resume a stream that another tool's change halted.

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


def _choose_answer(stream: str, **flags: bool) -> "HaltResolution | None":
    """Return the one resolution that was given, or None.

    Raises:
        ConfigurationError: more than one was given.
    """
    given = [name.replace("_", "-") for name, is_given in flags.items() if is_given]
    if len(given) > 1:
        raise ConfigurationError(
            f"--{' and --'.join(given)} exclude each other; nothing was changed",
            f"`frazil status {stream}` shows which one applies",
        )
    return cast("HaltResolution", given[0]) if given else None


def _show_plan(planned: "RecoveryPlan", *, as_json: bool) -> None:
    """Print the plan: the result of a dry run, else a progress text."""
    if not planned.request.dry_run:
        progress_console.print(planned.text, markup=False)
    else:
        print_result(planned, f"{planned.text}\n{ADD_AUTHOR}", as_json=as_json)


def _show_recovered(done: "Recovered", *, as_json: bool) -> None:
    text = f"{done.stream}: {done.outcome} {done.kind}: {done.text}"
    print_result({**done.model_dump(mode="json"), "decision": done.kind}, text, as_json=as_json)


def show_decision(
    stream: str, decision: "Decision", *, dry_run: bool = False, as_json: bool = False
) -> None:
    """Print a decision, or the preview of one."""
    result = {
        "stream": stream,
        "decision": decision.kind,
        "text": decision.text,
        "dry_run": dry_run,
        "snapshot_id": decision.snapshot_id,
    }
    text = f"{stream}: {decision.kind}: {decision.text}"
    print_result(result, f"{text}\n{ADD_AUTHOR}" if dry_run else text, as_json=as_json)
