"""Expiry keeps recovery points, windows, branches and tags, whatever a table went through."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil import keys
from frazil.blocking import BlockedBatch, encode_blocked
from frazil.contracts import BatchPlan
from frazil.errors import ConfigurationError, ForeignRollbackError, HistoryCutError
from frazil.expiry import (
    DAY_MS,
    HOUR_MS,
    ExpiryPlan,
    RetentionWindow,
    decide_branches,
    decide_expiry,
    find_points,
    parse_branch,
    refuse_foreign_retention,
    refuse_lost_snapshots,
    refuse_lost_state,
)
from frazil.ledger import Archive, History, LedgerEntry, RecoveryPoint, walk_ancestors
from frazil.state import Hint, StreamState, encode_hint, encode_state

WINDOW = RetentionWindow(expire_ms=72 * HOUR_MS, rollback_ms=24 * HOUR_MS)
STREAMS = ("a", "b")


def state_of(epoch: int, batch: str = "batch") -> StreamState:
    return StreamState(epoch, batch, {"t": (epoch,)}, {"t": "id"}, "cluster")


@dataclass
class TableModel:
    """A table's snapshots, refs, hints and archive, moved on as Frazil and others move them."""

    now_ms: int = 1000 * HOUR_MS
    head: int | None = None
    entries: dict[int, LedgerEntry] = field(default_factory=dict)
    refs: dict[str, int] = field(default_factory=dict)
    hints: dict[str, str] = field(default_factory=dict)
    archive: dict[int, LedgerEntry] = field(default_factory=dict)
    ids: int = 0

    def history(self, *, with_archive: bool = True) -> History:
        archive = Archive(dict(self.archive) if with_archive else {})
        return History("t", "u", self.head, dict(self.entries), dict(self.hints), lambda: archive)

    def all_refs(self) -> dict[str, int]:
        return self.refs | ({"main": self.head} if self.head is not None else {})

    def points(self, *, with_archive: bool = True) -> Mapping[str, RecoveryPoint]:
        return find_points(self.history(with_archive=with_archive), *STREAMS)

    def add(self, parent: int | None, states: Mapping[str, StreamState], kind: str) -> int:
        """Add a snapshot; only the caller moves a ref to it."""
        self.ids += 1
        summary = {keys.state_key(stream): encode_state(state) for stream, state in states.items()}
        entry = LedgerEntry(self.ids, parent, self.now_ms, {"operation": kind, **summary})
        self.entries[self.ids] = entry
        return self.ids

    def commit(self, states: Mapping[str, StreamState], kind: str = "append") -> int:
        """Add a snapshot to main, with its hints."""
        self.head = self.add(self.head, states, kind)
        for stream, state in states.items():
            hint = Hint(state.epoch, state.batch, self.head)
            self.hints[keys.hint_key(stream)] = encode_hint(hint)
        return self.head

    def publish(self, stream: str) -> int:
        point = self.points().get(stream)
        epoch = point.state.epoch + 1 if point else 0
        return self.commit({stream: state_of(epoch, f"{stream}{epoch}-{self.ids}")})

    def next_epochs(self) -> dict[str, int]:
        """Give each stream's epoch after a rewind."""
        return {stream: point.state.epoch + 1 for stream, point in self.points().items()}

    def rewind(self, target: int) -> None:
        """Do as `recover` does: the states of an ancestor, in higher epochs, on that ancestor."""
        there = replace(self.history(), head=target, properties={})
        abandoned = self.head
        found = find_points(there)
        states = {
            stream: replace(found[stream].state if stream in found else state_of(0), epoch=epoch)
            for stream, epoch in self.next_epochs().items()
        }
        self.head = target
        self.commit(states)
        if abandoned is not None:
            self.refs[f"tag-{abandoned}"] = abandoned

    def expire(self, window: RetentionWindow) -> ExpiryPlan:
        """Do as `expire_snapshots` does: carry, archive, expire; give what went."""
        plan = decide_expiry(self.history(), self.all_refs(), self.now_ms, window)
        if plan.carry:
            points = self.points()
            self.commit({stream: points[stream].state for stream in plan.carry})
            plan = decide_expiry(self.history(), self.all_refs(), self.now_ms, window)
            assert plan.carry == ()
        for entry in walk_ancestors(self.history(), beyond_metadata=False):
            self.archive.setdefault(entry.snapshot_id, entry)
        for snapshot_id in (*plan.ancestor_ids, *plan.abandoned_ids):
            del self.entries[snapshot_id]
        return plan


