"""Plan a redrive: which dead letters, in which portions, with which id."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import ConfigurationError, ConservationError, StageStaleError
from frazil.ingest.blocked_batches import RulesFingerprint
from frazil.ingest.dead_letters import Flags, Indexes, group_dead_letters, list_slices
from frazil.ingest.messages import BatchPlan, Staged, Verdict
from frazil.ingest.planning import PlanInput, name_rules
from frazil.ingest.snapshot_summaries import summarize_staged
from frazil.ledger import keys
from frazil.ledger.coordinates import (
    NO_OFFSETS,
    Coordinates,
    covering_ranges,
    encode_coordinates,
    plain_runs,
)
from frazil.ledger.history import UNCLAIMED, Step
from frazil.ledger.offsets import (
    Runs,
    describe_offset,
    describe_range,
    plain_offsets,
    plain_ranges,
)
from frazil.recovery.messages import DeadLetterChoice

MAX_DEAD_LETTERS = 100_000
"""Dead letters per redrive, so that the list in the snapshot's summary stays below 1 MiB."""


@dataclass(frozen=True)
class RedrivePlan:
    """Open dead letters by attempt, and the batch that stages them.

    The batch moves no offsets; its ranges only cover the dead letters. They are of one topic
    incarnation: if that is not the present one, `before_snapshot_id` is the snapshot that ended it.
    """

    batch: BatchPlan
    dead_letters: Mapping[str, Coordinates]
    count: int
    schema_ids: tuple[int, ...]
    before_snapshot_id: int | None = None

    @property
    def runs(self) -> dict[str, Runs]:
        """Return the dead letters as runs of offsets, for messages."""
        return {attempt: plain_runs(held) for attempt, held in self.dead_letters.items()}


def validate_choice(choice: DeadLetterChoice, steps: tuple[Step, ...], rows: pa.Table) -> None:
    """Refuse partitions and schema ids that the stream never read, so that typos are noticed.

    Raises:
        ConfigurationError: with the known partitions, or the known schema ids.
    """
    read: dict[str, int] = {}
    for state in (step.after for step in steps if step.after):
        for topic, offsets in state.offsets.items():
            read[topic] = max(len(offsets), read.get(topic, 0))
    for topic, partition, span in choice.ranges:
        if partition >= read.get(topic, 0):
            known = ", ".join(f"{name}:0 to {name}:{count - 1}" for name, count in read.items())
            raise ConfigurationError(
                f"stream {choice.stream} never read {topic}:{partition} (of "
                f"{describe_range(topic, partition, span)}); it read "
                f"{known or 'nothing'}",
                f"`frazil dead-letters {choice.stream}` shows where its dead letters are",
            )
    ids = pc.unique(rows["schema_id"]).drop_null().to_pylist()
    unknown = [str(wanted) for wanted in choice.schema_ids if wanted not in ids]
    if unknown:
        known_ids = ", ".join(map(str, sorted(ids))) or "none"
        raise ConfigurationError(
            f"no dead letter of stream {choice.stream} has schema id {', '.join(unknown)}; schema "
            f"ids of its dead letters: {known_ids}",
            f"`frazil dead-letters {choice.stream}` shows its dead letters by reason",
        )


def choose_dead_letters(rows: pa.Table, is_open: Flags, choice: DeadLetterChoice) -> Indexes:
    """Return the positions of the open dead letters that the choice names."""
    chosen = is_open.copy()
    if choice.reasons:
        chosen &= _flags(pc.is_in(rows["reason"], pa.array(choice.reasons)))
    if choice.schema_ids:
        wanted = pa.array(choice.schema_ids, pa.int64())
        chosen &= _flags(pc.is_in(rows["schema_id"], wanted))
    if choice.since_at:
        chosen &= _flags(pc.greater_equal(rows["quarantined_at"], pa.scalar(choice.since_at)))
    if choice.until_at:
        chosen &= _flags(pc.less(rows["quarantined_at"], pa.scalar(choice.until_at)))
    if choice.offsets:
        chosen &= _in_ranges(rows, choice)
    return np.flatnonzero(chosen)


