"""The part of the model of state tables that moves the change table (`state_model.py`)."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

RULES = {
    "generation": 2,  # offsets of a new log come after those of the log before
    "adopted": 5,  # rows of another writer come before all changes of the log
    "listed": 0,  # a merge reads added rows by snapshots, also those below its offsets
    "floor": 45,  # a row keeps the newest delete below its winner
    "crossing": 1,  # a fill does not cross that delete
    "ancestry": 222,  # a position off the change table's ancestry takes the state back
    "live": 13,  # the state goes back to a snapshot that is not expired
    "rebuild": 1344,  # a rebuild needs a change table of which nothing was trimmed
    "retract": 1704,  # a delete that a replay decoded as something else is taken back
    "tomb": 274,  # a delete counts where a witness is on the change table's ancestry
    "memory": 3,  # late changes are compared with deletes
    "horizon": 260,  # a change older than a forgotten delete does not revive its key
    "early": 72,  # a delete is forgotten only after its change was trimmed
    "refold": 5,  # after other snapshots than ingests a key's whole history is folded
    "window": 1754,  # and what every state snapshot inside the rollback window has folded
    "removed": 336,  # and only after they have folded what a replay took away
    "hint": 53,  # a state that was rolled back over an erasure halts
    "trim+halt": 6,  # trimming takes only what is folded, and a state behind it halts
}
"""Rule → a seed whose history goes wrong without it."""
PLAIN = frozenset({"ingest", "compact", "bootstrap", "gap", "adopt"})
Order = tuple[int, ...]
Coordinate = tuple[int, int, int]


@dataclass(frozen=True)
class Change:
    """One change of a key; `carries` is whether it has the column that may be unavailable."""

    generation: int
    partition: int
    offset: int
    key: int
    sequence: int
    operation: str
    value: str
    carries: bool = True

    @property
    def at(self) -> Coordinate:
        return (self.generation, self.partition, self.offset)

    @property
    def is_delete(self) -> bool:
        return self.operation == "d"


@dataclass(frozen=True)
class Remembered:
    """A delete in the delete memory, and the change snapshot that witnessed or retracted it."""

    change: Change
    witness: int
    is_retracted: bool = False


@dataclass(frozen=True)
class Row:
    """A key's row: its winner, the change that filled the column, the delete below the winner."""

    winner: Change
    fill: Change | None
    floor: Change | None

    @property
    def key(self) -> int:
        return self.winner.key


Rows = frozenset[Change]
State = dict[int, Row]