def live_through(model: TableModel, chance: random.Random, steps: int) -> None:
    """Let random things happen to a table."""
    for _ in range(steps):
        lineage = [e for e in walk_ancestors(model.history()) if e.snapshot_id in model.entries]
        match chance.choice("pppfcbtrxw"):
            case "p":
                model.publish(chance.choice(STREAMS))
            case "f":
                model.commit({}, "append")
            case "c":
                model.commit({}, "replace")
            case "b" if model.head is not None:
                model.refs[f"branch-{model.ids}"] = model.add(model.head, {}, "append")
            case "t" if lineage:
                model.refs[f"tag-{model.ids}"] = chance.choice(lineage).snapshot_id
            case "r" if lineage:
                model.rewind(chance.choice(lineage).snapshot_id)
            case "x" if model.refs:
                model.refs.pop(chance.choice(sorted(model.refs)))
            case "w":
                model.expire(WINDOW)
        model.now_ms += chance.randrange(40 * HOUR_MS)


def states(points: Mapping[str, RecoveryPoint]) -> dict[str, StreamState]:
    return {stream: point.state for stream, point in points.items()}


windows = st.builds(
    RetentionWindow,
    st.integers(1, 200).map(HOUR_MS.__mul__),
    st.integers(0, 99).map(HOUR_MS.__mul__),
)
lives = st.tuples(st.integers(0, 2**32), st.integers(1, 40))


def model_of(life: tuple[int, int]) -> TableModel:
    model = TableModel()
    live_through(model, random.Random(life[0]), life[1])
    return model


@settings(max_examples=120, deadline=None)
@given(life=lives, window=windows)
def test_expiry_keeps_every_recovery_point_even_without_the_archive(  # I9, C1
    life: tuple[int, int], window: RetentionWindow
) -> None:
    model = model_of(life)
    before = states(model.points())

    model.expire(window)

    assert states(model.points()) == before
    assert states(model.points(with_archive=False)) == before


@settings(max_examples=120, deadline=None)
@given(life=lives, window=windows)
def test_expiry_keeps_the_windows_and_whatever_a_branch_or_tag_names(  # I9
    life: tuple[int, int], window: RetentionWindow
) -> None:
    model = model_of(life)
    before, lineage = dict(model.entries), tuple(walk_ancestors(model.history()))
    cutoff_ms = model.now_ms - max(window.expire_ms, window.rollback_ms)
    current_then = next((e for e in lineage if e.committed_at_ms <= cutoff_ms), None)

    gone = model.expire(window)

    expired = before.keys() - model.entries.keys()
    assert expired == {*gone.ancestor_ids, *gone.abandoned_ids}
    assert all(before[i].committed_at_ms <= model.now_ms - window.rollback_ms for i in expired)
    assert all(before[i].committed_at_ms <= cutoff_ms for i in gone.ancestor_ids)
    assert current_then is None or current_then.snapshot_id not in expired
    assert set(model.all_refs().values()) <= model.entries.keys()


@settings(max_examples=120, deadline=None)
@given(life=lives, window=windows)
def test_nothing_goes_that_is_not_archived_unless_main_never_held_it(
    life: tuple[int, int], window: RetentionWindow
) -> None:
    model = model_of(life)
    lineage_before = {e.snapshot_id for e in walk_ancestors(model.history())}
    archived_before = set(model.archive)

    gone = model.expire(window)

    assert set(gone.ancestor_ids) <= model.archive.keys()
    assert not set(gone.abandoned_ids) & (model.archive.keys() - archived_before)
    assert lineage_before <= {e.snapshot_id for e in walk_ancestors(model.history())}


