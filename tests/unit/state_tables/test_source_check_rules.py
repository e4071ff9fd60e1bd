"""Keys in motion are never called different; those that are different are found."""

import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.source_model import SourceModel

from frazil.state_tables import source_check_rules
from frazil.state_tables.source_check_rules import (
    FirstPass,
    Reading,
    Row,
    RowPair,
    Suspect,
    find_differing_parts,
    find_position,
    format_lsn,
    is_proven,
    judge,
    parse_lsn,
)

SEEDS = st.integers(0, 2**32)
ALL = 10**6


def verify(model: SourceModel, passes: int, batch: int) -> Iterator[tuple[int, Suspect, Reading]]:
    """Compare several times; yield each suspect of each further pass, until it is equal."""
    first, now = model.read()
    suspects = {key: Suspect(pair, now, now) for key, pair in first.items() if not pair.is_equal}
    for _ in range(passes):
        model.write(model.dice.randrange(12))
        model.fold(model.dice.randrange(batch))
        found, now = model.read()
        for key, suspect in [*suspects.items()]:
            suspects[key] = suspect.compare_again(found[key], now)
            if found[key].is_equal:
                del suspects[key]
            else:
                yield key, suspects[key], now


def begin(seed: int) -> SourceModel:
    model = SourceModel(random.Random(seed))
    model.write(30)
    model.fold(model.dice.randrange(15))
    return model


@given(SEEDS)
def test_a_key_that_changes_is_never_called_different(seed: int) -> None:
    model = begin(seed)

    for _, suspect, now in verify(model, passes=12, batch=14):
        assert not is_proven(suspect, now)
        assert judge(suspect, now, waiting=True) in {"in_motion", "behind"}


@given(SEEDS, st.sampled_from(["different", "missing", "extra"]))
def test_a_planted_difference_is_found_once_the_state_has_passed_it(seed: int, kind: str) -> None:
    model = begin(seed)
    model.settle()
    model.fold(ALL)
    key = model.dice.choice([*model.rows] or [0])
    if kind == "extra" or key not in model.rows:
        key, kind = 99, "extra"
    model.frozen = frozenset({key})
    model.state.pop(key, None)
    if kind != "missing":
        model.state[key] = Row(b"?", b"planted", 7)

    found = [
        judge(suspect, now, waiting=True)
        for each, suspect, now in verify(model, passes=40, batch=ALL)
        if each == key and is_proven(suspect, now)
    ]

    assert found
    assert set(found) == {kind}


SOURCE, STATE = Row(b"k", b"v", 5), Row(b"k", b"w", 9)
DIFFERENT = RowPair(SOURCE, STATE)


def at(lsn: int, position: int | None, seconds: float) -> Reading:
    return Reading(lsn, position, seconds)


FIRST = at(100, 50, 0)


@pytest.mark.parametrize(
    ("again", "now", "waiting", "verdict"),
    [
        (DIFFERENT, at(200, 100, 1), True, "different"),
        (DIFFERENT, at(200, 99, 1), True, "behind"),
        (DIFFERENT, at(200, None, 60), True, "behind"),
        (DIFFERENT, at(200, None, 60), False, "different"),
        (DIFFERENT, at(200, None, 9), False, "behind"),
        (DIFFERENT, at(200, 201, 1), True, "behind"),
        (RowPair(SOURCE._replace(version=6), STATE), at(200, 150, 1), True, "in_motion"),
        (RowPair(SOURCE, STATE._replace(row=b"x")), at(200, 150, 1), True, "in_motion"),
        (RowPair(None, STATE), at(200, 150, 1), True, "in_motion"),
        (RowPair(SOURCE, SOURCE), at(200, 150, 1), True, "equal"),
        (RowPair(None, None), at(200, 150, 1), True, "equal"),
    ],
    ids=[
        "the state has passed the LSN",
        "the state has not reached it",
        "no position, and changes wait",
        "both sides stood still and nothing waits",
        "not for long enough",
        "the source is a standby that lags",
        "the source was written, with the same values",
        "the state moved",
        "the source's row was deleted",
        "the state has followed",
        "both have deleted it",
    ],
)
def test_a_key_is_judged_by_what_changed_and_how_far_the_state_is(
    again: RowPair, now: Reading, *, waiting: bool, verdict: str
) -> None:
    suspect = Suspect(DIFFERENT, FIRST, FIRST).compare_again(again, now)

    assert judge(suspect, now, waiting=waiting) == verdict


