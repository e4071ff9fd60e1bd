"""What a named person decides: waive a blocked batch, accept a gap, read a rollback again."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from frazil import commits, keys
from frazil.archive import archive_new_entries
from frazil.blocking import Waiver, encode_blocked, read_blocked
from frazil.bootstrap import initial_state
from frazil.contracts import plain_offsets
from frazil.errors import ConfigurationError, MissingTableError, TableRecreatedError
from frazil.kafka_log import TopicFacts
from frazil.ledger import (
    History,
    LedgerEntry,
    find_batch,
    find_recovery_point,
    walk_ancestors,
)
from frazil.offsets import OffsetRange, encode_ranges
from frazil.planning import marker_batch_id
from frazil.publishing import Marker, load_with_history, publish_marker
from frazil.state import StreamState, parse_state
from frazil.summaries import summarize_marker
from frazil.turns import LostTurnError, take_turns
from frazil.workspace import Workspace


@dataclass(frozen=True)
class Author:
    """Who decided, and why; both are kept with the snapshot."""

    by: str
    reason: str

    def __post_init__(self) -> None:
        """Refuse a decision without a name or a reason."""
        if not self.by.strip() or not self.reason.strip():
            raise ConfigurationError(
                "a decision needs a name and a reason", "give both: --by YOU --reason WHY"
            )


@dataclass(frozen=True)
class Decision:
    """What was decided and where it stands in the table."""

    kind: str
    text: str
    snapshot_id: int | None = None


def waive_batch(work: Workspace, batch_id: str, author: Author) -> Decision:
    """Let the blocked batch pass, exactly as it was planned.

    Raises:
        ConfigurationError: no batch is blocked, or another one is.
    """
    name = work.stream.stream

    def turn() -> Decision:
        table = work.store.load(work.stream.table.name)
        blocked = read_blocked(table.properties, name)
        if blocked is None or blocked.plan.batch_id != batch_id:
            found = f"batch {blocked.plan.batch_id} is" if blocked else "no batch is"
            raise ConfigurationError(
                f"stream {name}: {found} blocked, not {batch_id}",
                f"`frazil status {name}` shows what is blocked",
            )
        at = datetime.now(UTC).isoformat(timespec="seconds")
        waiver = Waiver(by=author.by, reason=author.reason, at=at)
        update = commits.set_properties(
            encode_blocked(blocked.model_copy(update={"waiver": waiver}))
        )
        try:
            commits.commit(work.store.catalog, table, commits.require_uuid(table), [update])
        except Exception as error:
            raise LostTurnError(str(error)) from error
        return Decision("waive", f"batch {batch_id} may pass; the next run publishes exactly it")

    return take_turns(f"waiving batch {batch_id}", turn)


def accept_gap(work: Workspace, author: Author) -> Decision:
    """Record that records are lost for good, and go on from what Kafka still has.

    Raises:
        ConfigurationError: there is no gap.
    """
    stream = work.stream

    def decide(history: History, own_id: str) -> Marker:
        point = find_recovery_point(history, stream.stream)
        if point is None:
            raise MissingTableError(
                f"stream {stream.stream} has not begun: there is nothing to lose",
                f"`frazil run {stream.stream}` begins at source.start",
            )
        topic = work.kafka.fetch_topic(stream.source.topic, stream.source.isolation)
        offsets, lost = decide_gap(point.state, topic)
        if offsets == point.state.offsets.get(topic.topic) and _same_source(point.state, topic):
            raise ConfigurationError(
                f"stream {stream.stream}: Kafka still has everything after the recovery point",
                f"`frazil plan {stream.stream}` shows the next batch",
            )
        state = StreamState(
            epoch=point.state.epoch + 1,
            batch=own_id,
            offsets={topic.topic: offsets},
            topic_ids={topic.topic: topic.topic_id},
            cluster_id=topic.cluster_id,
        )
        extra = _explain(work, author) | {keys.RANGES: encode_ranges({topic.topic: lost})}
        return Marker(keys.GAP, {stream.stream: state}, history.head, work.run_id, extra)

    return _publish_decision(work, keys.GAP, decide)


def decide_gap(
    state: StreamState, topic: TopicFacts
) -> tuple[tuple[int, ...], dict[int, OffsetRange]]:
    """Decide the offsets after a gap, and what is lost per partition.

    On the same topic only partitions with a gap move (D2). A topic with another id starts over.
    """
    known = state.offsets.get(topic.topic, ())
    same = _same_source(state, topic)
    offsets: list[int] = []
    lost: dict[int, OffsetRange] = {}
    for partition, facts in enumerate(topic.partitions):
        before = known[partition] if partition < len(known) else 0
        after = max(before, facts.earliest) if same else facts.earliest
        after = facts.earliest if before > facts.end else after
        offsets.append(after)
        if after > before:
            lost[partition] = OffsetRange(before, after)
    return tuple(offsets), lost


def _same_source(state: StreamState, topic: TopicFacts) -> bool:
    known = state.topic_ids.get(topic.topic, topic.topic_id)
    return known == topic.topic_id and state.cluster_id in {"", topic.cluster_id}


def reingest(work: Workspace, author: Author) -> Decision:
    """Answer a rollback by others: read the rolled-back range again from what main carries."""
    stream = work.stream.stream

    def decide(history: History, own_id: str) -> Marker:
        state = _newest_state(history, stream)
        if state is None:
            raise ConfigurationError(
                f"stream {stream}: main carries no state to read again from",
                f"`frazil recover {stream} --new-table` starts over from source.start",
            )
        hint = history.hint(stream)
        epoch = max(state.epoch, hint.epoch if hint else 0) + 1
        moved = state.moved(epoch, own_id, state.offsets)
        extra = _explain(work, author)
        return Marker(keys.REWIND, {stream: moved}, history.head, work.run_id, extra)

    return _publish_decision(work, keys.REWIND, decide)


def start_over(work: Workspace, author: Author) -> Decision:
    """Begin again in a table that somebody dropped and created, from `source.start`."""
    stream = work.stream

    def decide(history: History, own_id: str) -> Marker:
        try:
            begun = find_recovery_point(history, stream.stream) is not None
        except TableRecreatedError:
            # Only here: after any other halt the table still has rows, which would double.
            begun = False
        if begun:
            raise ConfigurationError(
                f"stream {stream.stream} has a recovery point in table {stream.table.name}",
                f"`frazil status {stream.stream}` shows it; nothing needs to start over",
            )
        topic = work.kafka.fetch_topic(stream.source.topic, stream.source.isolation)
        state = initial_state(stream, topic, work.kafka)
        hint = history.hint(stream.stream)
        state = state.moved(hint.epoch + 1 if hint else 0, own_id, state.offsets)
        extra = _explain(work, author)
        return Marker(keys.BOOTSTRAP, {stream.stream: state}, history.head, work.run_id, extra)

    return _publish_decision(work, keys.BOOTSTRAP, decide)


def _publish_decision(
    work: Workspace, kind: str, decide: Callable[[History, str], Marker]
) -> Decision:
    """Decide on a fresh look and commit on exactly that head, as often as it takes.

    The decision's own id is looked for first, so that a commit whose answer was lost is found.
    """
    own_id = marker_batch_id(f"{kind} {work.run_id}")

    def turn() -> LedgerEntry:
        table, history = load_with_history(work.store, work.stream.table.name)
        found = find_batch(history, own_id, beyond_metadata=False)
        if found is not None:
            return found
        marker = decide(history, own_id)
        marker = replace(marker, extra={**marker.extra, keys.BATCH_ID: own_id})
        summary = summarize_marker(marker.kind, marker.states, marker.run_id, marker.extra)
        return LedgerEntry(publish_marker(work.store, table, marker), history.head, 0, summary)

    entry = take_turns(f"recording a {kind}", turn)
    _, history = load_with_history(work.store, work.stream.table.name)
    archive_new_entries(work.store, history)
    state = parse_state(entry.summary[keys.state_key(work.stream.stream)])
    text = f"epoch {state.epoch}; the next run reads from {plain_offsets(state.offsets)}"
    return Decision(kind, text, entry.snapshot_id)


def _newest_state(history: History, stream: str) -> StreamState | None:
    """Read the newest state on main or, where main has lost it, in the archive."""
    key = keys.state_key(stream)
    entries: list[LedgerEntry] = list(walk_ancestors(history))
    if not any(key in entry.summary for entry in entries):
        archived = history.load_archive().entries.values()
        entries = sorted(archived, key=lambda entry: -entry.committed_at_ms)
    found = next((entry for entry in entries if key in entry.summary), None)
    return parse_state(found.summary[key]) if found else None


def _explain(work: Workspace, author: Author) -> dict[str, str]:
    return {keys.STREAM: work.stream.stream, keys.BY: author.by, keys.REASON: author.reason}