def _in_ranges(rows: pa.Table, choice: DeadLetterChoice) -> Flags:
    inside = np.zeros(len(rows), dtype=np.bool_)
    offsets = rows["offset"].to_numpy()
    for (topic, partition), low, high in list_slices(rows):
        for wanted_topic, wanted_partition, span in choice.ranges:
            if (topic, partition) == (wanted_topic, wanted_partition):
                part = offsets[low:high]
                inside[low:high] |= (part >= span.start) & (part < span.end)
    return inside


def _flags(flags: pa.ChunkedArray) -> Flags:
    found: Flags = pc.fill_null(flags, False).to_numpy()  # noqa: FBT003 - Arrow's own signature
    return found


def split_dead_letters(positions: Indexes, ends: Indexes) -> Iterator[Indexes]:
    """Split positions into one redrive each, by topic incarnation and maximum size."""
    for end in np.unique(ends[positions]):
        own = positions[ends[positions] == end]
        for start in range(0, len(own), MAX_DEAD_LETTERS):
            yield own[start : start + MAX_DEAD_LETTERS]


def find_incarnation_end(steps: tuple[Step, ...], ends: Indexes) -> int | None:
    """Return the snapshot that ended these dead letters' topic incarnation; None for the present.

    Raises:
        StageStaleError: they are of several incarnations, since one of them ended meanwhile.
    """
    found = np.unique(ends).tolist()
    if len(found) > 1:
        raise StageStaleError(
            "the topic was created again or moved to another cluster since the redrive was planned",
            "run again: dead letters of each topic incarnation are restored separately",
        )
    return None if found == [UNCLAIMED] else steps[found[0]].entry.snapshot_id


def plan_redrive(
    rows: pa.Table,
    plan_input: PlanInput,
    rules: RulesFingerprint,
) -> RedrivePlan:
    """Plan one redrive of these dead letters with the stream's present state and rules."""
    state, table, stream = plan_input.state, plan_input.table, plan_input.stream
    dead_letters = group_dead_letters(rows)
    every = {partition: rows["offset"].to_numpy()[a:b] for partition, a, b in list_slices(rows)}
    runs = {attempt: plain_runs(held) for attempt, held in sorted(dead_letters.items())}
    parts = [table.uuid, stream.stream, keys.REDRIVE, runs]
    parts.append(name_rules(rules.transform_version, plan_input.latest_schemas))
    batch = BatchPlan(
        stream=stream.stream,
        table=stream.table.name,
        table_uuid=table.uuid,
        base_epoch=state.epoch,
        base_batch=state.batch,
        batch_id=hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32],
        ranges=plain_ranges(covering_ranges(every)),
        topic_ids=dict(state.topic_ids),
        cluster_id=state.cluster_id,
        next_offsets=plain_offsets(state.offsets),
        schema_id=table.schema_id,
        spec_id=table.spec_id,
        suite_hash=rules.suite_hash,
        stream_hash=rules.stream_hash,
        transform_version=rules.transform_version,
        latest_schemas=dict(plan_input.latest_schemas),
    )
    schema_ids = sorted(pc.unique(rows["schema_id"]).drop_null().to_pylist())
    return RedrivePlan(batch, dead_letters, len(rows), tuple(schema_ids))


def require_planned_dead_letters(plan: RedrivePlan, staged: Coordinates) -> None:
    """Check that every staged row is a dead letter of the plan.

    Raises:
        ConservationError: the branch holds another record.
    """
    for partition, offsets in staged.items():
        held = [planned.get(partition, NO_OFFSETS) for planned in plan.dead_letters.values()]
        unplanned = offsets[~np.isin(offsets, np.concatenate([NO_OFFSETS, *held]))]
        if len(unplanned):
            raise ConservationError(
                f"redrive {plan.batch.batch_id}: {describe_offset(*partition, unplanned[0])} is "
                "staged, but not a dead letter of the plan",
                "nothing was published; run again, and report this if it happens again",
            )


def summarize_redrive(
    staged: Staged, verdict: Verdict, coordinates: Coordinates, before: int | None, run_id: str
) -> dict[str, str]:
    """Return the summary of a redrive snapshot: it lists its records and has no state."""
    summary = summarize_staged(keys.REDRIVE, staged, verdict, run_id)
    summary[keys.COORDINATES] = encode_coordinates(coordinates)
    return summary if before is None else summary | {keys.LETTERS_BEFORE: str(before)}
