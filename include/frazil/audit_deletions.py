"""Records that left on purpose, seen by an audit: gone they must be, and nothing beside them.

Everything else is judged as if they were still there, so that a batch adds up as it did when it was
published. Pure functions of the steps and of one partition after the other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from frazil import keys
from frazil.audit_answer import Finding, find_records, say_records
from frazil.audit_ledger import Spans, Step
from frazil.audit_rows import NOBODY, count_covers, find_owners
from frazil.coordinates import NO_OFFSETS, Offsets, Partition, count_coordinates
from frazil.deletions import KINDS


@dataclass(frozen=True)
class Held:
    """What is there of one partition: rows, and letters by attempt."""

    rows: Offsets
    letters: Mapping[str, Offsets]


def check_deletions(steps: tuple[Step, ...]) -> Iterator[Finding]:
    """See that each deletion took what it lists, and that it says who wanted it and why."""
    for step in steps:
        summary = step.entry.summary
        if step.kind not in KINDS:
            continue
        told, listed = int(summary.get(keys.ROWS_DELETED, "0")), count_coordinates(step.gone)
        taken = int(summary.get("deleted-records", "0")) - int(summary.get("added-records", "0"))
        hidden = int(summary.get("total-position-deletes", "0"))  # rows that others had deleted
        if not told <= taken <= told + hidden or listed > told:
            text = f"{step} says {told} rows, lists {listed} of them and took {taken}"
            yield Finding(invariant="I1", text=text)
        if not (summary.get(keys.BY) and summary.get(keys.REASON)):
            yield Finding(invariant="I10", text=f"{step} does not say who wanted it and why")


def find_gone(
    steps: tuple[Step, ...], spans: Spans, partition: Partition, kinds: frozenset[str] = KINDS
) -> Offsets:
    """Give the offsets of a partition whose records left on purpose and did not come back.

    What was erased only another record at the same offset brings back: a batch, after the topic
    was created again. What was merely too old a replay brings back too.
    """
    parts = [NO_OFFSETS]
    for index, step in enumerate(steps):
        if step.kind not in kinds:
            continue
        letters = [held.get(partition, NO_OFFSETS) for held in step.gone_letters.values()]
        offsets = np.unique(np.concatenate([step.gone.get(partition, NO_OFFSETS), *letters]))
        later = [
            span
            for span in spans.every
            if span.index > index
            and (step.kind == keys.EXPIRE_ROWS or steps[span.index].kind == keys.INGEST)
        ]
        parts.append(offsets[find_owners(offsets, later) == NOBODY])
    return np.unique(np.concatenate(parts))


def find_returned(
    steps: tuple[Step, ...], spans: Spans, partition: Partition, held: Held
) -> Iterator[Finding]:
    """Find what left on purpose and is there all the same."""
    gone = find_gone(steps, spans, partition)
    # Where a topic was created again, another record may have the same offset.
    gone = gone[count_covers(gone, spans.earlier) == 0]
    letters = [
        np.intersect1d(offsets, step.gone_letters[attempt][partition])
        for attempt, offsets in held.letters.items()
        for step in steps
        if partition in step.gone_letters.get(attempt, {})
    ]
    back = np.unique(np.concatenate([np.intersect1d(held.rows, gone), *letters]))
    if len(back):
        text = f"{say_records(len(back))} gone on purpose, and there all the same"
        yield find_records("I1", text, *partition, back.tolist())


def restore_letters(
    steps: tuple[Step, ...], partition: Partition, letters: Mapping[str, Offsets]
) -> dict[str, Offsets]:
    """Add the letters that left on purpose to those that are there."""
    restored = dict(letters)
    for step in steps:
        for attempt, gone in step.gone_letters.items():
            if partition in gone:
                known = restored.get(attempt, NO_OFFSETS)
                restored[attempt] = np.union1d(known, gone[partition])
    return restored


def restore_rows(rows: Offsets, letters: Offsets, gone: Offsets) -> Offsets:
    """Add the rows that left on purpose; what counts as a letter was none, and doubles stay."""
    missing = gone[~np.isin(gone, np.concatenate([rows, letters]))]
    return np.sort(np.concatenate([rows, missing]))
