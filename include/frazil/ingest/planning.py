"""PLAN as a pure function: recovery point and Kafka's offsets in, exact offset ranges out."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from frazil.errors import (
    ClusterChangedError,
    OffsetsWentBackError,
    PartitionsShrankError,
    RetentionGapError,
    TopicChangedError,
    TopicRecreatedError,
)
from frazil.ingest.messages import BatchPlan, NothingToRead
from frazil.kafka.cluster import PartitionOffsets, TopicFacts
from frazil.ledger.offsets import (
    OffsetRange,
    Ranges,
    advance,
    count_offsets,
    describe_partition,
    describe_ranges,
    encode_ranges,
    plain_offsets,
    plain_ranges,
)
from frazil.ledger.state import StreamState
from frazil.messages import count_noun
from frazil.schemas.wire_format import Part
from frazil.streams.models import Stream

TRANSFORM_CODE = "5"
"""Increment it when the same bytes decode to other rows; it is part of every batch id."""
FLATTEN_CODE = "2"
"""The same for change events and records with a rest, which workers flatten before the decode.

Other batches keep their ids, so batches planned by release 0.1 and decisions on them stay valid.
"""


@dataclass(frozen=True)
class TableFacts:
    """The table's identity and layout, as a plan records them."""

    uuid: str
    schema_id: int
    spec_id: int


@dataclass(frozen=True)
class PlanInput:
    """Everything that a plan depends on; `newest_ms` is the newest timestamp of earlier batches."""

    stream: Stream
    state: StreamState
    topics: Sequence[TopicFacts]
    table: TableFacts
    suite_hash: str
    latest_schemas: Mapping[Part, int] = field(default_factory=dict)
    quarantined_columns: Sequence[str] = ()
    newest_ms: int | None = None


def plan_batch(given: PlanInput) -> BatchPlan | NothingToRead:
    """Plan the next batch of a stream, or return that there is nothing to read.

    Raises:
        TopicRecreatedError, ClusterChangedError, PartitionsShrankError, OffsetsWentBackError,
        RetentionGapError: Kafka and the ledger disagree; nothing was read or written.
    """
    check_sources(given.stream.stream, given.state, given.topics)
    ranges = _choose_ranges(given)
    if not ranges:
        return NothingToRead(
            stream=given.stream.stream,
            table=given.stream.table.name,
            epoch=given.state.epoch,
            next_offsets=plain_offsets(given.state.offsets),
        )
    return _build_plan(given, ranges)


def _choose_ranges(given: PlanInput) -> Ranges:
    """Choose the next offset range of every partition that has new records."""
    partitions = _list_offsets(given)
    starts, ends = [row[2] for row in partitions], [row[3] for row in partitions]
    batch = given.stream.batch
    cap = batch.choose_cap(sum(ends) - sum(starts))
    turn = given.state.epoch * batch.max_records
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for (topic, partition, start, _), end in zip(
        partitions, share_fairly(starts, ends, cap, turn), strict=True
    ):
        if end > start:
            ranges.setdefault(topic, {})[partition] = OffsetRange(start, end)
    return ranges


def _list_offsets(given: PlanInput) -> list[tuple[str, int, int, int]]:
    """List topic, partition, next offset and end offset of every partition of the stream."""
    return [
        (topic.topic, partition, start, offsets.end)
        for topic in given.topics
        for partition, (start, offsets) in enumerate(
            zip(next_offsets(given.state, topic), topic.partitions, strict=True)
        )
    ]


