"""Decide what a comparison of two tables judges, and its verdict; pure functions.

Only offsets that both sides have read are judged. Rows behind them are *ahead* of the other side,
rows before them are *before*; neither are missing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from frazil.errors import ConfigurationError
from frazil.ledger.coordinates import NO_OFFSETS, Offsets, Partition
from frazil.ledger.history import Span
from frazil.ledger.offsets import OffsetRange, Ranges, describe_range, iterate_ranges
from frazil.messages import count_noun, name_field
from frazil.migration.messages import PartitionExtent, PartitionReport, Verdict


@dataclass(frozen=True)
class Claim:
    """One side of one partition: its row count, and the range of offsets that it has read.

    `dead_letters` are the offsets of its open dead letters.
    """

    rows: int = 0
    read: OffsetRange | None = None
    dead_letters: Offsets = field(default_factory=lambda: NO_OFFSETS)


Claims = Mapping[Partition, Claim]
NO_CLAIM = Claim()


def claim_range(
    extent: PartitionExtent | None,
    start: int | None,
    end: int | None,
    backfilled: tuple[Span, ...] = (),
) -> OffsetRange | None:
    """Return the range that one side has read: its ledger's, widened to its rows.

    Without a ledger (`start` and `end` are None) it is the range of the rows. `backfilled` are all
    published spans of a stream with backfills: windows of backfills may leave unread offsets
    between them, so the range ends at the first such offset below `start`.
    """
    if start is None or end is None:
        return OffsetRange(extent.first, extent.last + 1) if extent else None
    for span in sorted(backfilled, key=lambda each: each.start, reverse=True):
        start = span.start if span.start < start <= span.end else start
    if extent:
        start = start if backfilled else min(start, extent.first)
        end = max(end, extent.last + 1)
    return OffsetRange(start, end) if start < end else None


def choose_ranges(
    left: Claims, right: Claims, chosen: Ranges
) -> dict[Partition, OffsetRange | None]:
    """Return the range to judge of each partition; None where the sides have none in common.

    Without `chosen` ranges it is all that both sides have read.

    Raises:
        ConfigurationError: a side has not read all of a chosen range.
    """
    if not chosen:
        return {key: _intersect(left, right, key) for key in sorted({*left, *right})}
    ranges: dict[Partition, OffsetRange | None] = {}
    for topic, partition, span in iterate_ranges(chosen):
        both = _intersect(left, right, (topic, partition))
        if both is None or not both.start <= span.start < span.end <= both.end:
            read = describe_range(topic, partition, both) if both else "nothing"
            raise ConfigurationError(
                f"both sides have read {read}, not all of {describe_range(topic, partition, span)}",
                "name offsets that both sides have read, or leave "
                f"{name_field('offsets')} out to judge all of "
                "those",
            )
        ranges[topic, partition] = span
    return ranges


def _intersect(left: Claims, right: Claims, key: Partition) -> OffsetRange | None:
    ours, theirs = (side.get(key, NO_CLAIM).read for side in (left, right))
    if ours is None or theirs is None:
        return None
    start, end = max(ours.start, theirs.start), min(ours.end, theirs.end)
    return OffsetRange(start, end) if start < end else None


def complete_reports(
    ranges: Mapping[Partition, OffsetRange | None],
    left: Claims,
    right: Claims,
    found: Iterable[PartitionReport],
) -> tuple[PartitionReport, ...]:
    """Return a report of every partition, also of those where Spark had nothing to compare."""
    known = {(report.topic, report.partition): report for report in found}
    return tuple(
        known.get(key)
        or PartitionReport(
            topic=key[0],
            partition=key[1],
            judged=(span.start, span.end) if span else None,
            left_ahead=0 if span else left.get(key, NO_CLAIM).rows,
            right_ahead=0 if span else right.get(key, NO_CLAIM).rows,
        )
        for key, span in ranges.items()
    )


def decide_verdict(
    reports: Iterable[PartitionReport], unplaced: int, layout: tuple[str, ...], *, rows_only: bool
) -> Verdict:
    """Return the verdict; with `rows_only` differences of columns and partitioning do not count."""
    judged = [report for report in reports if report.judged]
    if unplaced or not all(report.is_same for report in judged) or (layout and not rows_only):
        return "different"
    return "equal" if judged else "nothing in common"


def describe_comparison(
    reports: Iterable[PartitionReport],
    unplaced: int,
    layout: tuple[str, ...],
    chosen: tuple[str, ...],
) -> str:
    """Describe in one sentence how many records were judged and how many differ."""
    judged = [report for report in reports if report.judged]
    counts = {
        "missing on the right": sum(report.missing for report in judged),
        "only on the right": sum(report.extra for report in judged),
        "duplicated on the left": sum(report.doubled_left for report in judged),
        "duplicated on the right": sum(report.doubled_right for report in judged),
        "with other values": sum(report.changed for report in judged),
        "without a coordinate": unplaced,
    }
    matched = sum(report.matched for report in judged)
    found = [f"{count:,} {words}" for words, count in counts.items() if count]
    if layout:
        where = "of columns or partitioning"
        found.append(count_noun(len(layout), f"difference {where}", f"differences {where}"))
    of_ranges = f" of the offsets {', '.join(chosen)}" if chosen else ""
    records = f"{count_noun(matched, 'record')}{of_ranges}"
    partitions = count_noun(len(judged), "partition")
    return f"{records} once on both sides in {partitions}; {', '.join(found) or 'no difference'}"
