"""Check the chain of a stream's snapshots: epochs (I2), ranges (I3), rows with offsets (I4)."""

import json
from collections.abc import Iterator, Mapping

from frazil.ledger import keys
from frazil.ledger.coordinates import Partition
from frazil.ledger.history import Step, iterate_moves, list_spans
from frazil.ledger.offsets import OffsetRange, describe_partition, describe_range, iterate_ranges
from frazil.ledger.state import StreamState
from frazil.observability.audit_messages import Finding

_EPOCH_RISES: Mapping[str, tuple[int, int | None]] = {
    keys.INGEST: (1, 1),
    keys.ADOPT: (1, 1),
    keys.GAP: (1, None),
    keys.REWIND: (1, None),
    keys.MOVE: (1, 1),
    keys.CARRY: (0, 0),
}
"""Kind → least and most rise of the epoch (I2); a gap after a rollback by others rises by more."""


def check_chain(steps: tuple[Step, ...]) -> tuple[Finding, ...]:
    """Check epochs (I2), ranges (I3), and that rows and offsets move together (I4)."""
    return tuple(finding for step in steps for finding in _check_step(step))


def _check_step(step: Step) -> Iterator[Finding]:
    if step.after is None:
        if step.kind == keys.INGEST:
            text = f"{step} publishes rows without advancing offsets"
            yield Finding(invariant="I4", text=text)
        return
    if step.kind not in _EPOCH_RISES and step.kind != keys.BOOTSTRAP:
        text = f"{step} has a state, which its kind must not have"
        yield Finding(invariant="I4", text=text)
    if step.before is not None:
        yield from _check_epoch(step, step.before, step.after)
        yield from _check_offsets(step, step.before, step.after)


def _check_epoch(step: Step, before: StreamState, after: StreamState) -> Iterator[Finding]:
    if step.kind == keys.BOOTSTRAP:
        text = f"{step} begins the stream a second time, after epoch {before.epoch}"
        yield Finding(invariant="I2", text=text)
        return
    least, most = _EPOCH_RISES.get(step.kind, (0, 0))
    rise = after.epoch - before.epoch
    if rise < least or (most is not None and rise > most):
        text = f"{step} changes the epoch from {before.epoch} to {after.epoch}"
        yield Finding(invariant="I2", text=text)
    batch_id = step.entry.summary.get(keys.BATCH_ID)
    if step.kind == keys.INGEST and batch_id != after.batch:
        text = f"{step} publishes batch {batch_id}, its state names batch {after.batch}"
        yield Finding(invariant="I2", text=text)


def _check_offsets(step: Step, before: StreamState, after: StreamState) -> Iterator[Finding]:
    """Check each partition's change of offsets from the state before to the one after."""
    if (before.cluster_id != after.cluster_id) != (step.kind == keys.MOVE):
        text = f"{step} changes the cluster from {before.cluster_id} to {after.cluster_id}"
        yield Finding(invariant="I3", text=text)
    if step.kind == keys.MOVE:
        yield from _check_move(step, before, after)
        return
    for partition, start, end in iterate_moves(before, after):
        topic, number = partition
        recorded = step.ranges.get(topic, {}).get(number)
        if step.kind == keys.GAP and before.topic_ids.get(topic) != after.topic_ids.get(topic):
            problem = _explain_new_topic(partition, (start, end), recorded)
        else:
            problem = _explain_move(step.kind, partition, (start, end), recorded)
        if problem is not None:
            yield _find_fault(step, (topic, number), problem)
    known = {partition for partition, _, _ in iterate_moves(before, after)}
    for topic, number, recorded in iterate_ranges(step.ranges):
        if (topic, number) not in known:
            text = f"{step}: {describe_range(topic, number, recorded)} is in no state"
            yield Finding(invariant="I3", text=text)


def _find_fault(step: Step, partition: Partition, problem: str) -> Finding:
    text = f"{step}: {describe_partition(*partition)}: {problem}"
    return Finding(invariant="I3", text=text)


def _check_move(step: Step, before: StreamState, after: StreamState) -> Iterator[Finding]:
    """Check that a cluster move recorded the change of offsets of each partition."""
    moved = json.loads(step.entry.summary.get(keys.MOVED, "{}")).get("partitions", {})
    for (topic, number), start, end in iterate_moves(before, after):
        recorded = moved.get(topic, {}).get(str(number), [start, start])[:2]
        if recorded != [start, end]:
            problem = f"moves from {start} to {end}, but the move records {recorded}"
            yield _find_fault(step, (topic, number), problem)


def _explain_move(
    kind: str, partition: Partition, moved: tuple[int, int], recorded: OffsetRange | None
) -> str | None:
    """Return what is wrong with a partition's change of offsets; None if nothing is."""
    start, end = moved
    if kind == keys.INGEST:
        return _explain_ingest(partition, moved, recorded or OffsetRange(start, start))
    if kind == keys.GAP:
        covered = recorded is not None and (recorded.start, recorded.end) == (start, end)
        if end <= start or covered:
            return None
        return f"{describe_range(*partition, OffsetRange(start, end))} is lost but not recorded"
    if kind == keys.BOOTSTRAP:
        return f"starts over at {end} below the read offset {start}" if end < start else None
    is_still = kind == keys.ADOPT or end == start
    return None if is_still else f"moves from {start} to {end} without rows"


def _explain_new_topic(
    partition: Partition, moved: tuple[int, int], recorded: OffsetRange | None
) -> str | None:
    """Return what is wrong with a gap at which a topic with another id begins; None if nothing is.

    All before its offset is lost. Releases up to 0.1.0 recorded only what is
    above the next offset of the earlier topic.
    """
    start, end = moved
    accepted = {OffsetRange(0, end), OffsetRange(start, end) if end > start else None}
    if end == 0 or recorded in accepted:
        return None
    return f"{describe_range(*partition, OffsetRange(0, end))} is lost but not recorded"


def _explain_ingest(
    partition: Partition, moved: tuple[int, int], published: OffsetRange
) -> str | None:
    start, end = moved
    if published.start > start:
        missing = OffsetRange(start, published.start)
        return f"gap: {describe_range(*partition, missing)} is in no range"
    if published.start < start:
        doubled = OffsetRange(published.start, start)
        return f"overlap: {describe_range(*partition, doubled)} was published before"
    if published.end != end:
        return f"the rows end at {published.end}, the state at {end}"
    return None


def check_backfills(steps: tuple[Step, ...]) -> Iterator[Finding]:
    """Check that backfills published only offsets that were not published before (I3)."""
    for (topic, number), spans in list_spans(steps).items():
        for span in spans.current:
            before = (other for other in spans.current if other.index < span.index)
            if steps[span.index].kind == keys.BACKFILL and any(
                other.start < span.end and span.start < other.end for other in before
            ):
                again = describe_range(topic, number, OffsetRange(span.start, span.end))
                text = f"{again} was published before"
                yield Finding(invariant="I3", text=f"{steps[span.index]}: {text}")
