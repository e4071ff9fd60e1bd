"""Half-open offset ranges per topic and partition, and their JSON forms."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from frazil.errors import ConfigurationError
from frazil.ledger.keys import unpack


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """Offsets of one partition: `start` is read, `end` is the next to read after it."""

    start: int
    end: int

    def __post_init__(self) -> None:
        """Refuse what is no range."""
        if self.start < 0 or self.end < self.start:
            message = f"not a half-open range: [{self.start}, {self.end})"
            raise ValueError(message)

    @property
    def width(self) -> int:
        """Count the offsets, holes included."""
        return self.end - self.start

    def holds(self, offset: int) -> bool:
        """Say whether the offset lies inside."""
        return self.start <= offset < self.end


Ranges = Mapping[str, Mapping[int, OffsetRange]]
"""topic → partition → range; only partitions that move."""


Runs = dict[str, dict[int, list[tuple[int, int]]]]
"""topic → partition → ascending half-open runs of exact offsets: what messages carry."""


NextOffsets = Mapping[str, tuple[int, ...]]
"""topic → the next offset to read of partition 0, 1, 2 …"""


def encode_ranges(ranges: Ranges) -> str:
    """Write ranges as the canonical JSON of `frazil.ranges` (protocol.md)."""
    plain = {
        topic: {str(p): [r.start, r.end] for p, r in sorted(by_partition.items())}
        for topic, by_partition in sorted(ranges.items())
    }
    return json.dumps(plain, separators=(",", ":"))


def parse_ranges(text: str) -> Ranges:
    """Read what `encode_ranges` wrote, packed or not."""
    return {
        topic: {int(p): OffsetRange(start, end) for p, (start, end) in by_partition.items()}
        for topic, by_partition in json.loads(unpack(text)).items()
    }


def unpack_ranges(plain: Mapping[str, Mapping[int, tuple[int, int]]]) -> Ranges:
    """Turn what messages carry into ranges."""
    return {
        topic: {p: OffsetRange(*pair) for p, pair in by_partition.items()}
        for topic, by_partition in plain.items()
    }


def iterate_ranges(ranges: Ranges) -> Iterator[tuple[str, int, OffsetRange]]:
    """Yield (topic, partition, range) in a fixed order."""
    for topic, by_partition in sorted(ranges.items()):
        for partition, offset_range in sorted(by_partition.items()):
            yield topic, partition, offset_range


def describe_ranges(ranges: Ranges) -> str:
    """Write ranges as people read them: `flights-0 [0, 100)`."""
    return ", ".join(f"{t}-{p} [{r.start}, {r.end})" for t, p, r in iterate_ranges(ranges))


def count_offsets(ranges: Ranges) -> int:
    """Count the offsets in all ranges; Kafka may deliver fewer records (holes)."""
    return sum(r.width for _, _, r in iterate_ranges(ranges))


def advance(offsets: NextOffsets, ranges: Ranges) -> NextOffsets:
    """Move the next offsets past the ranges; new partitions and topics are added from 0."""
    moved = {topic: list(values) for topic, values in offsets.items()}
    for topic, partition, offset_range in iterate_ranges(ranges):
        values = moved.setdefault(topic, [])
        values.extend([0] * (partition + 1 - len(values)))
        values[partition] = offset_range.end
    return {topic: tuple(values) for topic, values in moved.items()}


RANGE_PATTERN = r"^[A-Za-z0-9._-]+:[0-9]{1,9}:[0-9]{1,18}-[0-9]{1,18}$"


def parse_offset_ranges(texts: tuple[str, ...]) -> Ranges:
    """Read ranges of offsets, one per partition.

    Raises:
        ConfigurationError: a range cannot be read, or a partition is named twice.
    """
    chosen: dict[str, dict[int, OffsetRange]] = {}
    for text in texts:
        topic, partition, span = parse_range(text)
        if partition in chosen.setdefault(topic, {}):
            raise ConfigurationError(
                f"{topic}-{partition} is named twice", "give one range for each partition"
            )
        chosen[topic][partition] = span
    return chosen


def parse_range(text: str) -> tuple[str, int, OffsetRange]:
    """Read one range, half-open, as topic, partition and offsets.

    Raises:
        ConfigurationError: it is none, or holds no offset.
    """
    if re.match(RANGE_PATTERN, text) is None:
        raise ConfigurationError(
            f"{text!r} is no range of offsets",
            "write topic:partition:start-end, the end exclusive, as flights:0:100-200",
        )
    topic, partition, span = text.split(":")
    start, end = map(int, span.split("-"))
    if start >= end:
        raise ConfigurationError(
            f"{text!r} is an empty range: its end is exclusive",
            f"the one offset {start} is {topic}:{partition}:{start}-{start + 1}",
        )
    return topic, int(partition), OffsetRange(start, end)


def plain_ranges(ranges: Ranges) -> dict[str, dict[int, tuple[int, int]]]:
    """Turn ranges into what messages carry."""
    return {
        topic: {p: (r.start, r.end) for p, r in sorted(by_partition.items())}
        for topic, by_partition in sorted(ranges.items())
    }


def plain_offsets(offsets: NextOffsets) -> dict[str, tuple[int, ...]]:
    """Turn next offsets into what messages carry."""
    return {topic: tuple(values) for topic, values in sorted(offsets.items())}


@dataclass(frozen=True)
class OffsetLocation:
    """One record's coordinate."""

    topic: str
    partition: int
    offset: int


def parse_offset_location(text: str) -> OffsetLocation:
    """Read `topic:partition:offset`.

    Raises:
        ConfigurationError: the text has another form.
    """
    if re.match(OFFSET_LOCATION_PATTERN, text) is None:
        raise ConfigurationError(
            f"{text!r} is no place in a topic", "write topic:partition:offset, as flights:0:4711"
        )
    topic, partition, offset = text.split(":")
    return OffsetLocation(topic, int(partition), int(offset))


OFFSET_LOCATION_PATTERN = r"^[A-Za-z0-9._-]+:[0-9]{1,9}:[0-9]{1,18}$"
