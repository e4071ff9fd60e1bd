"""Half-open offset ranges, next offsets and single offsets, in JSON and as command-line options."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from frazil.errors import ConfigurationError
from frazil.ledger.keys import unpack

Runs = dict[str, dict[int, list[tuple[int, int]]]]
"""topic → partition → ascending half-open runs of exact offsets; the form used in messages."""
PlainRanges = Mapping[str, Mapping[int, tuple[int, int]]]
"""Ranges in the form used in messages."""
NextOffsets = Mapping[str, tuple[int, ...]]
"""topic → the next offset to read of partition 0, 1, 2 …"""
_RANGE = r"[A-Za-z0-9._-]+:[0-9]{1,9}:[0-9]{1,18}-[0-9]{1,18}"
_OLD_RANGE = r"[A-Za-z0-9._-]+-[0-9]{1,9} \[[0-9]{1,18}, ?[0-9]{1,18}\)"
_OFFSET = r"[A-Za-z0-9._-]+:[0-9]{1,9}:[0-9]{1,18}"
_ANY_RANGE = rf"(?:{_RANGE}|{_OFFSET}|{_OLD_RANGE})"
RANGE_PATTERN = rf"^\s*{_ANY_RANGE}(?:[,\s]+{_ANY_RANGE})*[,\s]*$"
"""Ranges and single offsets, separated by commas or spaces; a range also in the older form
`flights-0 [0, 100)`."""
OFFSET_LOCATION_PATTERN = rf"^{_OFFSET}$"
OFFSET_LOCATIONS_PATTERN = rf"^\s*{_OFFSET}(?:[,\s]+{_OFFSET})*[,\s]*$"


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Half-open range of offsets of one partition: `start` is included, `end` is not."""

    start: int
    end: int

    def __post_init__(self) -> None:
        """Check that 0 ≤ start ≤ end."""
        if self.start < 0 or self.end < self.start:
            message = f"not a half-open range: [{self.start}, {self.end})"
            raise ValueError(message)

    @property
    def width(self) -> int:
        """Return the number of offsets, including offset holes."""
        return self.end - self.start

    def holds(self, offset: int) -> bool:
        """Return whether the range contains the offset."""
        return self.start <= offset < self.end


Ranges = Mapping[str, Mapping[int, OffsetRange]]
"""topic → partition → range; partitions without new offsets are left out."""


def encode_ranges(ranges: Ranges) -> str:
    """Encode ranges as the canonical JSON of `frazil.ranges` (docs/formats.md)."""
    plain = {
        topic: {str(p): [r.start, r.end] for p, r in sorted(by_partition.items())}
        for topic, by_partition in sorted(ranges.items())
    }
    return json.dumps(plain, separators=(",", ":"))


def parse_ranges(text: str) -> Ranges:
    """Parse what `encode_ranges` wrote, packed or not."""
    return {
        topic: {int(p): OffsetRange(start, end) for p, (start, end) in by_partition.items()}
        for topic, by_partition in json.loads(unpack(text)).items()
    }


def unpack_ranges(plain: Mapping[str, Mapping[int, tuple[int, int]]]) -> Ranges:
    """Return the ranges of a message; the inverse of `plain_ranges`."""
    return {
        topic: {p: OffsetRange(*pair) for p, pair in by_partition.items()}
        for topic, by_partition in plain.items()
    }


def iterate_ranges(ranges: Ranges) -> Iterator[tuple[str, int, OffsetRange]]:
    """Yield (topic, partition, range) in a fixed order."""
    for topic, by_partition in sorted(ranges.items()):
        for partition, offset_range in sorted(by_partition.items()):
            yield topic, partition, offset_range


def describe_partition(topic: str, partition: int) -> str:
    """Name a partition as ranges and offsets do: `flights:0`."""
    return f"{topic}:{partition}"


def describe_range(topic: str, partition: int, span: OffsetRange) -> str:
    """Describe one range as options and forms take it: `flights:0:0-100`, the end exclusive."""
    return f"{describe_partition(topic, partition)}:{span.start}-{span.end}"


def describe_ranges(ranges: Ranges) -> str:
    """Describe ranges as options and forms take them: `flights:0:0-100, flights:1:0-50`."""
    return ", ".join(describe_range(*each) for each in iterate_ranges(ranges))


def describe_offset(topic: str, partition: int, offset: int) -> str:
    """Describe the offset of one record as options take it: `flights:0:4711`."""
    return f"{describe_partition(topic, partition)}:{offset}"


