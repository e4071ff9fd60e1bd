"""The model of state tables with the product's rules: what a merge folds, what trimming takes."""

import random
from dataclasses import replace
from itertools import takewhile

import numpy as np
import pyarrow as pa
from support.change_model import Change, Row, Snapshot, State
from support.state_model import Model

from frazil.ledger import keys
from frazil.ledger.coordinates import encode_coordinates, join_coordinates
from frazil.ledger.offsets import OffsetRange, Runs, encode_ranges
from frazil.ledger.recovery_point import History, LedgerEntry
from frazil.ledger.state import StreamState, encode_state
from frazil.state_tables.merge_rules import (
    CAME_LATE,
    MergePlan,
    describe_more_than_additions,
    hash_rules,
    plan_merge,
)
from frazil.state_tables.merge_slices import take_slice
from frazil.state_tables.messages import MergeCounts, MergePosition
from frazil.state_tables.trim_rules import Trimming, choose_trimmed, limit_deletes
from frazil.streams.models import Stream

NONE = MergeCounts(changes=0, inserted=0, updated=0, deleted=0, absent=0, superseded=0, stale=0)
KINDS = {"compact": "", "bootstrap": keys.BOOTSTRAP, "ingest": keys.INGEST, "rewind": keys.REWIND}
KINDS |= {"skip": keys.GAP}
KINDS |= {
    kind: kind
    for kind in (keys.REDRIVE, keys.REPLAY, keys.BACKFILL, keys.ADOPT, keys.GAP, keys.TRIM)
}
MOVES = frozenset({"bootstrap", "adopt", "ingest", "gap", "skip", "rewind"})
"""Kinds of snapshots with a state of the stream."""
LATE = 0.1
"""The share of merges that fold all changes up to the end of their slice, as for a late change."""


def make_stream(order: object = "kafka", **table: object) -> Stream:
    at = "long" if order == "kafka" else "long!"
    return Stream.model_validate(
        {
            "stream": "customers",
            "owner": "me",
            "source": {"topic": "t"},
            "value": {"columns": {"id": "long!", "op": "string", "at": at}},
            "order": order,
            "table": {"name": "shop.c", "mode": "upsert", "id_columns": ["id"], **table},
        }
    )


STREAM = make_stream(cdc_field="op")
SEQUENCED = make_stream({"sequence_by": ["at"]}, cdc_field="op")


def summarize(snapshot: Snapshot, before: Snapshot | None, epoch: int) -> dict[str, str]:
    """Write the summary that the product writes for such a snapshot."""
    summary = (
        {keys.KIND: KINDS[snapshot.kind]} if KINDS[snapshot.kind] else {"operation": "replace"}
    )
    starts = before.next_offsets if before else snapshot.next_offsets
    if snapshot.kind == "ingest":
        spans = enumerate(zip(starts, snapshot.next_offsets, strict=True))
        ranges = {p: OffsetRange(a, b) for p, (a, b) in spans if a < b}
        summary[keys.RANGES] = encode_ranges({"t": ranges})
    if snapshot.kind == "redrive":
        added = snapshot.rows - (before.rows if before else frozenset())
        parts = [{("t", row.partition): np.array([row.offset])} for row in added]
        summary[keys.COORDINATES] = encode_coordinates(join_coordinates(parts))
    if snapshot.kind == "trim":
        summary[keys.FOLDED] = str(snapshot.position)
    if snapshot.kind in MOVES:
        state = StreamState(epoch, "", {"t": snapshot.next_offsets}, {"t": "topic-id"}, "cluster")
        summary |= {keys.STREAM: "customers", keys.state_key("customers"): encode_state(state)}
    return summary


