"""Check that Kafka still has the records that a rollback must read again."""

from collections.abc import Mapping

from frazil.errors import RetentionGapError, TargetError
from frazil.ingest.planning import check_sources, require_same_source
from frazil.kafka.cluster import TopicFacts
from frazil.ledger.offsets import OffsetRange, Ranges, describe_ranges
from frazil.ledger.state import StreamState
from frazil.messages import name_field
from frazil.recovery.backfill_rules import list_backfilled
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.rollback_rules import Rollback
from frazil.streams.loading import load_readable_streams
from frazil.workspace import Workspace

LostRanges = Mapping[str, Ranges]
"""Stream → ranges to read again that Kafka does not, or may not, deliver completely."""

ISOLATION = "read_uncommitted"
"""Compare with the high watermark: an open transaction does not truncate a log."""


def open_stream(work: Workspace, stream: str) -> Workspace:
    """Open another stream of the same table.

    Raises:
        TargetError: no stream file has this name, so its range would not be read again.
    """
    if stream == work.stream.stream:
        return work
    found, _ = load_readable_streams(work.directory)
    other = next((each for each in found if each.stream == stream), None)
    if other is None:
        raise TargetError(
            f"stream {stream} writes to {work.stream.table.name} too and would be rolled back, but "
            "has no stream file: its range would not be read again",
            f"restore {stream}.yaml, or choose a target newer than its batches",
        )
    return Workspace(other, work.directory, work.run_id)


def find_lost_ranges(work: Workspace, rollback: Rollback) -> LostRanges:
    """Find what Kafka no longer has of the ranges that a rollback makes streams read again.

    Raises:
        TargetError: a rolled-back stream has no stream file, or moved to another cluster.
        SourceError: another cluster or topic, or a log that ends before the read offsets.
    """
    _require_same_cluster(rollback)
    lost: dict[str, Ranges] = {}
    for stream, ranges in rollback.reread.items():
        own = open_stream(work, stream)
        lost_of_topic: dict[str, Mapping[int, OffsetRange]] = {}
        for topic, wanted in ranges.items():
            require_source_topic(own, topic)
            facts = own.kafka.fetch_topic(topic, ISOLATION)
            state = rollback.states[stream]
            require_same_source(stream, state, [facts])
            found = list_lost_ranges(state, facts, wanted)
            if not found:
                check_sources(stream, state, [facts])
            if _is_compacted(own, topic):
                found = dict(wanted)
            if found:
                lost_of_topic[topic] = found
        if lost_of_topic:
            lost[stream] = lost_of_topic
    return lost


def _require_same_cluster(rollback: Rollback) -> None:
    """Refuse a target from before a move to another cluster.

    Raises:
        TargetError: with the clusters concerned.
    """
    for stream, point in rollback.points.items():
        then, now = rollback.states[stream].cluster_id, point.state.cluster_id
        if then != now:
            raise TargetError(
                f"stream {stream}: at snapshot {rollback.target.snapshot_id} it read cluster "
                f"{then}, now it reads cluster {now}: their offsets cannot be compared",
                f"choose a target newer than the move (`frazil snapshots {stream}`), or "
                f"move back first: `frazil move-cluster {stream}`",
            )


def find_lost_backfills(work: Workspace, rollback: Rollback) -> dict[str, list[Ranges]]:
    """Find what Kafka no longer has of the backfilled windows that a rollback removes.

    Raises:
        TargetError: a rolled-back stream has no stream file.
    """
    lost: dict[str, list[Ranges]] = {}
    for stream, windows in list_backfilled(rollback.removed).items():
        own, state = open_stream(work, stream), rollback.states[stream]
        for topic in sorted({topic for ranges in windows for topic in ranges}):
            facts, is_compacted = own.kafka.fetch_topic(topic, ISOLATION), _is_compacted(own, topic)
            for wanted in (ranges[topic] for ranges in windows if topic in ranges):
                missing = dict(wanted) if is_compacted else list_lost_ranges(state, facts, wanted)
                if missing:
                    lost.setdefault(stream, []).append({topic: missing})
    return lost


def require_no_lost_backfill(request: RecoverRequest, lost: Mapping[str, list[Ranges]]) -> None:
    """Refuse to lose backfilled records that Kafka no longer has, unless the loss is accepted.

    Raises:
        RetentionGapError: with the ranges of each stream.
    """
    if not lost or request.accept_gap:
        return
    raise RetentionGapError(
        f"stream {request.stream}: a rollback to {request.target} would lose backfilled records "
        f"that Kafka no longer has, or that are of a compacted topic: {describe_windows(lost)}",
        f"choose a newer target (`frazil snapshots {request.stream}`), or repeat this with "
        f"{name_field('accept_gap')}: these rows are then lost for good, and the history "
        "records who agreed",
    )


def describe_windows(lost: Mapping[str, list[Ranges]]) -> str:
    """Return windows as text, stream by stream."""
    return "; ".join(
        f"{stream}: {', '.join(map(describe_ranges, windows))}" for stream, windows in lost.items()
    )


def require_source_topic(work: Workspace, topic: str) -> None:
    """Refuse to roll back rows of a topic that the stream file no longer names.

    Raises:
        TargetError: the topic would not be read again.
    """
    stream = work.stream
    if topic not in stream.source.names:
        raise TargetError(
            f"stream {stream.stream}: rows of topic {topic} would be rolled back, but the stream "
            "file no longer names it: they would not be read again",
            f"put {topic} back under source.topics, or choose a target newer than its batches",
        )


def list_lost_ranges(
    state: StreamState, topic: TopicFacts, wanted: Mapping[int, OffsetRange]
) -> dict[int, OffsetRange]:
    """Return the lost part of the wanted ranges; all of them if the topic has another id."""
    if state.topic_ids.get(topic.topic, topic.topic_id) != topic.topic_id:
        return dict(wanted)
    lost: dict[int, OffsetRange] = {}
    for partition, span in wanted.items():
        kept = topic.partitions[partition] if partition < len(topic.partitions) else None
        if kept is None or kept.end < span.end:
            lost[partition] = span
        elif span.start < kept.earliest:
            lost[partition] = OffsetRange(span.start, min(span.end, kept.earliest))
    return lost


def _is_compacted(work: Workspace, topic: str) -> bool:
    return "compact" in work.kafka.fetch_topic_settings(topic).get("cleanup.policy", "delete")


def require_no_lost_range(request: RecoverRequest, lost: LostRanges) -> None:
    """Refuse to lose rows that cannot be read again, unless a named person accepted the loss.

    Raises:
        RetentionGapError: with the ranges of each stream.
    """
    if not lost or request.accept_gap:
        return
    each = "; ".join(f"{stream}: {describe_ranges(ranges)}" for stream, ranges in lost.items())
    raise RetentionGapError(
        f"stream {request.stream}: a rollback to {request.target} would lose records that Kafka "
        f"no longer has, or that are of a compacted topic: {each}",
        f"choose a newer target (`frazil snapshots {request.stream}`), or repeat this with "
        f"{name_field('accept_gap')}: the loss is then recorded as a gap in your name",
    )