def test_a_row_that_came_and_went_in_the_source_is_not_called_extra() -> None:
    suspect = Suspect(RowPair(None, STATE), FIRST, FIRST)
    now = at(200, 150, 1)

    came = suspect.compare_again(RowPair(None, STATE._replace(version=10)), now)

    assert judge(suspect.compare_again(RowPair(None, STATE), now), now, waiting=True) == "extra"
    assert judge(came, now, waiting=True) == "in_motion"


def row(key: int, value: int, version: int = 0) -> Row:
    """Make a row; digests may end with zeros, which NumPy drops."""
    return Row(key.to_bytes(16, "little"), value.to_bytes(16, "little"), version)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2)), unique_by=lambda pair: pair[0]),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 2)), unique_by=lambda pair: pair[0]),
)
def test_the_first_look_finds_what_a_dictionary_finds(
    source: list[tuple[int, int]], state: list[tuple[int, int]]
) -> None:
    ours, theirs = dict(source), dict(state)
    first = FirstPass.read([[row(*each) for each in state[:5]], [row(*each) for each in state[5:]]])
    first.meet([row(*each) for each in source[:3]])
    first.meet([row(*each) for each in source[3:]])
    first.end()

    differing = {key for key in ours | theirs if ours.get(key) != theirs.get(key)}
    found = {int.from_bytes(key, "little"): pair for key, pair in first.suspects.items()}
    assert found.keys() == differing
    assert {k: pair.source and pair.source.row for k, pair in found.items()} == {
        k: row(k, ours[k]).row if k in ours else None for k in differing
    }
    assert {k: pair.state and pair.state.row for k, pair in found.items()} == {
        k: row(k, theirs[k]).row if k in theirs else None for k in differing
    }
    assert (first.source_rows, first.state_rows) == (len(ours), len(theirs))
    assert first.equal == len((ours | theirs).keys() - differing)


def test_a_key_twice_in_the_state_is_counted() -> None:
    first = FirstPass.read([[row(1, 1), row(2, 2)], [row(1, 3)]])

    assert (first.state_rows, first.duplicates) == (2, 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=12), st.integers(0, 12))
def test_rows_of_the_source_with_the_key_of_another_row_are_counted(
    source: list[tuple[int, int]], split: int
) -> None:
    first = FirstPass.read([[row(key, 0) for key in range(3)]])

    first.meet([row(*each) for each in source[:split]])
    first.meet([row(*each) for each in source[split:]])

    assert first.repeated == len(source) - len({key for key, _ in source})


def test_of_too_many_differing_keys_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_check_rules, "MOST_SUSPECTS", 3)
    first = FirstPass.read([[row(9, 9)]])

    first.meet([row(key, 0) for key in range(5)])
    first.end()

    assert (len(first.suspects), first.unchecked) == (3, 3)


def test_only_values_that_differ_are_named() -> None:
    source, state = (b"a", b"b", b"c"), (b"a", b"x", b"y")
    pair = RowPair(SOURCE._replace(parts=source), STATE._replace(parts=state))

    assert [*find_differing_parts(pair)] == [1, 2]


@pytest.mark.parametrize(
    ("newest", "position"),
    [
        ({("a", 0): 7, ("a", 1): 5}, 5),
        ({("a", 0): 7, ("b", 0): 5}, 5),
        ({("a", 0): 7, ("a", 1): None}, None),
        ({}, None),
    ],
    ids=["the one that is behind", "another topic", "a partition that tells none", "no row"],
)
def test_the_position_is_that_of_the_partition_that_is_behind(
    newest: dict[int, int | None], position: int | None
) -> None:
    assert find_position(newest) == position


@given(st.integers(0, 2**64 - 1))
def test_an_lsn_is_written_as_postgresql_writes_it(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


def test_an_lsn_has_two_hexadecimal_halves() -> None:
    assert format_lsn(31373928) == "0/1DEBA68"
    assert parse_lsn("16/B374D848") == 0x16B374D848