def _build_plan(given: PlanInput, ranges: Ranges) -> BatchPlan:
    """Build the plan, with the id by which a repetition of the batch is recognised."""
    transform = transform_version(given.stream)
    rules = name_rules(transform, given.latest_schemas, given.quarantined_columns)
    state = given.state
    return BatchPlan(
        stream=given.stream.stream,
        table=given.stream.table.name,
        table_uuid=given.table.uuid,
        base_epoch=state.epoch,
        base_batch=state.batch,
        batch_id=batch_id(given.table.uuid, given.stream.stream, state, ranges, rules),
        ranges=plain_ranges(ranges),
        topic_ids={**state.topic_ids, **{t.topic: t.topic_id for t in given.topics}},
        cluster_id=given.topics[0].cluster_id,
        next_offsets=plain_offsets(advance(state.offsets, ranges)),
        schema_id=given.table.schema_id,
        spec_id=given.table.spec_id,
        suite_hash=given.suite_hash,
        stream_hash=given.stream.content_hash,
        transform_version=transform,
        latest_schemas=dict(given.latest_schemas),
        quarantined_columns=tuple(given.quarantined_columns),
        other_writers=given.stream.table.other_writers,
        newest_timestamp_ms=given.newest_ms,
        reads_all=count_offsets(ranges)
        == sum(end - start for *_, start, end in _list_offsets(given)),
    )


def name_rules(
    transform: str, latest_schemas: Mapping[Part, int], quarantined_columns: Sequence[str] = ()
) -> str:
    """Return the text of the decode rules that goes into batch ids; stored ids fix its form."""
    names = json.dumps(list(quarantined_columns))
    quarantined = [f"put aside {names}"] if quarantined_columns else []
    return " ".join([transform, *map(str, latest_schemas.items()), *quarantined])


def next_offsets(state: StreamState, topic: TopicFacts) -> list[int]:
    """Return the next offset of every partition; 0 for partitions that were never read."""
    known = state.offsets.get(topic.topic, ())
    return list(known) + [0] * (len(topic.partitions) - len(known))


def check_sources(stream: str, state: StreamState, topics: Sequence[TopicFacts]) -> None:
    """Raise if the topics are not those that were read so far (protocol.md, PLAN).

    Raises:
        SourceError: of the type that names the difference; nothing was written.
    """
    require_same_source(stream, state, topics)
    for topic in topics:
        _check_topic(stream, state, topic)


def _check_topic(stream: str, state: StreamState, topic: TopicFacts) -> None:
    known_id = state.topic_ids.get(topic.topic)
    if known_id and known_id != topic.topic_id:
        raise TopicRecreatedError(
            f"stream {stream}: topic {topic.topic} has id {topic.topic_id}, the table was filled "
            f"from id {known_id}: the topic was deleted and created again, its offsets start over",
            f"`frazil accept-gap {stream} --by YOU --reason WHY --no-dry-run` continues with the "
            "new topic from its earliest offset and records the gap",
        )
    _check_partitions(stream, state, topic)


def require_same_source(stream: str, state: StreamState, topics: Sequence[TopicFacts]) -> None:
    """Raise if cluster or topics are others: their offsets cannot be compared with the table's.

    Adding a topic to those that were read is allowed; like a new partition it starts at offset 0.

    Raises:
        ClusterChangedError, TopicChangedError: the stream file or the connection is wrong.
    """
    cluster_id = topics[0].cluster_id
    if state.cluster_id and state.cluster_id != cluster_id:
        raise ClusterChangedError(
            f"stream {stream}: the table was filled from cluster {state.cluster_id}, this is "
            f"cluster {cluster_id}; offsets of two clusters cannot be compared",
            "point the connection back to the old cluster; if this one has a copy of the topic, "
            f"`frazil move-cluster {stream}` shows at which offsets reading continues",
        )
    names = [topic.topic for topic in topics]
    if state.offsets and not set(names) & set(state.offsets):
        raise TopicChangedError(
            f"stream {stream}: the stream file names topic {', '.join(names)}, the table was "
            f"filled from {', '.join(sorted(state.offsets))}",
            "restore the old topic in the stream file; give the new one a stream and a table of "
            "its own",
        )


