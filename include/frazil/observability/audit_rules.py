"""Check that every record that Kafka delivered is there exactly once (I1), and counts of batches.

Pure functions on sorted offsets, one partition at a time: NumPy checks a million in a second.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from frazil.ledger import keys
from frazil.ledger.coordinates import NO_OFFSETS, Offsets, Partition, count_coordinates
from frazil.ledger.deletions import KINDS
from frazil.ledger.history import (
    UNCLAIMED,
    Span,
    Spans,
    Step,
    count_covers,
    find_deleted,
    find_owners,
)
from frazil.ledger.offsets import describe_partition
from frazil.messages import count_noun
from frazil.observability.audit_messages import Finding, find_records


@dataclass(frozen=True)
class Delivered:
    """Offsets that Kafka delivers of a partition from `earliest` on; compaction removes some."""

    earliest: int
    offsets: Offsets
    is_compacted: bool = False


@dataclass(frozen=True)
class PartitionView:
    """Everything known of one partition.

    `dead_letters` are the open ones. `resolved` are those that a redrive made rows; counts of
    batches treat them as dead letters. Rows and dead letters include erased and expired ones;
    `returned` are findings of those that are in the table nevertheless, `has_deleted` is whether
    any were deleted.
    """

    partition: Partition
    spans: Spans
    rows: Offsets
    dead_letters: Offsets
    delivered: Delivered | None
    resolved: Offsets = field(default_factory=lambda: NO_OFFSETS)
    returned: tuple[Finding, ...] = ()
    has_deleted: bool = False


def _counters() -> defaultdict[int, Counter[Partition]]:
    return defaultdict(Counter)


@dataclass
class Tally:
    """Counts per batch, by its index on the ancestry.

    `uncountable` batches cannot be counted: their range was replayed, or read twice after a
    recorded gap. `aged` ones are not completely in Kafka. `faulty` ones have a finding already.
    `pools` are the batches of partitions whose topic incarnations have the same offsets, so that
    their rows can only be counted together.
    """

    delivered: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    rows: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    dead_letters: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    absent: dict[int, list[tuple[Partition, Offsets]]] = field(default_factory=dict)
    uncountable: set[int] = field(default_factory=set)
    aged: set[int] = field(default_factory=set)
    faulty: set[int] = field(default_factory=set)
    pools: dict[Partition, set[int]] = field(default_factory=dict)
    offsets_aged: int = 0


def judge_partition(view: PartitionView, tally: Tally) -> Iterator[Finding]:
    """Compare a partition's rows and dead letters with the published ranges; count per batch."""
    spans = view.spans
    _note_uncountable(spans.all, tally.uncountable)
    _note_pool(view, tally)
    _count_present(view, tally)
    present = np.concatenate([view.rows, view.dead_letters])
    unique, times = np.unique(present[present >= spans.floor], return_counts=True)
    owners = find_owners(unique, spans.all)
    outside = unique[owners == UNCLAIMED]
    if len(outside):
        yield _find(view, "in no published range", outside)
    earlier = np.zeros(len(unique), dtype=np.int64)
    for own in spans.incarnations[:-1]:
        earlier += find_owners(unique, own) != UNCLAIMED
    allowed = earlier + (find_owners(unique, spans.current) != UNCLAIMED)
    doubled = (owners != UNCLAIMED) & (times > allowed)
    if doubled.any():
        tally.faulty |= set(np.unique(owners[doubled]).tolist())
        yield _find(view, "more than once", unique[doubled])
    log = view.delivered or Delivered(max((s.end for s in spans.current), default=0), NO_OFFSETS)
    _count_delivered(view, log, tally)
    if not log.is_compacted:
        yield from _find_undelivered(view, log, unique[earlier == 0], tally)


def _count_delivered(view: PartitionView, log: Delivered, tally: Tally) -> None:
    """Count the delivered records of each batch, and store those that are not in the table."""
    tally.aged |= {span.index for span in view.spans.earlier}
    for span in view.spans.current:
        if span.start < log.earliest or log.is_compacted:
            tally.aged.add(span.index)
            tally.offsets_aged += max(0, min(span.end, log.earliest) - span.start)
    owners = find_owners(log.offsets, view.spans.current)
    published, owners = log.offsets[owners != UNCLAIMED], owners[owners != UNCLAIMED]
    for index, count in _count_values(owners):
        tally.delivered[index][view.partition] += count
    is_absent = ~np.isin(published, np.concatenate([view.rows, view.dead_letters]))
    for index in np.unique(owners[is_absent]).tolist():
        absent = published[is_absent & (owners == index)]
        tally.absent.setdefault(index, []).append((view.partition, absent))


