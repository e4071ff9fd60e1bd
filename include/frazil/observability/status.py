"""A stream's status, its snapshots, and the snapshot of an offset."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from frazil.errors import ConfigurationError, FrazilError, UnknownStateError
from frazil.events import find_paused
from frazil.iceberg.table_view import TableView
from frazil.kafka.monitoring_group import is_current, require_own_group
from frazil.ledger import keys
from frazil.ledger.authors import describe_decision
from frazil.ledger.coordinates import NO_OFFSETS, find_runs, parse_coordinates
from frazil.ledger.deletions import find_deletion, is_deletion
from frazil.ledger.foreign_snapshots import name_kind
from frazil.ledger.offsets import describe_offset, describe_partition, parse_ranges, plain_ranges
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    RecoveryPoint,
    find_adopted,
    find_recovery_point,
    for_reading,
    walk_ancestors,
    walk_ledger,
)
from frazil.ledger.state import parse_state
from frazil.maintenance.erasure_keys import select_key
from frazil.messages import Report, count_noun
from frazil.observability.freshness import (
    DOWN,
    FreshnessFacts,
    FreshnessReport,
    Obstacle,
    PartitionFacts,
    describe_state,
    forecast_losses,
    judge_freshness,
)
from frazil.observability.watch import (
    Outages,
    TableReading,
    gather_freshness_facts,
    read_table,
)
from frazil.schemas.inferred_columns import with_event_key
from frazil.state_tables.merge_rules import find_position
from frazil.state_tables.state_status import (
    StateStatus,
    describe_merge,
    find_newest,
    read_state_status,
)
from frazil.state_tables.tables import require_state
from frazil.streams.state_sections import MEMORY
from frazil.streams.timestamps import from_epoch_ms
from frazil.workspace import Workspace


class SnapshotReport(Report):
    """One snapshot of main by the ledger (`frazil snapshots --json`)."""

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
    rows_late: int | None
    late_by_ms: int | None
    quality: str | None
    decision: str = ""
    table: str = ""
    merged: str = ""
    committed_at: datetime


class PartitionStatus(Report):
    """Offsets of one partition, and how long the stream may stop before Kafka deletes records."""

    topic: str
    partition: int
    earliest: int
    next_offset: int
    end: int
    retention_covers_seconds: int | None = None


class GroupStatus(Report):
    """The stream's consumer group for monitoring, and why it does not show the table's offsets."""

    group: str
    problem: str | None = None

    @property
    def text(self) -> str:
        """Describe what the group shows, on one line."""
        shown = self.problem or "shows the table's offsets"
        return f"consumer group {self.group}: {shown}"


class StreamStatus(Report):
    """Progress, problem and freshness of one stream."""

    stream: str
    table: str
    state: str
    epoch: int | None = None
    snapshot_id: int | None = None
    batch_id: str | None = None
    lag: int | None = None
    rows: int | None = None
    newest_ingest_at: datetime | None = None
    newest_redrive_at: datetime | None = None
    partitions: tuple[PartitionStatus, ...] = ()
    freshness: FreshnessReport
    monitoring_group: GroupStatus | None = None
    problem: str | None = None
    next_step: str | None = None
    state_table: StateStatus | None = None


class OffsetStatus(Report):
    """The snapshot that has an offset, or the reason why none has."""

    topic: str
    partition: int
    offset: int
    found: bool
    snapshot_id: int | None = None
    batch_id: str | None = None
    kind: str | None = None
    committed_at: datetime | None = None
    reason: str = ""


class KeyStatus(Report):
    """The changes that made the row of a key, or that deleted it; none if neither is known.

    `found`: the state table has a row of the key. `deleted`: the key is deleted, by a recorded
    delete or, with `deletes: mark`, by the mark of its row.
    """

    table: str
    found: bool
    deleted: bool = False
    changes: tuple[OffsetStatus, ...] = ()
    waiting: str = ""

    @property
    def text(self) -> str:
        """Describe where the key is, without its value."""
        said = ("marked as " if self.found else "") + "deleted by"
        said = said if self.deleted else "row last changed by"
        lines = [
            f"{self.table}: {said} {describe_offset(c.topic, c.partition, c.offset)}, in "
            + (f"snapshot {c.snapshot_id} ({c.kind})" if c.found else f"no snapshot: {c.reason}")
            for c in self.changes
        ]
        lines = lines or [f"{self.table}: no row and no recorded delete"]
        return "\n".join([*lines, *([self.waiting] if self.waiting else [])])


def list_snapshots(work: Workspace, view: TableView | None = None) -> tuple[SnapshotReport, ...]:
    """List main's snapshots, newest first, including expired ones from the archive."""
    history = (view or TableView(work.store, work.stream.table.name)).history
    return tuple(_list_reports(walk_ledger(history, work.stream.stream), history, work))


