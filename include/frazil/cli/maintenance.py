"""`maintain` and `expire-rows`: what keeps a table small, shown or done."""

from typing import Annotated, Literal

import typer

from frazil.cli.output import Json, StreamName, cli_run_id, console, print_json

Step = Literal["compact", "expire_snapshots", "remove_orphans", "expire_rows"]
DryRun = Annotated[
    bool, typer.Option("--dry-run/--no-dry-run", help="Show what would be done; write nothing.")
]


def maintain(
    stream: StreamName,
    dry_run: DryRun = True,
    only: Annotated[Step | None, typer.Option(help="Do this step alone.")] = None,
    rewrite_all: Annotated[
        bool, typer.Option("--rewrite-all", help="Compact every file, by the present spec.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compact files, expire snapshots, remove orphan files and rows that are too old.

    Example: frazil maintain flights --no-dry-run
    """
    from frazil.maintenance import (
        compact_table,
        expire_snapshots,
        remove_orphans,
        summarize_table,
    )
    from frazil.row_expiry import expire_rows as expire
    from frazil.table_reports import CompactReport, ExpireReport, OrphanReport, RowExpiryReport
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    reports: dict[str, CompactReport | ExpireReport | OrphanReport | RowExpiryReport] = {}
    if only in {None, "compact"}:
        reports["compact"] = compact_table(work, dry_run=dry_run, rewrite_all=rewrite_all)
    if only in {None, "expire_snapshots"}:
        reports["expire_snapshots"] = expire_snapshots(work, dry_run=dry_run)
    if only in {None, "remove_orphans"}:
        reports["remove_orphans"] = remove_orphans(work, dry_run=dry_run)
    if only in {None, "expire_rows"}:
        reports["expire_rows"] = expire(work, dry_run=dry_run)
    summary = summarize_table(work)
    if as_json:
        print_json({"table": summary, **reports})
        return
    for name, report in reports.items():
        console.print(f"[bold]{name}[/bold]")
        console.print(report.text, markup=False)
    console.print(f"[bold]now[/bold] {summary.text}")
    if dry_run:
        console.print(f"Nothing was written; `frazil maintain {stream} --no-dry-run` does it")


def expire_rows(stream: StreamName, dry_run: DryRun = True, as_json: Json = False) -> None:
    """Take out rows that are older than `maintenance.expire_rows` says; offsets do not move.

    Example: frazil expire-rows flights --no-dry-run
    """
    maintain(stream, dry_run=dry_run, only="expire_rows", as_json=as_json)
