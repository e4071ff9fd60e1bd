"""The page `/frazil/streams/<stream>`: what happened, which offsets are where, what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from html import escape
from typing import TYPE_CHECKING

from frazil_airflow.connections import use_airflow_connections
from frazil_airflow.ui.html import ask_all, write_page, write_table

if TYPE_CHECKING:
    from frazil.workspace import Workspace

SHOWN = 100
"""Events and snapshots on a page; the commands have all of them."""

LOOK_BACK = timedelta(days=7)


@dataclass(frozen=True)
class Wanted:
    """A record that somebody looks for; the stream's only topic where none is named."""

    partition: int
    offset: int
    topic: str = ""


@dataclass(frozen=True)
class Section:
    """One question's answer: a table, and what it leaves out or why there is none."""

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    note: str = ""


def show_stream(stream: str, wanted: Wanted | None = None) -> str:
    """Read and write the page of one stream; what cannot be read says so in its place."""
    from frazil.errors import FrazilError  # noqa: PLC0415 - the page's start stays light
    from frazil.workspace import open_workspace  # noqa: PLC0415

    use_airflow_connections()
    now = datetime.now(UTC)
    try:
        sections = read_sections(open_workspace(stream, "page"), wanted, now)
    except FrazilError as error:
        sections = {"Stream file": _explain(error)}
    return render_stream(stream, sections, now)


def read_sections(work: "Workspace", wanted: Wanted | None, now: datetime) -> dict[str, Section]:
    """Ask the same functions as the commands do."""
    begin = now - LOOK_BACK
    asked = {
        "Partitions": partial(read_partitions, work),
        "Timeline": partial(read_events, work, begin),
        "Snapshots": partial(read_snapshots, work),
        "Dead letters": partial(read_letters, work),
        "Cost": partial(read_days, work, begin, now),
    }
    if wanted is not None:
        asked = {"Place": partial(read_place, work, wanted)} | asked
    answers = ask_all(asked)
    return {
        title: _explain(found) if isinstance(found, Exception) else found
        for title, found in answers.items()
    }


def read_events(work: "Workspace", begin: datetime) -> Section:
    """Read what `frazil timeline` shows, newest first; without a catalog, the noted failures."""
    from frazil.errors import FrazilError  # noqa: PLC0415
    from frazil.observability.timeline import describe_phases  # noqa: PLC0415
    from frazil.observability.timeline_table import read_own_notes, read_timeline  # noqa: PLC0415

    gone = ""
    try:
        events = read_timeline(work, begin)
    except FrazilError as error:
        events, gone = read_own_notes(work, begin), f"{error}\nOnly what is noted here: "
    rows = [
        (_instant(e.at), e.stream, e.kind, e.text, describe_phases(e.facts))
        for e in events[: -SHOWN - 1 : -1]
    ]
    columns = ("At (UTC)", "Stream", "What", "", "Seconds")
    note = _count(rows, len(events), f"frazil timeline --stream {work.stream.stream} --since 7d")
    return Section(columns, rows, f"{gone}{note}")


def read_partitions(work: "Workspace") -> Section:
    """Read what `frazil status` shows of each partition, first losses first."""
    from frazil.observability.status import read_status, sort_by_loss  # noqa: PLC0415
    from frazil.streams.timestamps import describe_seconds  # noqa: PLC0415

    status = read_status(work)
    parts = sort_by_loss(status.partitions)
    rows = [
        (
            f"{p.topic}-{p.partition}",
            p.next_offset,
            p.end,
            p.end - p.next_offset,
            None if (s := p.retention_covers_seconds) is None else describe_seconds(s),
        )
        for p in parts[:SHOWN]
    ]
    columns = ("Partition", "Next offset", "End", "Waiting", "Retention covers")
    left = len(parts) - len(rows)
    more = f"; `frazil status {work.stream.stream} --json` lists {left} more" if left else ""
    return Section(columns, rows, status.freshness.text + more)


