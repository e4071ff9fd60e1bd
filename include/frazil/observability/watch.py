"""WATCH: collect facts from Kafka, the table and its ledger, and judge the stream's freshness.

It writes nothing. A system that does not answer becomes part of the verdict, not an exception.
"""

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pyiceberg.table import Table

from frazil.errors import (
    CatalogUnavailableError,
    FrazilError,
    IncompatibleTableError,
    KafkaUnavailableError,
    MissingTableError,
    RegistryUnavailableError,
    SchemaChangeError,
    SourceError,
    StorageError,
    TableError,
)
from frazil.iceberg.branches import parse_branch
from frazil.iceberg.catalog import missing_table
from frazil.iceberg.ledger_archive import require_not_dropped
from frazil.iceberg.live_files import count_live_rows
from frazil.iceberg.table_view import TableView
from frazil.ingest.blocked_batches import (
    RulesFingerprint,
    explain_block,
    read_blocked,
    still_applies,
)
from frazil.ingest.bootstrap import require_sole_owner, require_unchanged_route
from frazil.ingest.planning import check_sources, next_offsets, transform_version
from frazil.kafka.cluster import KafkaLog, TopicFacts
from frazil.kafka.failures import is_unreachable
from frazil.ledger import keys
from frazil.ledger.foreign_snapshots import require_sole_writer
from frazil.ledger.offsets import count_offsets, parse_ranges
from frazil.ledger.recovery_point import (
    History,
    LedgerEntry,
    RecoveryPoint,
    find_recovery_point,
    walk_ancestors,
)
from frazil.observability.freshness import (
    Cause,
    FreshnessFacts,
    FreshnessReport,
    MergeFacts,
    Obstacle,
    PartitionFacts,
    Retention,
    judge_freshness,
)
from frazil.schemas.inferred_columns import with_columns, with_newest_columns
from frazil.schemas.review import read_quarantined
from frazil.state_tables.state_status import read_merge_lag
from frazil.streams.models import Stream
from frazil.streams.timestamps import from_epoch_ms
from frazil.workspace import Workspace

_COMMITTED = "read_committed"
_CAUSES: tuple[tuple[type[FrazilError], Cause], ...] = (
    (MissingTableError, "not_started"),
    (KafkaUnavailableError, "kafka_down"),
    (CatalogUnavailableError, "catalog_down"),
    (StorageError, "catalog_down"),
    (RegistryUnavailableError, "registry_down"),
    (TableError, "halted"),
    (SourceError, "source_error"),
    (SchemaChangeError, "review"),
)
Partitions = tuple[PartitionFacts, ...]


FAILURES_OF_ONE_BROKER = 2
"""After this many streams found a broker down, further streams do not try it."""
WAIT_SECONDS = 12.0
"""The longest wait for the results of other streams: requests to a silent broker end after 10 s."""


@dataclass
class _Probe:
    """One Kafka connection: the number of open requests to it, and their results so far."""

    asking: int = 0
    has_answered: bool = False
    errors: list[KafkaUnavailableError] = field(default_factory=list)

    @property
    def is_decided(self) -> bool:
        """Return whether the next stream can proceed without waiting for open requests."""
        is_free = self.asking + len(self.errors) < FAILURES_OF_ONE_BROKER
        return is_free or self.has_answered or len(self.errors) >= FAILURES_OF_ONE_BROKER


class Outages:
    """Kafka connections that two streams found down, so that further streams do not try them.

    Thread-safe. Until a broker has answered, only two threads send requests to it, and the others
    wait for their results; not longer than `WAIT_SECONDS`, since a slow broker is not down.
    """

    def __init__(self) -> None:
        """Begin without an outage."""
        self._probes: dict[str, _Probe] = {}
        self._changed = threading.Condition()

    def fetch_topics(self, work: Workspace) -> tuple[TopicFacts, ...]:
        """Fetch the topics of a stream, unless its broker is known to be down.

        Raises:
            KafkaUnavailableError: it is down, or does not answer now.
        """
        source, error = work.stream.source, None
        probe = self._begin(source.connection)
        try:
            return work.kafka.fetch_topics(source.names, source.isolation)
        except KafkaUnavailableError as raised:
            error = raised if is_unreachable(raised) else None
            raise
        finally:
            with self._changed:
                probe.asking -= 1
                probe.has_answered |= error is None
                probe.errors += [error] if error else []
                self._changed.notify_all()

    def _begin(self, connection: str) -> _Probe:
        with self._changed:
            probe = self._probes.setdefault(connection, _Probe())
            self._changed.wait_for(lambda: probe.is_decided, timeout=WAIT_SECONDS)
            if not probe.has_answered and len(probe.errors) >= FAILURES_OF_ONE_BROKER:
                first = probe.errors[0]
                facts = f"connection {connection} is down for other streams: {first.facts}"
                raise KafkaUnavailableError(facts, first.next_step)
            probe.asking += 1
        return probe


