"""Which offsets below a stream's beginning are free, and in which windows they come.

Pure functions of the ledger's steps (features B10). What a batch read is never a backfill's: that
range is the live stream's, and `replay` reads it again.
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
    describe_ranges,
    iterate_ranges,
    parse_ranges,
)
from frazil.ledger.recovery_point import LedgerEntry

MAX_WINDOWS = 1000
"""Airflow maps at most 1,024 tasks by default."""


MAX_RANGES = 20_000
"""Of all windows of one run together: a message between tasks stays below a megabyte."""


Free = Mapping[Partition, Sequence[OffsetRange]]


def find_beginnings(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """Find the first offset of each partition that is the live stream's.

    A recorded gap that took a partition back began it again; one that nobody knew begins at 0, as
    does one on a cluster that it was moved to: what lies below there was read on the old one.
    """
    begins: dict[Partition, int] = {}
    for step in steps:
        if step.after is None:
            continue
        again = list_restarts(step)
        for place, start, end in iterate_moves(step.before or step.after, step.after):
            topic, number = place
            published = step.ranges.get(topic, {}).get(number)
            if place in again:
                begins[place] = 0 if step.kind == keys.MOVE else end
            elif step.before is None and published is not None:
                begins[place] = published.start
            else:
                begins.setdefault(place, start)
    return begins


def find_first(steps: tuple[Step, ...]) -> dict[Partition, int]:
    """Find the first offset of each partition that was published, by batches or backfills."""
    spans = list_spans(steps)
    return {p: min(s.start for s in each.current) for p, each in spans.items() if each.current}


def require_below_beginning(stream: str, ranges: Ranges, begins: Mapping[Partition, int]) -> None:
    """Refuse what is not below the beginning: a batch read it, or will.

    Raises:
        TargetError: with the offsets concerned and where each partition begins.
    """
    live = {
        topic: {p: span for p, span in parts.items() if span.end > begins.get((topic, p), 0)}
        for topic, parts in ranges.items()
    }
    found = {topic: parts for topic, parts in live.items() if parts}
    if found:
        raise TargetError(
            f"stream {stream}: {describe_ranges(found)} reaches into the live stream, which begins "
            f"at {describe_beginnings(begins)}",
            f"end below that; `frazil replay {stream}` reads again what batches have read",
        )


def describe_beginnings(begins: Mapping[Partition, int]) -> str:
    """Write where the live stream begins, as `flights-0: 500`."""
    return ", ".join(f"{topic}-{number}: {start}" for (topic, number), start in begins.items())


def list_free(
    ranges: Ranges, spans: Mapping[Partition, Spans]
) -> dict[Partition, list[OffsetRange]]:
    """Take away what the ledger has of the ranges, so that a backfill goes on where one ended."""
    free: dict[Partition, list[OffsetRange]] = {}
    for topic, number, wanted in iterate_ranges(ranges):
        place, start, found = (topic, number), wanted.start, []
        known = spans.get(place, Spans()).current
        for span in sorted(known, key=lambda each: each.start):
            if span.start >= wanted.end:
                break
            if span.start > start:
                found.append(OffsetRange(start, span.start))
            start = max(start, span.end)
        if start < wanted.end:
            found.append(OffsetRange(start, wanted.end))
        if found:
            free[place] = found
    return free


def require_not_filled(stream: str, ranges: Ranges, steps: tuple[Step, ...]) -> None:
    """Refuse a window of which the ledger has a part; who fills a window must have it alone.

    Raises:
        StageStaleError: nothing was written.
    """
    if count_free(list_free(ranges, list_spans(steps))) < count_offsets(ranges):
        raise StageStaleError(
            f"stream {stream}: another backfill filled a part of {describe_ranges(ranges)} since "
            "this window was planned; nothing was written",
            f"`frazil backfill {stream}` plans what is still missing",
        )


def list_filled(entries: Iterable[LedgerEntry]) -> dict[str, list[Ranges]]:
    """List the windows that snapshots published, by stream."""
    found: dict[str, list[Ranges]] = {}
    for entry in entries:
        if entry.summary.get(keys.KIND) == keys.BACKFILL:
            ranges = parse_ranges(entry.summary[keys.RANGES])
            found.setdefault(entry.summary[keys.STREAM], []).append(ranges)
    return dict(sorted(found.items()))


def count_free(free: Free) -> int:
    """Count the offsets that are free."""
    return sum(span.width for spans in free.values() for span in spans)


def cut_windows(
    free: Free, records: int, *, limit: int | None = None, newest_first: bool = False
) -> Iterator[Ranges]:
    """Cut what is free into windows of at most `records` offsets, `limit` in all.

    Each partition gives in proportion to what it still has, so that a window is about the same
    time in all of them; within a window a partition has one range.
    """
    left = {place: list(spans) for place, spans in free.items()}
    allowed = count_free(free) if limit is None else limit
    while allowed and (total := count_free(left)):
        window: dict[str, dict[int, OffsetRange]] = {}
        size = room = min(records, allowed)
        longest = sorted(left, key=lambda each: -sum(span.width for span in left[each]))
        for place in longest:
            share = max(1, size * sum(span.width for span in left[place]) // total)
            taken = _take(left[place], min(share, room), newest_first=newest_first)
            if not left[place]:
                del left[place]
            window.setdefault(place[0], {})[place[1]] = taken
            room -= taken.width
            if not room:
                break
        allowed -= size - room
        yield window


def _take(spans: list[OffsetRange], count: int, *, newest_first: bool) -> OffsetRange:
    """Take up to so many offsets from one end of what is left of a partition."""
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
    """Take as many windows as one run may have."""
    chosen: list[Ranges] = []
    ranges = 0
    for window in windows:
        ranges += sum(map(len, window.values()))
        if len(chosen) == MAX_WINDOWS or (chosen and ranges > MAX_RANGES):
            break
        chosen.append(window)
    return chosen


def validate_one_selection(offsets: Sequence[str], since: str | None, until: str | None) -> None:
    """Refuse a request by offsets and by instants at once.

    Raises:
        ConfigurationError: nothing was looked at.
    """
    if offsets and (since or until):
        raise ConfigurationError(
            "a backfill goes by offsets or by instants; given: both",
            "leave --since and --until out, or --offsets; without any it is all that Kafka keeps "
            "below the stream's beginning",
        )
