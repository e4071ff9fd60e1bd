"""Which letters count, which came back, and which a person chose."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest

from frazil.errors import ConfigurationError, StageStaleError
from frazil.ingest.dead_letters import (
    Resolved,
    group_dead_letters,
    list_slices,
    resolve_dead_letters,
)
from frazil.ledger.coordinates import Offsets
from frazil.ledger.history import UNCLAIMED, Span, Spans, Step
from frazil.ledger.recovery_point import LedgerEntry, keys
from frazil.ledger.state import StreamState
from frazil.recovery.messages import DeadLetterChoice, parse_choice
from frazil.recovery.redrive_rules import (
    MAX_DEAD_LETTERS,
    choose_dead_letters,
    find_incarnation_end,
    split_dead_letters,
    validate_choice,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
ONE = datetime(2026, 3, 1, 13, tzinfo=UTC)
OPEN = (True, -1)
NOTHING = (False, -1)
"""Neither does the letter count, nor did a redrive bring it back."""


def offsets_of(*offsets: int) -> Offsets:
    return np.array(offsets, dtype=np.int64)


@pytest.mark.parametrize(
    ("index", "spans", "taken", "expected"),
    [
        (0, [Span(0, 9, 0)], {}, OPEN),
        (-1, [Span(0, 9, 0)], {}, NOTHING),
        (0, [Span(0, 9, 0)], {1: offsets_of(4)}, (False, 1)),
        (0, [Span(0, 9, 0)], {1: offsets_of(3, 5)}, OPEN),
        (0, [Span(0, 9, 0), Span(0, 9, 2)], {1: offsets_of(4)}, NOTHING),
        (2, [Span(0, 9, 0), Span(0, 9, 2)], {1: offsets_of(4)}, OPEN),
        (2, [Span(0, 9, 0), Span(0, 9, 2)], {1: offsets_of(4), 3: offsets_of(4)}, (False, 3)),
    ],
    ids=[
        "of a batch on main",
        "of an abandoned attempt",
        "listed by a redrive",
        "its neighbours are listed",
        "read again later, and good then",
        "read again after the redrive, and bad again",
        "and brought back a second time",
    ],
)
def test_a_letter_counts_by_main_alone(
    index: int, spans: list[Span], taken: dict[int, Offsets], expected: tuple[bool, int]
) -> None:
    listed = {place: Resolved(offsets, place) for place, offsets in taken.items()}

    resolution = resolve_dead_letters(offsets_of(4), offsets_of(index), Spans(tuple(spans)), listed)

    assert (bool(resolution.is_open[0]), int(resolution.resolved_by_step[0])) == expected


@pytest.mark.parametrize(
    ("taken", "is_open"),
    [
        ({}, [True, True, True]),
        ({3: Resolved(offsets_of(3, 7), 3)}, [True, False, False]),
        ({3: Resolved(offsets_of(3, 7), 1)}, [False, True, False]),
        ({3: Resolved(offsets_of(3), 1), 4: Resolved(offsets_of(3), 4)}, [False, False, True]),
        ({3: Resolved(offsets_of(3, 7), 0)}, [True, True, True]),
    ],
    ids=["none came back", "of today's log", "of the old log", "of both", "of a log unknown"],
)
def test_letters_of_a_log_that_ended_count_beside_those_at_the_same_offsets(
    taken: dict[int, Resolved], is_open: list[bool]
) -> None:
    spans = Spans((Span(0, 5, 2),), (Span(0, 10, 0),), restarts=(1,))

    resolution = resolve_dead_letters(offsets_of(3, 3, 7), offsets_of(0, 2, 0), spans, taken)

    assert resolution.is_open.tolist() == is_open
    assert resolution.incarnation_ends.tolist() == [1, UNCLAIMED, 1]


LETTERS = pa.table(
    {
        "topic": ["a", "a", "a", "b"],
        "partition": pa.array([0, 0, 1, 0], pa.int64()),
        "offset": pa.array([4, 5, 4, 4], pa.int64()),
        "schema_id": pa.array([None, 7, 8, None], pa.int64()),
        "attempt": ["one", "two", "one", "one"],
        "reason": ["type_mismatch", "null_value", "type_mismatch", None],
        "quarantined_at": pa.array([NOON, ONE, ONE, ONE], pa.timestamp("us", tz="UTC")),
        "resolved_by": pa.array([None] * 4, pa.string()),
    }
)


@pytest.mark.parametrize(
    ("chosen", "places"),
    [
        ({}, [0, 1, 2, 3]),
        ({"reasons": ["type_mismatch"]}, [0, 2]),
        ({"reasons": ["bad_key"]}, []),
        ({"since": "2026-03-01T13:00:00Z"}, [1, 2, 3]),
        ({"until": "2026-03-01T13:00:00Z"}, [0]),
        ({"since": "2026-03-01T14:00:00+02:00"}, [0, 1, 2, 3]),
        ({"offsets": ["a:0:4-5", "b:0:0-9"]}, [0, 3]),
        ({"schema_ids": [7, 9]}, [1]),
        ({"reasons": ["type_mismatch"], "offsets": ["a:0:0-100"]}, [0]),
    ],
    ids=str,
)
def test_a_choice_names_the_letters_that_all_of_it_fits(
    chosen: dict[str, object], places: list[int]
) -> None:
    choice = parse_choice({"stream": "orders", **chosen})

    found = choose_dead_letters(LETTERS, np.ones(4, dtype=np.bool_), choice)

    assert found.tolist() == places


READ = StreamState(1, "b", {"a": (9, 9), "b": (9,)}, {}, "c")
STEPS = (Step(LedgerEntry(10, None, 0, {}), keys.INGEST, None, READ, {}),)


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        (
            {"offsets": ["a:1:0-9", "aa:0:0-9"]},
            r"never read aa:0 .*; it read a:0 to a:1, b:0 to b:0",
        ),
        ({"offsets": ["b:1:0-9"]}, r"never read b:1"),
        ({"offsets": ["a:1:0-9,aa:0:0-9"]}, r"never read aa:0 \(of aa:0:0-9\)"),
        ({"schema_ids": [7, 70]}, r"schema id 70; schema ids of its dead letters: 7, 8"),
    ],
    ids=["topic", "partition", "several in one text", "schema id"],
)
def test_a_choice_of_what_the_stream_never_read_is_refused(
    chosen: dict[str, object], says: str
) -> None:
    validate_choice(parse_choice({"stream": "orders", "offsets": ["a:1:0-9"]}), STEPS, LETTERS)

    with pytest.raises(ConfigurationError, match=says):
        validate_choice(parse_choice({"stream": "orders", **chosen}), STEPS, LETTERS)


def test_a_letter_that_does_not_count_is_never_chosen() -> None:
    is_open = np.array([True, False, True, True])

    assert choose_dead_letters(LETTERS, is_open, DeadLetterChoice(stream="a")).tolist() == [0, 2, 3]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"offsets": ["a:0:5-5"]}, "its end is exclusive"),
        ({"offsets": ["a-0 5"]}, "topic:partition:start-end"),
        ({"offsets": "a:0:4-5"}, "offsets: Input should be a list"),
        ({"since": "monday"}, "ISO 8601"),
        ({"since": "2026-03-01T00:00:00"}, "has no time zone"),
        ({"since": "2026-03-02T00:00:00Z", "until": "2026-03-01T00:00:00Z"}, "is not before"),
        ({"reasons": ["type_missmatch"]}, "is not a reason; valid reasons: .*type_mismatch"),
        ({"schema_ids": ["x"]}, "integer"),
        ({"stream": ""}, "at least 1"),
        ({"force": True}, "Extra inputs"),
    ],
    ids=str,
)
def test_a_wrong_choice_is_refused_with_its_field(given: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as refused:
        parse_choice({"stream": "orders", **given})

    assert "Value error" not in refused.value.facts


def test_what_a_form_leaves_empty_chooses_all_and_a_dry_run_is_the_default() -> None:
    form = dict.fromkeys(("reasons", "since", "until", "offsets", "schema_ids"))

    assert parse_choice({"stream": "orders", **form}) == DeadLetterChoice(
        stream="orders", dry_run=True
    )


def test_letters_are_grouped_by_attempt_and_partition() -> None:
    grouped = group_dead_letters(LETTERS)

    plain = {a: {p: o.tolist() for p, o in held.items()} for a, held in grouped.items()}
    assert plain == {"one": {("a", 0): [4], ("a", 1): [4], ("b", 0): [4]}, "two": {("a", 0): [5]}}
    assert list_slices(LETTERS) == [(("a", 0), 0, 2), (("a", 1), 2, 3), (("b", 0), 3, 4)]


def test_a_large_choice_is_cut_into_several_redrives() -> None:
    places = np.arange(2 * MAX_DEAD_LETTERS + 1)

    portions = list(split_dead_letters(places, np.full(len(places), UNCLAIMED)))

    assert [len(portion) for portion in portions] == [MAX_DEAD_LETTERS, MAX_DEAD_LETTERS, 1]


def test_a_redrive_takes_letters_of_one_log_and_names_its_end() -> None:
    ends = offsets_of(1, UNCLAIMED, 1, UNCLAIMED)
    gap = Step(LedgerEntry(12, 11, 0, {}), keys.GAP, None, None, {})

    portions = [portion.tolist() for portion in split_dead_letters(offsets_of(0, 1, 2), ends)]

    assert portions == [[1], [0, 2]]
    assert [find_incarnation_end((gap, gap), ends[portion]) for portion in portions] == [None, 12]
    with pytest.raises(StageStaleError, match="created again or moved"):
        find_incarnation_end((gap, gap), ends)
