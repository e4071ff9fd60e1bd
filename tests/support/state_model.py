"""An executable model of state tables: a change table, the state folded from it, delete memory.

Random histories of batches, redrives, replays, backfills below the beginning, adopted rows,
rollbacks of either table by Frazil and by others, erasures, trimming, expired state snapshots,
forgotten deletes, kills at every step of a merge, columns that a change may not carry, and logs
that start over. After each merge the state must equal the fold of the change table. `without` names
rules to leave out, joined by `+`; the model must then fail.
"""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

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


class Model:
    """Both tables, Kafka's logs and the delete memory, moved on by random actions."""

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

    def roll_state_back(self) -> None:
        """Another tool rolls the state back to a snapshot that still exists."""
        targets = self.state.live()
        if len(targets) > 1:
            end = 3 if self.random.random() < 0.8 else 9
            self.state.head_id = self.random.choice(targets[1:end]).snapshot_id

    def expire_state(self) -> None:
        """Expire old state snapshots; their summaries stay known, their rows do not."""
        kept = self.random.randint(1, 6)
        self.state.expired |= {each.snapshot_id for each in self.state.live()[kept:]}

    def forget_deletes(self) -> None:
        """Drop deletes whose changes were trimmed, and record up to where they are forgotten."""
        trimmed = self.changes.head.trimmed
        for change in sorted(self.list_deletes(), key=lambda each: each.at):
            is_old = change.at in trimmed or not self.uses("early")
            if not is_old or self.random.random() < 0.3:
                continue
            self.memory = {each for each in self.memory if each.change != change}
            if self.uses("early"):
                place = self._horizon_place(change)
                newest = max(self.horizon.get(place, change), change, key=self.order)
                self.horizon[place] = newest

    def list_deletes(self) -> list[Change]:
        """List the deletes that count: the newest witness on the ancestry did not retract them."""
        line = {each.snapshot_id for each in self.changes.ancestry()}
        newest: dict[tuple[int, Coordinate], Remembered] = {}
        for each in sorted(self.memory, key=lambda each: (each.witness, each.is_retracted)):
            if each.witness in line or not self.uses("tomb"):
                newest[each.change.key, each.change.at] = each
        return [each.change for each in newest.values() if not each.is_retracted]

    def _horizon_place(self, change: Change) -> int:
        return 0 if self.by_sequence else change.partition

    def is_too_late(self, change: Change) -> bool:
        """Return whether a delete of this key that was newer may have been forgotten."""
        forgotten = self.horizon.get(self._horizon_place(change))
        return forgotten is not None and self.order(change) < self.order(forgotten)

    # The merge.

    def _has_folded_trimmed(self, position: int | None, target: Snapshot) -> bool:
        if not target.trimmed:
            return True
        if position is None:
            return False
        seen = self.changes.snapshots[position]
        return target.trimmed <= {row.at for row in seen.rows} | seen.trimmed

    def _count_erasures(self, start: int | None = None) -> int:
        return sum(each.kind == "erase" for each in self.state.ancestry(start))

    def _go_back(self, line: set[int], target: Snapshot, kill: str) -> None:
        """Take the state back to the newest snapshot whose position is on the ancestry."""
        fitting = [
            each
            for each in (self.state.live() if self.uses("live") else self.state.ancestry())
            if each.position is None or each.position in line
        ]
        if not fitting:
            if target.trimmed and self.uses("rebuild"):
                raise HaltedError("no state snapshot is left to go back to")
            self._commit_state("rewind", {}, None)
            return
        good = fitting[0]
        if self._count_erasures(good.snapshot_id) < self.erasures and self.uses("hint"):
            raise HaltedError("the state would go back over an erasure")
        if not self._has_folded_trimmed(good.position, target) and self.uses("halt"):
            raise HaltedError("no state snapshot has folded what was trimmed")
        if kill == "before-rewind":
            return
        lost = good.snapshot_id in self.state.expired
        self.state.head_id = good.snapshot_id
        rows = {} if lost else {row.key: row for row in good.state}
        self._commit_state("rewind", rows, good.position)

    def merge(self, kill: str = "") -> None:
        """Bring the state to the change table's head, unless killed on the way."""
        target = self.changes.head
        line = {each.snapshot_id for each in self.changes.ancestry()}
        if self._count_erasures() < self.erasures and self.uses("hint"):
            raise HaltedError("another tool rolled the state back over an erasure")
        if not self._has_folded_trimmed(self.position, target) and self.uses("halt"):
            raise HaltedError("the state has not folded what was trimmed")
        if self.position is not None and self.position not in line and self.uses("ancestry"):
            self._go_back(line, target, kill)
            if kill in {"before-rewind", "after-rewind"}:
                return
        found: set[Remembered] = set()
        state = self._fold(target, found)
        if state is None or kill == "before-memory":
            return
        self.memory |= found
        if kill == "after-memory":
            return
        if self.random.random() < 0.1:  # maintenance was faster: the merge is staged again
            rows = {row.key: row for row in self.state.head.state}
            self._commit_state("compact", rows, self.position)
            self.merge(kill)
            return
        self._commit_state("merge", state, target.snapshot_id)

    def _fold(self, target: Snapshot, found: set[Remembered]) -> State | None:
        position = self.position
        before = self.changes.snapshots[position] if position is not None else None
        had = before.rows if before else frozenset()
        added, removed = target.rows - had, had - target.rows
        if before is not None and not added and not removed:
            return None
        kinds = set()
        for each in self.changes.ancestry():
            if each.snapshot_id == position:
                break
            kinds.add(each.kind)
        is_plain = before is not None and (kinds <= PLAIN or not self.uses("refold"))
        if before is not None and not self.uses("listed"):
            added = frozenset(row for row in added if self._is_above(row, before))
        memory = self.list_deletes()
        touched = {row.key for row in (added if is_plain else added | removed)}
        touched |= {delete.key for delete in memory} if before is None else set()
        if not is_plain and self.uses("retract"):
            found |= {
                Remembered(delete, target.snapshot_id, is_retracted=True)
                for delete in memory
                if delete.key in touched
                and delete.at not in target.trimmed
                and delete.at not in {row.at for row in target.rows if row.is_delete}
            }
        state = {row.key: row for row in self.state.head.state}
        for key in touched:
            rows = added if is_plain else target.rows
            mine = [row for row in rows if row.key == key]
            trimmed = None if is_plain else target.trimmed
            winner = self._fold_key(state, key, mine, memory, trimmed)
            if winner is not None:
                found.add(Remembered(winner, target.snapshot_id))
        return state

    def _is_above(self, row: Change, before: Snapshot) -> bool:
        return (
            row.generation > before.generation or row.offset >= before.next_offsets[row.partition]
        )

    def _fold_key(
        self,
        state: State,
        key: int,
        mine: list[Change],
        memory: list[Change],
        trimmed: frozenset[Coordinate] | None,
    ) -> Change | None:
        """Fold a key into the state; return its delete if that wins. None: nothing was trimmed."""
        fills = [row for row in mine if not row.is_delete and row.carries]
        deletes = [row for row in mine if row.is_delete]
        held = state.get(key)
        if held is not None:
            places = [(held.winner, mine), (held.fill, fills)]
            places += [(held.floor, deletes)] if self.uses("floor") else []
            for change, place in places:
                if change is not None and (trimmed is None or change.at in trimmed):
                    place.append(change)
        if self.uses("memory"):
            known = [
                change
                for change in memory
                if change.key == key and (trimmed is None or change.at in trimmed)
            ]
            mine += known
            deletes += known
        winner = self.newest(mine)
        if held is None and winner is not None and self.uses("horizon"):
            winner = None if self.is_too_late(winner) else winner
            forgotten = self.horizon.get(self._horizon_place(mine[0]))
            deletes += [forgotten] if forgotten is not None else []  # no fill crosses it either
        if winner is None or winner.is_delete:
            state.pop(key, None)
            return winner
        state[key] = self._build_row(winner, fills, deletes)
        return None

    def _build_row(self, winner: Change, fills: list[Change], deletes: list[Change]) -> Row:
        """Fill from the newest value at or below the winner and above the delete below it."""
        top = self.order(winner)
        floor = self.newest(row for row in deletes if self.order(row) < top)
        low = self.order(floor) if floor is not None and self.uses("crossing") else ()
        fill = self.newest(row for row in fills if low < self.order(row) <= top)
        return Row(winner, fill, floor)

    # What the state must be.

    def _remembered(self, snapshot: Snapshot) -> Rows:
        """Return what was trimmed, as it was decoded when it left, without erased keys."""
        found: set[Change] = set()
        line = [*self.changes.ancestry(snapshot.snapshot_id)][::-1]
        for older, newer in pairwise(line):
            if newer.kind == "expire-rows":
                found |= older.rows - newer.rows
            if newer.kind == "erase":
                found = {row for row in found if row.key != newer.erased_key}
        return frozenset(found)

    def expected(self, snapshot: Snapshot) -> dict[int, tuple[Change, Change | None]]:
        """Fold the changes up to a snapshot by their definition."""
        by_key: dict[int, list[Change]] = {}
        for row in snapshot.rows | self._remembered(snapshot):
            by_key.setdefault(row.key, []).append(row)
        found = {}
        for key, rows in by_key.items():
            rows.sort(key=self._true_order)
            if rows[-1].is_delete:
                continue
            fill = None
            for row in rows:
                fill = None if row.is_delete else row if row.carries else fill
            found[key] = (rows[-1], fill)
        return found

    def _true_order(self, change: Change) -> Order:
        generation = -1 if change.value.startswith("adopted") else change.generation
        if self.by_sequence:
            return (change.sequence, generation, change.partition, change.offset)
        return (generation, change.offset, change.partition)

    def find_difference(self) -> str:
        """Describe how the state differs from the fold at its position; empty if it does not."""
        last = next((e.kind for e in self.state.ancestry() if e.kind in {"merge", "erase"}), None)
        if self.position is None or last == "erase":  # the next merge folds past the erasure
            return ""
        have = {row.key: (row.winner, row.fill) for row in self.state.head.state}
        want = self.expected(self.changes.snapshots[self.position])
        differing = {
            key
            for key in have.keys() | want.keys()
            if have.get(key) not in self._allowed(want.get(key))
        }
        return "; ".join(f"key {k}: {have.get(k)} is not {want.get(k)}" for k in sorted(differing))

    def _allowed(
        self, want: tuple[Change, Change | None] | None
    ) -> list[tuple[Change, Change | None] | None]:
        """List what a key may be: changes below the horizon may be missing."""
        allowed = [want]
        if want is not None and self.is_too_late(want[0]):
            allowed.append(None)
        if want is not None and want[1] is not None and self.is_too_late(want[1]):
            allowed.append((want[0], None))
        return allowed


ACTIONS = (
    *("ingest", "merge") * 12,
    *("redrive", "replay", "compact", "backfill") * 2,
    *("rollback", "trim", "forget_deletes", "expire_state") * 2,
    *("erase", "roll_state_back", "recreate"),
)
KILLS = ("", "", "", "before-memory", "after-memory", "before-rewind", "after-rewind")


def run_history(seed: int, steps: int = 60, without: str = "") -> str:
    """Run one history; return "halted", a difference, or an empty text if the state was right."""
    model = Model(seed, without)
    for step in range(steps):
        action = model.random.choice(ACTIONS)
        try:
            if action == "merge":
                model.merge(model.random.choice(KILLS))
            else:
                getattr(model, action)()
        except HaltedError:
            return "halted"
        found = model.find_difference() if action == "merge" else ""
        if found:
            return f"seed {seed}, step {step}: {found}"
    return ""
