"""What a move to another cluster is asked for, what it comes to, and how it ended."""

import re

from frazil.contracts import Message
from frazil.coordinates import Partition
from frazil.errors import ConfigurationError
from frazil.recovery_messages import PLACE_PATTERN


class MoveRequest(Message):
    """Where to look; a person's name and reason as soon as it is no dry run.

    `next` are offsets on the new cluster, as `topic:partition:offset`, where a person knows them.
    """

    stream: str
    old_connection: str | None = None
    next: tuple[str, ...] = ()
    by: str = ""
    reason: str = ""
    dry_run: bool = True


class MovedPartition(Message):
    """One partition's next offset on both clusters, and what shows that they are one."""

    topic: str
    partition: int
    old_next: int
    new_next: int
    evidence: str


class MovePlan(Message):
    """A move that was looked at, shown before it is done."""

    stream: str
    table: str
    request: MoveRequest
    old_cluster: str = ""
    new_cluster: str = ""
    partitions: tuple[MovedPartition, ...] = ()
    text: str

    @property
    def is_last_word(self) -> bool:
        """Say that a dry run ends here."""
        return self.request.dry_run


class Moved(Message):
    """How a move ended."""

    stream: str
    table: str
    snapshot_id: int | None
    text: str


def parse_next(texts: tuple[str, ...]) -> dict[Partition, int]:
    """Read offsets that a person gave.

    Raises:
        ConfigurationError: another form, or a partition that is named twice.
    """
    found: dict[Partition, int] = {}
    for text in texts:
        if re.match(PLACE_PATTERN, text) is None:
            raise ConfigurationError(
                f"{text!r} is no place in a topic",
                "write topic:partition:offset, the next offset to read, as flights:0:4711",
            )
        topic, partition, offset = text.split(":")
        if (topic, int(partition)) in found:
            raise ConfigurationError(
                f"{topic}-{partition} is named twice", "give one offset for each partition"
            )
        found[topic, int(partition)] = int(offset)
    return found