@settings(max_examples=80, deadline=None)
@given(life=lives, window=windows)
def test_expiring_again_changes_nothing(life: tuple[int, int], window: RetentionWindow) -> None:
    model = model_of(life)
    model.expire(window)

    again = decide_expiry(model.history(), model.all_refs(), model.now_ms, window)

    assert again == ExpiryPlan()


def aged(*hours: int) -> TableModel:
    """Publish stream `a` once at each of these ages."""
    model = TableModel()
    now_ms = model.now_ms
    for age in hours:
        model.now_ms = now_ms - age * HOUR_MS
        model.publish("a")
    model.now_ms = now_ms
    return model


def decide(model: TableModel, window: RetentionWindow = WINDOW) -> ExpiryPlan:
    return decide_expiry(model.history(), model.all_refs(), model.now_ms, window)


def test_the_snapshot_that_was_current_when_the_window_began_stays() -> None:
    assert decide(aged(200, 100, 1)) == ExpiryPlan(ancestor_ids=(1,))


def test_a_long_rollback_window_outweighs_a_short_expiry() -> None:
    window = RetentionWindow(expire_ms=HOUR_MS, rollback_ms=150 * HOUR_MS)

    assert decide(aged(300, 200, 100, 1), window) == ExpiryPlan(ancestor_ids=(1,))


def test_an_idle_streams_state_is_carried_before_its_carrier_goes() -> None:
    model = aged(200)
    model.commit({}, "replace")

    plan = decide(replace_time(model, 100))

    assert plan == ExpiryPlan(ancestor_ids=(1,), carry=("a",))


def replace_time(model: TableModel, hours: int) -> TableModel:
    """Let time pass."""
    model.now_ms += hours * HOUR_MS
    return model


def test_an_idle_table_of_one_snapshot_needs_no_carry() -> None:
    assert decide(aged(500)) == ExpiryPlan()


def test_an_abandoned_snapshot_goes_after_a_day_and_a_staged_one_stays() -> None:
    model = aged(2)
    dropped = model.add(model.head, {}, "append")
    model.refs["frazil_a"] = model.add(model.head, {}, "append")

    plans = [decide(model), decide(replace_time(model, 30))]

    assert [plan.abandoned_ids for plan in plans] == [(), (dropped,)]


def test_what_others_cut_off_main_is_left_alone() -> None:
    model = aged(300, 200, 1)
    model.entries[3] = replace(model.entries[3], parent_id=99)

    assert decide(model) == ExpiryPlan()


def test_a_tagged_ancestor_stays_while_others_around_it_go() -> None:
    model = aged(400, 300, 200, 100, 1)
    model.refs["audit"] = 2

    assert decide(model).ancestor_ids == (3, 1)


def test_an_ancestor_goes_once_its_tag_is_gone_though_its_neighbours_went_before() -> None:
    model = aged(400, 300, 200, 100, 1)
    model.refs["audit"] = 2
    model.expire(WINDOW)

    del model.refs["audit"]

    assert decide(model).ancestor_ids == (2,)


def test_the_root_of_somebody_elses_branch_stays() -> None:
    model = aged(400, 300, 100, 1)
    model.refs["theirs"] = model.add(2, {}, "append")

    assert decide(model).ancestor_ids == (1,)


def test_a_rollback_by_others_halts_expiry() -> None:
    model = aged(300, 200, 100, 1)
    model.head = 2

    with pytest.raises(ForeignRollbackError):
        decide(model)


def branch_name(stream: str, epoch: int, hours: int, now_ms: int) -> str:
    return f"frazil_{stream}_{epoch}_{now_ms - hours * HOUR_MS:011x}0123abcd"