def list_state_snapshots(work: Workspace) -> tuple[SnapshotReport, ...]:
    """List the snapshots of the stream's state table, newest first; none if it has none."""
    state = work.stream.table.state
    view = None if state is None else TableView(work.store, state.name)
    if view is None or view.found is None:
        return ()
    history = view.history
    return tuple(_list_reports(walk_ancestors(history), history, work))


def _list_reports(
    entries: Iterable[LedgerEntry], history: History, work: Workspace
) -> Iterator[SnapshotReport]:
    source = None
    for entry in entries:
        report = _report(entry, work.stream.stream).model_copy(update={"table": history.table})
        is_staged = str(entry.snapshot_id) == source and report.batch_id is None
        yield report.model_copy(update={"kind": "staged"}) if is_staged else report
        source = entry.summary.get(keys.SOURCE_SNAPSHOT_ID)


def _report(entry: LedgerEntry, stream: str) -> SnapshotReport:
    summary = entry.summary
    mine = summary.get(keys.STREAM, stream) == stream
    ranges = parse_ranges(summary[keys.RANGES]) if keys.RANGES in summary and mine else {}
    return SnapshotReport(
        snapshot_id=entry.snapshot_id,
        parent_id=entry.parent_id,
        kind=name_kind(summary),
        epoch=_read_epoch(summary.get(keys.state_key(stream))),
        batch_id=summary.get(keys.BATCH_ID),
        ranges=plain_ranges(ranges),
        rows_read=_number(summary.get(keys.ROWS_READ)),
        rows_written=_number(summary.get(keys.ROWS_WRITTEN)),
        rows_quarantined=_number(summary.get(keys.ROWS_QUARANTINED)),
        rows_skipped=_number(summary.get(keys.ROWS_SKIPPED)),
        rows_late=_number(summary.get(keys.ROWS_LATE)),
        late_by_ms=_number(summary.get(keys.LATE_BY_MS)),
        quality=summary.get(keys.QUALITY),
        decision=describe_decision(summary),
        merged=describe_merge(summary, stream),
        committed_at=from_epoch_ms(entry.committed_at_ms),
    )


def _read_epoch(state: str | None) -> int | None:
    """Return a state's epoch; None for an unreadable state, so that it can still be listed."""
    try:
        return parse_state(state).epoch if state else None
    except UnknownStateError:
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None else None


def locate_offset(
    work: Workspace, topic: str, partition: int, offset: int, view: TableView | None = None
) -> OffsetStatus:
    """Find the snapshot that has an offset."""
    history = (view or TableView(work.store, work.stream.table.name)).history
    location = {"topic": topic, "partition": partition, "offset": offset}
    deletion = find_deletion(history, work.stream.stream, (topic, partition), offset)
    if deletion is not None:
        kind = deletion.summary[keys.KIND]
        verb = "erased" if kind == keys.ERASE else "expired"
        at = from_epoch_ms(deletion.committed_at_ms)
        reason = f"{verb} by snapshot {deletion.snapshot_id} at {at:%Y-%m-%d %H:%M:%S} UTC"
        return OffsetStatus(**location, found=False, kind=kind, reason=reason)
    holders = (
        entry
        for entry, covered in _iterate_ranges(history, topic, partition, work.stream.stream)
        if any(start <= offset < end for start, end in covered)
    )
    entry = next(holders, None)
    if entry is not None:
        report = _report(entry, work.stream.stream)
        moved = _describe_earlier_cluster(history, work.stream.stream, entry)
        return OffsetStatus(
            **location,
            found=True,
            snapshot_id=entry.snapshot_id,
            batch_id=report.batch_id,
            kind=report.kind,
            committed_at=report.committed_at,
            reason=moved or _describe_lost(report, holders) or _describe_skipped(report),
        )
    point = find_recovery_point(for_reading(history), work.stream.stream)
    adopted = find_adopted(history, work.stream.stream).get(topic, ())
    if partition < len(adopted) and offset < adopted[partition]:
        reason = "below the adoption of the table: if it has a row, another writer wrote it"
        return OffsetStatus(**location, found=False, reason=reason)
    return OffsetStatus(
        **location, found=False, reason=_explain_absence(point, topic, partition, offset)
    )


