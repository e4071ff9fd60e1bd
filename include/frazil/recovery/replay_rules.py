"""Decide which offsets may be replayed or backfilled, and when a stage is stale (protocol.md)."""

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
from frazil.ingest.error_budget import BadRecords, explain_excess, explain_truncates
from frazil.ingest.messages import BatchPlan
from frazil.kafka.cluster import TopicFacts
from frazil.ledger import keys
from frazil.ledger.coordinates import Partition, plain_runs
from frazil.ledger.deletions import FINAL_KINDS
from frazil.ledger.history import (
    Spans,
    Step,
    find_deleted,
    find_trimmed,
    list_moved,
    list_spans,
)
from frazil.ledger.offsets import (
    NextOffsets,
    OffsetRange,
    Ranges,
    Runs,
    describe_offset,
    describe_range,
    describe_ranges,
    encode_ranges,
    iterate_ranges,
)
from frazil.ledger.state import StreamState
from frazil.messages import name_field
from frazil.recovery.backfill_rules import find_beginnings, list_missing
from frazil.recovery.messages import Differences, ReplayRequest
from frazil.streams.models import Stream
from frazil.streams.routes import count_own_records


def validate_one_selection(request: ReplayRequest) -> None:
    """Require either offsets or instants.

    Raises:
        ConfigurationError: neither or both are given.
    """
    by_time = bool(request.since or request.until)
    if by_time == bool(request.offsets):
        given = "both" if by_time else "neither"
        offsets, since, until = map(name_field, ("offsets", "since", "until"))
        raise ConfigurationError(
            f"replay of stream {request.stream} needs either {offsets} or {since} and {until}; "
            f"given: {given}",
            f"give {offsets} as topic:partition:start-end, or {since} and {until}; "
            f"`frazil snapshots {request.stream}` lists what was published",
        )


def select_offsets_between(
    topic: str,
    since: Sequence[int],
    until: Sequence[int],
    below: Sequence[int],
    first: Mapping[Partition, int],
) -> Ranges:
    """Return the offsets between two instants that were read, from `first` on."""
    found = {}
    for partition, (start, end, limit) in enumerate(zip(since, until, below, strict=False)):
        span = OffsetRange(max(start, first.get((topic, partition), 0)), min(end, limit))
        if span.start < span.end:
            found[partition] = span
    return {topic: found} if found else {}


def require_at_or_above_beginning(stream: str, ranges: Ranges, steps: tuple[Step, ...]) -> None:
    """Refuse offsets below the stream's beginning that no backfill has read.

    They would be read for the first time, by a kind of snapshot that a rollback does not undo.

    Raises:
        TargetError: with the offsets concerned.
    """
    begins = find_beginnings(steps)
    below: dict[str, dict[int, OffsetRange]] = {}
    for topic, number, wanted in iterate_ranges(ranges):
        begin = begins.get((topic, number), 0)
        if wanted.start < begin:
            below.setdefault(topic, {})[number] = OffsetRange(wanted.start, min(wanted.end, begin))
    missing = list_missing(below, list_spans(steps))
    if missing:
        offsets = ", ".join(
            describe_range(topic, number, OffsetRange(span.start, span.end))
            for (topic, number), spans in missing.items()
            for span in spans
        )
        raise TargetError(
            f"stream {stream}: {offsets} lies below the stream's beginning and was never read; a "
            "replay reads only offsets that were read before",
            f"`frazil backfill {stream}` reads older records, beside the live stream",
        )


def require_below_recovery_point(stream: str, ranges: Ranges, state: StreamState) -> None:
    """Refuse offsets at or above the recovery point: a batch reads them, not a replay.

    Raises:
        TargetError: with the offsets concerned; also for unknown partitions and empty ranges.
    """
    above = {
        topic: {p: span for p, span in parts.items() if span.end > _next(state.offsets, topic, p)}
        for topic, parts in ranges.items()
    }
    found = {topic: parts for topic, parts in above.items() if parts}
    unknown = {topic: parts for topic, parts in found.items() if topic not in state.offsets}
    if unknown:
        raise TargetError(
            f"stream {stream}: {describe_ranges(unknown)} is of a topic that the stream has not "
            f"read; its topics: {', '.join(sorted(state.offsets)) or 'none'}",
            "name a topic of this stream, or run the replay for the stream that reads the topic; "
            "`frazil streams` lists the topics of all streams",
        )
    if found or not ranges:
        what = "no record in this time range was read before"
        if found:
            what = f"{describe_ranges(found)} ends above the recovery point"
            what += f" (reading continues at {_describe_next(found, state.offsets)})"
        raise TargetError(
            f"stream {stream}: {what}; a replay reads only offsets that were read before",
            f"`frazil snapshots {stream}` lists what was published; `frazil run {stream}` reads "
            "new records",
        )