@pytest.mark.parametrize(
    ("epoch", "hours", "is_dropped"),
    [(6, 25, True), (7, 25, True), (7, 23, False), (6, 23, False), (8, 25, False)],
    ids=["overtaken", "another attempt won", "fresh", "overtaken but fresh", "ahead of main"],
)
def test_a_forsaken_staging_branch_goes_after_a_day(
    epoch: int,
    hours: int,
    is_dropped: bool,  # noqa: FBT001 - a column of the table above
) -> None:
    now_ms = 1000 * DAY_MS
    name = branch_name("a", epoch, hours, now_ms)
    points = {"a": RecoveryPoint(state_of(7), 1)}

    dropped = decide_branches(["main", "theirs", name], now_ms, points, {})

    assert dropped == ((name,) if is_dropped else ())


def test_the_branch_of_a_blocked_batch_stays_and_its_siblings_go() -> None:
    now_ms = 1000 * DAY_MS
    kept, sibling = (branch_name("a", 7, hours, now_ms) for hours in (100, 99))
    points = {"a": RecoveryPoint(state_of(7), 1)}

    dropped = decide_branches([kept, sibling], now_ms, points, blocked_on(kept))

    assert dropped == (sibling,)


def test_the_branch_of_a_batch_that_was_blocked_once_goes() -> None:
    now_ms = 1000 * DAY_MS
    name = branch_name("a", 7, 100, now_ms)
    points = {"a": RecoveryPoint(state_of(8), 1)}

    assert decide_branches([name], now_ms, points, blocked_on(name)) == (name,)


def blocked_on(branch: str) -> dict[str, str]:
    plan = BatchPlan(
        stream="a", table="t", table_uuid="u", base_epoch=7, base_batch="batch", batch_id="next",
        ranges={}, topic_ids={}, cluster_id="", next_offsets={}, schema_id=0, spec_id=0,
        suite_hash="", stream_hash="", transform_version="",
    )  # fmt: skip
    return encode_blocked(
        BlockedBatch(plan=plan, error="e", failures=(), branch=branch, blocked_at="2026-01-31")
    )


@pytest.mark.parametrize("stream", ["orders", "a_1_b_2", "x" * 63])
def test_a_staging_branch_tells_stream_epoch_and_age(stream: str) -> None:
    branch = parse_branch(branch_name(stream, 12, 5, 1000 * DAY_MS), 1000 * DAY_MS)

    assert branch is not None
    assert (branch.stream, branch.epoch, branch.age_ms) == (stream, 12, 5 * HOUR_MS)


@pytest.mark.parametrize(
    "after",
    [{}, {"a": RecoveryPoint(state_of(6), 1)}, {"a": RecoveryPoint(state_of(7, "other"), 1)}],
    ids=["lost", "set back", "replaced"],
)
def test_a_recovery_point_that_moved_under_expiry_is_an_error(
    after: Mapping[str, RecoveryPoint],
) -> None:
    before = {"a": RecoveryPoint(state_of(7), 1)}

    with pytest.raises(HistoryCutError, match="stream a stood at epoch 7"):
        refuse_lost_state("t", before, after)


def test_a_batch_that_lands_under_expiry_is_no_error() -> None:
    before = {"a": RecoveryPoint(state_of(7), 1)}

    refuse_lost_state("t", before, before)
    refuse_lost_state("t", before, {"a": RecoveryPoint(state_of(8), 2)})


def test_more_lost_snapshots_than_asked_for_are_an_error() -> None:
    before, after = aged(300, 200, 100, 1), aged(300, 200, 100, 1)
    del after.entries[1], after.entries[2]

    refuse_lost_snapshots(before.history(), after.history(), (1, 2))
    with pytest.raises(HistoryCutError, match="1 more of main are gone: 2"):
        refuse_lost_snapshots(before.history(), after.history(), (1,))


@pytest.mark.parametrize(
    ("properties", "main_age_ms"), [({"history.expire.max-ref-age-ms": "1"}, None), ({}, 1)]
)
def test_retention_rules_of_the_table_itself_are_refused(
    properties: Mapping[str, str], main_age_ms: int | None
) -> None:
    refuse_foreign_retention("t", {"history.expire.max-snapshot-age-ms": "1"}, None)

    with pytest.raises(ConfigurationError, match="table t"):
        refuse_foreign_retention("t", properties, main_age_ms)
