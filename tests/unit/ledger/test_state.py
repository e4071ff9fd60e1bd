"""State and hint survive their text, and many partitions do not bloat a snapshot."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lake import make_state

from frazil.errors import UnknownStateError
from frazil.ledger.state import (
    Hint,
    StreamState,
    encode_hint,
    encode_state,
    parse_hint,
    parse_state,
)

TEXT = st.text(max_size=20)
OFFSETS = st.lists(st.integers(0, 2**63 - 1), max_size=300).map(tuple)
STATES = st.builds(
    StreamState,
    epoch=st.integers(0, 10**9),
    batch=TEXT,
    offsets=st.dictionaries(TEXT, OFFSETS, max_size=3),
    topic_ids=st.dictionaries(TEXT, TEXT, max_size=3),
    cluster_id=TEXT,
)


@given(STATES)
def test_a_state_survives_its_text(state: StreamState) -> None:
    assert parse_state(encode_state(state)) == state


@given(st.builds(Hint, st.integers(0), TEXT, st.integers(0, 2**63 - 1)))
def test_a_hint_survives_its_text(hint: Hint) -> None:
    assert parse_hint(encode_hint(hint)) == hint


def test_a_small_state_is_json_that_people_can_read() -> None:
    text = encode_state(make_state({"orders": (3, 0)}, epoch=7, batch="b7"))

    assert text == (
        '{"v":1,"epoch":7,"batch":"b7","offsets":{"orders":[3,0]},'
        '"topic-ids":{"orders":"topic-id-1"},"cluster-id":"cluster-1"}'
    )


GOOD = encode_state(make_state({"orders": (3, 0)}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (GOOD.replace('"v":1', '"v":2'), "version 2, this release reads 1"),
        (GOOD.replace('"offsets"', '"places"'), "KeyError: 'offsets'"),
        (GOOD.replace("[3,0]", '"3,0"'), "invalid literal"),
        (GOOD[:-5], "JSONDecodeError"),
        ("[]", "TypeError"),
        ("z:AAAA", "error"),
    ],
    ids=["newer", "other key", "other type", "cut off", "no object", "not compressed"],
)
def test_a_state_of_another_form_is_an_error_with_a_way_out(text: str, words: str) -> None:
    with pytest.raises(UnknownStateError, match=words) as refusal:
        parse_state(text)

    assert "--reingest" in refusal.value.next_step


@pytest.mark.parametrize("text", ["", "{}", '{"epoch":"x","batch":"b","snapshot-id":1}'])
def test_a_hint_of_another_form_halts_too(text: str) -> None:
    with pytest.raises(UnknownStateError, match=r"frazil\.hint"):
        parse_hint(text)


def test_moving_a_state_keeps_what_it_reads_from() -> None:
    state = make_state()

    moved = state.moved(4, "b4", {"orders": (1, 2)})

    assert (moved.epoch, moved.batch, moved.offsets) == (4, "b4", {"orders": (1, 2)})
    assert (moved.topic_ids, moved.cluster_id) == (state.topic_ids, state.cluster_id)
