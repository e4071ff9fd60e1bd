"""Is every record that Kafka delivered there exactly once (I1)? Sorted offsets in, findings out.

Pure functions of one partition after the other; numpy keeps a million records below a second.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from frazil.audit_answer import Finding, find_records
from frazil.audit_ledger import Partition, Span, Spans

Offsets = npt.NDArray[np.int64]
"""Offsets of one partition, ascending."""

NO_OFFSETS: Offsets = np.empty(0, dtype=np.int64)
NOBODY = -1


@dataclass(frozen=True)
class Delivered:
    """What Kafka delivers of a partition from `earliest` on; a compacted log has forgotten some."""

    earliest: int
    offsets: Offsets
    is_compacted: bool = False


@dataclass(frozen=True)
class PartitionView:
    """One partition from all sides; `letters` are those dead letters that count."""

    partition: Partition
    spans: Spans
    rows: Offsets
    letters: Offsets
    delivered: Delivered | None


def _counters() -> defaultdict[int, Counter[Partition]]:
    return defaultdict(Counter)


@dataclass
class Tally:
    """What was counted per batch, by its index on the ancestry.

    `unsure` batches cannot be counted: their range was replayed, or read twice after a recorded
    gap. `aged` ones are only partly in Kafka. `faulty` ones have a finding of their own already.
    """

    delivered: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    rows: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    letters: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    absent: dict[int, list[tuple[Partition, Offsets]]] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    aged: set[int] = field(default_factory=set)
    faulty: set[int] = field(default_factory=set)
    offsets_aged: int = 0


def find_owners(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Give for each offset the index of the last span that covers it, -1 for none."""
    owners = np.full(len(offsets), NOBODY, dtype=np.int64)
    for span in spans:
        low, high = np.searchsorted(offsets, [span.start, span.end])
        owners[low:high] = span.index
    return owners


def count_covers(offsets: Offsets, spans: Iterable[Span]) -> Offsets:
    """Give for each offset how many spans cover it."""
    covers = np.zeros(len(offsets), dtype=np.int64)
    for span in spans:
        low, high = np.searchsorted(offsets, [span.start, span.end])
        covers[low:high] += 1
    return covers


def select_counting(
    letters: Mapping[str, Offsets], spans: Spans, attempts: Mapping[int, str]
) -> Offsets:
    """Select the dead letters that count: of the last attempt that covers their coordinate.

    `letters` maps an attempt to its letters of the partition, `attempts` a batch's index to the
    attempt that main's ancestry names (protocol.md, Dead letters).
    """
    every = (*spans.earlier, *spans.current)
    indexes = {attempt: index for index, attempt in attempts.items()}
    counting = [
        offsets[find_owners(offsets, every) == indexes[attempt]]
        for attempt, offsets in letters.items()
        if attempt in indexes
    ]
    return np.sort(np.concatenate([NO_OFFSETS, *counting]))


def judge_partition(view: PartitionView, tally: Tally) -> Iterator[Finding]:
    """Compare what is there of a partition with what was published, and count per batch."""
    _note_unsure(view.spans, tally)
    present = np.sort(np.concatenate([view.rows, view.letters]))
    unique, times = np.unique(present, return_counts=True)
    owners = find_owners(unique, view.spans.current)
    covers = count_covers(unique, view.spans.earlier)
    judged = unique >= view.spans.floor
    outside = unique[judged & (owners == NOBODY) & (covers == 0)]
    if len(outside):
        yield _find(view, "records are there that no published range holds", outside)
    doubled = judged & (owners != NOBODY) & (times > 1 + covers)
    if doubled.any():
        tally.faulty |= set(np.unique(owners[doubled]).tolist())
        yield _find(view, "records exist more than once", unique[doubled])
    _count_present(view, tally)
    log = view.delivered or Delivered(_end_of(view.spans), NO_OFFSETS)
    yield from _judge_delivered(view, log, unique[covers == 0], tally)


def _end_of(spans: Spans) -> int:
    return max((span.end for span in spans.current), default=0)


def _judge_delivered(
    view: PartitionView, log: Delivered, present: Offsets, tally: Tally
) -> Iterator[Finding]:
    """Compare with Kafka from its earliest offset on."""
    for span in view.spans.current:
        if span.start < log.earliest or log.is_compacted:
            tally.aged.add(span.index)
            tally.offsets_aged += max(0, min(span.end, log.earliest) - span.start)
    owners = find_owners(log.offsets, view.spans.current)
    published, owners = log.offsets[owners != NOBODY], owners[owners != NOBODY]
    for index, count in _count_values(owners):
        tally.delivered[index][view.partition] += count
    everywhere = np.concatenate([view.rows, view.letters])
    is_absent = ~np.isin(published, everywhere)
    for index in np.unique(owners[is_absent]).tolist():
        absent = published[is_absent & (owners == index)]
        tally.absent.setdefault(index, []).append((view.partition, absent))
    visible = present[present >= max(log.earliest, view.spans.floor)]
    strange_owners = find_owners(visible, view.spans.current)
    strange = (strange_owners != NOBODY) & ~np.isin(visible, log.offsets)
    if strange.any() and not log.is_compacted:
        tally.faulty |= set(np.unique(strange_owners[strange]).tolist())
        yield _find(view, "records are there that Kafka does not deliver", visible[strange])


