"""The page `/frazil/streams/<stream>`: partitions, events, snapshots, dead letters, cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from frazil.observability.parallel_reads import LateReadError, read_all
from frazil_airflow.connections import use_airflow_connections
from frazil_airflow.ui.rendering import TIMEOUT_SECONDS, format_time, render

if TYPE_CHECKING:
    from frazil.observability.status import StreamStatus
    from frazil.observability.watch import TableReading
    from frazil.workspace import Workspace

SHOWN = 100
"""Rows of one table on the page; the commands list all of them."""

PERIOD = timedelta(days=7)
"""Age of the oldest event, and of the oldest day of cost, on the page."""


@dataclass(frozen=True)
class RequestedOffset:
    """The offset that the form asks for: a number beside a partition, or `flights:0:4711`."""

    partition: int | None
    offset: str
    topic: str = ""


@dataclass(frozen=True)
class PageSection:
    """One table of the page, and a note: a summary, what the table leaves out, or an error."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    note: str = ""


def show_stream(stream: str, requested: RequestedOffset | None = None) -> str:
    """Read and render the page of one stream; a failed read becomes the note of its section."""
    from frazil.errors import FrazilError  # noqa: PLC0415 - imported by the first request
    from frazil.workspace import open_workspace  # noqa: PLC0415

    use_airflow_connections()
    now = datetime.now(UTC)
    try:
        sections = read_sections(open_workspace(stream, "page"), requested, now)
    except FrazilError as error:
        sections = {"Stream file": _explain(error)}
    return render_stream(stream, sections, now)


def read_sections(
    work: "Workspace", requested: RequestedOffset | None, now: datetime
) -> dict[str, PageSection]:
    """Read all sections in parallel, by the same functions as the commands, of one load."""
    from frazil.observability.watch import read_table  # noqa: PLC0415

    begin = now - PERIOD
    reading = read_all({"table": partial(read_table, work)}, TIMEOUT_SECONDS)["table"]
    if isinstance(reading, Exception):
        failed = dict.fromkeys(_SECTIONS[requested is None :], _explain(reading))
        return failed | {"Timeline": read_events(work, reading, begin)}
    reads = (
        partial(read_offset, work, reading, requested or RequestedOffset(0, "0")),
        partial(read_partitions, work, reading),
        partial(read_events, work, reading, begin),
        partial(read_snapshots, work, reading),
        partial(read_dead_letters, work, reading),
        partial(read_days, work, reading, begin, now),
    )
    wanted = [*zip(_SECTIONS, reads, strict=True)][requested is None :]
    return {
        title: _explain(result) if isinstance(result, Exception) else result
        for title, result in read_all(dict(wanted), TIMEOUT_SECONDS, TIMEOUT_SECONDS).items()
    }


_SECTIONS = ("Offset", "Partitions", "Timeline", "Snapshots", "Dead letters", "Cost")
"""The first one only if it is asked for."""


def read_events(
    work: "Workspace", reading: "TableReading | Exception", begin: datetime
) -> PageSection:
    """Read what `frazil timeline` shows, newest first; without a catalog, the local notes."""
    from frazil.errors import FrazilError  # noqa: PLC0415
    from frazil.ledger.foreign_snapshots import describe_kind  # noqa: PLC0415
    from frazil.observability.timeline import describe_phases  # noqa: PLC0415
    from frazil.observability.timeline_table import read_own_notes, read_timeline  # noqa: PLC0415

    problem = _explain(reading).note if isinstance(reading, Exception) else ""
    try:
        view = None if isinstance(reading, Exception) else reading.view
        events = read_own_notes(work, begin) if problem else read_timeline(work, begin, view)
    except FrazilError as error:
        events, problem = read_own_notes(work, begin), str(error)
    problem += "\nOnly events noted on this machine are shown. " if problem else ""
    rows = [
        (format_time(e.at), e.stream, describe_kind(e.kind), e.text, describe_phases(e.facts))
        for e in events[: -SHOWN - 1 : -1]
    ]
    columns = ("At (UTC)", "Stream", "Event", "Details", "Seconds")
    note = _count(rows, len(events), f"frazil timeline --stream {work.stream.stream} --since 7d")
    return PageSection(columns, rows, f"{problem}{note}")


def read_partitions(work: "Workspace", reading: "TableReading") -> PageSection:
    """Read what `frazil status` shows of each partition, soonest data loss first."""
    from frazil.ledger.offsets import describe_partition  # noqa: PLC0415
    from frazil.observability.status import read_status, sort_by_loss  # noqa: PLC0415
    from frazil.streams.timestamps import describe_seconds  # noqa: PLC0415

    status = read_status(work, reading)
    parts = sort_by_loss(status.partitions)
    rows = [
        (
            describe_partition(p.topic, p.partition),
            p.next_offset,
            p.end,
            p.end - p.next_offset,
            None if (s := p.retention_covers_seconds) is None else describe_seconds(s),
        )
        for p in parts[:SHOWN]
    ]
    columns = ("Partition", "Next offset", "End", "Lag", "Retention covers")
    left = len(parts) - len(rows)
    more = f"; `frazil status {work.stream.stream} --json` lists {left} more" if left else ""
    return PageSection(
        columns, rows, "\n".join([status.freshness.text + more, *_list_notes(status)])
    )