class HaltedError(Exception):
    """Nothing is written; a person decides."""


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the change table (`rows`) or of the state (`state`, `position`)."""

    snapshot_id: int
    parent: int | None
    kind: str
    rows: Rows = frozenset()
    trimmed: frozenset[Coordinate] = frozenset()
    next_offsets: tuple[int, ...] = ()
    generation: int = 0
    erased_key: int | None = None
    state: tuple[Row, ...] = ()
    position: int | None = None


@dataclass
class History:
    """The snapshots of a table and its head; expired ones are known but cannot be read."""

    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    head_id: int | None = None
    expired: set[int] = field(default_factory=set)

    @property
    def head(self) -> Snapshot:
        assert self.head_id is not None
        return self.snapshots[self.head_id]

    def ancestry(self, start: int | None = None) -> Iterator[Snapshot]:
        current = self.head_id if start is None else start
        while current is not None:
            yield self.snapshots[current]
            current = self.snapshots[current].parent

    def live(self) -> list[Snapshot]:
        return [each for each in self.ancestry() if each.snapshot_id not in self.expired]


class ChangeModel:
    """A change table, Kafka's logs and an empty state, moved on by random actions."""

    partitions = 3
    first_offset = 6
    """Where the stream began; what lies below is read by backfills only."""

    def __init__(self, seed: int, without: str = "") -> None:
        """Start with an empty state, before or after adopted rows."""
        self.random = random.Random(seed)
        self.without = without
        self.by_sequence = self.random.random() < 0.5
        self.ids = self.clock = self.decoder = self.erasures = self.generation = 0
        self.logs: dict[int, list[list[tuple[int, int, str, bool]]]] = {}
        self.dead_letters: set[Coordinate] = set()
        self.changes, self.state = History(), History()
        self.memory: set[Remembered] = set()
        self.horizon: dict[int, Change] = {}
        self.backfilled = dict.fromkeys(range(self.partitions), self.first_offset)
        self._start()

    def _start(self) -> None:
        self.logs[0] = [[] for _ in range(self.partitions)]
        while min(len(log) for log in self.logs[0]) < self.first_offset:
            self._produce()
        self.next_offsets = (self.first_offset,) * self.partitions
        adopted = self._adopted_rows() if self.random.random() < 0.5 else frozenset()
        self._commit_changes("adopt" if adopted else "bootstrap", adopted)
        self._commit_state("new", {}, None)

    def _adopted_rows(self) -> Rows:
        """Make rows of another writer, whose offsets are those of a log that Frazil never read."""
        generation = -1 if self.uses("adopted") else 0
        rows = set()
        for key in range(8):
            partition = key % self.partitions
            sequence = self.random.randint(0, 3)
            offset = 1_000 + key
            rows.add(Change(generation, partition, offset, key, sequence, "u", f"adopted {key}"))
        return frozenset(rows)

    def uses(self, rule: str) -> bool:
        return rule not in self.without.split("+")

    def order(self, change: Change) -> Order:
        """Return a total order of the changes of one key."""
        generation = change.generation if self.uses("generation") else min(change.generation, 0)
        if self.by_sequence:
            return (change.sequence, generation, change.partition, change.offset)
        return (generation, change.offset, change.partition)

    def newest(self, changes: Iterable[Change]) -> Change | None:
        return max(changes, key=self.order, default=None)

    def _commit_changes(
        self,
        kind: str,
        rows: Rows,
        trimmed: frozenset[Coordinate] | None = None,
        erased_key: int | None = None,
    ) -> None:
        self.ids += 1
        known = self.changes
        if trimmed is None:
            trimmed = known.head.trimmed if known.head_id is not None else frozenset()
        known.snapshots[self.ids] = Snapshot(
            self.ids,
            known.head_id,
            kind,
            rows,
            trimmed,
            self.next_offsets,
            self.generation,
            erased_key,
        )
        known.head_id = self.ids

    def _commit_state(self, kind: str, state: State, position: int | None) -> None:
        self.ids += 1
        rows = tuple(state.values())
        known = self.state
        known.snapshots[self.ids] = Snapshot(
            self.ids, known.head_id, kind, state=rows, position=position
        )
        known.head_id = self.ids

    # The change table: batches, and everything else that happens to it.

    def _produce(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            key = self.random.randint(0, 7)
            spread = self.random.randrange(self.partitions)
            partition = spread if self.by_sequence else key % self.partitions
            late = self.random.randint(0, 12) if self.by_sequence else 0
            self.clock += 1
            record = (key, (self.clock - late) * 10, self.random.choice("uuud"))
            self.logs[self.generation][partition].append((*record, self.random.random() < 0.5))

    def _decode(self, at: Coordinate) -> Change:
        key, sequence, operation, carries = self.logs[at[0]][at[1]][at[2]]
        return Change(*at, key, sequence, operation, f"{at[2]}/{self.decoder}", carries)

    def ingest(self) -> None:
        self._produce()
        added, next_offsets = set(), list(self.next_offsets)
        for partition, log in enumerate(self.logs[self.generation]):
            end = min(len(log), next_offsets[partition] + self.random.randint(0, 4))
            for offset in range(next_offsets[partition], end):
                at = (self.generation, partition, offset)
                if self.random.random() < 0.1:
                    self.dead_letters.add(at)
                else:
                    added.add(self._decode(at))
            next_offsets[partition] = end
        self.next_offsets = tuple(next_offsets)
        self._commit_changes("ingest", self.changes.head.rows | added)

    def redrive(self) -> None:
        restored = {at for at in sorted(self.dead_letters) if self.random.random() < 0.7}
        if restored:
            self.dead_letters -= restored
            rows = {self._decode(at) for at in restored}
            self._commit_changes("redrive", self.changes.head.rows | rows)

    def replay(self) -> None:
        partition = self.random.randrange(self.partitions)
        start = self.random.randrange(self.next_offsets[partition] + 1)
        self.decoder += 1
        rows = self.changes.head.rows
        replayed = {
            row
            for row in rows
            if row.at[:2] == (self.generation, partition) and start <= row.offset < start + 4
        }
        # By other rules the same record may be another change, or a dead letter. Such a replay is
        # refused once something was trimmed: what a key was before may be gone.
        for row in sorted(replayed, key=lambda row: row.at):
            if not self.changes.head.trimmed and self.random.random() < 0.2:
                self._change_rules(row)
        decoded = {self._decode(row.at) for row in replayed if row.at not in self.dead_letters}
        self._commit_changes("replay", (rows - replayed) | decoded)

    def _change_rules(self, row: Change) -> None:
        log = self.logs[row.generation][row.partition]
        key, sequence, _, carries = log[row.offset]
        log[row.offset] = (key, sequence, self.random.choice("ud"), carries)
        if self.random.random() < 0.2:
            self.dead_letters.add(row.at)

    def backfill(self) -> None:
        """Read a window below the offset where the stream began."""
        partition = self.random.randrange(self.partitions)
        end = self.backfilled[partition]
        start = max(0, end - self.random.randint(1, 3))
        known = {row.at for snapshot in self.changes.snapshots.values() for row in snapshot.rows}
        window = [(0, partition, offset) for offset in range(start, end)]
        rows = {self._decode(at) for at in window if at not in known}
        if self.generation == 0 and rows:
            self.backfilled[partition] = start
            self._commit_changes("backfill", self.changes.head.rows | rows)

    def recreate(self) -> None:
        """Begin a new log whose offsets start over: a recreated topic, or another cluster."""
        self.generation = max(self.logs) + 1
        self.logs[self.generation] = [[] for _ in range(self.partitions)]
        self.next_offsets = (0,) * self.partitions
        self._commit_changes("gap", self.changes.head.rows)

    def compact(self) -> None:
        self._commit_changes("compact", self.changes.head.rows)

    def rollback(self) -> None:
        """Take rows and offsets back together; dead letters behind them are read again."""
        targets = []
        for snapshot in self.changes.ancestry():
            if snapshot.kind == "erase":
                break
            if snapshot.kind in {"ingest", "bootstrap", "gap"}:
                targets.append(snapshot)
        if not targets:
            return
        target = self.random.choice(targets[:4])
        self.next_offsets, self.generation = target.next_offsets, target.generation
        self.dead_letters = {
            at
            for at in self.dead_letters
            if at[0] < self.generation
            or (at[0] == self.generation and at[2] < self.next_offsets[at[1]])
        }
        self.changes.head_id = target.snapshot_id
        kept = {row.at for row in target.rows if row.at[0] == 0}
        for partition in range(self.partitions):
            below = [at[2] for at in kept if at[1] == partition]
            self.backfilled[partition] = min([self.first_offset, *below])
        self.dead_letters -= {row.at for row in target.rows}
        self._commit_changes("rewind", target.rows)

    def trim(self) -> None:
        """Remove the oldest offsets of each partition that every usable state has folded."""
        head, position = self.changes.head, self.position
        if position is None or position not in {s.snapshot_id for s in self.changes.ancestry()}:
            return
        window = self.state.live()[:5] if self.uses("window") else [self.state.head]
        folded = head.rows
        for each in window:
            known = self.changes.snapshots[each.position].rows if each.position else frozenset()
            removed = {row for row in known - head.rows if row.at not in head.trimmed}
            if removed and self.uses("removed"):
                return
            folded &= known
        unfolded = head.rows - folded if self.uses("trim") else frozenset()
        if any(row.generation < self.generation for row in unfolded):
            return
        old = set()
        for partition in range(self.partitions):
            cut = self.random.randint(0, self.next_offsets[partition])
            cut = min([cut, *(row.offset for row in unfolded if row.partition == partition)])
            old |= {
                row
                for row in head.rows
                if row.partition == partition
                and (row.generation < self.generation or row.offset < cut)
            }
        if old:
            trimmed = head.trimmed | {row.at for row in old}
            self._commit_changes("expire-rows", head.rows - old, trimmed)

    def erase(self) -> None:
        """Erase a key from changes, dead letters, delete memory and state, in this order."""
        key = self.random.randint(0, 7)
        self.dead_letters = {
            at for at in self.dead_letters if self.logs[at[0]][at[1]][at[2]][0] != key
        }
        rows = frozenset(row for row in self.changes.head.rows if row.key != key)
        self._commit_changes("erase", rows, erased_key=key)
        self.memory = {each for each in self.memory if each.change.key != key}
        self.erasures += 1
        state = {row.key: row for row in self.state.head.state if row.key != key}
        self._commit_state("erase", state, self.position)

    # The state table, apart from merges.

    @property
    def position(self) -> int | None:
        return self.state.head.position