def locate_key(work: Workspace, texts: Sequence[str]) -> KeyStatus:
    """Find the row of a key in the state table, or its recorded delete, and the change behind it.

    Raises:
        IncompatibleTableError: the stream has no state table.
        ConfigurationError: the texts are not each column of the key once, as COLUMN=VALUE.
    """
    state = require_state(work.stream)
    changes, view = (TableView(work.store, name) for name in (work.stream.table.name, state.name))
    view.load()  # before its changes: a merge may be published meanwhile
    work = with_event_key(work, changes)
    ids = work.stream.table.id_columns
    values = dict(text.split("=", 1) for text in texts if "=" in text)
    if len(texts) != len(ids) or set(values) != set(ids):
        raise ConfigurationError(
            f"the key of {state.name} has the columns {', '.join(ids)}",
            "name each once: " + " ".join(f"--key {name}=VALUE" for name in ids),
        )
    behind = read_state_status(work.stream, changes, view)
    waiting = behind.text if behind.problem or behind.behind_since else ""
    for name in (state.name, state.deletes_name):
        table = view.found if name == state.name else work.store.find(name)
        if table is None:
            continue
        if name == state.deletes_name and view.found is not None:
            position = find_position(view.history, work.stream.stream, rebuild=True)
            values |= {MEMORY: position.memory} if position else {}
        newest = find_newest(table, select_key(table, values), len(work.stream.sequence))
        if newest is not None:
            found = name == state.name
            return KeyStatus(
                table=name,
                found=found,
                deleted=newest.is_marked or not found,
                changes=(locate_offset(work, *newest.place, changes),),
                waiting=waiting,
            )
    return KeyStatus(table=state.name, found=False, waiting=waiting)


def _explain_absence(point: RecoveryPoint | None, topic: str, partition: int, offset: int) -> str:
    """Return why no snapshot has an offset."""
    known = point.state.offsets.get(topic, ()) if point else ()
    if partition >= len(known):
        read = point.state.offsets.items() if point else ()
        topics = ", ".join(f"{name} ({len(offsets)})" for name, offsets in read) or "none"
        return f"unknown partition; topics of the stream (number of partitions): {topics}"
    if offset >= known[partition]:
        name = describe_partition(topic, partition)
        return f"not read yet: the next offset of {name} is {known[partition]}"
    return "below the stream's beginning, or in a recorded gap"


def _describe_earlier_cluster(history: History, stream: str, found: LedgerEntry) -> str:
    """Return a note if an offset is of a cluster that the stream has left."""
    for entry in walk_ledger(history, stream):
        if entry.snapshot_id == found.snapshot_id:
            return ""
        is_own = entry.summary.get(keys.STREAM) == stream
        if is_own and entry.summary.get(keys.KIND) == keys.MOVE:
            old = json.loads(entry.summary[keys.MOVED])["from"]
            return (
                f"an offset of cluster {old}, which the stream left by snapshot {entry.snapshot_id}"
            )
    return ""


def _describe_lost(report: SnapshotReport, earlier: Iterator[LedgerEntry]) -> str:
    """Return a note if an offset is in a gap; `earlier` are older snapshots with the offset."""
    if report.kind != keys.GAP:
        return ""
    note, before = "a person recorded the offset as a gap: it is not read", next(earlier, None)
    if before is not None:
        note += (
            f"; snapshot {before.snapshot_id} has the record that was at this offset before, of "
            "rows that were rolled back, or of a topic that was created again or truncated"
        )
    return note


def _describe_skipped(report: SnapshotReport) -> str:
    """Return a note if the batch skipped records: then its range does not prove a row."""
    if not report.rows_skipped:
        return ""
    return (
        f"the batch skipped {count_noun(report.rows_skipped, 'record')} (routed to another table, "
        "no change of a row, or dropped by errors.tolerance); the column _kafka shows which "
        "offsets have rows"
    )