class Merging(Model):
    """The model's change table, merged by the product's rules and a fold in a few lines.

    Some merges are sliced; the next one goes on, whatever happened in between.
    """

    def __init__(self, seed: int, *, careless: bool = False) -> None:
        """Begin; a careless one folds what is above the position, whatever happened."""
        self.careless = careless
        self.sizes, self.slices = random.Random(seed), 0
        self.memories: dict[int, str] = {}
        self.remembered: set[tuple[str, Change]] = set()
        super().__init__(seed)

    def recreate(self) -> None:
        """Leave out: the offsets of another log are refused."""

    @property
    def history(self) -> History:
        line = {each.snapshot_id: each for each in self.changes.snapshots.values()}

        def find_before(each: Snapshot) -> Snapshot | None:
            before = line.get(each.parent or 0)
            while before is not None and before.kind == "trim":  # it names offsets of its own
                before = line.get(before.parent or 0)
            return before

        epochs = self._list_epochs()
        entries = {
            number: LedgerEntry(
                number, each.parent, number, summarize(each, find_before(each), epochs[number])
            )
            for number, each in line.items()
        }
        return History("shop.c__changes", "uuid", self.changes.head_id, entries, {})

    def _list_epochs(self) -> dict[int, int]:
        """Number the states as the product does: after another tool's rollback above all others."""
        found: dict[int | None, int] = {None: -1}
        for number, each in sorted(self.changes.snapshots.items()):
            before = max(found.values()) if each.kind in {"skip", "rewind"} else found[each.parent]
            found[number] = before + (each.kind in MOVES)
        return {number: epoch for number, epoch in found.items() if number is not None}

    def accept_gap(self) -> None:
        """Go on behind records that Kafka lost before they were read."""
        self._produce()
        ends = map(len, self.logs[self.generation])
        self.next_offsets = tuple(
            min(end, start + self.random.randint(0, 2))
            for start, end in zip(self.next_offsets, ends, strict=True)
        )
        self._commit_changes("gap", self.changes.head.rows)

    def skip(self) -> None:
        """Go on behind published changes that another tool rolled back."""
        line, kinds = [*self.changes.ancestry()], {"ingest", "redrive", "compact", "gap"}
        near = [*takewhile(lambda each: each.kind in kinds, line)]
        lost = near[: self.random.randint(1, 3)]
        if lost:
            head, target = line[0], line[len(lost)]
            gone = {row.at for row in head.rows - target.rows} | self.dead_letters
            ends = target.next_offsets
            self.dead_letters = {at for at in gone if at[2] < ends[at[1]]}
            self.changes.head_id = target.snapshot_id
            self._commit_changes("skip", target.rows)

    def killed_merge(self) -> None:
        self.merge("after-memory")

    def merge(self, kill: str = "") -> None:
        at = self.position
        before = None
        if at is not None:
            before = MergePosition(
                snapshot_id=at,
                table_uuid="uuid",
                rules=hash_rules(STREAM),
                id_columns=("id",),
                memory=self._memory_of_state(),
                counts=NONE,
            )
        late = CAME_LATE if before is not None and self.sizes.random() < LATE else ""
        plan = plan_merge(self.history, STREAM, before, rebuild=late)
        if plan is None:
            return
        if self.careless and before is not None and plan.added is None:
            plan = MergePlan(plan.head, _all_above(before, self))
        else:
            plan = take_slice(self.history, plan, before, self.sizes.choice((1, 5, 10**6)))
            self.slices += plan.rest is not None
        memory = before.memory if before and plan.added is not None else f"m{self.ids}"
        state = self._fold_plan(plan, memory, kill)
        if state is not None:
            self._commit_state("merge", state, plan.head)
            self.memories[self.state.head_id or 0] = memory

    def _memory_of_state(self) -> str:
        line = (each.snapshot_id for each in self.state.ancestry())
        return next(self.memories[number] for number in line if number in self.memories)

    def _fold_plan(self, plan: MergePlan, memory: str, kill: str) -> State | None:
        later = plan.rest.runs if plan.rest else {}
        rows = self.changes.snapshots[plan.read_at].rows
        rows = frozenset(row for row in rows if not _is_in(row, later))
        if plan.added is not None:
            rows = frozenset(row for row in rows if _is_in(row, plan.added))
        state = {} if plan.added is None else {row.key: row for row in self.state.head.state}
        unfolded = (plan.added or {}, later)
        known = {
            (m, c)
            for m, c in self.remembered
            if m == memory and not any(_is_in(c, runs) for runs in unfolded)
        }
        for key in {row.key for row in rows}:
            mine = [row for row in rows if row.key == key]
            mine += [state[key].winner] if key in state else []
            mine += [change for _, change in known if change.key == key]
            winner = self.newest(mine)
            assert winner is not None
            state.pop(key, None)
            if winner.is_delete:
                self.remembered.add((memory, winner))
            else:
                state[key] = Row(winner, None, None)
        return None if kill else state

    def find_wrong(self) -> set[int]:
        """List the keys whose winner is not that of the fold by definition."""
        if self.position is None:
            return set()
        have = {row.key: row.winner for row in self.state.head.state}
        want = {k: v[0] for k, v in self.expected(self.changes.snapshots[self.position]).items()}
        return {key for key in have | want if have.get(key) != want.get(key)}


def _is_in(change: Change, runs: Runs) -> bool:
    found = runs.get("t", {}).get(change.partition, ())
    return any(start <= change.offset < end for start, end in found)


def _all_above(
    before: MergePosition, model: Merging
) -> dict[str, dict[int, list[tuple[int, int]]]]:
    starts = model.changes.snapshots[before.snapshot_id].next_offsets
    return {"t": {p: [(start, 10**6)] for p, start in enumerate(starts)}}


