"""Patterns for texts of printable ASCII match what Python's own match, here by RE2."""

import re
import string

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from frazil.java_regex import to_ascii_regex

PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " "
ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "-",
        ".",
        r"\.",
        "é",
        r"\d",
        r"\D",
        r"\s",
        r"\S",
        "[ab]",
        "[^a]",
        "[a-c7]",
        r"[^\d-]",
    ]
) | st.sampled_from(PRINTABLE).map(re.escape)
ENDS = st.sampled_from(["", "^", "$", r"\A", r"\Z"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format)
        | inner.map("({}){{0,2}}".format)
        | st.tuples(ATOMS, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "*?"])).map("".join)
        | st.tuples(ENDS, inner, ENDS).map("".join)
    ),
    max_leaves=6,
)
TEXTS = st.lists(st.text("ab-. 7") | st.text(PRINTABLE), min_size=1, max_size=20)


@given(PATTERNS, TEXTS)
def test_a_pattern_matches_what_python_says(pattern: str, texts: list[str]) -> None:
    written = to_ascii_regex(pattern)

    assume(written is not None)  # Python makes a class of `a|\D`, which Java has no words for
    found = pc.match_substring_regex(pa.array(texts), written).to_pylist()
    assert found == [re.search(pattern, text) is not None for text in texts]


@pytest.mark.parametrize(
    ("pattern", "re2"),
    [
        ("^[A-Z]{2}$", "^[A-Z]{2,2}$"),
        (r"[\d.]", r"[0-9\x{2e}]"),
        (r"\S", r"[^\x{9}-\x{d}\x{1c}-\x{20}]"),
        ("(?s).", r"[\x{0}-\x{7f}]"),
        (r"\W\b", r"[^0-9A-Z\x{5f}-\x{5f}a-z]\b"),
        (r"[\W_]", None),
        ("(?i)a", None),
        (r"(a)\1", None),
    ],
)
def test_categories_are_spelled_out_as_far_as_ascii_goes(pattern: str, re2: str | None) -> None:
    assert to_ascii_regex(pattern) == re2
