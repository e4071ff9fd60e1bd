"""`adopt`, `compare`, `move-cluster`: tables of other writers, and topics on another cluster."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frazil_cli.output import (
    ADD_AUTHOR,
    By,
    DryRun,
    Json,
    Offsets,
    Reason,
    StreamName,
    cli_run_id,
    console,
    print_json,
    print_result,
    print_table,
    progress_console,
)
from frazil_cli.recovery import show_decision

if TYPE_CHECKING:
    from frazil.migration.messages import Comparison, MovePlan, PartitionReport


Columns = Annotated[
    str | None,
    typer.Option(
        help="Columns with the coordinates: partition=COLUMN,offset=COLUMN and, where they exist, "
        "topic=COLUMN and timestamp=COLUMN."
    ),
]


def adopt(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    columns: Columns = None,
    accept_holes: Annotated[
        bool, typer.Option("--accept-holes", help="Record offsets without a row as lost.")
    ] = False,
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Take over a table that another writer filled; ingest continues after its last offsets.

    Example: frazil adopt flights --by jane@example.org --reason "replaces the Kafka Connect sink"
    --no-dry-run
    """
    from frazil.ledger.authors import Author
    from frazil.migration.adoption import adopt_table
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    author = None if dry_run else Author(by, reason)
    decision = adopt_table(work, author, named_columns=columns, accept_holes=accept_holes)
    show_decision(stream, decision, dry_run=dry_run, as_json=as_json)


def compare(  # noqa: PLR0913, PLR0917 - each argument is an option
    left: Annotated[str, typer.Argument(help="Stream, or NAMESPACE.TABLE.", metavar="LEFT")],
    right: Annotated[
        str,
        typer.Argument(help="Stream, or NAMESPACE.TABLE, to compare with LEFT.", metavar="RIGHT"),
    ],
    left_columns: Columns = None,
    right_columns: Columns = None,
    topic: Annotated[
        str | None, typer.Option(help="Topic of a table that has no topic column.")
    ] = None,
    offsets: Offsets = None,
    connection: Annotated[
        str, typer.Option(help="Catalog connection of a side that is not a stream.")
    ] = "iceberg_default",
    rows_only: Annotated[
        bool, typer.Option("--rows-only", help="Ignore differences of columns and partitioning.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option(help="Also write the report to this HTML file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two tables filled from one topic, record by record; exit 1 unless they are equal.

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
    result = compare_tables(request, cli_run_id())
    if html is not None:
        _write_page(result, html)
    if as_json:
        print_json(result)
    else:
        _show(result)
    raise typer.Exit(0 if result.verdict == "equal" else 1)


def _write_page(result: "Comparison", path: Path) -> None:
    from frazil.errors import ConfigurationError
    from frazil.migration.comparison_page import write_page

    try:
        path.write_text(write_page(result), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write the report to {path}: {error.strerror}",
            "choose a file in an existing folder that you may write to",
        ) from error
    progress_console.print(f"report written to {path}", markup=False)


def _show(result: "Comparison") -> None:
    sides = (result.left, result.right)
    rows = [
        ("table", *(side.table for side in sides)),
        ("written by", *(side.writer for side in sides)),
        ("snapshot", *(side.snapshot_id for side in sides)),
        ("rows", *(side.rows for side in sides)),
        ("newest record", *(side.newest_event_at for side in sides)),
        ("newest commit", *(side.newest_commit_at for side in sides)),
    ]
    print_table(f"Comparison: {result.verdict}", ("", "left", "right"), rows)
    columns = (
        *("partition", "compared", "equal", "missing", "extra"),
        *("duplicates", "changed", "only one side has read"),
    )
    print_table("Records", columns, [_row(report) for report in result.partitions])
    for finding in result.findings:
        console.print(finding, markup=False)
    console.print(result.text, markup=False)


def _row(report: "PartitionReport") -> tuple[object, ...]:
    from frazil.ledger.offsets import OffsetRange, describe_partition, describe_range

    judged = report.judged
    changed = f"{report.changed} ({', '.join(report.changed_columns)})" if report.changed else 0
    return (
        describe_partition(report.topic, report.partition),
        describe_range(report.topic, report.partition, OffsetRange(*judged)) if judged else "none",
        report.matched - report.changed,
        _with_dead_letters(report.missing, report.missing_dead_letters),
        _with_dead_letters(report.extra, report.extra_dead_letters),
        f"{report.doubled_left} / {report.doubled_right}",
        changed,
        f"{report.left_ahead} / {report.right_ahead}",
    )


def _with_dead_letters(count: int, dead_letters: int) -> str:
    return f"{count} (dead letters: {dead_letters})" if dead_letters else str(count)


def move_cluster(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    old_connection: Annotated[
        str | None,
        typer.Option(
            help="Connection of the old cluster, if it answers, to compare the records' bytes."
        ),
    ] = None,
    next_offset: Annotated[
        list[str] | None,
        typer.Option(
            "--next", help="Next offset TOPIC:PARTITION:OFFSET on the new cluster; repeatable."
        ),
    ] = None,
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Continue with the copy of a topic on the cluster that the connection now points to.

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
    print_result(done, f"{stream}: moved: {done.text}", as_json=as_json)


def _show_plan(planned: "MovePlan", *, as_json: bool) -> None:
    if as_json:
        print_json(planned)
        return
    from frazil.ledger.offsets import describe_partition

    rows = [
        (
            describe_partition(each.topic, each.partition),
            each.old_next,
            each.new_next,
            each.evidence,
        )
        for each in planned.partitions
    ]
    title = f"{planned.stream}: cluster {planned.old_cluster} → {planned.new_cluster}"
    print_table(title, ("partition", "old next offset", "new next offset", "evidence"), rows)
    console.print(ADD_AUTHOR)
