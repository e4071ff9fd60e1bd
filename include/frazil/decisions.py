"""What a named person decides, recorded once: waive a blocked batch, accept a gap.

The answers to a halt are in `halts`; they are recorded by the same function.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from pyiceberg.table import Table
from pyiceberg.table.update import TableUpdate

from frazil import commits, keys
from frazil.archive import archive_new_entries
from frazil.authors import Author, Decision
from frazil.blocking import BlockedBatch, Waiver, encode_blocked, explain_block, read_blocked
from frazil.contracts import plain_offsets
from frazil.errors import (
    ConfigurationError,
    MissingTableError,
    NothingToDecideError,
)
from frazil.failpoints import reach_failpoint
from frazil.kafka_log import TopicFacts
from frazil.ledger import History, LedgerEntry, find_recovery_point, walk_ancestors
from frazil.offsets import (
    NextOffsets,
    OffsetRange,
    Ranges,
    count_offsets,
    describe_ranges,
    encode_ranges,
    parse_ranges,
)
from frazil.packed_texts import pack
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
    `told` goes into the summary, `first` into the same commit, before the snapshot.
    """

    base: StreamState | None
    state: StreamState
    lost: Ranges | None = None
    told: Mapping[str, str] = field(default_factory=dict)
    first: tuple[TableUpdate, ...] = ()
    text: str = ""

    def name(self, uuid: str, kind: str, stream: str, author: Author) -> str:
        """Hash what makes a decision this one, so that a repetition is no other (I7)."""
        base = (self.base.epoch, self.base.batch) if self.base else None
        lost = encode_ranges(self.lost or {})
        parts = [uuid, stream, kind, author.by, author.reason, base, encode_state(self.state), lost]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def waive_batch(work: Workspace, batch_id: str, author: Author | None) -> Decision:
    """Let the blocked batch pass, exactly as it was planned.

    Without an author it only shows what would pass.

    Raises:
        ConfigurationError: no batch is blocked, or another one is.
    """

    def turn() -> Decision:
        table = work.store.load(work.stream.table.name)
        blocked = _require_blocked(table, work.stream.stream, batch_id)
        if author is None:
            shown = explain_block(blocked).facts
            return Decision("waive", f"{shown}; exactly this batch would pass")
        at = datetime.now(UTC).isoformat(timespec="seconds")
        waiver = Waiver(by=author.by, reason=author.reason, at=at)
        update = commits.set_properties(
            encode_blocked(blocked.model_copy(update={"waiver": waiver}))
        )
        commit_turn(work.store, table, {}, [update])
        return Decision("waive", f"batch {batch_id} may pass; the next run publishes exactly it")

    return take_turns(f"waiving batch {batch_id}", turn)


def _require_blocked(table: Table, stream: str, batch_id: str) -> BlockedBatch:
    blocked = read_blocked(table.properties, stream)
    if blocked is None or blocked.plan.batch_id != batch_id:
        found = f"batch {blocked.plan.batch_id} is" if blocked else "no batch is"
        raise ConfigurationError(
            f"stream {stream}: {found} blocked, not {batch_id}",
            f"`frazil status {stream}` shows what is blocked",
        )
    return blocked


def accept_gap(work: Workspace, author: Author | None) -> Decision:
    """Record that records are lost for good, and go on from what Kafka still has.

    Without an author it only shows what would be lost.

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
        topics = work.kafka.fetch_topics(stream.source.names, "read_uncommitted")
        refuse_other_source(stream.stream, point.state, topics)
        offsets, lost = decide_gaps(point.state, topics)
        if offsets == point.state.offsets and all(_same_source(point.state, t) for t in topics):
            raise NothingToDecideError(
                f"stream {stream.stream}: Kafka still has everything after the recovery point",
                f"`frazil plan {stream.stream}` shows the next batch",
            )
        state = StreamState(
            epoch=point.state.epoch + 1,
            batch="",
            offsets=offsets,
            topic_ids={**point.state.topic_ids, **{t.topic: t.topic_id for t in topics}},
            cluster_id=topics[0].cluster_id,
        )
        return Choice(point.state, state, lost)

    return record_decision(work, keys.GAP, author, decide)


def decide_gaps(
    state: StreamState, topics: Sequence[TopicFacts]
) -> tuple[NextOffsets, dict[str, dict[int, OffsetRange]]]:
    """Decide the offsets after the gaps of all topics, and what is lost of each.

    A topic that the ledger does not know yet has none, unless its first records are gone.
    """
    offsets, lost = dict(state.offsets), {}
    for topic in topics:
        after, gone = decide_gap(state, topic)
        if gone or topic.topic in state.offsets:
            offsets[topic.topic], lost[topic.topic] = after, gone
    return offsets, lost


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


def record_decision(
    work: Workspace, kind: str, author: Author | None, decide: Callable[[History], Choice]
) -> Decision:
    """Decide on a fresh look and commit on exactly that head, as often as it takes.

    Where nothing is left to decide, this very decision may stand already: its answer was lost, or
    somebody gave it twice. Without an author nothing is written, only shown.
    """
    stream = work.stream.stream
    if author is None:
        choice = decide(load_with_history(work.store, work.stream.table.name)[1])
        return Decision(kind, choice.text + _describe(choice.state, choice.lost))

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
        extra = _explain(stream, author) | {keys.BATCH_ID: own_id} | dict(choice.told)
        if choice.lost is not None:
            extra[keys.RANGES] = pack(encode_ranges(choice.lost))
        marker = Marker(kind, {stream: state}, history.head, work.run_id, extra, choice.first)
        summary = summarize_marker(kind, marker.states, marker.run_id, marker.extra)
        reach_failpoint("decide.before-commit")
        return LedgerEntry(publish_marker(work.store, table, marker), history.head, 0, summary)

    entry = take_turns(f"recording a {kind}", turn)
    reach_failpoint("decide.after-commit")
    _, history = load_with_history(work.store, work.stream.table.name)
    archive_new_entries(work.store, history)
    state = parse_state(entry.summary[keys.state_key(stream)])
    lost = parse_ranges(entry.summary[keys.RANGES]) if keys.RANGES in entry.summary else None
    return Decision(kind, _describe(state, lost), entry.snapshot_id)


def _describe(state: StreamState, lost: Ranges | None) -> str:
    places = describe_ranges(lost or {})
    text = f"lost for good: {places}, {count_offsets(lost or {})} offsets; " if places else ""
    return f"{text}epoch {state.epoch}; reading goes on from {plain_offsets(state.offsets)}"


def _find_decision(history: History, stream: str, kind: str, author: Author) -> LedgerEntry | None:
    """Find the newest decision of this kind by the same person for the same reason."""
    wanted = _explain(stream, author) | {keys.KIND: kind}
    for entry in walk_ancestors(history, beyond_metadata=False):
        if wanted.items() <= entry.summary.items():
            return entry
    return None


def _explain(stream: str, author: Author) -> dict[str, str]:
    return {keys.STREAM: stream, keys.BY: author.by, keys.REASON: author.reason}
