"""Decide which offsets below a stream's beginning are missing, and cut them into windows.

Offsets that batches read belong to the live stream; a replay, not a backfill, reads them again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from frazil.errors import ConfigurationError, StageStaleError, TargetError
from frazil.ledger import keys
from frazil.ledger.coordinates import Partition
from frazil.ledger.history import Spans, Step, iterate_moves, list_restarts, list_spans
from frazil.ledger.offsets import (
    OffsetRange,
    Ranges,
    count_offsets,
    describe_offset,
    describe_ranges,
    iterate_ranges,
    parse_ranges,
)
from frazil.ledger.recovery_point import LedgerEntry
from frazil.messages import name_field

MAX_WINDOWS = 1000
"""Windows of one run: Airflow maps at most 1,024 tasks by default."""

MAX_RANGES = 20_000
"""Ranges in all windows of one run: the message between tasks stays below a megabyte."""

MissingOffsets = Mapping[Partition, Sequence[OffsetRange]]
"""Offsets that no snapshot has read yet."""


def find_beginnings(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """Return the first offset of each partition that belongs to the live stream.

    A recorded gap that set a partition back begins it again. A partition that the ledger did not
    know begins at 0, and so does one after a move: its earlier records were read on the old
    cluster.
    """
    begins: dict[Partition, int] = {}
    for step in steps:
        if step.after is None:
            continue
        restarted = list_restarts(step)
        for partition, start, end in iterate_moves(step.before or step.after, step.after):
            topic, number = partition
            published = step.ranges.get(topic, {}).get(number)
            if partition in restarted:
                begins[partition] = 0 if step.kind == keys.MOVE else end
            elif step.before is None and published is not None:
                begins[partition] = published.start
            else:
                begins.setdefault(partition, start)
    return begins


def find_first_published(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """Return the first published offset of each partition, by batches or backfills."""
    spans = list_spans(steps)
    return {p: min(s.start for s in each.current) for p, each in spans.items() if each.current}


def require_below_beginning(stream: str, ranges: Ranges, begins: Mapping[Partition, int]) -> None:
    """Refuse offsets at or above the stream's beginning: batches read them.

    Raises:
        TargetError: with the offsets concerned and where each partition begins, or with a topic
            that the stream has not read.
    """
    live = {
        topic: {p: span for p, span in parts.items() if span.end > begins.get((topic, p), 0)}
        for topic, parts in ranges.items()
    }
    found = {topic: parts for topic, parts in live.items() if parts}
    known = {topic for topic, _ in begins}
    unknown = sorted(found.keys() - known)
    if unknown:
        raise TargetError(
            f"stream {stream} has not read topic {', '.join(unknown)}; its topics: "
            f"{', '.join(sorted(known))}",
            "name a topic of this stream, or run the backfill for the stream that reads the topic "
            "(`frazil streams` lists them); one that is new in the file waits for its first batch",
        )
    if found:
        raise TargetError(
            f"stream {stream}: {describe_ranges(found)} reaches into the live stream, which begins "
            f"at {describe_beginnings(begins)}",
            f"end below that; `frazil replay {stream}` reads offsets of batches again",
        )


def describe_beginnings(begins: Mapping[Partition, int]) -> str:
    """Return where the live stream begins, as `flights:0:500`."""
    return ", ".join(describe_offset(*partition, start) for partition, start in begins.items())


def list_missing(
    ranges: Ranges, spans: Mapping[Partition, Spans]
) -> dict[Partition, list[OffsetRange]]:
    """Return the part of the ranges that the ledger does not have."""
    missing: dict[Partition, list[OffsetRange]] = {}
    for topic, number, wanted in iterate_ranges(ranges):
        partition, start, found = (topic, number), wanted.start, []
        known = spans.get(partition, Spans()).current
        for span in sorted(known, key=lambda each: each.start):
            if span.start >= wanted.end:
                break
            if span.start > start:
                found.append(OffsetRange(start, span.start))
            start = max(start, span.end)
        if start < wanted.end:
            found.append(OffsetRange(start, wanted.end))
        if found:
            missing[partition] = found
    return missing


def require_not_filled(stream: str, ranges: Ranges, steps: tuple[Step, ...]) -> None:
    """Require that no part of a window is in the ledger.

    Raises:
        StageStaleError: nothing was written.
    """
    if count_missing(list_missing(ranges, list_spans(steps))) < count_offsets(ranges):
        raise StageStaleError(
            f"stream {stream}: another backfill filled part of {describe_ranges(ranges)} since "
            "this window was planned; nothing was written",
            f"`frazil backfill {stream}` plans what is still missing",
        )


def list_backfilled(entries: Iterable[LedgerEntry]) -> dict[str, list[Ranges]]:
    """Return the backfilled windows of snapshots, by stream."""
    found: dict[str, list[Ranges]] = {}
    for entry in entries:
        if entry.summary.get(keys.KIND) == keys.BACKFILL:
            ranges = parse_ranges(entry.summary[keys.RANGES])
            found.setdefault(entry.summary[keys.STREAM], []).append(ranges)
    return dict(sorted(found.items()))


def count_missing(missing: MissingOffsets) -> int:
    """Return the number of missing offsets."""
    return sum(span.width for spans in missing.values() for span in spans)


def cut_windows(
    missing: MissingOffsets, records: int, *, limit: int | None = None, newest_first: bool = False
) -> Iterator[Ranges]:
    """Cut missing offsets into windows of at most `records` offsets, `limit` in all.

    Each partition contributes in proportion to what it has left, so that a window covers about
    the same time in all of them; within a window a partition has one range.
    """
    left = {partition: list(spans) for partition, spans in missing.items()}
    allowed = count_missing(missing) if limit is None else limit
    while allowed and (total := count_missing(left)):
        window: dict[str, dict[int, OffsetRange]] = {}
        size = room = min(records, allowed)
        longest = sorted(left, key=lambda each: -sum(span.width for span in left[each]))
        for partition in longest:
            share = max(1, size * sum(span.width for span in left[partition]) // total)
            part = _cut(left[partition], min(share, room), newest_first=newest_first)
            if not left[partition]:
                del left[partition]
            window.setdefault(partition[0], {})[partition[1]] = part
            room -= part.width
            if not room:
                break
        allowed -= size - room
        yield window


def _cut(spans: list[OffsetRange], count: int, *, newest_first: bool) -> OffsetRange:
    """Remove up to `count` offsets from one end of a partition's ranges and return them."""
    span = spans.pop(-1 if newest_first else 0)
    if span.width <= count:
        return span
    if newest_first:
        middle = span.end - count
        spans.append(OffsetRange(span.start, middle))
        return OffsetRange(middle, span.end)
    middle = span.start + count
    spans.insert(0, OffsetRange(middle, span.end))
    return OffsetRange(span.start, middle)


def choose_windows(windows: Iterable[Ranges]) -> list[Ranges]:
    """Return as many windows as one run may have."""
    chosen: list[Ranges] = []
    ranges = 0
    for window in windows:
        ranges += sum(map(len, window.values()))
        if len(chosen) == MAX_WINDOWS or (chosen and ranges > MAX_RANGES):
            break
        chosen.append(window)
    return chosen


def validate_one_selection(offsets: Sequence[str], since: str | None, until: str | None) -> None:
    """Refuse offsets and instants at once.

    Raises:
        ConfigurationError: both are given.
    """
    if offsets and (since or until):
        whole, start, end = map(name_field, ("offsets", "since", "until"))
        raise ConfigurationError(
            f"a backfill takes {whole}, or {start} and {end}, not both",
            f"leave out {start} and {end}, or {whole}; without any of them the backfill reads "
            "all that Kafka has below the stream's beginning",
        )
