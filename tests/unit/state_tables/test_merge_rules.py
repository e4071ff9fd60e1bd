"""Which changes a merge folds: in every random history the state is the fold of its changes."""

import json
import random

import numpy as np
import pytest
from support.change_model import Change, Row, Snapshot, State
from support.state_model import Model

from frazil.errors import MergeHaltedError
from frazil.ledger import keys
from frazil.ledger.coordinates import encode_coordinates, join_coordinates
from frazil.ledger.offsets import OffsetRange, encode_ranges
from frazil.ledger.recovery_point import History, LedgerEntry
from frazil.state_tables.merge_rules import (
    MergePlan,
    describe_disagreement,
    find_position,
    hash_rules,
    plan_merge,
)
from frazil.state_tables.messages import MergeCounts, MergePosition
from frazil.streams.models import Stream

NONE = MergeCounts(changes=0, inserted=0, updated=0, deleted=0, absent=0, superseded=0, stale=0)
ACTIONS = (*("ingest", "merge") * 10, "redrive", "replay", "backfill", "compact", "rollback")
ACTIONS += ("redrive", "roll_state_back", "killed_merge")
KINDS = {"compact": "", "bootstrap": keys.BOOTSTRAP, "ingest": keys.INGEST, "rewind": keys.REWIND}
KINDS |= {kind: kind for kind in (keys.REDRIVE, keys.REPLAY, keys.BACKFILL, keys.ADOPT, keys.GAP)}


def make_stream(**table: object) -> Stream:
    return Stream.model_validate(
        {
            "stream": "customers",
            "owner": "me",
            "source": {"topic": "t"},
            "value": {"columns": {"id": "long!", "op": "string"}},
            "table": {"name": "shop.c", "mode": "upsert", "id_columns": ["id"], **table},
        }
    )


STREAM = make_stream(cdc_field="op")


def summarize(snapshot: Snapshot, before: Snapshot | None) -> dict[str, str]:
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
    return summary


class Merging(Model):
    """The model's change table, merged by the product's rules and a fold in a few lines."""

    def __init__(self, seed: int, *, careless: bool = False) -> None:
        """Begin; a careless one folds what is above the position, whatever happened."""
        self.careless = careless
        self.memories: dict[int, str] = {}
        self.remembered: set[tuple[str, Change]] = set()
        super().__init__(seed)

    def recreate(self) -> None:
        """Leave out: the offsets of another log are refused."""

    @property
    def history(self) -> History:
        line = {each.snapshot_id: each for each in self.changes.snapshots.values()}
        entries = {
            number: LedgerEntry(
                number, each.parent, number, summarize(each, line.get(each.parent or 0))
            )
            for number, each in line.items()
        }
        return History("shop.c__changes", "uuid", self.changes.head_id, entries, {})

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
        plan = plan_merge(self.history, STREAM, before)
        if plan is None:
            return
        if self.careless and before is not None and plan.added is None:
            plan = MergePlan(plan.head, _all_above(before, self))
        memory = before.memory if before and plan.added is not None else f"m{self.ids}"
        state = self._fold_plan(plan, memory, kill)
        if state is not None:
            self._commit_state("merge", state, plan.head)
            self.memories[self.state.head_id or 0] = memory

    def _memory_of_state(self) -> str:
        line = (each.snapshot_id for each in self.state.ancestry())
        return next(self.memories[number] for number in line if number in self.memories)

    def _fold_plan(self, plan: MergePlan, memory: str, kill: str) -> State | None:
        rows = self.changes.snapshots[plan.head].rows
        if plan.added is not None:
            runs = plan.added.get("t", {})
            rows = frozenset(
                r for r in rows if any(a <= r.offset < b for a, b in runs.get(r.partition, ()))
            )
        state = {} if plan.added is None else {row.key: row for row in self.state.head.state}
        known = {(m, c) for m, c in self.remembered if m == memory}
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


def _all_above(
    before: MergePosition, model: Merging
) -> dict[str, dict[int, list[tuple[int, int]]]]:
    starts = model.changes.snapshots[before.snapshot_id].next_offsets
    return {"t": {p: [(start, 10**6)] for p, start in enumerate(starts)}}


def run_history(seed: int, *, careless: bool = False) -> set[int]:
    """Return the keys that are wrong after a merge of a random history."""
    model = Merging(seed, careless=careless)
    for _ in range(60):
        action = model.random.choice(ACTIONS)
        getattr(model, action)()
        if action == "merge" and (wrong := model.find_wrong()):
            return wrong
    return set()


