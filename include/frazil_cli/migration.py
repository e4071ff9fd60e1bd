"""Taking over another writer's table: `frazil adopt`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frazil_cli.output import (
    Json,
    StreamName,
    cli_run_id,
    console,
    print_json,
    print_table,
    progress_console,
)
from frazil_cli.recovery import NOTHING_WRITTEN, DryRun, MaybeBy, MaybeWhy, show_decision

if TYPE_CHECKING:
    from frazil.migration.messages import Comparison, MovePlan, PartitionReport


def adopt(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    columns: Annotated[
        str | None,
        typer.Option(help="Where the rows' coordinates are: partition=COLUMN,offset=COLUMN,…"),
    ] = None,
    accept_holes: Annotated[
        bool, typer.Option("--accept-holes", help="Give up offsets that have no row.")
    ] = False,
    by: MaybeBy = "",
    reason: MaybeWhy = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Take over a table that another writer filled, and read on where its rows end.

    Example: frazil adopt flights --by jane@example.org --reason "away from the connector"
    --no-dry-run
    """
    from frazil.ledger.authors import Author
    from frazil.migration.adoption import adopt_table
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    author = None if dry_run else Author(by, reason)
    decision = adopt_table(work, author, named_columns=columns, accept_holes=accept_holes)
    show_decision(stream, decision, dry_run=dry_run, as_json=as_json)


COLUMNS_HELP = "Where its coordinates are: topic=COLUMN,partition=COLUMN,offset=COLUMN."


def compare(  # noqa: PLR0913, PLR0917 - each argument is an option
    left: Annotated[str, typer.Argument(help="A stream, or a table with its namespace.")],
    right: Annotated[str, typer.Argument(help="What it is compared with, likewise.")],
    left_columns: Annotated[str | None, typer.Option(help=COLUMNS_HELP)] = None,
    right_columns: Annotated[str | None, typer.Option(help=COLUMNS_HELP)] = None,
    topic: Annotated[
        str | None, typer.Option(help="Topic of a table that has no column for it.")
    ] = None,
    offsets: Annotated[
        list[str] | None,
        typer.Option(help="Only these, topic:partition:start-end, the end exclusive; repeatable."),
    ] = None,
    connection: Annotated[
        str, typer.Option(help="Catalog of a side that is no stream.")
    ] = "iceberg_default",
    rows_only: Annotated[
        bool, typer.Option("--rows-only", help="Only show other columns and partitioning.")
    ] = False,
    html: Annotated[Path | None, typer.Option(help="Write the report to this file too.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two tables that one topic fills, record by record; exit 1 where they differ.

    Example: frazil compare flights legacy.flights --html comparison.html
    """
    from frazil.migration.comparison import compare_tables
    from frazil.migration.messages import CompareRequest

    request = CompareRequest(
        left=left,
        right=right,
        left_columns=left_columns,
        right_columns=right_columns,
        topic=topic,
        offsets=tuple(offsets or ()),
        connection=connection,
        rows_only=rows_only,
    )
    answer = compare_tables(request, cli_run_id())
    if html is not None:
        _write_page(answer, html)
    if as_json:
        print_json(answer)
    else:
        _show(answer)
    raise typer.Exit(0 if answer.verdict == "equal" else 1)


def _write_page(answer: "Comparison", path: Path) -> None:
    from frazil.errors import ConfigurationError
    from frazil.migration.comparison_page import write_page

    try:
        path.write_text(write_page(answer), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"the report cannot be written to {path}: {error.strerror}",
            "name a file in a folder that exists and that you may write to",
        ) from error
    progress_console.print(f"report written to {path}", markup=False)


def _show(answer: "Comparison") -> None:
    sides = (answer.left, answer.right)
    rows = [
        ("table", *(side.table for side in sides)),
        ("coordinates of", *(side.writer for side in sides)),
        ("snapshot", *(side.snapshot_id for side in sides)),
        ("rows", *(side.rows for side in sides)),
        ("newest record", *(side.newest_event_at for side in sides)),
        ("newest commit", *(side.newest_commit_at for side in sides)),
    ]
    print_table(f"Comparison: {answer.verdict}", ("", "left", "right"), rows)
    columns = ("partition", "judged", "same", "missing", "extra", "doubled", "changed", "ahead")
    print_table("Records", columns, [_row(report) for report in answer.partitions])
    for finding in answer.findings:
        console.print(finding, markup=False)
    console.print(answer.text, markup=False)


def _row(report: "PartitionReport") -> tuple[object, ...]:
    judged = report.judged
    changed = f"{report.changed} ({', '.join(report.changed_columns)})" if report.changed else 0
    return (
        f"{report.topic}-{report.partition}",
        f"[{judged[0]}, {judged[1]})" if judged else "nothing in common",
        report.matched - report.changed,
        _with_letters(report.missing, report.missing_dead_letters),
        _with_letters(report.extra, report.extra_dead_letters),
        f"{report.doubled_left} / {report.doubled_right}",
        changed,
        f"{report.left_ahead} / {report.right_ahead}",
    )


def _with_letters(count: int, letters: int) -> str:
    return f"{count} ({letters} dead letters)" if letters else str(count)


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
    from frazil.migration.cluster_move import move_cluster as do_move
    from frazil.migration.cluster_move import plan_move
    from frazil.migration.messages import MoveRequest
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
