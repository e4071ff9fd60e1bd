"""Expiry beside chains of snapshots off main: the right ones, and each snapshot walked once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.expiry_model import WINDOW, state_of
from support.steps import count_steps

from frazil.ledger import keys
from frazil.ledger.recovery_point import History, LedgerEntry, walk_ancestors
from frazil.ledger.state import encode_state
from frazil.maintenance.expiry_rules import decide_expiry
from frazil.streams.timestamps import DAY_MS

NOW_MS = 1000 * DAY_MS
HEAD = 10
parents = st.lists(st.one_of(st.none(), st.integers(1, 60)), min_size=1, max_size=40)


def make_history(off_main: list[int | None], ages_days: list[int]) -> History:
    """Make a main of ten snapshots, and others with any parents, which may be missing or loop."""
    state = {keys.state_key("a"): encode_state(state_of(0))}
    entries = {
        number: LedgerEntry(number, number - 1 or None, NOW_MS - DAY_MS, state)
        for number in range(1, HEAD + 1)
    }
    for number, (parent, age) in enumerate(zip(off_main, ages_days, strict=True), HEAD + 1):
        entries[number] = LedgerEntry(number, parent, NOW_MS - age * DAY_MS, {})
    return History("t", "u", HEAD, entries, {})


def walk(history: History, start: int, main: set[int]) -> list[int]:
    """Walk from one snapshot over its parents to main."""
    path = [start]
    while path[-1] not in main and (entry := history.entries.get(path[-1])):
        if entry.parent_id is None or entry.parent_id in path:
            break
        path.append(entry.parent_id)
    return path


@given(parents, st.data())
def test_those_expire_off_main_that_forked_from_it_and_that_nothing_references(
    off_main: list[int | None], data: st.DataObject
) -> None:
    ages = data.draw(st.lists(st.integers(0, 9), min_size=len(off_main), max_size=len(off_main)))
    tags = data.draw(st.sets(st.integers(1, HEAD + len(off_main)), max_size=3))
    history = make_history(off_main, ages)
    refs = {"main": HEAD} | {f"tag-{number}": number for number in tags}

    found = decide_expiry(history, refs, NOW_MS, WINDOW)

    main = {entry.snapshot_id for entry in walk_ancestors(history)}
    others = [number for number in history.entries if number not in main]
    cutoff = WINDOW.abandoned_cutoff_ms(NOW_MS)
    young = [n for n in others if history.entries[n].committed_at_ms > cutoff]
    held = {n for root in (*refs.values(), *young) for n in walk(history, root, main)}
    forked = [n for n in others if n not in held and walk(history, n, main)[-1] in main]
    assert found.abandoned_ids == tuple(forked)


def count_expiry(snapshots: int, age_days: int, *, has_tags: bool) -> int:
    """Count the steps of an expiry beside one chain of snapshots off main."""
    chain: list[int | None] = [1, *range(HEAD + 1, HEAD + snapshots)]
    history = make_history(chain, [age_days] * snapshots)
    tags = {f"tag-{n}": n for n in range(HEAD + 1, HEAD + snapshots, 2)} if has_tags else {}
    return count_steps(lambda: decide_expiry(history, {"main": HEAD, **tags}, NOW_MS, WINDOW))


@pytest.mark.parametrize(
    ("age_days", "has_tags"),
    [(30, False), (0, False), (30, True)],
    ids=["abandoned", "too young", "tagged"],
)
def test_twice_the_snapshots_off_main_take_twice_the_steps(
    age_days: int, *, has_tags: bool
) -> None:
    few = count_expiry(100, age_days, has_tags=has_tags)
    many = count_expiry(200, age_days, has_tags=has_tags)

    assert many < 2.5 * few
