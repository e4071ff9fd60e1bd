"""`streams`, `status`, `snapshots`, `where`, `audit`, `verify-source`: read-only commands."""

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.environment import streams_dir
from frazil.errors import FrazilError, StreamFileError
from frazil.streams.loading import list_pattern_files, load_readable_streams
from frazil.streams.models import suite_path
from frazil_cli.output import (
    AnyStream,
    Json,
    StreamName,
    cli_run_id,
    console,
    describe_error,
    format_ranges,
    print_all,
    print_error,
    print_json,
    print_result,
    print_table,
    progress_console,
    read_streams,
    report_progress,
)

if TYPE_CHECKING:
    from frazil.ledger.offsets import OffsetLocation
    from frazil.observability.status import OffsetStatus, StreamStatus
    from frazil.streams.models import Stream

SHOWN_PARTITIONS = 10


def streams(
    refresh: Annotated[
        bool,
        typer.Option(
            "--refresh",
            help="First find the topics of topic patterns in Kafka and the catalog.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check every stream file and suite, and list the streams; exit 1 if a file is invalid.

    Example: frazil streams
    """
    failures = _refresh_topics() if refresh else []
    found, invalid = load_readable_streams(streams_dir())
    errors = [*failures, *invalid, *_check_suites(found)]
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


def _check_suites(found: Sequence["Stream"]) -> list[FrazilError]:
    """Read each suite that a stream names; return the errors, one for each faulty suite.

    Columns of a registered schema are not known here, so a batch checks whether a suite fits them.
    """
    from frazil.quality.suite_files import check_suite_fits, load_suite

    errors: dict[str, FrazilError] = {}
    for stream in found:
        if stream.quality.suite:
            try:
                suite = load_suite(suite_path(streams_dir(), stream.quality.suite))
                if not stream.needs_columns:
                    check_suite_fits(suite, stream.typed_columns)
            except FrazilError as error:
                errors.setdefault(str(error), error)
    return list(errors.values())


def _refresh_topics() -> list[FrazilError]:
    """Refresh the topics of each file with a pattern; return the errors."""
    from frazil.workspace import refresh_topics

    errors: list[FrazilError] = []
    for path in list_pattern_files(streams_dir()):
        try:
            found = refresh_topics(path)
        except StreamFileError:
            continue  # found again, and shown, when the file is loaded
        except FrazilError as error:
            errors.append(error)
            continue
        if found is not None:
            progress_console.print(found.text, markup=False)
    return errors


def status(
    stream: AnyStream = None,
    as_json: Json = False,
) -> None:
    """Show each stream: state, lag, freshness, time to data loss; exit 1 if one cannot be read.

    Example: frazil status flights
    """
    from frazil.observability.status import is_unreadable, read_status
    from frazil.observability.watch import Outages

    # A broker that is down is asked for two streams only.
    statuses, errors = read_streams(stream, partial(read_status, outages=Outages()))
    print_all(statuses, errors, _show_statuses, as_json=as_json)
    if any(is_unreadable(status) for status in statuses):
        raise typer.Exit(1)


def _show_statuses(statuses: Sequence["StreamStatus"]) -> None:
    rows = [
        (s.stream, s.table, s.state, s.epoch, s.rows, s.lag, s.newest_ingest_at) for s in statuses
    ]
    columns = ("stream", "table", "state", "epoch", "rows", "lag", "newest ingest")
    print_table("Status", columns, rows)
    clocks = [
        (
            fresh.stream,
            fresh.level,
            _format_span(fresh.stream_clock_seconds),
            _format_span(fresh.table_clock_seconds),
            _format_span(fresh.time_to_loss_seconds),
        )
        for fresh in (status.freshness for status in statuses)
    ]
    heads = ("stream", "level", "stream clock", "table clock", "time to loss")
    print_table("Freshness", heads, clocks)
    if len(statuses) == 1:
        _show_partitions(statuses[0])
    for group, stream in ((s.monitoring_group, s.stream) for s in statuses):
        if group is not None:
            console.print(f"{stream}: {group.text}", markup=False)
    for status in statuses:
        if status.state_table is not None:
            console.print(f"{status.stream}: {status.state_table.text}", markup=False)
        if status.freshness.level != "ok":
            console.print(status.freshness.text, markup=False)
            next_step = status.next_step or status.freshness.next_step
            console.print(f"Next: {next_step}", markup=False)
        elif fields := status.freshness.unnamed_fields:
            title = "Ignored field" if len(fields) == 1 else "Ignored fields"
            text = f"{status.stream}: {title} (no matching column): {', '.join(fields)}"
            console.print(text, markup=False)


def _show_partitions(status: "StreamStatus") -> None:
    """Show the partitions; the first is the first to lose records if the stream stops."""
    from frazil.ledger.offsets import describe_partition
    from frazil.observability.status import sort_by_loss

    parts = sort_by_loss(status.partitions)
    rows = [
        (
            describe_partition(p.topic, p.partition),
            p.next_offset,
            p.end,
            p.end - p.next_offset,
            _format_span(p.retention_covers_seconds),
        )
        for p in parts[:SHOWN_PARTITIONS]
    ]
    if rows:
        columns = ("partition", "next offset", "end", "lag", "retention covers")
        print_table("Partitions, soonest data loss first", columns, rows)
    if len(parts) > len(rows):
        console.print(
            f"… and {len(parts) - len(rows)} more: --json lists all of them", markup=False
        )


def _format_span(seconds: int | None) -> str | None:
    from frazil.streams.timestamps import describe_seconds

    return describe_seconds(seconds) if seconds is not None else None


def snapshots(stream: StreamName, as_json: Json = False) -> None:
    """List the snapshots of a stream, newest first, with the offset ranges that each one added.

    Example: frazil snapshots flights
    """
    from frazil.ingest.snapshot_summaries import describe_late
    from frazil.ledger.foreign_snapshots import describe_kind
    from frazil.observability.status import list_snapshots, list_state_snapshots
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    found, of_state = list_snapshots(work), list_state_snapshots(work)
    if as_json:
        print_json([*found, *of_state])
        return
    is_decided = any(s.decision for s in found)
    late = [describe_late(s.rows_late, s.late_by_ms) for s in found]
    rows = [
        (
            s.snapshot_id,
            describe_kind(s.kind),
            s.epoch,
            format_ranges(s.ranges),
            s.rows_written,
            s.rows_quarantined,
            f"{s.committed_at:%Y-%m-%d %H:%M:%S}",
            *([late_text] if any(late) else []),
            *([s.decision] if is_decided else []),
        )
        for s, late_text in zip(found, late, strict=True)
    ]
    columns = ("snapshot", "kind", "epoch", "offsets", "rows", "dead letters", "committed (UTC)")
    shown = (*columns, *(["late"] if any(late) else []), *(["decision"] if is_decided else []))
    print_table(f"Snapshots of {stream}, newest first", shown, rows)
    if of_state:
        merges = [
            (s.snapshot_id, describe_kind(s.kind), s.merged, f"{s.committed_at:%Y-%m-%d %H:%M:%S}")
            for s in of_state
        ]
        title = f"Snapshots of state table {of_state[0].table}, newest first"
        print_table(title, ("snapshot", "kind", "changes", "committed (UTC)"), merges)


def where(
    stream: StreamName,
    partition: Annotated[int | None, typer.Option(min=0, help="Partition of the record.")] = None,
    offset: Annotated[
        str | None,
        typer.Option(help="Offset of the record, or TOPIC:PARTITION:OFFSET as it is shown."),
    ] = None,
    topic: Annotated[
        str | None, typer.Option(help="Topic; required if the stream reads more than one.")
    ] = None,
    key: Annotated[
        list[str] | None,
        typer.Option(help="Key in a state table: COLUMN=VALUE, repeated for each key column."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the snapshot that added an offset, or the change behind a key of a state table.

    Exit 1 if the table does not have it; a row that is marked as deleted counts as present.

    Example: frazil where flights --partition 0 --offset 4711
    """
    from frazil.errors import ConfigurationError
    from frazil.ledger.offsets import choose_offset
    from frazil.observability.status import locate_key, locate_offset
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    if key:
        held = locate_key(work, key)
        print_result(held, held.text, as_json=as_json)
        raise typer.Exit(0 if held.found else 1)
    if offset is None:
        raise ConfigurationError(
            "frazil where needs --offset (TOPIC:PARTITION:OFFSET, or a number with --partition), "
            "or --key with a state table",
            f"`frazil where {stream} --partition 0 --offset 4711`",
        )
    only_topic = partial(work.stream.only_topic, "--topic")
    location = choose_offset(offset, partition, topic or "", only_topic)
    found = locate_offset(work, location.topic, location.partition, location.offset)
    if as_json:
        print_json(found)
    else:
        _show_offset(location, found)
    raise typer.Exit(0 if found.found else 1)


def _show_offset(location: "OffsetLocation", found: "OffsetStatus") -> None:
    from frazil.ledger.offsets import describe_offset

    name = describe_offset(location.topic, location.partition, location.offset)
    if not found.found:
        console.print(f"{name}: {found.reason}", markup=False)
        return
    console.print(
        f"{name} is in snapshot {found.snapshot_id} "
        f"({found.kind}, batch {found.batch_id}, {found.committed_at:%Y-%m-%d %H:%M:%S} UTC)"
    )
    if found.reason:
        console.print(found.reason, markup=False)


Values = Annotated[
    bool,
    typer.Option(
        "--values",
        help="Decode Kafka's records again with Spark and compare the values with the rows.",
    ),
]


def audit(stream: StreamName, values: Values = False, as_json: Json = False) -> None:
    """Verify from Kafka and the table alone that every record is there exactly once.

    Example: frazil audit flights
    """
    from frazil.observability.audit import audit_stream
    from frazil.recovery.value_audit import audit_values
    from frazil.workspace import open_workspace

    work = open_workspace(stream, cli_run_id())
    report = audit_stream(work)
    compared = audit_values(work) if values else None
    if as_json:
        content = report.model_dump(mode="json")
        print_json(content | ({"values": compared} if compared else {}))
    else:
        rows = [(f.invariant, f.text) for f in report.findings]
        print_table(f"Audit of {stream}: {report.verdict}", ("invariant", "finding"), rows)
        console.print(report.facts_line)
        if compared is not None:
            console.print(compared.text, markup=False)
    raise typer.Exit(1 if report.findings or not (compared is None or compared.holds) else 0)


def verify_source(
    stream: StreamName,
    connection: Annotated[str, typer.Option(help="Connection of the source's PostgreSQL.")],
    table: Annotated[
        str | None,
        typer.Option(help="Source table, SCHEMA.NAME; default: the table that the rows name."),
    ] = None,
    wait: Annotated[
        int,
        typer.Option(
            min=0, max=86_400, help="Seconds during which keys that differ are compared again."
        ),
    ] = 60,
    show_keys: Annotated[
        bool, typer.Option("--show-keys", help="Show up to 20 keys of each finding.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare a state table with its source table in PostgreSQL, also while it is written to.

    Exit 1 unless they are equal.

    Example: frazil verify-source customers --connection shop_db
    """
    from frazil.state_tables.messages import SourceCheckRequest
    from frazil.state_tables.source_check import verify_source as compare_with_source
    from frazil.workspace import open_workspace

    started = time.monotonic()
    request = SourceCheckRequest(
        stream=stream, connection=connection, table=table, wait_seconds=wait
    )
    work = open_workspace(stream, cli_run_id())
    check = compare_with_source(
        work, request, lambda text: report_progress(text, started), shows_keys=show_keys
    )
    print_result(check, check.text, as_json=as_json)
    if check.verdict != "equal" and not as_json:
        console.print(f"Next: {check.next_step}", markup=False)
    raise typer.Exit(0 if check.verdict == "equal" else 1)
