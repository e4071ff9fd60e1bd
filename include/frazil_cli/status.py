"""The questions of an operator: streams, status, snapshots, where, audit."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.connections import streams_dir
from frazil.streams.loading import load_readable_streams
from frazil_cli.output import (
    Json,
    StreamName,
    ask_streams,
    cli_run_id,
    console,
    describe_error,
    format_ranges,
    print_error,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from frazil.observability.status import StreamStatus

SHOWN_PARTITIONS = 10


def streams(as_json: Json = False) -> None:
    """List the streams and check every stream file.

    Example: frazil streams
    """
    found, errors = load_readable_streams(streams_dir())
    if as_json:
        print_json(
            {
                "streams": [stream.model_dump(mode="json", by_alias=True) for stream in found],
                "errors": [describe_error(e) for e in errors],
            }
        )
    else:
        rows = [
            (s.stream, ", ".join(s.source.names), s.table.name, s.batch.schedule, s.owner)
            for s in found
        ]
        print_table("Streams", ("stream", "topic", "table", "schedule", "owner"), rows)
        for error in errors:
            print_error(error)
    if errors:
        raise typer.Exit(1)


def status(
    stream: Annotated[str | None, typer.Argument(metavar="[STREAM]")] = None,
    as_json: Json = False,
) -> None:
    """Show where each stream stands against its topic, its two clocks, and broken stream files.

    Example: frazil status flights
    """
    from frazil.observability.status import read_status

    answers, errors = ask_streams(stream, read_status)
    if as_json:
        print_json([*answers, *(describe_error(error) for error in errors)])
    else:
        _show_status(answers)
        for error in errors:
            print_error(error)
    if errors:
        raise typer.Exit(1)


def _show_status(answers: Sequence["StreamStatus"]) -> None:
    rows = [
        (a.stream, a.table, a.state, a.epoch, a.rows, a.lag, a.newest_ingest_at) for a in answers
    ]
    columns = ("stream", "table", "state", "epoch", "rows", "lag", "newest ingest")
    print_table("Status", columns, rows)
    clocks = [
        (
            fresh.stream,
            fresh.level,
            fresh.cause.replace("_", " "),
            _format_span(fresh.stream_clock_seconds),
            _format_span(fresh.table_clock_seconds),
            _format_span(fresh.time_to_loss_seconds),
        )
        for fresh in (answer.freshness for answer in answers)
    ]
    heads = ("stream", "level", "cause", "stream clock", "table clock", "time to loss")
    print_table("Freshness", heads, clocks)
    if len(answers) == 1:
        _show_partitions(answers[0])
    for answer in answers:
        if answer.freshness.level != "ok":
            console.print(answer.freshness.text, markup=False)
            next_step = answer.next_step or answer.freshness.next_step
            console.print(f"Next: {next_step}", markup=False)
        elif answer.freshness.unnamed_fields:
            named = ", ".join(answer.freshness.unnamed_fields)
            console.print(f"{answer.stream}: no column names the fields {named}", markup=False)


def _show_partitions(answer: "StreamStatus") -> None:
    """Show each partition; first those that lose records first, if the stream stands still."""
    from frazil.observability.status import sort_by_loss

    parts = sort_by_loss(answer.partitions)
    rows = [
        (
            f"{p.topic}-{p.partition}",
            p.next_offset,
            p.end,
            p.end - p.next_offset,
            _format_span(p.retention_covers_seconds),
        )
        for p in parts[:SHOWN_PARTITIONS]
    ]
    if rows:
        columns = ("partition", "next offset", "end", "waiting", "retention covers")
        print_table("Partitions, first losses first", columns, rows)
    if len(parts) > len(rows):
        console.print(f"… and {len(parts) - len(rows)} more: --json lists them all", markup=False)


def _format_span(seconds: int | None) -> str | None:
    from frazil.streams.timestamps import describe_seconds

    return describe_seconds(seconds) if seconds is not None else None


def snapshots(stream: StreamName, as_json: Json = False) -> None:
    """Show which offsets are in which snapshot.

    Example: frazil snapshots flights
    """
    from frazil.ingest.snapshot_summaries import describe_late
    from frazil.observability.status import list_snapshots
    from frazil.workspace import open_workspace

    answers = list_snapshots(open_workspace(stream, cli_run_id()))
    if as_json:
        print_json(list(answers))
        return
    late = [describe_late(a.rows_late, a.late_by_ms) for a in answers]
    rows = [
        (
            a.snapshot_id,
            a.kind,
            a.epoch,
            format_ranges(a.ranges),
            a.rows_written,
            a.rows_quarantined,
            f"{a.committed_at:%Y-%m-%d %H:%M:%S}",
            *([told] if any(late) else []),
        )
        for a, told in zip(answers, late, strict=True)
    ]
    columns = ("snapshot", "kind", "epoch", "ranges", "rows", "dead letters", "committed (UTC)")
    shown = (*columns, *(["late"] if any(late) else []))
    print_table(f"Snapshots of {stream}, newest first", shown, rows)


def where(
    stream: StreamName,
    partition: Annotated[int, typer.Option(min=0, help="Partition of the record.")],
    offset: Annotated[int, typer.Option(min=0, help="Offset of the record.")],
    topic: Annotated[str | None, typer.Option(help="Topic; the stream's own by default.")] = None,
    as_json: Json = False,
) -> None:
    """Find the snapshot that holds an offset.

    Example: frazil where flights --partition 0 --offset 4711
    """
    from frazil.observability.status import locate_offset
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    place = locate_offset(work, topic or work.stream.only_topic("--topic"), partition, offset)
    if as_json:
        print_json(place)
    elif place.found:
        console.print(
            f"{place.topic}-{partition}@{offset} is in snapshot {place.snapshot_id} "
            f"({place.kind}, batch {place.batch_id}, {place.committed_at:%Y-%m-%d %H:%M:%S} UTC)"
        )
        if place.reason:
            console.print(place.reason, markup=False)
    else:
        console.print(f"{place.topic}-{partition}@{offset}: {place.reason}")
    raise typer.Exit(0 if place.found else 1)


def audit(stream: StreamName, as_json: Json = False) -> None:
    """Recompute from Kafka and the table alone that every record is there exactly once.

    Example: frazil audit flights
    """
    from frazil.observability.audit import audit_stream
    from frazil.workspace import open_workspace

    answer = audit_stream(open_workspace(stream, cli_run_id()))
    if as_json:
        print_json(answer)
    else:
        rows = [(f.invariant, f.text) for f in answer.findings]
        print_table(f"Audit of {stream}: {answer.verdict}", ("invariant", "finding"), rows)
        console.print(answer.facts_line)
    raise typer.Exit(1 if answer.findings else 0)
