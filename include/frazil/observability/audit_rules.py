"""Is every record that Kafka delivered there exactly once (I1)? Sorted offsets in, findings out.

Pure functions of one partition after the other; numpy keeps a million records below a second.
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
from frazil.observability.audit_messages import Finding, describe_records, find_records


@dataclass(frozen=True)
class Delivered:
    """What Kafka delivers of a partition from `earliest` on; a compacted log has forgotten some."""

    earliest: int
    offsets: Offsets
    is_compacted: bool = False


@dataclass(frozen=True)
class PartitionView:
    """One partition from all sides: `letters` are those dead letters that count.

    `back` are those that a redrive made rows; batches are counted as if they were letters still.
    Rows and letters hold what left on purpose, too; `returned` is what of it is there all the same.
    `has_gone` says that there is any.
    """

    partition: Partition
    spans: Spans
    rows: Offsets
    letters: Offsets
    delivered: Delivered | None
    back: Offsets = field(default_factory=lambda: NO_OFFSETS)
    returned: tuple[Finding, ...] = ()
    has_gone: bool = False


def _counters() -> defaultdict[int, Counter[Partition]]:
    return defaultdict(Counter)


@dataclass
class Tally:
    """What was counted per batch, by its index on the ancestry.

    `unsure` batches cannot be counted: their range was replayed, or read twice after a recorded
    gap. `aged` ones are not wholly in Kafka. `faulty` ones have a finding of their own already.
    `pools` are the batches of a partition of which several logs had the same offsets: their rows
    can only be counted together.
    """

    delivered: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    rows: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    letters: defaultdict[int, Counter[Partition]] = field(default_factory=_counters)
    absent: dict[int, list[tuple[Partition, Offsets]]] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    aged: set[int] = field(default_factory=set)
    faulty: set[int] = field(default_factory=set)
    pools: dict[Partition, set[int]] = field(default_factory=dict)
    offsets_aged: int = 0


def judge_partition(view: PartitionView, tally: Tally) -> Iterator[Finding]:
    """Compare what is there of a partition with what was published, and count per batch."""
    spans = view.spans
    _note_unsure(spans.every, tally.unsure)
    _note_pool(view, tally)
    _count_present(view, tally)
    present = np.concatenate([view.rows, view.letters])
    unique, times = np.unique(present[present >= spans.floor], return_counts=True)
    owners = find_owners(unique, spans.every)
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
    """Count what Kafka delivers of each batch, and keep what of it is nowhere."""
    tally.aged |= {span.index for span in view.spans.earlier}
    for span in view.spans.current:
        if span.start < log.earliest or log.is_compacted:
            tally.aged.add(span.index)
            tally.offsets_aged += max(0, min(span.end, log.earliest) - span.start)
    owners = find_owners(log.offsets, view.spans.current)
    published, owners = log.offsets[owners != UNCLAIMED], owners[owners != UNCLAIMED]
    for index, count in _count_values(owners):
        tally.delivered[index][view.partition] += count
    is_absent = ~np.isin(published, np.concatenate([view.rows, view.letters]))
    for index in np.unique(owners[is_absent]).tolist():
        absent = published[is_absent & (owners == index)]
        tally.absent.setdefault(index, []).append((view.partition, absent))


def _find_undelivered(
    view: PartitionView, log: Delivered, unique: Offsets, tally: Tally
) -> Iterator[Finding]:
    """Find what is there although Kafka, from its earliest offset on, does not deliver it."""
    visible = unique[unique >= log.earliest]
    owners = find_owners(visible, view.spans.current)
    strange = (owners != UNCLAIMED) & ~np.isin(visible, log.offsets)
    if strange.any():
        tally.faulty |= set(np.unique(owners[strange]).tolist())
        yield _find(view, "that Kafka does not deliver", visible[strange])


def _note_unsure(spans: Iterable[Span], unsure: set[int]) -> None:
    """Note the batches whose ranges another one overlaps: nobody can count them apart."""
    by_start = sorted(spans, key=lambda span: (span.start, span.end))
    widest: Span | None = None
    for span in by_start:
        if widest is not None and span.start < widest.end:
            unsure |= {span.index, widest.index}
        if widest is None or span.end > widest.end:
            widest = span


def _note_pool(view: PartitionView, tally: Tally) -> None:
    """Note what several logs had at the same offsets, unless rows also left or came otherwise."""
    replayed: set[int] = set()
    for own in view.spans.incarnations:
        _note_unsure(own, replayed)
    batches = {span.index for span in view.spans.every}
    if view.spans.restarts and not (replayed or view.has_gone or len(view.back)):
        tally.pools[view.partition] = batches


def _count_present(view: PartitionView, tally: Tally) -> None:
    rows = view.rows[~np.isin(view.rows, view.back)]
    letters = np.sort(np.concatenate([view.letters, view.back]))
    for index, count in _count_values(find_owners(rows, view.spans.every)):
        tally.rows[index][view.partition] += count
    for index, count in _count_values(find_owners(letters, view.spans.every)):
        tally.letters[index][view.partition] += count


def _count_values(owners: Offsets) -> list[tuple[int, int]]:
    indexes, counts = np.unique(owners[owners != UNCLAIMED], return_counts=True)
    return list(zip(indexes.tolist(), counts.tolist(), strict=True))


def _find(view: PartitionView, text: str, offsets: Offsets) -> Finding:
    topic, number = view.partition
    return find_records(
        "I1", f"{describe_records(len(offsets))} {text}", topic, number, offsets.tolist()
    )


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
            for text in _list_miscounts(claim, tally):
                yield Finding(invariant="I1", text=text)
    yield from _judge_pools(claims, tally)


def _judge_pools(claims: Sequence[BatchClaim], tally: Tally) -> Iterator[Finding]:
    """Compare what the batches of several logs published of a partition with what is there.

    A record of one of them would hide that one of the other is missing at the same offset.
    """
    by_index = {claim.index: claim.counts for claim in claims if claim.counts is not None}
    skipped = {claim.index: claim.rows_skipped for claim in claims}
    for place, pool in sorted(tally.pools.items()):
        if not pool <= by_index.keys() or pool & tally.faulty:
            continue
        counts = [by_index[index].get(place, (0, 0)) for index in pool]
        told, bad = sum(good for _, good in counts), sum(read - good for read, good in counts)
        found = sum(tally.rows[index][place] for index in pool)
        letters = sum(tally.letters[index][place] for index in pool)
        name = f"{place[0]}-{place[1]}: batches of several logs"
        if told != found:
            yield Finding(invariant="I1", text=f"{name} wrote {told} rows, {found} exist")
        if not bad - sum(skipped[index] for index in pool) <= letters <= bad:
            text = f"{name} read {bad} bad records, {letters} letters count"
            yield Finding(invariant="I1", text=text)


def _find_missing(claim: BatchClaim, tally: Tally) -> Iterator[Finding]:
    """Name delivered records that are nowhere, where they are more than the batch skipped."""
    groups = tally.absent.get(claim.index, [])
    total = sum(len(offsets) for _, offsets in groups)
    for partition, offsets in groups:
        known = _count_skipped(claim, partition, tally)
        absent = len(offsets) if claim.counts is not None else total
        if absent > known:
            skipped = f" ({known} of them skipped)" if known else ""
            name = f"{partition[0]}-{partition[1]}"
            missing = describe_records(len(offsets))
            text = f"{claim.name}: {missing} of {name} missing{skipped}"
            yield find_records("I1", text, *partition, offsets.tolist())


def _count_skipped(claim: BatchClaim, partition: Partition, tally: Tally) -> int:
    """Count the records that a batch says it skipped: by partition, where it says so."""
    if claim.counts is None:
        return claim.rows_skipped
    read, good = claim.counts.get(partition, (0, 0))
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
        told, listed = int(summary.get(keys.ROWS_DELETED, "0")), count_coordinates(step.deleted)
        taken = int(summary.get("deleted-records", "0")) - int(summary.get("added-records", "0"))
        hidden = int(summary.get("total-position-deletes", "0"))  # rows that others had deleted
        if not told <= taken <= told + hidden or listed > told:
            text = f"{step} says {told} rows, lists {listed} of them and took {taken}"
            yield Finding(invariant="I1", text=text)
        if not (summary.get(keys.BY) and summary.get(keys.REASON)):
            yield Finding(invariant="I10", text=f"{step} does not say who wanted it and why")


def find_returned(
    steps: tuple[Step, ...], spans: Spans, partition: Partition, held: Held
) -> Iterator[Finding]:
    """Find what left on purpose and is there all the same."""
    gone = find_deleted(steps, spans, partition)
    # Where a topic was created again, another record may have the same offset.
    gone = gone[count_covers(gone, spans.earlier) == 0]
    letters = [
        np.intersect1d(offsets, step.deleted_dead_letters[attempt][partition])
        for attempt, offsets in held.letters.items()
        for step in steps
        if partition in step.deleted_dead_letters.get(attempt, {})
    ]
    back = np.unique(np.concatenate([np.intersect1d(held.rows, gone), *letters]))
    if len(back):
        text = f"{describe_records(len(back))} gone on purpose, and there all the same"
        yield find_records("I1", text, *partition, back.tolist())


def restore_letters(
    steps: tuple[Step, ...], partition: Partition, letters: Mapping[str, Offsets]
) -> dict[str, Offsets]:
    """Add the letters that left on purpose to those that are there."""
    restored = dict(letters)
    for step in steps:
        for attempt, gone in step.deleted_dead_letters.items():
            if partition in gone:
                known = restored.get(attempt, NO_OFFSETS)
                restored[attempt] = np.union1d(known, gone[partition])
    return restored


def restore_rows(rows: Offsets, letters: Offsets, gone: Offsets) -> Offsets:
    """Add the rows that left on purpose; what counts as a letter was none, and doubles stay."""
    missing = gone[~np.isin(gone, np.concatenate([rows, letters]))]
    return np.sort(np.concatenate([rows, missing]))
