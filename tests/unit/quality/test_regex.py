"""Patterns written for RE2 match what Python's own match, in texts of printable ASCII."""

import re
import string

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from frazil.quality.catalogue import explain_wrong_argument
from frazil.quality.expectations import Json
from frazil.quality.regex import to_re2_regex


def is_pattern(text: str) -> bool:
    """Return whether Python takes it; it repeats no end of a word."""
    try:
        re.compile(text)
    except re.error:
        return False
    return True


PRINTABLE = string.digits + string.ascii_letters + string.punctuation + " "
SETS = ("[ab]", "[^a]", "[a-c7]", r"[^\d-]", r"[\w.]")
ESCAPES = (r"\.", r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", r"\b")
ATOMS = st.sampled_from([*"ab-.é", *SETS, *ESCAPES, *map(re.escape, PRINTABLE)])
ENDS = st.sampled_from(["", "^", "$", r"\A", r"\Z"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map("".join)
        | st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format)
        | st.tuples(inner, st.sampled_from(["{0,2}", "{2}", "{2,3}?"])).map("({0[0]}){0[1]}".format)
        | st.tuples(ATOMS, st.sampled_from(["*", "+", "?", "{2}", "{1,}", "*?"])).map("".join)
        | st.tuples(ENDS, inner, ENDS).map("".join)
    ),
    max_leaves=6,
).filter(is_pattern)
TEXTS = st.lists(st.text("ab-. 7") | st.text(PRINTABLE), min_size=1, max_size=20)


@given(PATTERNS, TEXTS)
def test_a_pattern_matches_what_python_says(pattern: str, texts: list[str]) -> None:
    written = to_re2_regex(pattern)

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
    assert to_re2_regex(pattern) == re2


@pytest.mark.parametrize(
    ("pattern", "is_cheap"),
    [
        ("[a-z].{0,50}X", False),
        ("a.{20}z", False),
        ("@.{1,255}z", False),
        ("^.*a.{20}z", False),
        ("^.{10,1000}$", False),
        ("^(?:[a-z]{1,8} ?){1,40}$", False),
        ("a{50}", False),
        ("^[ab]{0,128}a[ab]{126}X", False),
        ("^.{1,64}@.{1,150}[.][a-z]{2,10}$", False),
        ("^.{0,100} .{0,100}error$", False),
        ("a.{11}(?:abbaababab|bbaabbabbb)z", False),
        ("^(?:[ab]{2}){40}X", False),
        ("[a-z].{10}X", True),
        ("^SKU-.{8}[0-9]{1,200}$", True),
        ("^[0-9a-f]{64}.?[ab]{2,4}$", True),
        ("^.{1,255}$", True),
        ("^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}$", True),
        (r"^[\w.+-]+@[\w-]+\.[\w.]+$", True),
        ("Chrome|Firefox|Safari|Mozilla", True),
        ("", True),
    ],
)
def test_patterns_that_make_an_automaton_grow_are_left_to_java(
    pattern: str, *, is_cheap: bool
) -> None:
    assert (to_re2_regex(pattern) is not None) is is_cheap


@given(PATTERNS)
def test_what_is_written_is_what_re2_takes(pattern: str) -> None:
    written = to_re2_regex(f"^{pattern * 3}")

    assume(written is not None)
    assert len(pc.match_substring_regex(pa.array(["a" * 300]), written)) == 1


@pytest.mark.parametrize("value", ["abc", "^AB-[0-9]+$", "(?i)a", [], [1]])
def test_a_list_of_patterns_is_a_list(value: Json) -> None:
    assert explain_wrong_argument("regexes", value) is not None
    assert explain_wrong_argument("regexes", ["abc"]) is None


@pytest.mark.parametrize("value", [["abc"], 1, None, {}])
def test_one_pattern_is_a_text(value: Json) -> None:
    assert explain_wrong_argument("regex", value) is not None
    assert explain_wrong_argument("regex", "abc") is None