def _find_undelivered(
    view: PartitionView, log: Delivered, unique: Offsets, tally: Tally
) -> Iterator[Finding]:
    """Find rows and dead letters at offsets that Kafka has but does not deliver."""
    visible = unique[unique >= log.earliest]
    owners = find_owners(visible, view.spans.current)
    undelivered = (owners != UNCLAIMED) & ~np.isin(visible, log.offsets)
    if undelivered.any():
        tally.faulty |= set(np.unique(owners[undelivered]).tolist())
        yield _find(view, "that Kafka does not deliver", visible[undelivered])


def _note_uncountable(spans: Iterable[Span], uncountable: set[int]) -> None:
    """Note batches with overlapping ranges: a record may belong to either of them."""
    by_start = sorted(spans, key=lambda span: (span.start, span.end))
    widest: Span | None = None
    for span in by_start:
        if widest is not None and span.start < widest.end:
            uncountable |= {span.index, widest.index}
        if widest is None or span.end > widest.end:
            widest = span


def _note_pool(view: PartitionView, tally: Tally) -> None:
    """Note batches of topic incarnations with the same offsets, unless rows were changed later."""
    replayed: set[int] = set()
    for own in view.spans.incarnations:
        _note_uncountable(own, replayed)
    batches = {span.index for span in view.spans.all}
    if view.spans.restarts and not (replayed or view.has_deleted or len(view.resolved)):
        tally.pools[view.partition] = batches


def _count_present(view: PartitionView, tally: Tally) -> None:
    rows = view.rows[~np.isin(view.rows, view.resolved)]
    dead_letters = np.sort(np.concatenate([view.dead_letters, view.resolved]))
    for index, count in _count_values(find_owners(rows, view.spans.all)):
        tally.rows[index][view.partition] += count
    for index, count in _count_values(find_owners(dead_letters, view.spans.all)):
        tally.dead_letters[index][view.partition] += count


def _count_values(owners: Offsets) -> list[tuple[int, int]]:
    indexes, counts = np.unique(owners[owners != UNCLAIMED], return_counts=True)
    return list(zip(indexes.tolist(), counts.tolist(), strict=True))


def _find(view: PartitionView, text: str, offsets: Offsets) -> Finding:
    topic, number = view.partition
    return find_records(
        "I1", f"{count_noun(len(offsets), 'record')} {text}", topic, number, offsets.tolist()
    )


@dataclass(frozen=True)
class BatchClaim:
    """Counts in a snapshot's summary; `counts` are read and good records per partition."""

    index: int
    name: str
    rows_read: int
    rows_written: int
    rows_quarantined: int
    rows_skipped: int
    counts: Mapping[Partition, tuple[int, int]] | None


def judge_batches(claims: Sequence[BatchClaim], tally: Tally) -> Iterator[Finding]:
    """Compare each batch's summary with the counted records: missing records first, then counts."""
    for claim in claims:
        missing = list(_find_missing(claim, tally))
        yield from missing
        is_counted = claim.index not in tally.faulty and claim.index not in tally.uncountable
        if not missing and is_counted:
            for text in _list_miscounts(claim, tally):
                yield Finding(invariant="I1", text=text)
    yield from _judge_pools(claims, tally)


def _judge_pools(claims: Sequence[BatchClaim], tally: Tally) -> Iterator[Finding]:
    """Compare the summaries of several topic incarnations with the rows that are there.

    At the same offset a record of one incarnation could hide that another's is missing.
    """
    by_index = {claim.index: claim.counts for claim in claims if claim.counts is not None}
    skipped = {claim.index: claim.rows_skipped for claim in claims}
    for partition, pool in sorted(tally.pools.items()):
        if not pool <= by_index.keys() or pool & tally.faulty:
            continue
        counts = [by_index[index].get(partition, (0, 0)) for index in pool]
        good, bad = sum(good for _, good in counts), sum(read - good for read, good in counts)
        rows = sum(tally.rows[index][partition] for index in pool)
        dead_letters = sum(tally.dead_letters[index][partition] for index in pool)
        name = f"{describe_partition(*partition)}: batches of several topic incarnations"
        if good != rows:
            text = f"{name} wrote {count_noun(good, 'row')}, the table has {rows:,}"
            yield Finding(invariant="I1", text=text)
        if not bad - sum(skipped[index] for index in pool) <= dead_letters <= bad:
            read = count_noun(bad, "bad record")
            text = f"{name} read {read}, {count_noun(dead_letters, 'dead letter')} exist"
            yield Finding(invariant="I1", text=text)


