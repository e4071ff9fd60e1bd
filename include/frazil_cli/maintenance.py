"""`maintain`, `expire-rows` and `erase`: table maintenance, and deletion of rows."""

from typing import Annotated, Literal

import typer

from frazil_cli.output import (
    ADD_AUTHOR,
    ADD_NO_DRY_RUN,
    By,
    DryRun,
    Json,
    Reason,
    StreamName,
    cli_run_id,
    console,
    print_json,
    print_result,
    progress_console,
)

Step = Literal["compact", "expire_snapshots", "remove_orphans", "expire_rows"]


def maintain(
    stream: StreamName,
    dry_run: DryRun = True,
    only: Annotated[Step | None, typer.Option(help="Run only this step.")] = None,
    rewrite_all: Annotated[
        bool,
        typer.Option(
            "--rewrite-all", help="Compact every file, with the table's current partition spec."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Compact files, expire snapshots, remove orphan files, delete rows older than their retention.

    Example: frazil maintain flights --no-dry-run
    """
    from frazil.maintenance.compaction import compact_table
    from frazil.maintenance.messages import (
        CompactReport,
        ExpireReport,
        OrphanReport,
        RowExpiryReport,
    )
    from frazil.maintenance.orphans import remove_orphans
    from frazil.maintenance.row_expiry import expire_rows as expire
    from frazil.maintenance.snapshot_expiry import expire_snapshots
    from frazil.maintenance.tables import summarize_table
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
    console.print("[bold]table[/bold]")
    console.print(summary.text, markup=False)
    if dry_run:
        console.print(ADD_NO_DRY_RUN)


def expire_rows(stream: StreamName, dry_run: DryRun = True, as_json: Json = False) -> None:
    """Delete rows older than `maintenance.expire_rows` of the stream file; offsets do not change.

    With `mode: upsert`: all data of keys whose rows are too old, and replaced changes that are
    older than `changes.keep_days`.

    Example: frazil expire-rows flights --no-dry-run
    """
    maintain(stream, dry_run=dry_run, only="expire_rows", as_json=as_json)


def erase(  # noqa: PLR0913, PLR0917 - each argument is an option
    stream: StreamName,
    key: Annotated[
        list[str] | None,
        typer.Option(help="COLUMN=VALUE, or `_kafka.key=VALUE` for the record key; repeatable."),
    ] = None,
    keys_file: Annotated[
        str | None,
        typer.Option(
            help="File of keys, one a line, or as CSV with the columns' names in its first line; "
            "keeps them out of the shell history."
        ),
    ] = None,
    by: By = "",
    reason: Reason = "",
    dry_run: DryRun = True,
    as_json: Json = False,
) -> None:
    """Delete every row and dead letter that has one of the keys; offsets do not change.

    Example: frazil erase orders --key customer_id=4711 --by jane@example.org --reason "request 12"
    --no-dry-run
    """
    from frazil.maintenance.erasure import erase as do_erase
    from frazil.maintenance.erasure import plan_erasure
    from frazil.maintenance.messages import ErasureRequest
    from frazil.workspace import open_workspace

    request = ErasureRequest(
        stream=stream,
        keys=tuple(key or ()),
        keys_file=keys_file,
        by=by,
        reason=reason,
        dry_run=dry_run,
    )
    work = open_workspace(stream, cli_run_id())
    planned = plan_erasure(work, request)
    if dry_run:
        print_result(planned, f"{planned.text}\n{ADD_AUTHOR}", as_json=as_json)
    else:
        progress_console.print(planned.text, markup=False)
        done = do_erase(work, planned, request)
        print_result(done, f"{stream}: {done.outcome}: {done.text}", as_json=as_json)