@dataclass(frozen=True)
class LedgerClocks:
    """Commit time of the newest batch, and when the table last had all records of Kafka."""

    newest_ingest_at: datetime | None
    read_all_at: datetime | None


def watch_stream(work: Workspace, *, is_paused: bool = False, pool: str = "") -> FreshnessReport:
    """Judge a stream now by its own limits.

    `is_paused`: the stream's DAG is paused, and `pool`: its tasks wait for a slot of this pool,
    which only Airflow knows.
    """
    facts = replace(gather_freshness_facts(work), is_paused=is_paused, pool=pool)
    return judge_freshness(facts, work.stream.freshness, datetime.now(UTC))


@dataclass(frozen=True)
class TableReading:
    """Facts read from a stream's tables, with the views and the recovery point they were read from.

    Without a recovery point the facts have an obstacle, and Kafka is not read. `state` is the view
    of the state table, of a stream that has one.
    """

    facts: FreshnessFacts
    view: TableView | None = None
    point: RecoveryPoint | None = None
    state: TableView | None = None


def read_table(work: Workspace) -> TableReading:
    """Collect the table's facts until an obstacle is met; facts collected before stay."""
    stream = work.stream
    facts = FreshnessFacts(stream.stream, stream.table.name)
    view, state = None, None
    try:
        view = TableView(work.store, stream.table.name)
        if stream.table.state is not None:
            state = TableView(work.store, stream.table.state.name)
            with suppress(IncompatibleTableError):  # `_read_merge` reports it
                state.load()  # before its changes: a merge may be published meanwhile
        if view.found is None:
            require_not_dropped(work.store, stream.table.name, stream.stream)
            raise missing_table(work.store, stream.table.name)
        table, history = view.table, view.history
        clocks = read_ledger_clocks(history, stream.stream, stream.batch.max_records)
        facts = replace(
            facts,
            newest_ingest_at=clocks.newest_ingest_at,
            newest_redrive_at=find_newest_redrive(history, stream.stream),
            unmapped_fields=list_unmapped_fields(history, stream.stream),
            read_all_at=clocks.read_all_at,
            rows=_count_rows(table, history),
            snapshot_id=history.head,
            merge=None if state is None else _read_merge(view, state, stream),
        )
        point = _find_point(work, history)
        births = list_attempts(table.metadata.refs, stream.stream, point.state.epoch)
        facts = replace(facts, state=point.state, staged_at=births)
        return TableReading(facts, view, point, state)
    except FrazilError as error:
        return TableReading(replace(facts, obstacle=explain_obstacle(error)), view, state=state)


def _read_merge(changes: TableView, state: TableView, stream: Stream) -> MergeFacts:
    """Return how far the state table is behind."""
    lag = read_merge_lag(stream, changes, state)
    is_on_request = stream.merge.schedule == "manual"
    return MergeFacts(lag.table, lag.behind_since, lag.problem, lag.next_step, is_on_request)