def _find_missing(claim: BatchClaim, tally: Tally) -> Iterator[Finding]:
    """Yield delivered records that are not in the table, if they exceed the skipped ones."""
    groups = tally.absent.get(claim.index, [])
    total = sum(len(offsets) for _, offsets in groups)
    for partition, offsets in groups:
        known = _count_skipped(claim, partition, tally)
        absent = len(offsets) if claim.counts is not None else total
        if absent > known:
            skipped = f" ({known} of them skipped)" if known else ""
            name = describe_partition(*partition)
            missing = count_noun(len(offsets), "record")
            text = f"{claim.name}: {missing} of {name} missing{skipped}"
            yield find_records("I1", text, *partition, offsets.tolist())


def _count_skipped(claim: BatchClaim, partition: Partition, tally: Tally) -> int:
    """Return the records that a batch skipped, by partition if its summary has those counts."""
    if claim.counts is None:
        return claim.rows_skipped
    read, good = claim.counts.get(partition, (0, 0))
    return read - good - tally.dead_letters[claim.index][partition]


def _list_miscounts(claim: BatchClaim, tally: Tally) -> Iterator[str]:
    """Yield differences between a batch's summary and the counted records."""
    parts = claim.rows_written + claim.rows_quarantined + claim.rows_skipped
    if claim.rows_read != parts:
        yield (
            f"{claim.name} read {count_noun(claim.rows_read, 'record')} and accounts for {parts}: "
            f"{claim.rows_written} written, {claim.rows_quarantined} quarantined, "
            f"{claim.rows_skipped} skipped"
        )
    rows = tally.rows[claim.index].total()
    dead_letters = tally.dead_letters[claim.index].total()
    if rows != claim.rows_written:
        written = count_noun(claim.rows_written, "row")
        yield f"{claim.name} wrote {written}, the table has {rows:,} of its ranges"
    if dead_letters != claim.rows_quarantined:
        quarantined = count_noun(claim.rows_quarantined, "record")
        exist = count_noun(dead_letters, "dead letter")
        yield f"{claim.name} quarantined {quarantined}, {exist} exist"
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
                f"{claim.name}: {describe_partition(*partition)}: the ledger has {read} read and "
                f"{good} good records, Kafka delivers {delivered} and the table has {rows} rows"
            )


@dataclass(frozen=True)
class StoredOffsets:
    """Offsets of one partition's rows, and of its dead letters by attempt."""

    rows: Offsets
    dead_letters: Mapping[str, Offsets]


def check_deletions(steps: tuple[Step, ...]) -> Iterator[Finding]:
    """Check that each deletion removed what it lists, and has an author and a reason (I10)."""
    for step in steps:
        summary = step.entry.summary
        if step.kind not in KINDS:
            continue
        claimed, listed = int(summary.get(keys.ROWS_DELETED, "0")), count_coordinates(step.deleted)
        removed = int(summary.get("deleted-records", "0")) - int(summary.get("added-records", "0"))
        hidden = int(summary.get("total-position-deletes", "0"))  # rows that others had deleted
        if not claimed <= removed <= claimed + hidden or listed > claimed:
            text = f"{step} claims {claimed} rows, lists {listed} of them and removed {removed}"
            yield Finding(invariant="I1", text=text)
        if not (summary.get(keys.BY) and summary.get(keys.REASON)):
            yield Finding(invariant="I10", text=f"{step} has no author or no reason")


def find_returned(
    steps: tuple[Step, ...], spans: Spans, partition: Partition, stored: StoredOffsets
) -> Iterator[Finding]:
    """Find erased or expired records that are in the table nevertheless."""
    deleted = find_deleted(steps, spans, partition)
    # Where a topic was created again, another record may have the same offset.
    deleted = deleted[count_covers(deleted, spans.earlier) == 0]
    dead_letters = [
        np.intersect1d(offsets, step.deleted_dead_letters[attempt][partition])
        for attempt, offsets in stored.dead_letters.items()
        for step in steps
        if partition in step.deleted_dead_letters.get(attempt, {})
    ]
    back = np.unique(np.concatenate([np.intersect1d(stored.rows, deleted), *dead_letters]))
    if len(back):
        text = f"{count_noun(len(back), 'record')} deleted on purpose but still there"
        yield find_records("I1", text, *partition, back.tolist())


def restore_dead_letters(
    steps: tuple[Step, ...], partition: Partition, dead_letters: Mapping[str, Offsets]
) -> dict[str, Offsets]:
    """Return the stored dead letters together with the erased ones."""
    restored = dict(dead_letters)
    for step in steps:
        for attempt, erased in step.deleted_dead_letters.items():
            if partition in erased:
                known = restored.get(attempt, NO_OFFSETS)
                restored[attempt] = np.union1d(known, erased[partition])
    return restored


def restore_rows(rows: Offsets, dead_letters: Offsets, deleted: Offsets) -> Offsets:
    """Return the rows with the deleted ones, except open dead letters; duplicates stay."""
    missing = deleted[~np.isin(deleted, np.concatenate([rows, dead_letters]))]
    return np.sort(np.concatenate([rows, missing]))
