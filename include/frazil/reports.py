"""What status, snapshots and where answer, as plain values."""

from collections.abc import Iterator
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from frazil import keys
from frazil.blocking import read_blocked
from frazil.errors import FrazilError, MissingTableError, SourceError
from frazil.ledger import History, LedgerEntry, find_recovery_point, walk_ancestors
from frazil.offsets import parse_ranges
from frazil.planning import check_source, next_offsets
from frazil.publishing import load_with_history
from frazil.state import parse_state
from frazil.workspace import Workspace


class Report(BaseModel):
    """A frozen answer that prints as JSON."""

    model_config = ConfigDict(frozen=True)


class SnapshotReport(Report):
    """One snapshot of main as the ledger tells it (design.md, `snapshots --json`)."""

    snapshot_id: int
    parent_id: int | None
    kind: str
    epoch: int | None
    batch_id: str | None
    ranges: dict[str, dict[int, tuple[int, int]]]
    rows_read: int | None
    rows_written: int | None
    rows_quarantined: int | None
    rows_skipped: int | None
    quality: str | None
    committed_at: datetime


class PartitionStatus(Report):
    """How far the table is behind one partition, in offsets."""

    topic: str
    partition: int
    earliest: int
    next_offset: int
    end: int

    @property
    def lag(self) -> int:
        """Count the offsets that Kafka has and the table has not."""
        return max(0, self.end - self.next_offset)


class StreamStatus(Report):
    """Where one stream stands."""

    stream: str
    table: str
    state: str
    epoch: int | None = None
    batch_id: str | None = None
    lag: int | None = None
    rows: int | None = None
    newest_ingest_at: datetime | None = None
    partitions: tuple[PartitionStatus, ...] = ()
    problem: str | None = None
    next_step: str | None = None


class Place(Report):
    """Where an offset is."""

    topic: str
    partition: int
    offset: int
    found: bool
    snapshot_id: int | None = None
    batch_id: str | None = None
    kind: str | None = None
    committed_at: datetime | None = None
    reason: str = ""


def list_snapshots(work: Workspace) -> tuple[SnapshotReport, ...]:
    """List main's snapshots, newest first, also those that only the archive holds."""
    _, history = load_with_history(work.store, work.stream.table.name)
    return tuple(_report(entry, work.stream.stream) for entry in walk_ancestors(history))


def _report(entry: LedgerEntry, stream: str) -> SnapshotReport:
    summary = entry.summary
    mine = summary.get(keys.STREAM, stream) == stream
    state = summary.get(keys.state_key(stream))
    ranges = parse_ranges(summary[keys.RANGES]) if keys.RANGES in summary and mine else {}
    return SnapshotReport(
        snapshot_id=entry.snapshot_id,
        parent_id=entry.parent_id,
        kind=summary.get(keys.KIND) or _foreign_kind(summary.get("operation", "")),
        epoch=parse_state(state).epoch if state else None,
        batch_id=summary.get(keys.BATCH_ID),
        ranges={t: {p: (r.start, r.end) for p, r in parts.items()} for t, parts in ranges.items()},
        rows_read=_number(summary.get(keys.ROWS_READ)),
        rows_written=_number(summary.get(keys.ROWS_WRITTEN)),
        rows_quarantined=_number(summary.get(keys.ROWS_QUARANTINED)),
        rows_skipped=_number(summary.get(keys.ROWS_SKIPPED)),
        quality=summary.get(keys.QUALITY),
        committed_at=datetime.fromtimestamp(entry.committed_at_ms / 1000, tz=UTC),
    )