def test_the_state_is_the_fold_in_every_history() -> None:
    seeds = random.sample(range(10**6), 150)

    assert {seed: wrong for seed in seeds if (wrong := run_history(seed))} == {}


def test_without_a_rebuild_after_other_snapshots_the_state_goes_wrong() -> None:
    assert any(run_history(seed, careless=True) for seed in range(20))


def entries_of(*snapshots: tuple[int, int | None, dict[str, str]]) -> History:
    entries = {number: LedgerEntry(number, parent, number, s) for number, parent, s in snapshots}
    return History("shop.c__changes", "uuid", snapshots[-1][0], entries, {})


def position_at(snapshot_id: int, **changes: object) -> MergePosition:
    plain = MergePosition(
        snapshot_id=snapshot_id,
        table_uuid="uuid",
        rules=hash_rules(STREAM),
        id_columns=("id",),
        memory="m",
        counts=NONE,
    )
    return plain.model_copy(update=changes)


INGEST = {keys.KIND: keys.INGEST, keys.RANGES: encode_ranges({"t": {0: OffsetRange(3, 7)}})}
FURTHER = {keys.KIND: keys.INGEST, keys.RANGES: encode_ranges({"t": {0: OffsetRange(7, 9)}})}


@pytest.mark.parametrize(
    ("summary", "why"),
    [
        ({"operation": "append"}, "append snapshot 2"),
        ({"operation": "delete"}, "delete snapshot 2"),
        *(({keys.KIND: kind}, f"{kind} snapshot 2") for kind in sorted(keys.CHANGE_KINDS)),
        *(
            ({keys.KIND: kind}, f"{kind} snapshot 2")
            for kind in (keys.REWIND, keys.GAP, keys.ADOPT)
        ),
    ],
)
def test_what_does_more_than_add_rows_is_folded_from_all_changes(
    summary: dict[str, str], why: str
) -> None:
    history = entries_of((1, None, INGEST), (2, 1, summary), (3, 2, FURTHER))

    plan = plan_merge(history, STREAM, position_at(1))

    assert plan is not None
    assert (plan.added, why in plan.reason) == (None, True)


def test_touching_batches_are_one_run_and_compactions_are_stepped_over() -> None:
    quiet = {"operation": "replace"}
    history = entries_of((1, None, {}), (2, 1, INGEST), (3, 2, quiet), (4, 3, FURTHER))

    assert plan_merge(history, STREAM, position_at(1)) == MergePlan(4, {"t": {0: [(3, 9)]}})
    assert plan_merge(history, STREAM, position_at(4)) is None


@pytest.mark.parametrize(
    ("changes", "stream", "says"),
    [
        ({"table_uuid": "other"}, STREAM, "dropped and created again"),
        ({"id_columns": ("number",)}, STREAM, "the key of its state table is number"),
        ({}, make_stream(), "order, cdc_field or deletes changed"),
    ],
)
def test_another_table_key_or_rule_halts(
    changes: dict[str, object], stream: Stream, says: str
) -> None:
    with pytest.raises(MergeHaltedError, match=says):
        plan_merge(entries_of((1, None, INGEST)), stream, position_at(1, **changes))


def test_a_position_is_inherited_and_an_unreadable_one_halts() -> None:
    key = keys.merge_key("customers")
    kept = position_at(7)
    history = entries_of((1, None, {key: kept.encode()}), (2, 1, {"operation": "replace"}))

    assert find_position(history, "customers") == kept
    newer = json.dumps({**json.loads(kept.encode()), "floors": True})
    with pytest.raises(MergeHaltedError, match="cannot read"):
        find_position(entries_of((1, None, {key: newer})), "customers")


@pytest.mark.parametrize(
    ("counts", "summary", "says"),
    [
        ({"changes": 3, "inserted": 2, "stale": 1}, {"inserted": "2"}, ""),
        ({"changes": 3, "inserted": 2}, {}, "do not add up"),
        ({"changes": 2, "inserted": 2}, {"inserted": "1"}, "inserted 1, not 2"),
        ({"changes": 1, "deleted": 1}, {"matched-deleted": "0"}, "matched-deleted 0, not 1"),
    ],
)
def test_the_counts_add_up_and_agree_with_sparks(
    counts: dict[str, int], summary: dict[str, str], says: str
) -> None:
    named = {f"spark.merge-into.num-target-rows-{name}": n for name, n in summary.items()}

    found = describe_disagreement(NONE.model_copy(update=counts), named, marks=False)

    assert says in found
    assert bool(found) == bool(says)
