"""What the producers of a storm send: rows, changes, and change events as Debezium writes them.

A deleted row is a delete event and a tombstone. A row that gets another key is a delete event of
the old key, its tombstone, and a creation of the new key without large values; the headers name the
other key.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

BAD = (b"no json", b"", None, b'{"name":"no id"}', b'{"id":"text"}', b"[]", b'{"id":1,"x":NaN}')
BAD_SHARE = 0.03
KEYS, UNAVAILABLE = 300, "__debezium_unavailable_value"
NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


class Record(NamedTuple):
    """A record; `place` is its partition where the order of a key's changes is that of offsets."""

    value: bytes | None
    key: bytes | None = None
    place: int | None = None
    headers: Mapping[str, bytes] = {}


@dataclass
class Rows:
    """New rows, each with a number of its own; the base of what has few keys."""

    dice: random.Random
    number: int = 0

    def draw(self) -> Iterator[Record]:
        """Yield the records of the next change, a bad one before it now and then."""
        self.number += 1
        if self.dice.random() < BAD_SHARE:
            yield Record(self.dice.choice(BAD))
        yield from self.change()

    def change(self) -> Iterator[Record]:
        yield Record(encode({"id": self.number, "name": f"n{self.number}"}))

    def keep(self) -> None:
        """Take what was drawn for sent."""

    def forget(self) -> None:
        """Take what was drawn since `keep` for not sent: its transaction was aborted."""


@dataclass
class Changes(Rows):
    """Changes of few keys with a sequence; some come late, some are equal to another one's."""

    def change(self) -> Iterator[Record]:
        key, operation = self.dice.randrange(KEYS), self.dice.choice("crruuuud")
        at = max(0, self.number - self.dice.choice((0, 0, 1, 50)))
        yield Record(encode({"id": key, "name": f"{key}/{self.number}", "op": operation, "at": at}))


@dataclass
class Events(Rows):
    """Change events of a table whose keys are known; the number is the position in its log."""

    keys: set[int] = field(default_factory=set)
    sent: set[int] = field(default_factory=set)

    def keep(self) -> None:
        self.sent = {*self.keys}

    def forget(self) -> None:
        self.keys = {*self.sent}

    def change(self) -> Iterator[Record]:
        key = self.dice.randrange(KEYS)
        operation = self.dice.choice("ruuuudm" if key in self.keys else "cr")
        free = [each for each in range(KEYS) if each not in self.keys]
        if operation == "d" or (operation == "m" and not free):
            yield from self.delete(key)
        elif operation == "m":
            new = self.dice.choice(free)
            yield from self.delete(key, {NEW_KEY: encode({"id": new})})
            yield self.write(new, "c", {OLD_KEY: encode({"id": key})}, is_whole=False)
        else:
            yield self.write(key, operation, is_whole=operation != "u" or self.dice.random() < 0.5)

    def delete(self, key: int, headers: Mapping[str, bytes] = {}) -> Iterator[Record]:
        self.keys.discard(key)
        event = self.event("d", before={"id": key})
        yield Record(event, encode({"id": key}), key % 2, headers)
        yield Record(None, encode({"id": key}), key % 2, headers)

    def write(
        self, key: int, operation: str, headers: Mapping[str, bytes] = {}, *, is_whole: bool
    ) -> Record:
        """Return the event of a row that is there afterwards, with or without its large value."""
        self.keys.add(key)
        name = f"{key}/{self.number}"
        row = {"id": key, "name": name, "doc": f"doc {name}" if is_whole else UNAVAILABLE}
        return Record(self.event(operation, after=row), encode({"id": key}), key % 2, headers)

    def event(self, operation: str, **rows: object) -> bytes:
        source = {"ts_ms": 1, "db": "shop", "schema": "public", "table": "t", "lsn": self.number}
        return encode({"before": None, "after": None, **rows, "source": source, "op": operation})


def encode(value: Mapping[str, object]) -> bytes:
    return json.dumps(value).encode()
