"""`cost`: what a stream costs by day, and what another freshness would cost."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frazil_cli.output import (
    Json,
    ask_streams,
    console,
    describe_error,
    print_error,
    print_json,
    print_table,
)
from frazil_cli.timeline import parse_since

if TYPE_CHECKING:
    from frazil.observability.cost_report import CostReport

_COLUMNS = (
    *(
        "day",
        "batches",
        "records",
        "CPU s (of Spark)",
        "upkeep s",
        "written (files)",
        "live (files)",
    ),
    *("requests", "commits"),
)
_MONEY = ("cpu", "storage", "written", "requests", "total")


def cost(
    stream: Annotated[str | None, typer.Argument(metavar="[STREAM]")] = None,
    since: Annotated[
        str, typer.Option(help="`12h`, `30d`, or an ISO 8601 instant with a zone.")
    ] = "7d",
    prices: Annotated[
        Path | None, typer.Option(help="A file of prices, as docs/prices.yaml.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what was measured by day, and what twice and half the freshness would cost.

    Example: frazil cost flights --since 30d --prices docs/prices.yaml
    """
    from frazil.observability.cost import load_prices
    from frazil.observability.cost_report import read_cost

    now = datetime.now(UTC)
    begin, given = parse_since(since, now), load_prices(prices) if prices else None
    reports, errors = ask_streams(stream, lambda work: read_cost(work, begin, now, given))
    if as_json:
        print_json([*reports, *(describe_error(error) for error in errors)])
    else:
        for report in reports:
            _print_report(report)
        for failure in errors:
            print_error(failure)
    if errors:
        raise typer.Exit(1)


def _print_report(report: "CostReport") -> None:
    from frazil.observability.cost_report import describe_factor

    title = f"Cost of {report.stream} since {report.since:%Y-%m-%d %H:%M} UTC"
    rows = [
        (
            *(day.day, day.batches, f"{day.records:,}"),
            f"{day.cpu_seconds + day.spark_cpu_seconds:.1f} ({day.spark_cpu_seconds:.1f})",
            f"{day.maintenance_cpu_seconds:.1f}",
            _in_mb(day.bytes_written + day.bytes_by_others, day.files_written),
            _in_mb(day.bytes_live, day.files_live),
            *(day.requests, day.commits),
        )
        for day in report.days
    ]
    print_table(title, _COLUMNS, rows)
    if report.currency is not None:
        paid = [
            (day.day, *(f"{getattr(day.money, kind):.4f}" for kind in _MONEY))
            for day in report.days
        ]
        print_table(f"The same in {report.currency or 'money'}", ("day", *_MONEY), paid)
    for imagined in report.what_if:
        console.print(describe_factor(imagined, report.currency), markup=False)
    if report.fit is not None and not report.fit.reliable:
        console.print(f"Not reliable: {report.fit.why}", markup=False)
    for left_out in report.not_counted:
        console.print(f"Not counted: {left_out}", markup=False)


def _in_mb(number: int, files: int) -> str:
    return f"{number / 1_000_000:.1f} MB ({files})"
