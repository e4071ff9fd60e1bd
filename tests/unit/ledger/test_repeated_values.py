"""A name or reason that repeats an erased value is found, also among very many values."""

import re
import time

from hypothesis import example, given
from hypothesis import strategies as st

from frazil.ledger.repeated_values import repeats_any

BETWEEN = r"[,.'\u2019/() \u00a0\u202f-]"


@example("1234567", "12 34567")
@example("1234567", "012 34567")
@given(
    st.text("12", min_size=7, max_size=9),
    st.text("12 ,-x", max_size=40) | st.text("1 ", min_size=7),
)
def test_digits_are_found_in_any_grouping(digits: str, text: str) -> None:
    pattern = f"(?<![0-9]){f'{BETWEEN}{{0,3}}'.join(digits)}(?![0-9])"

    assert repeats_any(text, [digits]) == (digits in text or bool(re.search(pattern, text)))


def test_very_many_values_are_compared_within_seconds() -> None:
    values = [str(number) for number in range(70_000_000, 70_030_000)]
    started = time.monotonic()

    assert not repeats_any("jane@example.org request 12 of 2026-01-15, 70 030 000", values)
    assert repeats_any("jane@example.org request 12 for 70 029 999", values)
    assert time.monotonic() - started < 10
