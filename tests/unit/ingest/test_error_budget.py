"""How many bad records may pass, by tolerance (features A11)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.ingest.error_budget import BadRecords, Tolerance, dispose, explain_excess
from frazil.streams.models import Errors

TOLERANCES = st.sampled_from(["none", "invalid_data", "all", "quarantine"])


@st.composite
def records(draw: st.DrawFn) -> BadRecords:
    """Draw a batch: invalid ≤ bad ≤ read."""
    read = draw(st.integers(0, 1000))
    bad = draw(st.integers(0, read))
    return BadRecords(read, bad, draw(st.integers(0, bad)))


@pytest.mark.parametrize(
    ("errors", "found", "reason"),
    [
        (Errors(tolerance="none"), BadRecords(100, 0, 0), None),
        (Errors(tolerance="none"), BadRecords(100, 1, 0), "tolerance is none"),
        (Errors(tolerance="invalid_data"), BadRecords(100, 100, 100), None),
        (
            Errors(tolerance="invalid_data"),
            BadRecords(100, 3, 2),
            "1 record is bad for other reasons",
        ),
        (Errors(tolerance="all"), BadRecords(100, 100, 0), None),
        (Errors(max_bad_ratio=0.05), BadRecords(100, 5, 0), None),
        (Errors(max_bad_ratio=0.05), BadRecords(100, 6, 0), "6 of 100 records are bad; errors."),
        (Errors(max_bad_ratio=0), BadRecords(100, 1, 0), "max_bad_ratio is 0"),
        (Errors(), BadRecords(1, 1, 1), None),
        (Errors(), BadRecords(2, 2, 2), "2 of 2 records are bad"),
        (Errors(max_bad_records=0), BadRecords(19, 1, 1), "max_bad_records is 0"),
        (Errors(max_bad_ratio=1), BadRecords(100, 100, 0), None),
        (Errors(max_bad_ratio=1, max_bad_records=9), BadRecords(100, 9, 0), None),
        (Errors(max_bad_ratio=1, max_bad_records=9), BadRecords(100, 10, 0), "max_bad_records is"),
        (Errors(max_bad_ratio=0, max_bad_records=0), BadRecords(100, 90, 0, quarantined=90), None),
        (
            Errors(max_bad_ratio=0.1),
            BadRecords(100, 92, 0, quarantined=90),
            "2 of 10 records are bad",
        ),
    ],
    ids=[
        "none: no bad record passes",
        "none: one bad record stops",
        "invalid_data: undecodable ones pass",
        "invalid_data: a missing required column stops",
        "all: everything passes",
        "quarantine: exactly the ratio passes",
        "quarantine: one above the ratio stops",
        "quarantine: a ratio of 0 stops at one",
        "quarantine: one bad record alone passes",
        "quarantine: two may stop",
        "quarantine: a count of 0 stops at one",
        "quarantine: a ratio of 1 never stops",
        "quarantine: exactly the count passes",
        "quarantine: one above the count stops",
        "quarantine: what was put aside does not count",
        "quarantine: and does not dilute the rest",
    ],
)
def test_a_batch_stops_where_its_budget_ends(
    errors: Errors, found: BadRecords, reason: str | None
) -> None:
    answer = explain_excess(errors, found)

    assert (answer is None) if reason is None else (answer is not None and reason in answer)


@given(TOLERANCES, records())
def test_every_bad_record_is_either_a_dead_letter_or_skipped(
    tolerance: Tolerance, found: BadRecords
) -> None:
    disposal = dispose(Errors(tolerance=tolerance), found)

    assert disposal.quarantined + disposal.skipped == found.bad
    assert disposal.quarantined == (found.bad if tolerance == "quarantine" else 0)
