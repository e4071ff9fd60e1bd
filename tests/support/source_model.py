"""A source table that is written, and a state that folds its changes late.

Transactions are committed in another order than they wrote to the log, as in PostgreSQL. A row that
is planted in the state stays until a change of its key is folded.
"""

import random
from dataclasses import dataclass, field

from frazil.state_tables.source_check_rules import Reading, Row, RowPair, find_position

KEYS = range(3)


@dataclass
class Event:
    """A committed change: its LSN, key and row; None is a delete."""

    lsn: int
    key: int
    row: Row | None


@dataclass
class SourceModel:
    """The source, the changes in the order of their commits, and the state that has folded some."""

    dice: random.Random
    lsn: int = 1
    transaction: int = 0
    clock: float = 0.0
    rows: dict[int, Row] = field(default_factory=dict)
    open: dict[int, Event] = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    folded: int = 0
    state: dict[int, Row] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)
    frozen: frozenset[int] = frozenset()
    """Keys that nothing changes any more."""

    def write(self, times: int) -> None:
        """Begin and commit transactions."""
        for _ in range(times):
            self.lsn += self.dice.randint(1, 9)
            free = [key for key in KEYS if key not in self.open and key not in self.frozen]
            if self.open and (not free or self.dice.random() < 0.5):
                self._commit(self.dice.choice([*self.open]))
            elif free:
                self._begin(self.dice.choice(free))

    def _begin(self, key: int) -> None:
        self.transaction += 1
        value = bytes([self.dice.randrange(3)])  # the same again after a while
        row = Row(bytes([key]), value, self.transaction)
        is_delete = key in self.rows and self.dice.random() < 0.4
        self.open[key] = Event(self.lsn, key, None if is_delete else row)

    def _commit(self, key: int) -> None:
        event = self.open.pop(key)
        self.log.append(event)
        if event.row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = event.row

    def settle(self) -> None:
        """Commit what is open."""
        for key in [*self.open]:
            self._commit(key)

    def fold(self, events: int) -> None:
        """Let the state fold more changes, in the order of their commits."""
        for offset, event in enumerate(self.log[self.folded : self.folded + events], self.folded):
            self.state.pop(event.key, None)
            self.newest.pop(event.key, None)
            if event.row is not None:
                self.state[event.key] = event.row._replace(version=offset)
                self.newest[event.key] = event.lsn
        self.folded = min(self.folded + events, len(self.log))

    def read(self) -> tuple[dict[int, RowPair], Reading]:
        """Read both sides, the state first; meanwhile the source is written."""
        state, newest = dict(self.state), max(self.newest.values(), default=None)
        self.write(self.dice.randrange(8))
        self.clock += 1
        keys = {*KEYS, *state}
        pairs = {key: RowPair(self.rows.get(key), state.get(key)) for key in keys}
        return pairs, Reading(self.lsn, find_position({0: newest}), self.clock)