def _iterate_ranges(
    history: History, topic: str, partition: int, stream: str
) -> Iterator[tuple[LedgerEntry, list[tuple[int, int]]]]:
    """Yield each snapshot's offset ranges of a partition, newest first; single ones of redrives."""
    for entry in walk_ledger(history, stream):
        if entry.summary.get(keys.STREAM, stream) != stream:
            continue
        if keys.RANGES in entry.summary:
            found = parse_ranges(entry.summary[keys.RANGES]).get(topic, {}).get(partition)
            if found is not None:
                yield entry, [(found.start, found.end)]
        if keys.COORDINATES in entry.summary and not is_deletion(entry.summary):
            restored = parse_coordinates(entry.summary[keys.COORDINATES])
            yield entry, find_runs(restored.get((topic, partition), NO_OFFSETS))


def read_status(
    work: Workspace, reading: TableReading | None = None, outages: Outages | None = None
) -> StreamStatus:
    """Compare table and topic; problems are part of the result and do not raise.

    `reading` holds the table's facts if they were read before, `outages` the connections that other
    streams found down. Whether the DAG is paused is read from the note that the watch leaves.
    """
    stream = work.stream
    is_paused = stream.stream in find_paused()
    reading = reading or read_table(work)
    facts = replace(gather_freshness_facts(work, reading, outages), is_paused=is_paused)
    state, obstacle = facts.state, facts.obstacle
    lag = sum(p.lag for p in facts.partitions) if facts.partitions else None
    now = datetime.now(UTC)
    losses = forecast_losses(facts, now)
    freshness = judge_freshness(facts, stream.freshness, now)
    status = StreamStatus(
        stream=stream.stream,
        table=stream.table.name,
        state=_name_state(facts, freshness),
        snapshot_id=facts.snapshot_id,
        epoch=state.epoch if state else None,
        batch_id=state.batch if state else None,
        lag=lag,
        rows=facts.rows,
        newest_ingest_at=facts.newest_ingest_at,
        newest_redrive_at=facts.newest_redrive_at,
        partitions=tuple(
            _report_partition(p, losses[p.topic, p.partition]) for p in facts.partitions
        ),
        freshness=freshness,
        monitoring_group=_check_group(work, facts),
        state_table=_read_state_table(work, reading),
    )
    return _add_problem(status, obstacle) if obstacle else status


def _read_state_table(work: Workspace, reading: TableReading) -> StateStatus | None:
    if reading.state is None:
        return None
    changes = reading.view or TableView(work.store, work.stream.table.name)
    return read_state_status(work.stream, changes, reading.state)


def _check_group(work: Workspace, facts: FreshnessFacts) -> GroupStatus | None:
    """Compare the monitoring group with the table; None without a group, or without its offsets."""
    group, name = work.stream.source.monitoring_group, work.stream.stream
    if group is None or facts.state is None or not facts.partitions:
        return None
    try:
        found = work.kafka.fetch_group(group)
        require_own_group(found, group, name)
    except FrazilError as error:
        return GroupStatus(group=group, problem=error.facts)
    if is_current(found, facts.state.offsets):
        return GroupStatus(group=group)
    return GroupStatus(group=group, problem="it shows other offsets until the next batch")


def _name_state(facts: FreshnessFacts, freshness: FreshnessReport) -> str:
    """Return the state in words, or the error code if the obstacle is an error."""
    obstacle = facts.obstacle
    if obstacle is None or obstacle.cause in {"blocked", "review", "not_started"}:
        return describe_state(facts, freshness.cause)
    return obstacle.code


def is_unreadable(status: StreamStatus) -> bool:
    """Return whether a service or a setting kept the status from being read completely."""
    return status.freshness.cause in DOWN | {"misconfigured"}


def sort_by_loss(partitions: Iterable[PartitionStatus]) -> list[PartitionStatus]:
    """Sort partitions by how soon they lose records if the stream stops now."""
    never = float("inf")
    return sorted(
        partitions, key=lambda p: never if (s := p.retention_covers_seconds) is None else s
    )


def _report_partition(facts: PartitionFacts, covers: float | None) -> PartitionStatus:
    return PartitionStatus(
        topic=facts.topic,
        partition=facts.partition,
        earliest=facts.earliest,
        next_offset=facts.next_offset,
        end=facts.end,
        retention_covers_seconds=int(covers) if covers is not None else None,
    )


def _add_problem(status: StreamStatus, obstacle: Obstacle) -> StreamStatus:
    """Add the obstacle; a stream that has not begun has no problem, only a next step."""
    if obstacle.cause == "not_started":
        return status.model_copy(update={"next_step": f"frazil run {status.stream}"})
    problem = {"problem": obstacle.text, "next_step": obstacle.next_step}
    return status.model_copy(update=problem)