def _note_unsure(spans: Spans, tally: Tally) -> None:
    """Note the batches whose ranges another one overlaps: nobody can count them apart."""
    by_start = sorted([*spans.current, *spans.earlier], key=lambda span: (span.start, span.end))
    widest: Span | None = None
    for span in by_start:
        if widest is not None and span.start < widest.end:
            tally.unsure |= {span.index, widest.index}
        if widest is None or span.end > widest.end:
            widest = span


def _count_present(view: PartitionView, tally: Tally) -> None:
    for index, count in _count_values(find_owners(view.rows, view.spans.current)):
        tally.rows[index][view.partition] += count
    for index, count in _count_values(find_owners(view.letters, view.spans.current)):
        tally.letters[index][view.partition] += count


def _count_values(owners: Offsets) -> list[tuple[int, int]]:
    indexes, counts = np.unique(owners[owners != NOBODY], return_counts=True)
    return list(zip(indexes.tolist(), counts.tolist(), strict=True))


def _find(view: PartitionView, text: str, offsets: Offsets) -> Finding:
    topic, number = view.partition
    return find_records("I1", f"{len(offsets)} {text}", topic, number, offsets.tolist())


@dataclass(frozen=True)
class BatchClaim:
    """What one ingest snapshot says of itself; `counts` are read and good rows per partition."""

    index: int
    name: str
    rows_read: int
    rows_written: int
    rows_quarantined: int
    rows_skipped: int
    counts: Mapping[Partition, tuple[int, int]] | None


def judge_batches(claims: Sequence[BatchClaim], tally: Tally) -> Iterator[Finding]:
    """Compare what each batch says with what was counted: missing records first, then counts."""
    for claim in claims:
        missing = list(_find_missing(claim, tally))
        yield from missing
        is_counted = claim.index not in tally.faulty and claim.index not in tally.unsure
        if not missing and is_counted:
            yield from (
                Finding(invariant="I1", text=text) for text in _list_miscounts(claim, tally)
            )


def _find_missing(claim: BatchClaim, tally: Tally) -> Iterator[Finding]:
    """Name delivered records that are nowhere, unless the batch says that it skipped as many."""
    groups = tally.absent.get(claim.index, [])
    absent = sum(len(offsets) for _, offsets in groups)
    if absent <= claim.rows_skipped:
        return
    skipped = f" ({claim.rows_skipped} were skipped)" if claim.rows_skipped else ""
    suspects = [g for g in groups if len(g[1]) > _count_unnamed(claim, g[0], tally)] or groups
    for (topic, number), offsets in suspects:
        text = f"{claim.name}: {len(offsets)} records of {topic}-{number} are missing{skipped}"
        yield find_records("I1", text, topic, number, offsets.tolist())


def _count_unnamed(claim: BatchClaim, partition: Partition, tally: Tally) -> int:
    """Count the bad records of a partition that left no letter: the batch says it skipped them."""
    read, good = (claim.counts or {}).get(partition, (0, 0))
    return read - good - tally.letters[claim.index][partition]


def _list_miscounts(claim: BatchClaim, tally: Tally) -> Iterator[str]:
    """List what a batch says of itself and what was counted, where they differ (B4)."""
    parts = claim.rows_written + claim.rows_quarantined + claim.rows_skipped
    if claim.rows_read != parts:
        yield (
            f"{claim.name} read {claim.rows_read} records and accounts for {parts}: written "
            f"{claim.rows_written}, quarantined {claim.rows_quarantined}, skipped "
            f"{claim.rows_skipped}"
        )
    rows = tally.rows[claim.index].total()
    letters = tally.letters[claim.index].total()
    if rows != claim.rows_written:
        yield f"{claim.name} wrote {claim.rows_written} rows, the table holds {rows} of its ranges"
    if letters != claim.rows_quarantined:
        yield f"{claim.name} quarantined {claim.rows_quarantined} records, {letters} letters count"
    if claim.index not in tally.aged and claim.counts is not None:
        yield from _list_partition_miscounts(claim, claim.counts, tally)


def _list_partition_miscounts(
    claim: BatchClaim, counts: Mapping[Partition, tuple[int, int]], tally: Tally
) -> Iterator[str]:
    all_delivered, all_rows = tally.delivered[claim.index], tally.rows[claim.index]
    for partition in sorted({*counts, *all_delivered}):
        read, good = counts.get(partition, (0, 0))
        delivered, rows = all_delivered[partition], all_rows[partition]
        if (read, good) != (delivered, rows):
            yield (
                f"{claim.name}: {partition[0]}-{partition[1]}: the ledger says {read} read and "
                f"{good} good, Kafka delivers {delivered} and the table holds {rows}"
            )
