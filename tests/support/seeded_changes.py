"""Random changes of keys for a topic, and a dictionary that folds them."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from support.change_events import Message

KEYS = 6
OPERATIONS = ("c", "r", "u", "u", "UPDATE", "d", "delete")
Place = tuple[int, ...]


@dataclass
class Topic:
    """What was sent, and the newest change of each key, folded by a dictionary."""

    by_sequence: bool
    ends: list[int] = field(default_factory=lambda: [0, 0])
    newest: dict[int, tuple[Place, str | None, str]] = field(default_factory=dict)

    def send(
        self, key: int, operation: str, at: int | str, name: str | None, partition: int
    ) -> Message:
        """Note a change; return its message."""
        offset = self.ends[partition]
        self.ends[partition] += 1
        place = (int(at), partition, offset) if self.by_sequence else (offset,)
        if key not in self.newest or place > self.newest[key][0]:
            self.newest[key] = (place, name, operation)
        value = {"id": key, "op": operation, "at": at, "name": name}
        return str(key).encode(), json.dumps(value).encode()

    @property
    def rows(self) -> dict[int, str | None]:
        """Return the name of each key that is not deleted."""
        return {
            key: name
            for key, (_, name, operation) in self.newest.items()
            if operation.lower() not in {"d", "delete"}
        }


def draw(topic: Topic, dice: random.Random, log: int, turn: int) -> Iterator[tuple[int, Message]]:
    """Yield the partition and message of a log's next changes: late ones, ties, lost keys."""
    for index in range(dice.randrange(6)):
        key = log * KEYS + dice.randrange(KEYS)
        at = max(0, 10 * turn + index - dice.choice((0, 0, 1, 15)))
        partition = dice.randrange(2) if topic.by_sequence else key % 2
        operation = dice.choice(OPERATIONS)
        is_delete = operation in {"d", "delete"}
        name = None if is_delete or dice.random() < 0.1 else f"{key}/{turn}/{index}"
        yield partition, topic.send(key, operation, at, name, partition)
