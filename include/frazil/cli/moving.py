"""`move-cluster`: go on with a topic's copy on another Kafka cluster."""

from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.decisions import NOTHING_WRITTEN, DryRun, MaybeBy, MaybeWhy
from frazil.cli.output import (
    Json,
    StreamName,
    cli_run_id,
    console,
    print_json,
    print_table,
    progress_console,
)

if TYPE_CHECKING:
    from frazil.move_messages import MovePlan


def move_cluster(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    old_connection: Annotated[
        str | None,
        typer.Option(help="Connection of the old cluster, where it still answers: compare bytes."),
    ] = None,
    next_offset: Annotated[
        list[str] | None,
        typer.Option("--next", help="TOPIC:PARTITION:OFFSET on the new cluster; may be repeated."),
    ] = None,
    by: MaybeBy = "",
    reason: MaybeWhy = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Go on with a topic's copy on the cluster that the connection leads to now.

    Example: frazil move-cluster flights --by jane@example.org --reason "mirror promoted"
    --no-dry-run
    """
    from frazil.move_messages import MoveRequest
    from frazil.moving import move_cluster as do_move
    from frazil.moving import plan_move
    from frazil.workspace import open_workspace

    request = MoveRequest(
        stream=stream,
        old_connection=old_connection,
        next=tuple(next_offset or ()),
        by=by,
        reason=reason,
        dry_run=dry_run,
    )
    work = open_workspace(stream, cli_run_id())
    planned = plan_move(work, request)
    if dry_run:
        _show_plan(planned, as_json=as_json)
        return
    progress_console.print(planned.text, markup=False)
    done = do_move(work, planned)
    if as_json:
        print_json(done)
    else:
        console.print(f"{stream}: moved: {done.text}", markup=False)


def _show_plan(planned: "MovePlan", *, as_json: bool) -> None:
    if as_json:
        print_json(planned)
        return
    rows = [
        (f"{each.topic}-{each.partition}", each.old_next, each.new_next, each.evidence)
        for each in planned.partitions
    ]
    title = f"{planned.stream}: cluster {planned.old_cluster} → {planned.new_cluster}"
    print_table(title, ("partition", "old next", "new next", "evidence"), rows)
    console.print(NOTHING_WRITTEN)