def describe_next_offsets(offsets: NextOffsets) -> str:
    """Describe the next offset of each partition: `flights:0:100, flights:1:50`."""
    return ", ".join(
        describe_offset(topic, partition, offset)
        for topic, parts in sorted(offsets.items())
        for partition, offset in enumerate(parts)
    )


def count_offsets(ranges: Ranges) -> int:
    """Count the offsets in all ranges; Kafka delivers fewer records where there are holes."""
    return sum(r.width for _, _, r in iterate_ranges(ranges))


def advance(offsets: NextOffsets, ranges: Ranges) -> NextOffsets:
    """Return the next offsets after the ranges; new topics and partitions start at 0."""
    moved = {topic: list(values) for topic, values in offsets.items()}
    for topic, partition, offset_range in iterate_ranges(ranges):
        values = moved.setdefault(topic, [])
        values.extend([0] * (partition + 1 - len(values)))
        values[partition] = offset_range.end
    return {topic: tuple(values) for topic, values in moved.items()}


def parse_offset_ranges(texts: tuple[str, ...]) -> Ranges:
    """Parse `topic:partition:start-end` options; ranges of one partition must make one range.

    A text may contain several ranges, as `describe_ranges` writes them.

    Raises:
        ConfigurationError: a range has another form, or offsets lie between two of a partition.
    """
    ranges: dict[str, dict[int, OffsetRange]] = {}
    for topic, partition, span in sorted(each for text in texts for each in split_ranges(text)):
        found = ranges.setdefault(topic, {})
        before = found.get(partition, span)
        if span.start > before.end:
            raise ConfigurationError(
                f"partition {describe_partition(topic, partition)} has two ranges, with offsets "
                "between them",
                "give one range for each partition, and run again for the others",
            )
        found[partition] = OffsetRange(before.start, max(before.end, span.end))
    return ranges


def split_ranges(text: str) -> Iterator[tuple[str, int, OffsetRange]]:
    """Yield the ranges of one option or of one line of a form.

    Raises:
        ConfigurationError: see `parse_range`.
    """
    if re.fullmatch(RANGE_PATTERN, text) is None:
        yield parse_range(text)
        return
    for each in re.findall(_ANY_RANGE, text):
        yield parse_range(each)


def parse_range(text: str) -> tuple[str, int, OffsetRange]:
    """Parse `topic:partition:start-end`, or one offset, to topic, partition and half-open range.

    Raises:
        ConfigurationError: the text has another form, or the range is empty.
    """
    if re.fullmatch(_OLD_RANGE, text):
        text = re.sub(r"^(.+)-(\d+) \[(\d+), ?(\d+)\)$", r"\1:\2:\3-\4", text)
    if re.fullmatch(_OFFSET, text):
        one = parse_offset_location(text)
        return one.topic, one.partition, OffsetRange(one.offset, one.offset + 1)
    if re.fullmatch(_RANGE, text) is None:
        raise ConfigurationError(
            f"{text!r} is not a range of offsets",
            "write topic:partition:start-end with an exclusive end, for example flights:0:100-200, "
            "or flights:0:4711 for one offset",
        )
    topic, partition, span = text.split(":")
    start, end = map(int, span.split("-"))
    if start > end:
        raise ConfigurationError(
            f"{text!r} ends before it starts",
            f"write {topic}:{partition}:{end}-{start}, with an exclusive end",
        )
    if start == end:
        raise ConfigurationError(
            f"{text!r} is an empty range: its end is exclusive",
            f"write {topic}:{partition}:{start} for the single offset {start}",
        )
    return topic, int(partition), OffsetRange(start, end)