def read_snapshots(work: "Workspace") -> Section:
    """Read what `frazil snapshots` shows."""
    from frazil.ingest.snapshot_summaries import describe_late  # noqa: PLC0415
    from frazil.ledger.offsets import describe_ranges, unpack_ranges  # noqa: PLC0415
    from frazil.observability.status import list_snapshots  # noqa: PLC0415

    found = list_snapshots(work)
    rows = [
        (
            str(each.snapshot_id),
            each.kind,
            each.epoch,
            describe_ranges(unpack_ranges(each.ranges)),
            each.rows_written,
            each.rows_quarantined,
            describe_late(each.rows_late, each.late_by_ms),
            _instant(each.committed_at),
        )
        for each in found[:SHOWN]
    ]
    columns = ("Snapshot", "Kind", "Epoch", "Offsets", "Rows", "Dead letters", "Late")
    note = _count(rows, len(found), f"frazil snapshots {work.stream.stream}")
    return Section((*columns, "Committed (UTC)"), rows, note)


def read_letters(work: "Workspace") -> Section:
    """Read what `frazil dead-letters` shows: reasons, counts and coordinates, no content."""
    from frazil.observability.dead_letter_report import report_dead_letters  # noqa: PLC0415

    report = report_dead_letters(work)
    rows = [
        (
            group.reason,
            group.open,
            group.resolved,
            _instant(group.first_seen_at),
            _instant(group.last_seen_at),
            ", ".join(group.samples),
        )
        for group in report.groups
    ]
    columns = ("Reason", "Open", "Resolved", "First seen (UTC)", "Last seen (UTC)", "For example")
    return Section(columns, rows, report.text)


def read_days(work: "Workspace", begin: datetime, now: datetime) -> Section:
    """Read what `frazil cost` shows without prices."""
    from frazil.observability.cost_report import describe_factor, read_cost  # noqa: PLC0415

    report = read_cost(work, begin, now, None)
    rows = [
        (
            f"{day.day}",
            day.batches,
            day.records,
            f"{day.cpu_seconds + day.spark_cpu_seconds:.1f} ({day.spark_cpu_seconds:.1f})",
            f"{day.maintenance_cpu_seconds:.1f}",
            f"{(day.bytes_written + day.bytes_by_others) / 1e6:.1f} ({day.files_written})",
            f"{day.bytes_live / 1e6:.1f} ({day.files_live})",
            day.requests,
            day.commits,
        )
        for day in report.days
    ]
    told = [describe_factor(imagined, report.currency) for imagined in report.what_if]
    if report.fit is not None and not report.fit.reliable:
        told.append(f"Not reliable: {report.fit.why}")
    told += [f"Not counted: {left_out}" for left_out in report.not_counted]
    columns = ("Day", "Batches", "Records", "CPU s (of Spark)", "Upkeep s", "Written MB (files)")
    return Section((*columns, "Live MB (files)", "Requests", "Commits"), rows, "\n".join(told))


def read_place(work: "Workspace", wanted: Wanted) -> Section:
    """Find what `frazil where` finds."""
    from frazil.observability.status import locate_offset  # noqa: PLC0415

    topic = wanted.topic or work.stream.only_topic("topic")
    place = locate_offset(work, topic, wanted.partition, wanted.offset)
    where = f"snapshot {place.snapshot_id} ({place.kind})" if place.found else "not in the table"
    return Section(note=f"{topic}-{wanted.partition}@{wanted.offset}: {where}. {place.reason}")


def render_stream(stream: str, sections: dict[str, Section], at: datetime) -> str:
    """Write the page as HTML, each value escaped; the form asks where an offset is."""
    parts = [
        f"<h2>{escape(title)}</h2>"
        + (write_table(section.columns, section.rows) if section.rows else "")
        + f"<p>{escape(section.note)}</p>"
        for title, section in sections.items()
    ]
    form = (
        '<form>Where is partition <input name="partition" type="number" min="0" required> '
        'offset <input name="offset" type="number" min="0" required> '
        'of topic <input name="topic" placeholder="the only one"> <button>Find</button></form>'
    )
    head = f'<p><a href="../">All streams</a> · as of {_instant(at)} UTC</p>'
    return write_page(stream, head + form + "\n".join(parts))


def _explain(error: Exception) -> Section:
    return Section(note=f"{getattr(error, 'code', type(error).__name__)}: {error}")


def _instant(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}"


def _count(rows: Sequence[object], known: int, command: str) -> str:
    """Say how many are shown, and which command shows the others."""
    return f"The newest {len(rows)} of {known}; `{command}` lists them all."