def require_not_adopted(stream: str, ranges: Ranges, adopted: NextOffsets) -> None:
    """Refuse offsets below an adoption: rows of the adopted table have no coordinates.

    Raises:
        TargetError: with the offsets concerned.
    """
    found = {
        topic: below
        for topic, parts in ranges.items()
        if (below := {p: s for p, s in parts.items() if s.start < _next(adopted, topic, p)})
    }
    if found:
        begins = _describe_next(found, adopted)
        raise TargetError(
            f"stream {stream}: {describe_ranges(found)} begins below the offsets at which the "
            f"table was adopted ({begins}): adopted rows have no coordinates and would be "
            "duplicated",
            f"choose offsets read since then; `frazil snapshots {stream}` lists them",
        )


def require_not_trimmed(stream: str, ranges: Ranges, steps: tuple[Step, ...]) -> None:
    """Refuse offsets where only the newest change of each key was left.

    A record that becomes another change today would need what its key was before.

    Raises:
        TargetError: with the offsets concerned.
    """
    trimmed = find_trimmed(steps)
    found = {
        topic: below
        for topic, parts in ranges.items()
        if (below := {p: s for p, s in parts.items() if s.start < trimmed.get((topic, p), 0)})
    }
    if found:
        ends = ", ".join(
            describe_offset(topic, number, trimmed[topic, number])
            for topic, number, _ in iterate_ranges(found)
        )
        raise TargetError(
            f"stream {stream}: {describe_ranges(found)} begins where only the newest change of "
            f"each key was kept (changes.keep_days): replaced changes below {ends} are trimmed",
            "replay offsets from there on; older records cannot be read again",
        )


def require_one_incarnation(stream: str, ranges: Ranges, steps: tuple[Step, ...]) -> None:
    """Refuse offsets that an earlier topic incarnation also had, or from before a cluster move.

    Raises:
        TargetError: with the offsets concerned, or changes were trimmed there.
    """
    require_not_trimmed(stream, ranges, steps)
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
            "again or moved to another cluster: these offsets are ambiguous",
            f"leave these offsets out; `frazil snapshots {stream}` lists what was published when",
        )


def require_same_topics(plan: BatchPlan, state: StreamState) -> None:
    """Refuse a stage whose topic was created again, or moved to another cluster, since the plan.

    Raises:
        StageStaleError: nothing was written.
    """
    for topic in plan.ranges:
        planned, known = plan.topic_ids.get(topic), state.topic_ids.get(topic)
        if planned != known or plan.cluster_id != state.cluster_id:
            raise StageStaleError(
                f"stream {plan.stream}: the rows were staged from topic {topic} with id {planned}, "
                f"the ledger now has id {known}, of cluster {state.cluster_id}",
                "run again: these offsets now belong to other records",
            )


def require_not_rolled_back(plan: BatchPlan, steps: tuple[Step, ...]) -> None:
    """Refuse a plan from before a rollback: the rollback may have been meant to undo its rows.

    Raises:
        StageStaleError: nothing was written.
    """
    for step in steps:
        if step.kind == keys.REWIND and step.after and step.after.epoch > plan.base_epoch:
            raise StageStaleError(
                f"stream {plan.stream}: {plan.table} was rolled back ({step}) after these ranges "
                f"were planned on epoch {plan.base_epoch}",
                "run again: a new plan is made and staged",
            )


def _next(offsets: NextOffsets, topic: str, partition: int) -> int:
    known = offsets.get(topic, ())
    return known[partition] if partition < len(known) else 0


def _describe_next(ranges: Ranges, offsets: NextOffsets) -> str:
    """Describe the next offsets of the partitions of ranges: `flights:0:100, flights:1:50`."""
    return ", ".join(
        describe_offset(topic, number, _next(offsets, topic, number))
        for topic, number, _ in iterate_ranges(ranges)
    )


