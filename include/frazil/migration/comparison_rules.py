"""Two tables side by side, as pure functions: which records are judged, and what differs.

Only offsets that both sides claim to have read are judged. What one side has not read yet is
*ahead* on the other, not missing; what lies before a side's first offset is *before* it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from frazil.errors import ConfigurationError
from frazil.ledger.coordinates import NO_OFFSETS, Offsets, Partition
from frazil.ledger.history import Span
from frazil.ledger.offsets import OffsetRange, Ranges, iterate_ranges
from frazil.migration.messages import PartitionReport, Samples
from frazil.migration.value_hashes import Hashes

SHOWN = 20


@dataclass(frozen=True)
class Claim:
    """What one side has of a partition: all its offsets, and the range that it says it has read.

    `letters` are offsets that it keeps as dead letters instead of rows.
    """

    offsets: Offsets = field(default_factory=lambda: NO_OFFSETS)
    read: OffsetRange | None = None
    letters: Offsets = field(default_factory=lambda: NO_OFFSETS)


Claims = Mapping[Partition, Claim]
"""What one side has of each partition."""


@dataclass(frozen=True)
class Places:
    """One partition from both sides: which records are where."""

    judged: OffsetRange | None
    matched: Offsets
    missing: Offsets
    extra: Offsets
    doubled_left: Offsets
    doubled_right: Offsets
    report: PartitionReport


@dataclass
class Values:
    """What one side holds at the matched offsets of a partition.

    `rows` has one number per matched offset, `sums` one per column and does not depend on order.
    """

    rows: Hashes
    sums: dict[str, int] = field(default_factory=dict)


def claim_range(
    offsets: Offsets, start: int | None, end: int | None, filled: tuple[Span, ...] = ()
) -> OffsetRange | None:
    """Give what a side has read: its ledger's offsets if it has one, and every row in any case.

    `filled` is what was published where backfills are a part of it: their windows may leave holes,
    so what lies below the lowest window without one is not judged.
    """
    if start is None or end is None:
        return OffsetRange(int(offsets[0]), int(offsets[-1]) + 1) if len(offsets) else None
    for span in sorted(filled, key=lambda each: each.start, reverse=True):
        start = span.start if span.start < start <= span.end else start
    held = offsets[offsets >= start] if filled else offsets
    if len(held):
        start, end = min(start, int(held[0])), max(end, int(held[-1]) + 1)
    return OffsetRange(start, end) if start < end else None


def choose_claims(claims: tuple[Claims, Claims], chosen: Ranges) -> tuple[Claims, Claims]:
    """Leave of both claims what is asked for; all of it where nothing is.

    Raises:
        ConfigurationError: not both have read all that is asked for.
    """
    if not chosen:
        return claims
    left, right = {}, {}
    for topic, partition, span in iterate_ranges(chosen):
        place = (topic, partition)
        ours, theirs = (side.get(place, Claim()) for side in claims)
        both = _intersect(ours.read, theirs.read)
        if both is None or _intersect(both, span) != span:
            read = f"[{both.start}, {both.end})" if both else "nothing"
            raise ConfigurationError(
                f"of {topic}-{partition} both sides have read {read}, not all of "
                f"[{span.start}, {span.end})",
                "ask for offsets that both have read; without offsets all of those are judged",
            )
        left[place] = Claim(_cut(ours.offsets, span), span, ours.letters)
        right[place] = Claim(_cut(theirs.offsets, span), span, theirs.letters)
    return left, right


def compare_places(partition: Partition, left: Claim, right: Claim) -> Places:
    """Compare which records of a partition are there."""
    judged = _intersect(left.read, right.read)
    ours, our_times = np.unique(_cut(left.offsets, judged), return_counts=True)
    theirs, their_times = np.unique(_cut(right.offsets, judged), return_counts=True)
    missing = np.setdiff1d(ours, theirs, assume_unique=True)
    extra = np.setdiff1d(theirs, ours, assume_unique=True)
    once = (ours[our_times == 1], theirs[their_times == 1])
    doubled_left, doubled_right = ours[our_times > 1], theirs[their_times > 1]
    matched = np.intersect1d(*once, assume_unique=True)
    before = _count_outside(left, right, judged)
    report = PartitionReport(
        topic=partition[0],
        partition=partition[1],
        judged=(judged.start, judged.end) if judged else None,
        left_rows=int(our_times.sum()),
        right_rows=int(their_times.sum()),
        matched=len(matched),
        missing=len(missing),
        extra=len(extra),
        doubled_left=len(doubled_left),
        doubled_right=len(doubled_right),
        missing_dead_letters=int(np.isin(missing, right.letters).sum()),
        extra_dead_letters=int(np.isin(extra, left.letters).sum()),
        left_before=before[0],
        left_ahead=before[1],
        right_before=before[2],
        right_ahead=before[3],
        samples=Samples(
            missing=show(missing),
            extra=show(extra),
            doubled_left=show(doubled_left),
            doubled_right=show(doubled_right),
        ),
    )
    return Places(judged, matched, missing, extra, doubled_left, doubled_right, report)


def _intersect(left: OffsetRange | None, right: OffsetRange | None) -> OffsetRange | None:
    if left is None or right is None:
        return None
    start, end = max(left.start, right.start), min(left.end, right.end)
    return OffsetRange(start, end) if start < end else None


def _cut(offsets: Offsets, judged: OffsetRange | None) -> Offsets:
    if judged is None:
        return NO_OFFSETS
    low, high = np.searchsorted(offsets, [judged.start, judged.end])
    return offsets[low:high]


def _count_outside(
    left: Claim, right: Claim, judged: OffsetRange | None
) -> tuple[int, int, int, int]:
    """Count the rows before and after what is judged; with nothing judged all are ahead."""
    if judged is None:
        return 0, len(left.offsets), 0, len(right.offsets)
    ends = [judged.start, judged.end]
    ours, theirs = (np.searchsorted(side.offsets, ends).tolist() for side in (left, right))
    return (
        ours[0],
        len(left.offsets) - ours[1],
        theirs[0],
        len(right.offsets) - theirs[1],
    )


def compare_values(places: Places, left: Values, right: Values) -> PartitionReport:
    """Add to a report which matched rows differ, and in which columns."""
    changed = places.matched[left.rows != right.rows]
    columns = tuple(
        name for name, total in left.sums.items() if total != right.sums.get(name, total)
    )
    sums = {
        name: (f"{left.sums[name]:016x}", f"{right.sums.get(name, 0):016x}") for name in left.sums
    }
    samples = places.report.samples.model_copy(update={"changed": show(changed)})
    return places.report.model_copy(
        update={
            "changed": len(changed),
            "changed_columns": columns,
            "checksums": sums,
            "samples": samples,
        }
    )


def show(offsets: Offsets) -> tuple[int, ...]:
    """Show the first offsets: coordinates, never what is in a record."""
    return tuple(offsets[:SHOWN].tolist())