def slice_ranges(
    ranges: PlainRanges, positions: OffsetRange
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the part of ranges at these positions, if their offsets are numbered in order.

    The part of no positions is an empty range, so that a job can read it.
    """
    found: dict[str, dict[int, tuple[int, int]]] = {}
    before = 0
    for topic, partition, span in iterate_ranges(unpack_ranges(ranges)):
        start = span.start + max(positions.start - before, 0)
        end = span.start + min(positions.end - before, span.width)
        before += span.width
        if start < end:
            found.setdefault(topic, {})[partition] = (start, end)
        elif not positions.width and not found:
            found = {topic: {partition: (span.start, span.start)}}
    return found


def remove_runs(ranges: PlainRanges, removed: Runs) -> list[dict[str, dict[int, tuple[int, int]]]]:
    """Split ranges at removed offsets: each item of the result has one range of a partition.

    The result has at least one item, of empty ranges if everything is removed.
    """
    layers: list[dict[str, dict[int, tuple[int, int]]]] = [{}]
    for topic, partition, span in iterate_ranges(unpack_ranges(ranges)):
        start, parts = span.start, []
        for first, end in sorted(removed.get(topic, {}).get(partition, [])):
            parts.append((start, min(first, span.end)))
            start = max(start, end)
        parts = [*parts, (start, span.end)]
        kept = [part for part in parts if part[0] < part[1]] or [(span.start, span.start)]
        layers += [{} for _ in range(len(kept) - len(layers))]
        for layer, part in zip(layers, kept, strict=False):
            layer.setdefault(topic, {})[partition] = part
    return layers


def merge_offsets(offsets: Sequence[int], most: int) -> list[OffsetRange]:
    """Return ranges that hold ascending offsets, split at the widest gaps, `most` or fewer."""
    if not offsets:
        return []
    gaps = sorted(pairwise(offsets), key=lambda pair: pair[0] - pair[1])
    cuts = sorted(pair for pair in gaps[: most - 1] if pair[1] - pair[0] > 1)
    starts = [offsets[0], *(after for _, after in cuts)]
    ends = [*(before + 1 for before, _ in cuts), offsets[-1] + 1]
    return [OffsetRange(*pair) for pair in zip(starts, ends, strict=True)]


def plain_ranges(ranges: Ranges) -> dict[str, dict[int, tuple[int, int]]]:
    """Return ranges in the form used in messages."""
    return {
        topic: {p: (r.start, r.end) for p, r in sorted(by_partition.items())}
        for topic, by_partition in sorted(ranges.items())
    }


def plain_offsets(offsets: NextOffsets) -> dict[str, tuple[int, ...]]:
    """Return next offsets in the form used in messages."""
    return {topic: tuple(values) for topic, values in sorted(offsets.items())}


@dataclass(frozen=True)
class OffsetLocation:
    """The topic, partition and offset of one record."""

    topic: str
    partition: int
    offset: int


def parse_offset_location(text: str) -> OffsetLocation:
    """Parse `topic:partition:offset`, or the range of one offset.

    Raises:
        ConfigurationError: the text has another form.
    """
    text = text.strip(", \t\n")
    if re.fullmatch(_RANGE, text) is not None:
        name, number, span = parse_range(text)
        if span.width == 1:
            return OffsetLocation(name, number, span.start)
    if re.match(OFFSET_LOCATION_PATTERN, text) is None:
        raise ConfigurationError(
            f"{text!r} is not topic:partition:offset",
            "write topic, partition and offset, for example flights:0:4711",
        )
    topic, partition, offset = text.split(":")
    return OffsetLocation(topic, int(partition), int(offset))


def parse_offset_locations(text: str) -> Iterator[OffsetLocation]:
    """Yield the offsets of one option or of one line of a form, as `describe_next_offsets` writes.

    Raises:
        ConfigurationError: one of them has another form.
    """
    words = re.split(r"[,\s]+", text.strip(", \t\n"))
    return map(parse_offset_location, words)


def choose_offset(
    offset: str, partition: int | None, topic: str, only_topic: Callable[[], str]
) -> OffsetLocation:
    """Return the record that a number beside a partition names, or `topic:partition:offset` alone.

    `only_topic` returns the stream's only topic, for a number without a topic.

    Raises:
        ConfigurationError: the text has another form, a number has no partition, or the texts
            contradict each other.
    """
    if re.fullmatch(r"[0-9]{1,18}", offset):
        if partition is None:
            raise ConfigurationError(
                f"offset {offset} needs a partition",
                "give the partition too, or write the offset as topic:partition:offset",
            )
        return OffsetLocation(topic or only_topic(), partition, int(offset))
    if ":" not in offset:
        raise ConfigurationError(
            f"offset {offset[:40]!r} is neither a number nor topic:partition:offset",
            "write for example 4711 and give its partition, or write flights:0:4711",
        )
    found = parse_offset_location(offset)
    if topic not in ("", found.topic) or partition not in (None, found.partition):
        raise ConfigurationError(
            f"offset {offset!r} is of another topic or partition than the one given beside it",
            "leave out topic and partition: the offset names both",
        )
    return found