def gather_freshness_facts(
    work: Workspace, reading: TableReading | None = None, outages: Outages | None = None
) -> FreshnessFacts:
    """Add Kafka's facts to the table's until an obstacle is met; facts collected before stay."""
    reading, stream = reading or read_table(work), work.stream
    facts, view, point = reading.facts, reading.view, reading.point
    if view is None or point is None:
        return facts
    try:
        table, history = view.table, view.history
        topics = (outages or Outages()).fetch_topics(work)
        partitions = tuple(p for topic in topics for p in list_partitions(point, topic))
        facts = replace(facts, partitions=partitions)
        check_sources(stream.stream, point.state, topics)
        parts = (_add_records(work, topic.topic, list_partitions(point, topic)) for topic in topics)
        facts = replace(facts, partitions=tuple(p for part in parts for p in part))
        require_sole_writer(history, stream.stream, stream.table.other_writers)
        pending_changes = read_quarantined(table, with_newest_columns(work, view))
        facts = replace(facts, pending_changes=pending_changes)
        require_unchanged_route(table, stream)
        return replace(
            facts,
            obstacle=_find_block(table, with_columns(work, view).stream, point, pending_changes),
        )
    except FrazilError as error:
        return replace(facts, obstacle=explain_obstacle(error))


def explain_obstacle(error: FrazilError) -> Obstacle:
    """Return the obstacle for an error, with the cause that a watch reports."""
    found = (cause for kind, cause in _CAUSES if isinstance(error, kind))
    cause: Cause = next(found, "misconfigured")
    return Obstacle(cause, error.facts, error.next_step, error.code)


def _count_rows(table: Table, history: History) -> int | None:
    """Count the rows of main's head; None if another engine deleted some by equality."""
    summary = history.entries[history.head].summary if history.head is not None else {}
    if summary.get("total-equality-deletes", "0") != "0":
        return None
    if summary.get("total-position-deletes", "0") != "0":
        return count_live_rows(table)
    return int(summary["total-records"]) if "total-records" in summary else None


def _find_point(work: Workspace, history: History) -> RecoveryPoint:
    stream = work.stream
    point = find_recovery_point(history, stream.stream)
    if point is None:
        require_sole_owner(work, history)
        raise MissingTableError(
            f"table {stream.table.name} has no state of stream {stream.stream} yet",
            f"unpause DAG ingest__{stream.stream}, or `frazil run {stream.stream}`",
        )
    return point


def read_ledger_clocks(history: History, stream: str, max_records: int) -> LedgerClocks:
    """Read both clocks from main's ancestry, including expired snapshots in the archive.

    A batch below its record limit had all records when it was planned, just before its branch was
    created. The snapshot that began the stream counts too: nothing could be read before it.
    """
    newest: datetime | None = None
    oldest: datetime | None = None
    for entry in walk_ancestors(history):
        oldest = from_epoch_ms(entry.committed_at_ms)
        if entry.summary.get(keys.STREAM) != stream and keys.state_key(stream) not in entry.summary:
            continue
        kind = entry.summary.get(keys.KIND)
        if kind == keys.INGEST:
            newest = newest or oldest
            if count_offsets(parse_ranges(entry.summary[keys.RANGES])) < max_records:
                return LedgerClocks(newest, _planned_at(entry))
        if kind in {keys.BOOTSTRAP, keys.ADOPT}:
            break
    return LedgerClocks(newest, oldest)


def find_newest_redrive(history: History, stream: str) -> datetime | None:
    """Return when dead letters were last restored; None if no retained snapshot did."""
    for entry in walk_ancestors(history, beyond_metadata=False):
        own = entry.summary.get(keys.STREAM) == stream
        if own and entry.summary.get(keys.KIND) == keys.REDRIVE:
            return from_epoch_ms(entry.committed_at_ms)
    return None


def list_unmapped_fields(history: History, stream: str) -> tuple[str, ...]:
    """Return fields of the newest batch without a matching column, from its sample."""
    for entry in walk_ancestors(history, beyond_metadata=False):
        own = entry.summary.get(keys.STREAM) == stream
        if own and entry.summary.get(keys.KIND) == keys.INGEST:
            return tuple(json.loads(entry.summary.get(keys.UNNAMED_FIELDS, "[]")))
    return ()


def _planned_at(entry: LedgerEntry) -> datetime:
    """Return when the batch's branch was created; publishing may have taken long after that."""
    branch = parse_branch(entry.summary.get(keys.ATTEMPT, ""), entry.committed_at_ms)
    return from_epoch_ms(entry.committed_at_ms - (branch.age_ms if branch else 0))


