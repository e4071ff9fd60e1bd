"""Decisions of a named person about one batch: waive a blocked batch, accept a gap.

Without an author they are previews. Resolutions of a halted stream are in `halt_resolution`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from pyiceberg.table import Table

from frazil.errors import ConfigurationError, NothingToDecideError, StateEndsError
from frazil.iceberg import commits
from frazil.iceberg.commit_retry import commit_once, retry_commit
from frazil.iceberg.table_view import TableView
from frazil.ingest.blocked_batches import (
    NOT_ISOLATED,
    NOT_WAIVABLE,
    BlockedBatch,
    Waiver,
    encode_waiver,
    explain_block,
    read_blocked,
)
from frazil.ingest.planning import require_same_source
from frazil.ingest.publishing import Choice, record_decision
from frazil.kafka.cluster import TopicFacts
from frazil.ledger import keys
from frazil.ledger.authors import Author, Decision
from frazil.ledger.history import list_reused
from frazil.ledger.offsets import (
    NextOffsets,
    OffsetRange,
    count_offsets,
    describe_offset,
    describe_partition,
)
from frazil.ledger.recovery_point import require_recovery_point
from frazil.ledger.state import StreamState
from frazil.messages import name_field
from frazil.streams.models import Stream
from frazil.streams.state_sections import NEW_LOG_STEP
from frazil.workspace import Workspace


def waive_batch(work: Workspace, batch_id: str, author: Author | None) -> Decision:
    """Approve the blocked batch exactly as it was planned, or preview that without an author.

    Raises:
        ConfigurationError: no batch is blocked, another one is, or its failing records are not
            known one by one and may be rows of other tables of a route.
    """

    def attempt() -> Decision:
        table = TableView(work.store, work.stream.table.name).table
        blocked = _require_blocked(table, work.stream.stream, batch_id)
        _require_waivable(work, blocked)
        if author is None:
            facts = explain_block(blocked).facts
            return Decision("waive", f"{facts}; a waiver would approve exactly this batch")
        at = datetime.now(UTC).isoformat(timespec="seconds")
        waiver = Waiver(by=author.by, reason=author.reason, at=at)
        update = commits.set_properties(encode_waiver(blocked.plan, waiver))
        commit_once(work.store, table, {}, [update])
        return Decision("waive", f"batch {batch_id} approved; the next run will publish it")

    return retry_commit(f"waiving batch {batch_id}", attempt)


def _require_waivable(work: Workspace, blocked: BlockedBatch) -> None:
    route, plan = work.stream.route, blocked.plan
    if blocked.error != NOT_ISOLATED or route is None or route.takes is None:
        return
    raise ConfigurationError(
        f"stream {plan.stream}: batch {plan.batch_id} has failing records that were not found one "
        f"by one; {NOT_WAIVABLE}",
        f"set batch.max_records in the stream file below {count_offsets(plan.offset_ranges):,}: "
        "the next run plans again, and each search has fewer records",
    )


def _require_blocked(table: Table, stream: str, batch_id: str) -> BlockedBatch:
    blocked = read_blocked(table.properties, stream, ".".join(table.name()))
    if blocked is None or blocked.plan.batch_id != batch_id:
        found = f"batch {blocked.plan.batch_id} is" if blocked else "no batch is"
        raise ConfigurationError(
            f"stream {stream}: {found} blocked, not {batch_id}",
            f"`frazil status {stream}` shows the blocked batch",
        )
    return blocked


def accept_gap(work: Workspace, author: Author | None, *, stop_merges: bool = False) -> Decision:
    """Record lost records as a gap and continue at what Kafka still has; without author: preview.

    `stop_merges` accepts that the state table cannot follow, where offsets start over.

    Raises:
        StateEndsError: the state table could not follow, and `stop_merges` is not set.
        NothingToDecideError: there is no gap.
        MissingTableError: the stream has not begun.
        ClusterChangedError, TopicChangedError: the offsets are of another cluster or topic.
    """
    stream = work.stream

    def decide(view: TableView) -> Choice:
        point = require_recovery_point(view.history, stream.stream)
        # The high watermark, not the last stable offset: open transactions do not truncate a log.
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
        is_accepted = author is None or stop_merges
        ends = _describe_ended_merges(stream, point.state, state, is_accepted=is_accepted)
        text = ends + describe_lost_partitions(point.state, topics)
        return Choice(point.state, state, lost, text=text)

    return record_decision(work, keys.GAP, author, decide)


def _describe_ended_merges(
    stream: Stream, before: StreamState, after: StreamState, *, is_accepted: bool
) -> str:
    """Describe that the state table cannot follow a gap; the text ends with "; ", or is empty.

    Raises:
        StateEndsError: it cannot, and this is not accepted.
    """
    reused = list_reused(keys.GAP, before, after) if stream.table.state is not None else []
    if stream.table.state is None or not reused:
        return ""
    where = ", ".join(describe_partition(topic, number) for topic, number in reused)
    ends = (
        f"the offsets of {where} start over, so no merge of state table {stream.table.state.name} "
        f"is possible after this gap; run `frazil merge {stream.stream}` first: after that the "
        "table no longer changes"
    )
    word = name_field("stop_merges")
    if not is_accepted:
        step = f"{NEW_LOG_STEP}; {word} records the gap anyway"
        raise StateEndsError(f"stream {stream.stream}: {ends}", step)
    return f"{ends}; {NEW_LOG_STEP}; use {word} to record the gap; "


def decide_gaps(
    state: StreamState, topics: Sequence[TopicFacts]
) -> tuple[NextOffsets, dict[str, dict[int, OffsetRange]]]:
    """Return the next offsets after the gaps of all topics, and the lost ranges of each.

    A topic that the ledger does not know yet has a gap only if its first records were deleted.
    """
    offsets, lost = dict(state.offsets), {}
    for topic in topics:
        after, gap = decide_gap(state, topic)
        if gap or topic.topic in state.offsets:
            offsets[topic.topic], lost[topic.topic] = after, gap
    return offsets, lost


def decide_gap(
    state: StreamState, topic: TopicFacts
) -> tuple[tuple[int, ...], dict[int, OffsetRange]]:
    """Return the next offsets after a gap, and the lost range of each partition.

    On the same topic only partitions with a gap move, and a truncated log continues at its
    new end, since earlier records are in the table. A topic with another id starts over: all
    before its earliest offset is lost, whatever was read of the earlier topic.
    """
    known = state.offsets.get(topic.topic, ())
    same = _same_source(state, topic)
    offsets: list[int] = []
    lost: dict[int, OffsetRange] = {}
    for partition, facts in enumerate(topic.partitions):
        before = known[partition] if partition < len(known) else 0
        start = before if same else 0
        after = max(min(start, facts.end), facts.earliest)
        offsets.append(after)
        if after > start:
            lost[partition] = OffsetRange(start, after)
    return tuple(offsets), lost


def describe_lost_partitions(state: StreamState, topics: Sequence[TopicFacts]) -> str:
    """Describe the partitions that the topics no longer have; the text ends with "; "."""
    gone = [
        f"{describe_offset(topic.topic, partition, end)}"
        for topic in topics
        for partition, end in enumerate(state.offsets.get(topic.topic, ()))
        if partition >= len(topic.partitions)
    ]
    if not gone:
        return ""
    return f"partitions that no longer exist, with the offset that was next: {', '.join(gone)}; "


def _same_source(state: StreamState, topic: TopicFacts) -> bool:
    return state.topic_ids.get(topic.topic, topic.topic_id) == topic.topic_id