class Trimmed(Merging):
    """The same with trimming; `without` names a rule to leave out."""

    def __init__(self, seed: int, without: str = "") -> None:
        """Begin without rows of another writer, which are refused."""
        super().__init__(seed)
        self.without = without

    def _adopted_rows(self) -> frozenset[Change]:
        return frozenset()

    @property
    def stream(self) -> Stream:
        return SEQUENCED if self.by_sequence else STREAM

    def find_cut(self) -> list[int]:
        """Return the offsets below which replaced changes were trimmed."""
        cuts = [each.next_offsets for each in self.changes.ancestry() if each.kind == "trim"]
        return [max((cut[p] for cut in cuts), default=0) for p in range(self.partitions)]

    def killed_trim(self) -> None:
        """Begin to trim; of many changes each snapshot lists a part, and the process is killed."""
        self.trim(is_killed=True)

    def trim(self, *, is_killed: bool = False) -> None:
        """Remove replaced changes below an old batch, as the product does."""
        position = self.position
        if position is None or describe_more_than_additions(self.history, position, ()):
            return
        batches = [s for s in self.changes.ancestry() if s.kind in {"ingest", "bootstrap"}]
        limits = self.random.choice(batches[:6]).next_offsets
        cut = {("t", number): end for number, end in enumerate(limits)}
        steps = self._choose(position, cut)
        gone = self._take_part(steps) if is_killed else set().union(*steps)
        head = self.changes.head
        rows = frozenset(row for row in head.rows if row.at[1:] not in gone)
        if rows != head.rows:
            self._commit_changes("trim", rows)
            folded = 0 if not self.uses("folded") else position
            trimmed = replace(self.changes.head, position=folded, next_offsets=limits)
            self.changes.snapshots[trimmed.snapshot_id] = trimmed
            if is_killed:
                return
            kept = {row.at for row in rows}
            self.remembered = {
                (memory, change)
                for memory, change in self.remembered
                if change.at in kept or change.at[1:] not in gone
            }

    def _take_part(self, steps: list[set[tuple[int, int]]]) -> set[tuple[int, int]]:
        """Return what the snapshots of a trimming have removed that is killed between them."""
        if not self.uses("newest_last"):
            steps = [set().union(*steps)]
        done = self.random.randrange(len(steps))
        part = sorted(steps[done])
        return set().union(*steps[:done], self.random.sample(part, len(part) // 2))

    def _choose(self, position: int, cut: dict[tuple[str, int], int]) -> list[set[tuple[int, int]]]:
        rows = self.changes.snapshots[position].rows
        restored = {row.at for row in self.changes.head.rows - rows if self.uses("unfolded")}
        late = sorted(self.dead_letters | restored, reverse=True)
        oldest = {("t", at[1]): at[2] for at in late}
        stream = self.stream if self.uses("sequence") else STREAM
        deletes = limit_deletes(stream, cut, oldest if self.uses("letters") else {})
        rows &= self.changes.head.rows
        below = {row.at[1:] for row in rows if row.offset < cut["t", row.partition]}
        if not self.uses("base"):
            return [below]
        far = cut if self.uses("cut") else dict.fromkeys(cut, 10**6)
        found = choose_trimmed(self.stream, tabulate(rows), Trimming(far, deletes))
        return [
            {(p, int(o)) for (_, p), offsets in step.items() for o in offsets} & below
            for step in found
        ]

    def replay(self) -> None:
        """Replay by other rules, but not where only the newest changes were left."""
        partition = self.random.randrange(self.partitions)
        start = self.find_cut()[partition] if self.uses("replays") else 0
        start = self.random.randint(start, max(start, self.next_offsets[partition]))
        self.decoder += 1
        rows = self.changes.head.rows
        replayed = {r for r in rows if r.partition == partition and start <= r.offset < start + 4}
        for row in sorted(replayed, key=lambda row: row.at):
            if self.random.random() < 0.4:
                self._change_rules(row)
        decoded = {self._decode(row.at) for row in replayed if row.at not in self.dead_letters}
        self._commit_changes("replay", (rows - replayed) | decoded)

    def backfill(self) -> None:
        if not any(self.find_cut()) or not self.uses("backfills"):
            super().backfill()


def tabulate(rows: frozenset[Change]) -> pa.Table:
    """Return changes as the product reads them."""
    found = [
        {
            "id": row.key,
            "op": row.operation,
            "at": row.sequence,
            "_kafka": {"topic": "t", "partition": row.partition, "offset": row.offset},
        }
        for row in rows
    ]
    place = pa.struct({"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64()})
    schema = pa.schema({"id": pa.int64(), "op": pa.string(), "at": pa.int64(), "_kafka": place})
    return pa.Table.from_pylist(found, schema)