def _list_notes(status: "StreamStatus") -> Iterator[str]:
    """Yield what `frazil status` prints below its tables."""
    next_step = status.next_step or status.freshness.next_step
    if status.freshness.level != "ok" and next_step:
        yield f"Next: {next_step}"
    if status.state_table is not None:
        yield status.state_table.text
    if status.monitoring_group is not None:
        yield status.monitoring_group.text


def read_snapshots(work: "Workspace", reading: "TableReading") -> PageSection:
    """Read what `frazil snapshots` shows."""
    from frazil.ingest.snapshot_summaries import describe_late  # noqa: PLC0415
    from frazil.ledger.foreign_snapshots import describe_kind  # noqa: PLC0415
    from frazil.ledger.offsets import describe_ranges, unpack_ranges  # noqa: PLC0415
    from frazil.observability.status import list_snapshots  # noqa: PLC0415

    found = list_snapshots(work, reading.view)
    rows = [
        (
            str(each.snapshot_id),
            describe_kind(each.kind),
            each.epoch,
            describe_ranges(unpack_ranges(each.ranges)),
            each.rows_written,
            each.rows_quarantined,
            describe_late(each.rows_late, each.late_by_ms),
            each.decision,
            format_time(each.committed_at),
        )
        for each in found[:SHOWN]
    ]
    columns = ("Snapshot", "Kind", "Epoch", "Offsets", "Rows", "Dead letters", "Late", "Decision")
    note = _count(rows, len(found), f"frazil snapshots {work.stream.stream}")
    return PageSection((*columns, "Committed (UTC)"), rows, note)


def read_dead_letters(work: "Workspace", reading: "TableReading") -> PageSection:
    """Read what `frazil dead-letters` shows: reasons, counts and offsets, no record contents."""
    from frazil.observability.dead_letter_report import report_dead_letters  # noqa: PLC0415

    report = report_dead_letters(work, reading.view)
    rows = [
        (
            group.reason,
            group.open,
            group.resolved,
            format_time(group.first_seen_at),
            format_time(group.last_seen_at),
            ", ".join(group.samples),
        )
        for group in report.groups
    ]
    columns = ("Reason", "Open", "Resolved", "First seen (UTC)", "Last seen (UTC)", "Examples")
    return PageSection(columns, rows, report.text)


def read_days(
    work: "Workspace", reading: "TableReading", begin: datetime, now: datetime
) -> PageSection:
    """Read what `frazil cost` shows without prices."""
    from frazil.observability.cost_report import (  # noqa: PLC0415
        DAY_COLUMNS,
        describe_day,
        describe_factor,
        read_cost,
    )

    report = read_cost(work, begin, now, None, reading.view)
    rows = [describe_day(day) for day in report.days]
    notes = [describe_factor(scenario, report.currency) for scenario in report.what_if]
    if report.fit is not None and not report.fit.reliable:
        notes.append(f"Rough estimate: {report.fit.why}")
    notes += [f"Not counted: {cost}" for cost in report.not_counted]
    columns = [column[:1].upper() + column[1:] for column in DAY_COLUMNS]
    return PageSection(columns, rows, "\n".join(notes))


def read_offset(
    work: "Workspace", reading: "TableReading", requested: RequestedOffset
) -> PageSection:
    """Find the snapshot that holds an offset, as `frazil where` does."""
    from frazil.ledger.offsets import choose_offset, describe_offset  # noqa: PLC0415
    from frazil.observability.status import locate_offset  # noqa: PLC0415

    only_topic = partial(work.stream.only_topic, "topic")
    at = choose_offset(requested.offset, requested.partition, requested.topic, only_topic)
    found = locate_offset(work, at.topic, at.partition, at.offset, reading.view)
    where = f"snapshot {found.snapshot_id} ({found.kind})" if found.found else "not in the table"
    record = describe_offset(at.topic, at.partition, at.offset)
    return PageSection(note=f"{record}: {where}. {found.reason}")


def render_stream(stream: str, sections: dict[str, PageSection], at: datetime) -> str:
    """Render the page of one stream."""
    return render("stream.html", title=stream, sections=sections, at=format_time(at))


def _explain(error: Exception) -> PageSection:
    from frazil.errors import hide_message  # noqa: PLC0415

    failure = error if isinstance(error, LateReadError) else hide_message(error)
    return PageSection(note=f"{getattr(failure, 'code', 'Timeout')}: {failure}")


def _count(rows: Sequence[object], known: int, command: str) -> str:
    return (
        f"The newest {len(rows)} of {known}; `{command}` lists all of them." if known else "None."
    )
