"""Random changes of keys for a topic, and a dictionary that folds them."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from uuid import UUID

from support.change_events import Message

KEYS = 6
OPERATIONS = ("c", "r", "u", "u", "UPDATE", "d", "delete")
DELETES = {"d", "delete"}
Place = tuple[int, ...]
EPOCH = datetime(2026, 1, 1)  # noqa: DTZ001 - of a column without zone
KEY_VALUES: dict[str, Callable[[int], object]] = {
    "long": int,
    "int": int,
    "string": "key {}".format,
    "uuid": lambda number: UUID(int=number * 2**70 + number),
    "date": lambda number: date(1969, 12, 1) + timedelta(number),
    "timestamp": lambda number: EPOCH + timedelta(microseconds=number),
    "timestamptz": lambda number: EPOCH.replace(tzinfo=UTC) - timedelta(microseconds=number),
    "decimal(20, 4)": lambda number: Decimal(number).scaleb(-4) - 1,
}
"""Type of a key column → its value for the number of a key."""


@dataclass(frozen=True)
class Shape:
    """A state table's key, order and deletes."""

    key: str = "long"
    order: tuple[str, ...] = ()
    """Columns of the sequence; empty for the order of offsets."""
    marks: bool = False
    has_two_keys: bool = False
    """Whether a boolean is part of the key, and the other part that of two keys."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Return the columns of the key."""
        return ("id", "half") if self.has_two_keys else ("id",)

    def key_of(self, number: int) -> tuple[object, ...]:
        """Return the values of a key."""
        if self.has_two_keys:
            return KEY_VALUES[self.key](number // 2), number % 2 == 1
        return (KEY_VALUES[self.key](number),)


def draw_shape(dice: random.Random, order: tuple[str, ...]) -> Shape:
    """Draw the type of the key, and how deletes are kept."""
    key = dice.choice(list(KEY_VALUES))
    return Shape(key, order, marks=dice.random() < 0.5, has_two_keys=dice.random() < 0.25)


@dataclass
class Topic:
    """What was sent, and the newest change of each key, folded by a dictionary."""

    shape: Shape = Shape()
    ends: list[int] = field(default_factory=lambda: [0, 0])
    newest: dict[int, tuple[Place, str | None, str]] = field(default_factory=dict)

    def send(
        self,
        key: int,
        operation: str,
        at: int | str,
        name: str | None,
        partition: int,
        tie: int = 0,
    ) -> Message:
        """Note a change; return its message."""
        offset = self.ends[partition]
        self.ends[partition] += 1
        value: dict[str, object] = {"op": operation, "at": at, "tie": tie, "name": name}
        order = {"at": int(at), "tie": tie} if self.shape.order else {}
        place = (*(order[each] for each in self.shape.order), partition, offset)
        if key not in self.newest or place > self.newest[key][0]:
            self.newest[key] = (place, name, operation)
        value |= dict(zip(self.shape.ids, self.shape.key_of(key), strict=True))
        return str(key).encode(), json.dumps(value, default=_write_text).encode()

    @property
    def rows(self) -> dict[tuple[object, ...], str | None]:
        """Return key → name of the keys that are not deleted."""
        return {
            self.shape.key_of(key): name
            for key, (_, name, operation) in self.newest.items()
            if operation.lower() not in DELETES
        }


def _write_text(value: object) -> str:
    return value.isoformat() if isinstance(value, date) else str(value)


def draw(topic: Topic, dice: random.Random, log: int, turn: int) -> Iterator[tuple[int, Message]]:
    """Yield the partition and message of a log's next changes: late ones, ties, lost keys."""
    for index in range(dice.randrange(6)):
        key = log * KEYS + dice.randrange(KEYS)
        at, tie = max(0, 10 * turn + index - dice.choice((0, 0, 1, 15))), dice.randrange(3)
        partition = dice.randrange(2) if topic.shape.order else key % 2
        operation = dice.choice(OPERATIONS)
        is_delete = operation in DELETES
        name = None if is_delete or dice.random() < 0.1 else f"{key}/{turn}/{index}"
        yield partition, topic.send(key, operation, at, name, partition, tie)
