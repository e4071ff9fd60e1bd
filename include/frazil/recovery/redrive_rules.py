"""The plan of a redrive as pure functions: which letters, in which portions, under which id."""

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
from frazil.ledger.offsets import Runs, plain_offsets, plain_ranges
from frazil.recovery.messages import DeadLetterChoice
from frazil.recovery.replay_rules import find_merge

MAX_LETTERS = 100_000
"""Letters per redrive: what the snapshot's summary lists stays below one MiB in the worst case."""


@dataclass(frozen=True)
class RedrivePlan:
    """Letters that count on one head, by attempt, and the batch that would stage them.

    The batch moves no offsets: its ranges only cover the letters. They are of one log: where that
    is not today's, `before` is the snapshot that ended it.
    """

    batch: BatchPlan
    letters: Mapping[str, Coordinates]
    count: int
    schema_ids: tuple[int, ...]
    before: int | None = None

    @property
    def runs(self) -> dict[str, Runs]:
        """Give the letters as messages carry them."""
        return {attempt: plain_runs(held) for attempt, held in self.letters.items()}


def require_append_only(steps: tuple[Step, ...], stream: str) -> None:
    """Refuse a stream whose batches are merges: an old letter could revive a deleted key.

    Raises:
        ConfigurationError: with the snapshot that says so.
    """
    merged = find_merge(steps)
    if merged is not None:
        raise ConfigurationError(
            f"stream {stream}: its batches are merged by key ({merged}); an old dead letter could "
            "bring a deleted key back to life",
            "send the mended record to the topic again: as its newest version it wins",
        )


def validate_choice(choice: DeadLetterChoice, steps: tuple[Step, ...], rows: pa.Table) -> None:
    """Refuse what this stream never read: a slip of the pen would else choose nothing, silently.

    Raises:
        ConfigurationError: with the topics of the ledger, or the schema ids of the letters.
    """
    read: dict[str, int] = {}
    for state in (step.after for step in steps if step.after):
        for topic, offsets in state.offsets.items():
            read[topic] = max(len(offsets), read.get(topic, 0))
    for (topic, partition, _), text in zip(choice.ranges, choice.offsets, strict=True):
        if partition >= read.get(topic, 0):
            known = ", ".join(f"{name}:0 to {name}:{count - 1}" for name, count in read.items())
            raise ConfigurationError(
                f"stream {choice.stream} never read {topic}:{partition} (of {text}), but {known}",
                f"`frazil dead-letters {choice.stream}` shows where its letters are",
            )
    ids = pc.unique(rows["schema_id"]).drop_null().to_pylist()
    strange = [str(wanted) for wanted in choice.schema_ids if wanted not in ids]
    if strange:
        named = f"they name {', '.join(map(str, sorted(ids)))}" if ids else "they name none"
        raise ConfigurationError(
            f"no dead letter of stream {choice.stream} names schema id {', '.join(strange)}; "
            f"{named}",
            f"`frazil dead-letters {choice.stream}` shows the letters by reason",
        )


def choose_dead_letters(rows: pa.Table, is_open: Flags, choice: DeadLetterChoice) -> Indexes:
    """Give the places of the letters that count and that the choice names."""
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


def split_dead_letters(places: Indexes, ends: Indexes) -> Iterator[Indexes]:
    """Cut letters into portions of one redrive each; two logs may have one at the same offset."""
    for end in np.unique(ends[places]):
        own = places[ends[places] == end]
        for start in range(0, len(own), MAX_LETTERS):
            yield own[start : start + MAX_LETTERS]


def find_end(steps: tuple[Step, ...], ends: Indexes) -> int | None:
    """Give the snapshot that ended the log of these letters; None for today's.

    Raises:
        StageStaleError: they are of several logs since one of them ended.
    """
    found = np.unique(ends).tolist()
    if len(found) > 1:
        raise StageStaleError(
            "the letters are of several logs: the topic was created again, or moved, meanwhile",
            "run again: letters of each log come back by themselves",
        )
    return None if found == [UNCLAIMED] else steps[found[0]].entry.snapshot_id


def plan_redrive(
    rows: pa.Table,
    given: PlanInput,
    rules: RulesFingerprint,
) -> RedrivePlan:
    """Plan one redrive of these letters, on the stream's state and by the rules of today."""
    state, table, stream = given.state, given.table, given.stream
    letters = group_dead_letters(rows)
    every = {partition: rows["offset"].to_numpy()[a:b] for partition, a, b in list_slices(rows)}
    runs = {attempt: plain_runs(held) for attempt, held in sorted(letters.items())}
    parts = [table.uuid, stream.stream, keys.REDRIVE, runs]
    parts.append(name_rules(rules.transform_version, given.latest_schemas))
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
        latest_schemas=dict(given.latest_schemas),
    )
    schema_ids = sorted(pc.unique(rows["schema_id"]).drop_null().to_pylist())
    return RedrivePlan(batch, letters, len(rows), tuple(schema_ids))


def require_planned_rows(plan: RedrivePlan, staged: Coordinates) -> None:
    """See that every staged row is a letter of the plan; that none is there twice is seen before.

    Raises:
        ConservationError: the branch holds another record.
    """
    for partition, offsets in staged.items():
        held = [letters.get(partition, NO_OFFSETS) for letters in plan.letters.values()]
        strange = offsets[~np.isin(offsets, np.concatenate([NO_OFFSETS, *held]))]
        if len(strange):
            raise ConservationError(
                f"redrive {plan.batch.batch_id}: {partition[0]}-{partition[1]}@{strange[0]} is "
                "staged, but it is no letter of the plan",
                "nothing is visible; run again, and report this if it comes back",
            )


def summarize_redrive(
    staged: Staged, verdict: Verdict, coordinates: Coordinates, before: int | None, run_id: str
) -> dict[str, str]:
    """Write the full summary of a redrive: it lists its records and carries no state."""
    told = summarize_staged(keys.REDRIVE, staged, verdict, run_id)
    told[keys.COORDINATES] = encode_coordinates(coordinates)
    return told if before is None else told | {keys.LETTERS_BEFORE: str(before)}
