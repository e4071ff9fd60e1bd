"""`cost`: resources used by day, and an estimate for other batch intervals."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from frazil_cli.output import (
    LONG_READ_SECONDS,
    AnyStream,
    Json,
    console,
    print_all,
    print_table,
    read_streams,
)
from frazil_cli.timeline import Since, parse_since

if TYPE_CHECKING:
    from frazil.observability.cost_report import CostReport

_MONEY = ("cpu", "storage", "written", "requests", "total")


def cost(
    stream: AnyStream = None,
    since: Since = "7d",
    prices: Annotated[
        Path | None, typer.Option(help="YAML file of prices, such as docs/prices.yaml.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the measured cost of each day, and an estimate for half and double the batch frequency.

    Example: frazil cost flights --since 30d --prices docs/prices.yaml
    """
    from frazil.observability.cost import load_prices
    from frazil.observability.cost_report import read_cost

    now = datetime.now(UTC)
    begin, price_list = parse_since(since, now), load_prices(prices) if prices else None
    reports, errors = read_streams(
        stream, lambda work: read_cost(work, begin, now, price_list), LONG_READ_SECONDS
    )
    print_all(reports, errors, _print_reports, as_json=as_json)


def _print_reports(reports: "Sequence[CostReport]") -> None:
    for report in reports:
        _print_report(report)


def _print_report(report: "CostReport") -> None:
    from frazil.observability.cost_report import DAY_COLUMNS, describe_day, describe_factor

    title = f"Cost of {report.stream} since {report.since:%Y-%m-%d %H:%M} UTC"
    rows = [
        tuple(f"{v:,}" if isinstance(v, int) else v for v in describe_day(day))
        for day in report.days
    ]
    print_table(title, DAY_COLUMNS, rows)
    if report.currency is not None:
        paid = [
            (day.day, *(f"{getattr(day.money, kind):.4f}" for kind in _MONEY))
            for day in report.days
        ]
        print_table(f"Cost in {report.currency or 'money'}", ("day", *_MONEY), paid)
    for scenario in report.what_if:
        console.print(describe_factor(scenario, report.currency), markup=False)
    if report.fit is not None and not report.fit.reliable:
        console.print(f"Rough estimate: {report.fit.why}", markup=False)
    for cost_item in report.not_counted:
        console.print(f"Not counted: {cost_item}", markup=False)
