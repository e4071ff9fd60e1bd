"""Ranges of offsets as people write them: `topic:partition:start-end`."""

import re

from frazil.errors import ConfigurationError
from frazil.offsets import OffsetRange, Ranges

RANGE_PATTERN = r"^[A-Za-z0-9._-]+:[0-9]{1,9}:[0-9]{1,18}-[0-9]{1,18}$"


def choose_offsets(texts: tuple[str, ...]) -> Ranges:
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