def list_attempts(refs: Mapping[str, object], stream: str, epoch: int) -> tuple[datetime, ...]:
    """Return when the staging branches of the next batch were created, newest first.

    Branches of other epochs were left by earlier batches.
    """
    parsed = (parse_branch(name, 0) for name in refs)
    created = (
        from_epoch_ms(-branch.age_ms)
        for branch in parsed
        if branch and (branch.stream, branch.epoch, branch.is_beside) == (stream, epoch, False)
    )
    return tuple(sorted(created, reverse=True))


def list_partitions(point: RecoveryPoint, topic: TopicFacts) -> tuple[PartitionFacts, ...]:
    """Compare the recovery point with Kafka's offsets, partition by partition."""
    starts = next_offsets(point.state, topic)
    return tuple(
        PartitionFacts(topic.topic, number, offsets.earliest, start, offsets.end, offsets.end)
        for number, (start, offsets) in enumerate(zip(starts, topic.partitions, strict=False))
    )


def _add_records(work: Workspace, topic: str, partitions: Partitions) -> Partitions:
    """Add retention, and timestamps of topics with unread records."""
    retention = parse_retention(work.kafka.fetch_topic_settings(topic))
    found = tuple(replace(partition, retention=retention) for partition in partitions)
    isolation = work.stream.source.isolation
    if retention.is_by_bytes:
        found = _add_kept(work.kafka, topic, found, isolation)
    if any(partition.lag for partition in found):
        found = _add_unread(work.kafka, topic, found, isolation)
    is_quiet = not any(partition.is_waiting for partition in found)
    return _add_held(work.kafka, topic, found) if is_quiet and isolation == _COMMITTED else found


def _add_unread(kafka: KafkaLog, topic: str, given: Partitions, isolation: str) -> Partitions:
    """Add the timestamps of the first unread records."""
    starts = {p.partition: p.next_offset for p in given if p.lag}
    unread = kafka.fetch_first_timestamps(topic, starts, isolation)
    return tuple(
        replace(
            p,
            first_unread_ms=unread.get(p.partition),
            is_drained=p.partition in unread and unread[p.partition] is None,
        )
        for p in given
    )


def _add_kept(kafka: KafkaLog, topic: str, given: Partitions, isolation: str) -> Partitions:
    """Add the timestamps of the first kept records, where Kafka has deleted records by size."""
    starts = {p.partition: p.earliest for p in given if 0 < p.earliest < p.end}
    kept = kafka.fetch_first_timestamps(topic, starts, isolation)
    return tuple(replace(p, first_kept_ms=kept.get(p.partition)) for p in given)


def _add_held(kafka: KafkaLog, topic: str, given: Partitions) -> Partitions:
    """Add offsets and timestamps of records in open transactions, above the last stable offset."""
    high = kafka.fetch_topic(topic, "read_uncommitted").partitions
    found = tuple(replace(p, held_end=each.end) for p, each in zip(given, high, strict=False))
    starts = {p.partition: p.end for p in found if p.held}
    held = kafka.fetch_first_timestamps(topic, starts, "read_uncommitted")
    return tuple(replace(p, first_held_ms=held.get(p.partition)) for p in found)


def parse_retention(settings: Mapping[str, str]) -> Retention:
    """Parse a topic's retention; -1 is no limit, and a topic that is only compacted has none."""
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return Retention()
    ms, size = int(settings.get("retention.ms", "-1")), int(settings.get("retention.bytes", "-1"))
    return Retention(ms if ms >= 0 else None, is_by_bytes=size >= 0)


def _find_block(
    table: Table, stream: Stream, point: RecoveryPoint, pending_changes: tuple[str, ...]
) -> Obstacle | None:
    """Return the obstacle of a blocked batch that is still blocked.

    The suite is not compared here: a run reads it, and lifts the block if it changed.
    """
    blocked = read_blocked(table.properties, stream.stream, stream.table.name)
    if blocked is None or blocked.waiver is not None:
        return None
    judged = RulesFingerprint(
        suite_hash=blocked.plan.suite_hash,
        stream_hash=stream.content_hash,
        transform_version=transform_version(stream),
        quarantined_columns=pending_changes,
    )
    if not still_applies(blocked, point, judged, stream.batch.max_records):
        return None
    error = explain_block(blocked)
    return Obstacle("blocked", error.facts, error.next_step, error.code)