def _check_partitions(stream: str, state: StreamState, topic: TopicFacts) -> None:
    """Raise if partitions are missing, end before the ledger's offsets, or lost records."""
    known = state.offsets.get(topic.topic, ())
    if len(known) > len(topic.partitions):
        raise PartitionsShrankError(
            f"stream {stream}: topic {topic.topic} has "
            f"{count_noun(len(topic.partitions), 'partition')}, "
            f"earlier batches read {len(known)}",
            f"restore the topic, or `frazil accept-gap {stream} --by YOU --reason WHY "
            "--no-dry-run`",
        )
    starts = next_offsets(state, topic)
    for partition, (start, offsets) in enumerate(zip(starts, topic.partitions, strict=True)):
        where = f"stream {stream}: {describe_partition(topic.topic, partition)}"
        if offsets.end < start:
            raise OffsetsWentBackError(
                f"{where}: Kafka ends at offset {offsets.end}, earlier batches read to {start}: "
                "the log was truncated or replaced",
                "wait for the partition's leader to recover; if the records are lost, "
                f"`frazil accept-gap {stream} --by YOU --reason WHY --no-dry-run`",
            )
    gaps = list_gaps(starts, topic.partitions)
    if gaps:
        lost = describe_ranges({topic.topic: gaps})
        raise RetentionGapError(
            f"stream {stream}: Kafka has deleted records that the table does not have: {lost}, "
            f"{count_noun(sum(r.width for r in gaps.values()), 'offset')}",
            f"`frazil accept-gap {stream}` shows the gap; with --by YOU --reason WHY "
            "--no-dry-run it is recorded and reading continues at the earliest offsets",
        )


def list_gaps(
    starts: Sequence[int], partitions: Sequence[PartitionOffsets]
) -> dict[int, OffsetRange]:
    """Return, per partition, the offsets that retention deleted before they were read."""
    return {
        p: OffsetRange(start, offsets.earliest)
        for p, (start, offsets) in enumerate(zip(starts, partitions, strict=True))
        if start < offsets.earliest
    }


def share_fairly(
    starts: Sequence[int], ends: Sequence[int], limit: int, turn: int = 0
) -> list[int]:
    """Return end offsets that read at most `limit` offsets, evenly over the partitions.

    What a partition leaves of its share goes to the others. If more partitions wait than `limit`,
    the first of them from partition `turn` on, modulo their number, get one offset each. If each
    batch raises `turn` by its limit, each waiting partition is read within as many batches as it
    takes to pass all partitions.
    """
    waiting = [p for p in range(len(starts)) if ends[p] > starts[p]]
    if len(waiting) > limit:
        chosen = {*sorted(waiting, key=lambda p: (p - turn) % len(starts))[:limit]}
        return [start + (p in chosen) for p, start in enumerate(starts)]
    smallest_first = sorted(range(len(starts)), key=lambda p: ends[p] - starts[p])
    result = list(starts)
    left = limit
    for position, partition in enumerate(smallest_first):
        share = left // (len(smallest_first) - position)
        width = min(ends[partition] - starts[partition], share)
        result[partition] = starts[partition] + width
        left -= width
    return result


def batch_id(table_uuid: str, stream: str, base: StreamState, ranges: Ranges, rules: str) -> str:
    """Return the id of a batch: equal for equal ranges, base and rules (docs/formats.md)."""
    parts = [table_uuid, stream, base.epoch, base.batch, encode_ranges(ranges), rules]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def transform_version(stream: Stream) -> str:
    """Hash the decode settings and the codes of the transform; a release alone changes nothing."""
    left_out = {
        "value": stream.value.unused_newer_options,
        "key": stream.key.unused_newer_options,
    }
    settings = stream.model_dump(mode="json", include={"value", "key"}, exclude=left_out)
    parts: list[object] = [TRANSFORM_CODE, settings, stream.source.isolation]
    if stream.value.change_events is not None or stream.value.rest is not None:
        parts.append(["flatten", FLATTEN_CODE])
    if stream.table.operation_field is not None:
        parts.append(stream.table.operation_field)
    if stream.route is not None:
        parts.append([stream.route.takes, stream.route.model_dump(mode="json")])
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def marker_batch_id(kind: str, now: datetime | None = None) -> str:
    """Return a new batch id for a state that no batch or decision produced (bootstrap)."""
    moment = (now or datetime.now(UTC)).isoformat()
    return hashlib.sha256(f"{kind} {moment}".encode()).hexdigest()[:32]
