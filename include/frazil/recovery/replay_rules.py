"""Which offsets may be replayed, as pure functions (protocol.md, Replay)."""

import hashlib
import json
from collections.abc import Mapping, Sequence

from frazil.errors import (
    ConfigurationError,
    NotReplayableError,
    StageStaleError,
    TargetError,
    TopicRecreatedError,
)
from frazil.ingest.messages import BatchPlan
from frazil.kafka.cluster import TopicFacts
from frazil.ledger import keys
from frazil.ledger.coordinates import Partition, plain_runs
from frazil.ledger.history import Spans, Step, find_deleted, list_moved, list_spans
from frazil.ledger.offsets import (
    NextOffsets,
    OffsetRange,
    Ranges,
    Runs,
    describe_ranges,
    encode_ranges,
    iterate_ranges,
)
from frazil.ledger.state import StreamState
from frazil.recovery.backfill_rules import find_beginnings, list_free
from frazil.recovery.messages import ReplayRequest


def validate_one_selection(request: ReplayRequest) -> None:
    """Refuse a request that names neither offsets nor instants, or both.

    Raises:
        ConfigurationError: nothing was looked at.
    """
    by_time = bool(request.since or request.until)
    if by_time == bool(request.offsets):
        given = "both" if by_time else "neither"
        raise ConfigurationError(
            f"replay of stream {request.stream} needs offsets or instants; given: {given}",
            f"`frazil replay {request.stream} --offsets topic:partition:start-end`, or --since and "
            f"--until; `frazil snapshots {request.stream}` lists what was published",
        )


def choose_between(
    topic: str,
    since: Sequence[int],
    until: Sequence[int],
    below: Sequence[int],
    first: Mapping[Partition, int],
) -> Ranges:
    """Take the offsets between two instants, as far as they were read, from `first` on."""
    found = {}
    for partition, (start, end, limit) in enumerate(zip(since, until, below, strict=False)):
        span = OffsetRange(max(start, first.get((topic, partition), 0)), min(end, limit))
        if span.start < span.end:
            found[partition] = span
    return {topic: found} if found else {}


def require_at_or_above_beginning(stream: str, ranges: Ranges, steps: tuple[Step, ...]) -> None:
    """Refuse what lies below the stream's beginning and no backfill brought.

    It would be no second reading but a first one, in one batch, of which a rollback knows nothing.

    Raises:
        TargetError: with the offsets concerned and where each partition begins.
    """
    begins = find_beginnings(steps)
    below: dict[str, dict[int, OffsetRange]] = {}
    for topic, number, wanted in iterate_ranges(ranges):
        begin = begins.get((topic, number), 0)
        if wanted.start < begin:
            below.setdefault(topic, {})[number] = OffsetRange(wanted.start, min(wanted.end, begin))
    free = list_free(below, list_spans(steps))
    if free:
        told = ", ".join(
            f"{topic}-{number} [{span.start}, {span.end})"
            for (topic, number), spans in free.items()
            for span in spans
        )
        raise TargetError(
            f"stream {stream}: {told} lies below where the stream began and was never read; a "
            "replay reads again only what was read",
            f"`frazil backfill {stream}` reads what is older, in windows beside the live stream",
        )


def require_below_recovery_point(stream: str, ranges: Ranges, state: StreamState) -> None:
    """Refuse what lies at or above the recovery point: a batch reads it, not a replay.

    Raises:
        TargetError: with the offsets concerned; also for partitions that nobody knows.
    """
    above = {
        topic: {p: span for p, span in parts.items() if span.end > _next(state.offsets, topic, p)}
        for topic, parts in ranges.items()
    }
    found = {topic: parts for topic, parts in above.items() if parts}
    if found or not ranges:
        what = describe_ranges(found) if found else "no offset in this time"
        raise TargetError(
            f"stream {stream}: {what} {'ends above' if found else 'lies below'} the recovery point "
            f"{ {t: list(v) for t, v in state.offsets.items()} }; a replay reads again only what "
            "was read",
            f"`frazil snapshots {stream}` lists what was published; `frazil run {stream}` reads on",
        )


def require_not_adopted(stream: str, ranges: Ranges, adopted: NextOffsets) -> None:
    """Refuse rows that came with a table that was taken over: nothing says which they are.

    Raises:
        TargetError: with the offsets concerned.
    """
    found = {
        topic: below
        for topic, parts in ranges.items()
        if (below := {p: s for p, s in parts.items() if s.start < _next(adopted, topic, p)})
    }
    if found:
        begins = {topic: list(offsets) for topic, offsets in adopted.items()}
        raise TargetError(
            f"stream {stream}: {describe_ranges(found)} begins below where the table was adopted, "
            f"{begins}: its rows there have no coordinates of ours, and would double",
            f"choose only what was read since; `frazil snapshots {stream}` lists it",
        )


def find_merge(steps: tuple[Step, ...]) -> Step | None:
    """Find a batch that was merged by key: what was staged is itself on main."""
    for step in steps:
        source = step.entry.summary.get(keys.SOURCE_SNAPSHOT_ID)
        if step.kind == keys.INGEST and source == str(step.entry.parent_id):
            return step
    return None


def require_append_only(stream: str, steps: tuple[Step, ...]) -> None:
    """Refuse a stream whose batches are merged by key: records out of turn revive old values.

    Raises:
        TargetError: with the snapshot that says so.
    """
    merged = find_merge(steps)
    if merged is not None:
        raise TargetError(
            f"stream {stream}: its batches are merged by key ({merged}); a record that is read out "
            "of turn could bring an old value back",
            f"`frazil recover {stream} --to-offset topic:partition:offset` goes back and reads on "
            "from there, each record in its turn",
        )