def require_retained(
    stream: str, ranges: Ranges, topic: TopicFacts, state: StreamState, cleanup_policy: str
) -> None:
    """Require that Kafka delivers the ranges completely; else rows would be lost.

    Raises:
        TopicRecreatedError: the topic has another id.
        NotReplayableError: the topic is compacted, or records aged out or were truncated.
    """
    known_id = state.topic_ids.get(topic.topic)
    if known_id and known_id != topic.topic_id:
        raise TopicRecreatedError(
            f"stream {stream}: topic {topic.topic} has id {topic.topic_id}, the ledger has id "
            f"{known_id}: the topic was created again, these offsets now belong to other records",
            "records of the earlier topic can no longer be read; `frazil status "
            f"{stream}` shows what the stream needs",
        )
    if "compact" in cleanup_policy:
        raise NotReplayableError(
            f"stream {stream}: topic {topic.topic} is compacted (cleanup.policy={cleanup_policy}): "
            "Kafka may deliver fewer records of the range than the table has, and a replay would "
            "delete those rows",
            "nothing was written; a compacted topic cannot be replayed, its rows stay in the table",
        )
    lost = _find_lost(ranges.get(topic.topic, {}), topic)
    if lost:
        kept = ", ".join(
            describe_range(topic.topic, p, OffsetRange(there.earliest, there.end))
            for p, there in enumerate(topic.partitions)
            if p in lost
        )
        raise NotReplayableError(
            f"stream {stream}: Kafka no longer holds all of "
            f"{describe_ranges({topic.topic: lost})}; it has {kept or 'no such partition'}",
            f"`frazil replay {stream} --offsets topic:partition:start-end` with offsets that Kafka "
            "has; other rows stay unchanged",
        )


def _find_lost(wanted: Mapping[int, OffsetRange], topic: TopicFacts) -> dict[int, OffsetRange]:
    """Return the ranges that reach beyond what the broker keeps."""
    kept = dict(enumerate(topic.partitions))
    return {
        p: span
        for p, span in wanted.items()
        if p not in kept or not kept[p].earliest <= span.start <= span.end <= kept[p].end
    }


def explain_refusal(stream: Stream, found: Differences) -> str | None:
    """Return why a replay is refused for its bad records; None if it is not.

    Only bad records that have a row now count; others are dead letters or skipped already.
    """
    if found.truncates and stream.value.truncate == "refuse":
        return explain_truncates(found.truncates)
    own = count_own_records(stream.route, found.rows_read, found.rows_elsewhere)
    bad = found.now_bad - found.now_elsewhere
    records = BadRecords(own, bad, found.now_invalid, found.now_set_aside)
    return explain_excess(stream.errors, records)


def count_bad(found: Differences) -> int:
    """Return how many records of this stream do not decode, with a row or without one."""
    return found.rows_read - found.rows_good - found.rows_elsewhere


def list_erased_offsets(steps: tuple[Step, ...], ranges: Ranges) -> Runs:
    """Return the erased and trimmed offsets of the ranges, which a replay must leave out."""
    spans = list_spans(steps)
    erased = {}
    for topic, number, span in iterate_ranges(ranges):
        partition = topic, number
        deleted = find_deleted(steps, spans.get(partition, Spans()), partition, FINAL_KINDS)
        erased[partition] = deleted[(deleted >= span.start) & (deleted < span.end)]
    return plain_runs(erased)


def require_nothing_erased_since(steps: tuple[Step, ...], plan: BatchPlan) -> None:
    """Refuse a stage that may hold records erased since the plan.

    Raises:
        StageStaleError: nothing was written.
    """
    if list_erased_offsets(steps, plan.offset_ranges) != plan.left_out:
        raise StageStaleError(
            f"batch {plan.batch_id}: records of its ranges were erased since the plan",
            "run again: it leaves them out",
        )


def replay_id(table_uuid: str, stream: str, ranges: Ranges, transform: str, run_id: str) -> str:
    """Return the id of a replay: equal for a repeated run, new for another run."""
    parts = [table_uuid, stream, "replay", encode_ranges(ranges), transform, run_id]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
