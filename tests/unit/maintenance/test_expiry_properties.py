"""Whatever a table went through, expiry keeps recovery points, windows, branches and tags."""

import random
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st
from support.expiry_model import STREAMS, WINDOW, TableModel

from frazil.ledger.recovery_point import RecoveryPoint, walk_ancestors
from frazil.ledger.state import StreamState
from frazil.maintenance.expiry_rules import ExpiryPlan, decide_expiry
from frazil.streams.timestamps import HOUR_MS, RetentionWindow


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


@settings(max_examples=120)
@given(life=lives, window=windows)
def test_expiry_keeps_every_recovery_point_even_without_the_archive(  # I9, C1
    life: tuple[int, int], window: RetentionWindow
) -> None:
    model = model_of(life)
    before = states(model.points())

    model.expire(window)

    assert states(model.points()) == before
    assert states(model.points(with_archive=False)) == before


@settings(max_examples=120)
@given(life=lives, window=windows)
def test_f8_expiry_keeps_the_windows_and_whatever_a_branch_or_tag_names(  # I9
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


@settings(max_examples=120)
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


@settings(max_examples=80)
@given(life=lives, window=windows)
def test_expiring_again_changes_nothing(life: tuple[int, int], window: RetentionWindow) -> None:
    model = model_of(life)
    model.expire(window)

    again = decide_expiry(model.history(), model.all_refs(), model.now_ms, window)

    assert again == ExpiryPlan()
