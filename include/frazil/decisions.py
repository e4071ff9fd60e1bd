"""What a named person decides: waive a blocked batch, accept a gap, read a rollback again."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from frazil import commits, keys
from frazil.archive import archive_new_entries
from frazil.authors import Author, Decision
from frazil.blocking import Waiver, encode_blocked, read_blocked
from frazil.bootstrap import initial_state
from frazil.contracts import plain_offsets
from frazil.errors import (
    ConfigurationError,
    HistoryCutError,
    MissingTableError,
    NothingToDecideError,
    TableError,
    TableRecreatedError,
)
from frazil.kafka_log import TopicFacts
from frazil.ledger import History, LedgerEntry, find_recovery_point, walk_ancestors
from frazil.offsets import OffsetRange, Ranges, encode_ranges
from frazil.planning import refuse_other_source
from frazil.publishing import Marker, commit_turn, load_with_history, publish_marker
from frazil.state import StreamState, encode_state, parse_state
from frazil.summaries import summarize_marker
from frazil.turns import take_turns
from frazil.workspace import Workspace


@dataclass(frozen=True)
class Choice:
    """What a decision comes to on one look at the table.

    `base` is the state that it answers, None where there is none; `state` still has no batch id.
    """

    base: StreamState | None
    state: StreamState
    lost: Ranges | None = None

    def name(self, uuid: str, kind: str, stream: str, author: Author) -> str:
        """Hash what makes a decision this one, so that a repetition is no other (I7)."""
        base = (self.base.epoch, self.base.batch) if self.base else None
        lost = encode_ranges(self.lost or {})
        parts = [uuid, stream, kind, author.by, author.reason, base, encode_state(self.state), lost]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


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
        commit_turn(work.store, table, {}, [update])
        return Decision("waive", f"batch {batch_id} may pass; the next run publishes exactly it")

    return take_turns(f"waiving batch {batch_id}", turn)


def accept_gap(work: Workspace, author: Author) -> Decision:
    """Record that records are lost for good, and go on from what Kafka still has.

    Raises:
        NothingToDecideError: there is no gap.
        ClusterChangedError, TopicChangedError: these offsets say nothing about the table.
    """
    stream = work.stream

    def decide(history: History) -> Choice:
        point = find_recovery_point(history, stream.stream)
        if point is None:
            raise MissingTableError(
                f"stream {stream.stream} has not begun: there is nothing to lose",
                f"`frazil run {stream.stream}` begins at source.start",
            )
        # The high watermark, not the last stable offset: an open transaction is no truncated log.
        topic = work.kafka.fetch_topic(stream.source.topic, "read_uncommitted")
        refuse_other_source(stream.stream, point.state, topic)
        offsets, lost = decide_gap(point.state, topic)
        if offsets == point.state.offsets.get(topic.topic) and _same_source(point.state, topic):
            raise NothingToDecideError(
                f"stream {stream.stream}: Kafka still has everything after the recovery point",
                f"`frazil plan {stream.stream}` shows the next batch",
            )
        state = StreamState(
            epoch=point.state.epoch + 1,
            batch="",
            offsets={**point.state.offsets, topic.topic: offsets},
            topic_ids={**point.state.topic_ids, topic.topic: topic.topic_id},
            cluster_id=topic.cluster_id,
        )
        return Choice(point.state, state, {topic.topic: lost})

    return _publish_decision(work, keys.GAP, author, decide)


def decide_gap(
    state: StreamState, topic: TopicFacts
) -> tuple[tuple[int, ...], dict[int, OffsetRange]]:
    """Decide the offsets after a gap, and what is lost per partition.

    On the same topic only partitions with a gap move (D2), and a log that was cut goes on from its
    new end: what lies before it is in the table. A topic with another id starts over.
    """
    known = state.offsets.get(topic.topic, ())
    same = _same_source(state, topic)
    offsets: list[int] = []
    lost: dict[int, OffsetRange] = {}
    for partition, facts in enumerate(topic.partitions):
        before = known[partition] if partition < len(known) else 0
        kept = min(before, facts.end) if same else facts.earliest
        after = max(kept, facts.earliest)
        offsets.append(after)
        if after > before:
            lost[partition] = OffsetRange(before, after)
    return tuple(offsets), lost


def _same_source(state: StreamState, topic: TopicFacts) -> bool:
    return state.topic_ids.get(topic.topic, topic.topic_id) == topic.topic_id


def reingest(work: Workspace, author: Author) -> Decision:
    """Answer a rollback by others: read the rolled-back range again from what main carries.

    Raises:
        NothingToDecideError: nobody rolled the table back.
    """
    stream = work.stream.stream

    def decide(history: History) -> Choice:
        _refuse_recovery_point(history, stream, halts=TableError)
        state = _state_on_main(history, stream) or _archived_state(history, stream)
        if state is None:
            raise ConfigurationError(
                f"stream {stream}: main carries no state to read again from",
                f"`frazil recover {stream} --new-table` starts over from source.start",
            )
        hint = history.hint(stream)
        epoch = max(state.epoch, hint.epoch if hint else 0) + 1
        return Choice(state, state.moved(epoch, "", state.offsets))

    return _publish_decision(work, keys.REWIND, author, decide)


def start_over(work: Workspace, author: Author) -> Decision:
    """Begin again in a table that somebody dropped and created, from `source.start`.

    Raises:
        NothingToDecideError: the stream has begun in this table.
    """
    stream = work.stream

    def decide(history: History) -> Choice:
        # Only here: after any other halt the table still has rows, which would double.
        _refuse_recovery_point(history, stream.stream, halts=TableRecreatedError)
        topic = work.kafka.fetch_topic(stream.source.topic, stream.source.isolation)
        state = initial_state(stream, topic, work.kafka)
        hint = history.hint(stream.stream)
        return Choice(None, state.moved(hint.epoch + 1 if hint else 0, "", state.offsets))

    return _publish_decision(work, keys.BOOTSTRAP, author, decide)


def _refuse_recovery_point(history: History, stream: str, halts: type[TableError]) -> None:
    """Refuse to recover what has a recovery point; only these halts may pass."""
    try:
        point = find_recovery_point(history, stream)
    except halts:
        return
    if point is not None:
        raise NothingToDecideError(
            f"stream {stream} has a recovery point in table {history.table}: epoch "
            f"{point.state.epoch}, snapshot {point.carrier_id}",
            f"`frazil status {stream}` shows it; there is nothing to recover from",
        )


def _publish_decision(
    work: Workspace, kind: str, author: Author, decide: Callable[[History], Choice]
) -> Decision:
    """Decide on a fresh look and commit on exactly that head, as often as it takes.

    Where nothing is left to decide, this very decision may stand already: its answer was lost, or
    somebody gave it twice.
    """
    stream = work.stream.stream

    def turn() -> LedgerEntry:
        table, history = load_with_history(work.store, work.stream.table.name)
        try:
            choice = decide(history)
        except NothingToDecideError:
            found = _find_decision(history, stream, kind, author)
            if found is None:
                raise
            return found
        own_id = choice.name(history.table_uuid, kind, stream, author)
        state = replace(choice.state, batch=own_id)
        extra = _explain(stream, author) | {keys.BATCH_ID: own_id}
        if choice.lost is not None:
            extra[keys.RANGES] = encode_ranges(choice.lost)
        marker = Marker(kind, {stream: state}, history.head, work.run_id, extra)
        summary = summarize_marker(kind, marker.states, marker.run_id, marker.extra)
        return LedgerEntry(publish_marker(work.store, table, marker), history.head, 0, summary)

    entry = take_turns(f"recording a {kind}", turn)
    _, history = load_with_history(work.store, work.stream.table.name)
    archive_new_entries(work.store, history)
    state = parse_state(entry.summary[keys.state_key(stream)])
    text = f"epoch {state.epoch}; reading goes on from {plain_offsets(state.offsets)}"
    return Decision(kind, text, entry.snapshot_id)


def _find_decision(history: History, stream: str, kind: str, author: Author) -> LedgerEntry | None:
    """Find the newest decision of this kind by the same person for the same reason."""
    wanted = _explain(stream, author) | {keys.KIND: kind}
    for entry in walk_ancestors(history, beyond_metadata=False):
        if wanted.items() <= entry.summary.items():
            return entry
    return None


def _state_on_main(history: History, stream: str) -> StreamState | None:
    """Read the newest state on main."""
    key = keys.state_key(stream)
    carriers = (entry for entry in walk_ancestors(history) if key in entry.summary)
    found = next(carriers, None)
    return parse_state(found.summary[key]) if found else None


def _archived_state(history: History, stream: str) -> StreamState | None:
    """Read the newest state in the archive, where main has lost it.

    Raises:
        HistoryCutError: a later batch was published than the archive knows.
    """
    key = keys.state_key(stream)
    archived = [e for e in history.load_archive().entries.values() if key in e.summary]
    if not archived:
        return None
    state = parse_state(max(archived, key=lambda entry: entry.committed_at_ms).summary[key])
    hint = history.hint(stream)
    if hint is not None and hint.epoch > state.epoch:
        raise HistoryCutError(
            f"stream {stream}: main of {history.table} has lost its history and the archive "
            f"knows epoch {state.epoch}, but epoch {hint.epoch} was published: its rows may be in "
            "the table, and reading them again would double them",
            "restore the table's metadata of before the foreign expiry, or give the stream a new "
            "name and table",
        )
    return state


def _explain(stream: str, author: Author) -> dict[str, str]:
    return {keys.STREAM: stream, keys.BY: author.by, keys.REASON: author.reason}