def _foreign_kind(operation: str) -> str:
    """Name a snapshot without Frazil's keys: only compaction keeps the rows as they are."""
    return "compaction" if operation == "replace" else f"foreign {operation}"


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def locate_offset(work: Workspace, topic: str, partition: int, offset: int) -> Place:
    """Find the snapshot that holds an offset."""
    _, history = load_with_history(work.store, work.stream.table.name)
    place = {"topic": topic, "partition": partition, "offset": offset}
    for entry, covered in _iterate_ranges(history, topic, partition, work.stream.stream):
        if covered[0] <= offset < covered[1]:
            report = _report(entry, work.stream.stream)
            return Place(
                **place,
                found=True,
                snapshot_id=entry.snapshot_id,
                batch_id=report.batch_id,
                kind=report.kind,
                committed_at=report.committed_at,
            )
    point = find_recovery_point(history, work.stream.stream)
    known = point.state.offsets.get(topic, ()) if point else ()
    following = known[partition] if partition < len(known) else 0
    reason = (
        f"not read yet: the next offset of {topic}-{partition} is {following}"
        if offset >= following
        else "before the offset where the stream began, or in a gap"
    )
    return Place(**place, found=False, reason=reason)


def _iterate_ranges(
    history: History, topic: str, partition: int, stream: str
) -> Iterator[tuple[LedgerEntry, tuple[int, int]]]:
    for entry in walk_ancestors(history):
        if entry.summary.get(keys.STREAM, stream) == stream and keys.RANGES in entry.summary:
            found = parse_ranges(entry.summary[keys.RANGES]).get(topic, {}).get(partition)
            if found is not None:
                yield entry, (found.start, found.end)


def read_status(work: Workspace) -> StreamStatus:
    """Compare table and topic; a problem is part of the answer, never an exception."""
    stream = work.stream
    plain = {"stream": stream.stream, "table": stream.table.name}
    try:
        return _read_status(work, plain)
    except MissingTableError:
        return StreamStatus(**plain, state="not started", next_step=f"frazil run {stream.stream}")
    except FrazilError as error:
        return StreamStatus(
            **plain, state=error.code, problem=error.facts, next_step=error.next_step
        )


def _read_status(work: Workspace, plain: dict[str, str]) -> StreamStatus:
    stream = work.stream
    table, history = load_with_history(work.store, stream.table.name)
    point = find_recovery_point(history, stream.stream)
    if point is None:
        return StreamStatus(**plain, state="not started", next_step=f"frazil run {stream.stream}")
    topic = work.kafka.fetch_topic(stream.source.topic, stream.source.isolation)
    starts = next_offsets(point.state, topic)
    partitions = tuple(
        PartitionStatus(
            topic=topic.topic, partition=p, earliest=o.earliest, next_offset=starts[p], end=o.end
        )
        for p, o in enumerate(topic.partitions[: len(starts)])
    )
    problem = _source_problem(stream.stream, work, history)
    blocked = read_blocked(table.properties, stream.stream)
    if problem is None and blocked is not None and blocked.waiver is None:
        same = (blocked.plan.base_epoch, blocked.plan.base_batch)
        if same == (point.state.epoch, point.state.batch):
            problem = ("blocked", "; ".join(blocked.failures), f"frazil waive {stream.stream} …")
    lag = sum(p.lag for p in partitions)
    summary = history.entries[history.head].summary if history.head is not None else {}
    return StreamStatus(
        **plain,
        state=problem[0] if problem else ("behind" if lag else "up to date"),
        epoch=point.state.epoch,
        batch_id=point.state.batch,
        lag=lag,
        rows=_number(summary.get("total-records")),
        newest_ingest_at=newest_ingest_at(history, stream.stream),
        partitions=partitions,
        problem=problem[1] if problem else None,
        next_step=problem[2] if problem else None,
    )


def _source_problem(stream: str, work: Workspace, history: History) -> tuple[str, str, str] | None:
    point = find_recovery_point(history, stream)
    if point is None:
        return None
    topic = work.kafka.fetch_topic(work.stream.source.topic, work.stream.source.isolation)
    try:
        check_source(stream, point.state, topic)
    except SourceError as error:
        return error.code, error.facts, error.next_step
    return None


def newest_ingest_at(history: History, stream: str) -> datetime | None:
    """Find when the newest batch of the stream was published; maintenance does not count (F12)."""
    for entry in walk_ancestors(history):
        is_ingest = entry.summary.get(keys.KIND) == keys.INGEST
        if is_ingest and entry.summary.get(keys.STREAM) == stream:
            return datetime.fromtimestamp(entry.committed_at_ms / 1000, tz=UTC)
    return None
