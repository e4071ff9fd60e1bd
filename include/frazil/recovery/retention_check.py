"""What a rollback asks of Kafka: does it still hold what must be read again?"""

from collections.abc import Mapping

from frazil.errors import RetentionGapError, TargetError
from frazil.ingest.planning import check_sources, require_same_source
from frazil.kafka.cluster import TopicFacts
from frazil.ledger.offsets import OffsetRange, Ranges, describe_ranges
from frazil.ledger.state import StreamState
from frazil.recovery.backfill_rules import list_filled
from frazil.recovery.messages import RecoverRequest
from frazil.recovery.rollback_rules import Rollback
from frazil.streams.loading import load_readable_streams
from frazil.workspace import Workspace

Lost = Mapping[str, Ranges]
"""stream → what Kafka surely or perhaps no longer delivers of what must be read again."""


KEPT = "read_uncommitted"
"""The high watermark: an open transaction is no truncated log."""


def open_stream(work: Workspace, stream: str) -> Workspace:
    """Open another stream of the same table.

    Raises:
        TargetError: no stream file has this name, so nobody would read its range again.
    """
    if stream == work.stream.stream:
        return work
    found, _ = load_readable_streams(work.directory)
    other = next((each for each in found if each.stream == stream), None)
    if other is None:
        raise TargetError(
            f"stream {stream} fills {work.stream.table.name} too and would go back with it, but it "
            "has no stream file: nobody would read its range again",
            f"put {stream}.yaml back, or choose a target that is newer than its batches",
        )
    return Workspace(other, work.directory, work.run_id)


def find_lost(work: Workspace, rewind: Rollback) -> Lost:
    """Ask Kafka for everything that the streams of the table must read again.

    Raises:
        TargetError: a stream that goes back has no stream file, or was moved to another cluster.
        SourceError: another cluster or topic, or a log that ends before what was read.
    """
    _require_same_cluster(rewind)
    lost: dict[str, Ranges] = {}
    for stream, ranges in rewind.again.items():
        own = open_stream(work, stream)
        gone: dict[str, Mapping[int, OffsetRange]] = {}
        for topic, wanted in ranges.items():
            require_source_topic(own, topic)
            facts = own.kafka.fetch_topic(topic, KEPT)
            state = rewind.states[stream]
            require_same_source(stream, state, [facts])
            found = list_lost(state, facts, wanted)
            if not found:
                check_sources(stream, state, [facts])
            if _is_compacted(own, topic):
                found = dict(wanted)
            if found:
                gone[topic] = found
        if gone:
            lost[stream] = gone
    return lost


def _require_same_cluster(rewind: Rollback) -> None:
    """Refuse a target that another cluster's offsets follow: what comes again lies on that one.

    Raises:
        TargetError: with the clusters concerned.
    """
    for stream, point in rewind.points.items():
        then, now = rewind.states[stream].cluster_id, point.state.cluster_id
        if then != now:
            raise TargetError(
                f"stream {stream}: at snapshot {rewind.target.snapshot_id} it read cluster {then}, "
                f"now it reads cluster {now}: offsets of two clusters cannot be compared",
                f"choose a target that is newer than the move (`frazil snapshots {stream}`), or "
                f"move back first: `frazil move-cluster {stream}`",
            )


def find_lost_windows(work: Workspace, rewind: Rollback) -> dict[str, list[Ranges]]:
    """Ask Kafka, once for each topic, for what backfills read and would have to read again.

    Raises:
        TargetError: a stream that goes back has no stream file.
    """
    lost: dict[str, list[Ranges]] = {}
    for stream, windows in list_filled(rewind.going).items():
        own, state = open_stream(work, stream), rewind.states[stream]
        for topic in sorted({topic for ranges in windows for topic in ranges}):
            facts, is_compacted = own.kafka.fetch_topic(topic, KEPT), _is_compacted(own, topic)
            for wanted in (ranges[topic] for ranges in windows if topic in ranges):
                gone = dict(wanted) if is_compacted else list_lost(state, facts, wanted)
                if gone:
                    lost.setdefault(stream, []).append({topic: gone})
    return lost


def require_no_lost_window(request: RecoverRequest, lost: Mapping[str, list[Ranges]]) -> None:
    """Refuse to give up what a backfill read and Kafka no longer holds, unless it is accepted.

    Raises:
        RetentionGapError: with the ranges of each stream.
    """
    if not lost or request.accept_gap:
        return
    raise RetentionGapError(
        f"stream {request.stream}: going back to {request.target} would give up what backfills "
        f"read, and Kafka no longer holds, or of a compacted topic: {describe_windows(lost)}",
        f"choose a newer target (`frazil snapshots {request.stream}`), or repeat the command with "
        "--accept-gap: then nothing brings these rows back, and the history says who agreed",
    )


def describe_windows(lost: Mapping[str, list[Ranges]]) -> str:
    """Write windows as people read them."""
    return "; ".join(
        f"{stream}: {', '.join(map(describe_ranges, windows))}" for stream, windows in lost.items()
    )


def require_source_topic(work: Workspace, topic: str) -> None:
    """Refuse to give up rows of a topic that the stream file no longer names.

    Raises:
        TargetError: nobody would read them again.
    """
    stream = work.stream
    if topic not in stream.source.names:
        raise TargetError(
            f"stream {stream.stream}: rows of topic {topic} would go, and the stream file no "
            "longer names it: nobody would read them again",
            f"put {topic} back under source.topics, or choose a target that is newer than its "
            "batches",
        )


def list_lost(
    state: StreamState, topic: TopicFacts, wanted: Mapping[int, OffsetRange]
) -> dict[int, OffsetRange]:
    """List what is gone of the wanted ranges; of a topic with another id everything is."""
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


def require_nothing_lost(request: RecoverRequest, lost: Lost) -> None:
    """Refuse to give up rows that cannot be read again, unless somebody accepted it by name.

    Raises:
        RetentionGapError: with the ranges of each stream.
    """
    if not lost or request.accept_gap:
        return
    each = "; ".join(f"{stream}: {describe_ranges(ranges)}" for stream, ranges in lost.items())
    raise RetentionGapError(
        f"stream {request.stream}: going back to {request.target} would give up records that Kafka "
        f"no longer holds, or of a compacted topic: {each}",
        f"choose a newer target (`frazil snapshots {request.stream}`), or repeat the command with "
        "--accept-gap: the loss is then recorded as a gap in your name",
    )