def require_one_incarnation(stream: str, ranges: Ranges, steps: tuple[Step, ...]) -> None:
    """Refuse offsets that an earlier log had too, or that were read as others of another cluster.

    Raises:
        TargetError: with the offsets concerned; or batches of the stream are merged by key.
    """
    require_append_only(stream, steps)
    spans, moved = list_spans(steps), list_moved(steps)
    found: dict[str, dict[int, OffsetRange]] = {}
    for topic, number, wanted in iterate_ranges(ranges):
        earlier = spans.get((topic, number), Spans()).earlier
        is_before = wanted.start < moved.get((topic, number), 0)
        if is_before or any(s.start < wanted.end and wanted.start < s.end for s in earlier):
            found.setdefault(topic, {})[number] = wanted
    if found:
        raise TargetError(
            f"stream {stream}: {describe_ranges(found)} was published before the topic was created "
            "again or moved to another cluster: rows of both logs have these offsets, or their "
            "records are rows under others",
            f"leave these offsets out; `frazil snapshots {stream}` lists what was published when",
        )


def require_same_topics(plan: BatchPlan, state: StreamState) -> None:
    """Refuse what was staged from a topic that was created again meanwhile.

    Raises:
        StageStaleError: nothing was written.
    """
    for topic in plan.ranges:
        planned, known = plan.topic_ids.get(topic), state.topic_ids.get(topic)
        if planned != known or plan.cluster_id != state.cluster_id:
            raise StageStaleError(
                f"stream {plan.stream}: the rows were staged from topic {topic} with id {planned}, "
                f"the ledger reads id {known} now, of cluster {state.cluster_id}",
                "run again: the offsets hold other records now",
            )


def require_not_rolled_back(plan: BatchPlan, steps: tuple[Step, ...]) -> None:
    """Refuse what was planned before a rollback: it may be what the rollback was to undo.

    Raises:
        StageStaleError: nothing was written.
    """
    for step in steps:
        if step.kind == keys.REWIND and step.after and step.after.epoch > plan.base_epoch:
            raise StageStaleError(
                f"stream {plan.stream}: {plan.table} was rolled back ({step}) after these ranges "
                f"were planned on epoch {plan.base_epoch}",
                "run again: it is planned and staged afresh",
            )


def _next(offsets: NextOffsets, topic: str, partition: int) -> int:
    known = offsets.get(topic, ())
    return known[partition] if partition < len(known) else 0


def require_retained(
    stream: str, ranges: Ranges, topic: TopicFacts, state: StreamState, cleanup_policy: str
) -> None:
    """Refuse what Kafka no longer delivers in full: its rows would go and nothing would come.

    Raises:
        TopicRecreatedError: the topic is another one.
        NotReplayableError: a compacted topic, records that aged out, a log that was cut.
    """
    known_id = state.topic_ids.get(topic.topic)
    if known_id and known_id != topic.topic_id:
        raise TopicRecreatedError(
            f"stream {stream}: topic {topic.topic} has id {topic.topic_id}, the ledger read id "
            f"{known_id}: these offsets hold other records now",
            "no record of a topic that was created again can be read any more; `frazil status "
            f"{stream}` shows what the stream needs to go on",
        )
    if "compact" in cleanup_policy:
        raise NotReplayableError(
            f"stream {stream}: topic {topic.topic} is compacted (cleanup.policy={cleanup_policy}): "
            "Kafka may deliver fewer records of the range than the table has, and rows would be "
            "lost",
            "the table keeps what compaction took; `frazil snapshots "
            f"{stream}` lists the ranges, nothing was written",
        )
    gone = _find_unkept(ranges.get(topic.topic, {}), topic)
    if gone:
        kept = ", ".join(
            f"{topic.topic}-{p} [{there.earliest}, {there.end})"
            for p, there in enumerate(topic.partitions)
            if p in gone
        )
        raise NotReplayableError(
            f"stream {stream}: Kafka no longer holds all of "
            f"{describe_ranges({topic.topic: gone})}; it keeps {kept or 'no such partition'}",
            f"`frazil replay {stream} --offsets topic:partition:start-end` with offsets that Kafka "
            "keeps; the rows of the others stay as they are",
        )


def _find_unkept(wanted: Mapping[int, OffsetRange], topic: TopicFacts) -> dict[int, OffsetRange]:
    """Find the ranges of partitions that reach beyond what the broker keeps."""
    kept = dict(enumerate(topic.partitions))
    return {
        p: span
        for p, span in wanted.items()
        if p not in kept or not kept[p].earliest <= span.start <= span.end <= kept[p].end
    }


def choose_left_out(steps: tuple[Step, ...], ranges: Ranges) -> Runs:
    """List what of the ranges was erased: a replay must not bring it back."""
    spans, erasures = list_spans(steps), frozenset({keys.ERASE})
    erased = {}
    for topic, number, span in iterate_ranges(ranges):
        place = topic, number
        gone = find_deleted(steps, spans.get(place, Spans()), place, erasures)
        erased[place] = gone[(gone >= span.start) & (gone < span.end)]
    return plain_runs(erased)


def require_nothing_erased_since(steps: tuple[Step, ...], plan: BatchPlan) -> None:
    """Refuse a stage that may hold what somebody erased meanwhile.

    Raises:
        StageStaleError: nothing was written.
    """
    if choose_left_out(steps, plan.offset_ranges) != plan.left_out:
        raise StageStaleError(
            f"batch {plan.batch_id}: records of its ranges were erased after they were staged",
            "run again: it leaves them out",
        )


def replay_id(table_uuid: str, stream: str, ranges: Ranges, transform: str, run_id: str) -> str:
    """Hash what makes a replay this one: a run that is repeated finds its own, another is new."""
    parts = [table_uuid, stream, "replay", encode_ranges(ranges), transform, run_id]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
