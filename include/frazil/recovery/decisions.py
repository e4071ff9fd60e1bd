"""What a named person decides, recorded once: waive a blocked batch, accept a gap.

The answers to a halt are in `halts`; they are recorded by the same function.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from pyiceberg.table import Table

from frazil.errors import ConfigurationError, MissingTableError, NothingToDecideError
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.ingest.blocked_batches import (
    BlockedBatch,
    Waiver,
    encode_blocked,
    explain_block,
    read_blocked,
)
from frazil.ingest.planning import require_same_source
from frazil.ingest.publishing import Choice, record_decision
from frazil.kafka.cluster import TopicFacts
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.ledger.offsets import NextOffsets, OffsetRange
from frazil.ledger.recovery_point import History, find_recovery_point
from frazil.ledger.state import StreamState
from frazil.workspace import Workspace


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
        commit_once(work.store, table, {}, [update])
        return Decision("waive", f"batch {batch_id} may pass; the next run publishes exactly it")

    return retry_commit(f"waiving batch {batch_id}", turn)


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
        require_same_source(stream.stream, point.state, topics)
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
