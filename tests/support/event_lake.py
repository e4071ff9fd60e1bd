"""A source table and its change events, as Debezium writes them, in a stream with a state table.

The source is a dictionary. An update sends a large value only if it changed; a changed key is a
delete and a creation at the same position of the source's log, the latter without large values.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from support.state_lake import BIRTH, Change, StackStateLake, StateLake

COLUMNS = {
    "id": "long!",
    "name": "string",
    "doc": "string",
    "words": "list<string>",
    "raw": "binary",
}
LARGE = ("doc", "words", "raw")
EVENTS: dict[str, object] = {
    "value": {"convert": "json", "transform": "flatten_debezium", "columns": COLUMNS},
    "order": "kafka",
}
"""Sections of a stream file of change events."""
Values = dict[str, object]


@dataclass(frozen=True)
class Event(Change):
    """A change event; `at` is its position in the source's log."""

    values: Values = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    moved: bool = False
    headers: Mapping[str, bytes] = field(default_factory=dict)
    has_lsn: bool = True
    db: str | None = None


@dataclass(frozen=True)
class EventLake(StackStateLake):
    """A stream of change events."""

    @staticmethod
    def make_row(change: Change, place: dict[str, object]) -> dict[str, object]:
        """Make the row as the decoder writes it; the record's time is the source's position."""
        assert isinstance(change, Event)
        named = {"__debezium.oldkey": b"{}", **change.headers} if change.moved else change.headers
        headers = [{"key": key, "value": value} for key, value in named.items()] or None
        time = BIRTH + timedelta(seconds=change.at)
        return {
            "id": change.id,
            **change.values,
            "_op": change.op,
            "_unavailable": [*change.lacks],
            "_source": {"lsn": change.at if change.has_lsn else None, "db": change.db},
            "_kafka": {**place, "timestamp": time, "headers": headers},
        }

    def values(self) -> dict[int, Values]:
        """Read the state as the source has its rows, without marked ones; keys are unique."""
        found = self.store.load(self.state_name).scan().to_arrow().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        live = [row for row in found if not row.get("_deleted_at")]
        return {row["id"]: {name: row[name] for name in ("name", *LARGE)} for row in live}


@dataclass(frozen=True)
class EventsWithoutSpark(StateLake):
    """The same in a catalog of the test's own."""

    make_row = staticmethod(EventLake.make_row)


@dataclass
class Source:
    """A table of a database with few keys; `events` are all its changes, in order."""

    dice: random.Random
    rows: dict[int, Values] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    lsn: int = 0

    def change(self, times: int) -> list[Event]:
        """Change rows at random; return the events."""
        before = len(self.events)
        for _ in range(times):
            self.lsn += 1
            key = self.dice.randrange(10)
            actions: list[Callable[[int], None]] = [self.insert]
            if key in self.rows:
                actions = [self.update] * 5 + [self.delete, self.move, self.move]
            self.dice.choice(actions)(key)
        return self.events[before:]

    def _send(self, key: int, op: str, lacks: tuple[str, ...] = (), **more: bool) -> None:
        given = self.rows[key] if op != "d" else {}
        values = {name: value for name, value in given.items() if name not in lacks}
        self.events.append(Event(key, op, self.lsn, values=values, lacks=lacks, **more))

    def _draw(self, name: str) -> object:
        """Draw a value; some are null."""
        text = f"{name}{self.lsn}"
        drawn = {"words": [text], "raw": text.encode()}.get(name, text)
        return drawn if self.dice.random() < 0.9 else None

    def insert(self, key: int) -> None:
        self.rows[key] = {name: self._draw(name) for name in ("name", *LARGE)}
        self._send(key, "c")

    def update(self, key: int) -> None:
        changed = [name for name in LARGE if self.dice.random() < 0.3]
        self.rows[key] |= {name: self._draw(name) for name in ("name", *changed)}
        self._send(key, "u", tuple(name for name in LARGE if name not in changed))

    def delete(self, key: int) -> None:
        del self.rows[key]
        self._send(key, "d")

    def move(self, key: int) -> None:
        """Give a row another key that is free."""
        free = [each for each in range(10) if each not in self.rows]
        if not free:
            return
        new = self.dice.choice(free)
        self.rows[new] = self.rows.pop(key)
        self._send(key, "d")
        self._send(new, "c", LARGE, moved=True)

    def snapshot(self, *, has_lsn: bool = True) -> list[Event]:
        """Read every row again, as a connector does that lost its place."""
        before = len(self.events)
        for key in self.rows:
            self._send(key, "r", has_lsn=has_lsn)
        return self.events[before:]

    def repeat(self, most: int) -> list[Event]:
        """Send the last events again, as a connector does that was killed."""
        return self.events[-self.dice.randint(1, most) :]
