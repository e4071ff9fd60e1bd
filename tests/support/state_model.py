"""An executable model of state tables: a change table, the state folded from it, delete memory.

Random histories of batches, redrives, replays, backfills below the beginning, adopted rows,
rollbacks of either table by Frazil and by others, erasures, trimming, expired state snapshots,
forgotten deletes, kills at every step of a merge, columns that a change may not carry, and logs
that start over. After each merge the state must equal the fold of the change table. `without` names
rules to leave out, joined by `+`; the model must then fail.
"""

from itertools import pairwise

from support.change_model import (
    PLAIN,
    Change,
    ChangeModel,
    Coordinate,
    HaltedError,
    Order,
    Remembered,
    Row,
    Rows,
    Snapshot,
    State,
)


class Model(ChangeModel):
    """Both tables and the delete memory: merges, rollbacks of the state, forgotten deletes."""

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
            if newer.kind in {"expire-rows", "trim"}:
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
