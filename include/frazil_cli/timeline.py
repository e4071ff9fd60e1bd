"""`timeline`: the events of streams, in order of time."""

import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.errors import ConfigurationError, FrazilError
from frazil.messages import count_noun
from frazil_cli.output import (
    Json,
    open_streams,
    print_error,
    print_json,
    print_table,
    progress_console,
)

if TYPE_CHECKING:
    from frazil.events import Event

Since = Annotated[
    str, typer.Option(help="Start: an age (30m, 24h, 7d) or an ISO 8601 time with a time zone.")
]
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


def timeline(
    stream: Annotated[
        str | None, typer.Option(help="One stream, or a file with a topic pattern; default: all.")
    ] = None,
    since: Since = "24h",
    record: Annotated[
        bool, typer.Option("--record", help="Also store new events in the table frazil.timeline.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show events in order of time: batches with their phases, failures, decisions, maintenance.

    Example: frazil timeline --stream flights --since 7d
    """
    from frazil.observability.timeline import join_events
    from frazil.observability.timeline_table import read_own_notes, read_timeline, record_timeline

    begin = parse_since(since, datetime.now(UTC))
    works, errors = open_streams(stream)
    groups, added = [], 0
    for work in works:
        try:
            groups.append(read_timeline(work, begin))
            added += record_timeline(work) if record else 0
        except FrazilError as error:  # show local notes and the other streams all the same
            errors.append(error)
            groups.append(read_own_notes(work, begin))
    events = join_events(*groups)
    if record:
        progress_console.print(
            f"{count_noun(added, 'event')} stored in frazil.timeline", markup=False
        )
    for each in errors:
        print_error(each)
    if as_json:
        print_json(events)
    else:
        _show(events, begin)
    if errors:
        raise typer.Exit(1)


def _show(events: "Sequence[Event]", begin: datetime) -> None:
    from frazil.ledger.foreign_snapshots import describe_kind
    from frazil.observability.timeline import describe_phases

    rows = [
        (
            f"{e.at:%Y-%m-%d %H:%M:%S}",
            e.stream,
            describe_kind(e.kind),
            e.text,
            describe_phases(e.facts),
        )
        for e in events
    ]
    columns = ("at (UTC)", "stream", "event", "details", "seconds")
    print_table(f"Events since {begin:%Y-%m-%d %H:%M} UTC", columns, rows)


def parse_since(text: str, now: datetime) -> datetime:
    """Parse an age or an instant with a zone; return the instant in UTC.

    Raises:
        ConfigurationError: the text is neither, or lies in the future.
    """
    if match := re.fullmatch(r"([0-9]{1,4})([mhd])", text):
        return now - timedelta(**{_UNITS[match[2]]: int(match[1])})
    instant: datetime | None = None
    # A zone may carry an instant out of the years 1 to 9999.
    with suppress(ValueError, OverflowError):
        given = datetime.fromisoformat(text)
        instant = given.astimezone(UTC) if given.tzinfo is not None else None
    if instant is not None and instant > now:
        raise ConfigurationError(f"--since {text} is in the future", "use an instant in the past")
    if instant is None:
        raise ConfigurationError(
            f"--since {text!r} is neither an age nor an ISO 8601 instant with a time zone",
            "write it as 30m, 24h, 7d or 2026-01-31T00:00:00Z",
        )
    return instant
