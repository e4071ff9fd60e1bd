"""The error budget of a replay: dry run and real run decide by the same facts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lake import make_stream

from frazil.recovery.messages import Differences
from frazil.recovery.replay_rules import count_bad, explain_refusal

COUNTS = st.integers(0, 50)


@given(same=COUNTS, letters=COUNTS, invalid=COUNTS, other=COUNTS, ratio=st.sampled_from([0, 0.05]))
def test_only_bad_records_that_have_a_row_count(
    same: int, letters: int, invalid: int, other: int, ratio: float
) -> None:
    bad, read = invalid + other, same + letters + invalid + other
    found = Differences(
        rows_now=same + bad,
        rows_read=read,
        rows_good=same,
        same=same,
        now_bad=bad,
        now_invalid=invalid,
    )

    refusal = explain_refusal(make_stream(errors={"max_bad_ratio": ratio}), found)

    assert (refusal is not None) == (bad > ratio * read and (ratio == 0 or bad > 1))
    assert count_bad(found) == letters + bad
    tolerant = make_stream(errors={"tolerance": "invalid_data"})
    assert (explain_refusal(tolerant, found) is not None) == (other > 0)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Differences(rows_read=10, now_bad=5, now_elsewhere=5, rows_elsewhere=5), None),
        (Differences(rows_read=10, now_bad=5, now_set_aside=5), None),
        (Differences(rows_read=10, truncates=1), "1 event says that the source table was trunc"),
    ],
    ids=["of another stream", "set aside by review", "a truncated source"],
)
def test_what_is_no_error_does_not_count_and_a_truncated_source_does(
    found: Differences, reason: str | None
) -> None:
    refusal = explain_refusal(make_stream(errors={"max_bad_ratio": 0}), found)

    assert (refusal is None) if reason is None else (refusal is not None and reason in refusal)
