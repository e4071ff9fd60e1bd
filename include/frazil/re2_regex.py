"""Which patterns RE2 may search for, beside Java: those that it finds as fast.

Its automaton has a state for each set of places in the pattern at which a text may stand. Where
these sets are many, as for `[a-z].{0,50}X`, it is fifty times slower than Java.
"""

import math
from collections.abc import Iterator
from typing import cast

from frazil.java_regex import Tree, parse_pattern, read_repeat, to_ascii_regex

_MAX_LOOSE, _MAX_PLACES = 12, 256
"""With these a million texts of 300 characters took a second of CPU, whatever the pattern."""

_BEGINNINGS = frozenset({"AT_BEGINNING", "AT_BEGINNING_STRING"})


def to_re2_regex(pattern: str) -> str | None:
    """Write a Python pattern for RE2, to search texts of printable ASCII, or None."""
    return to_ascii_regex(pattern) if _is_cheap(parse_pattern(pattern)) else None


def _is_cheap(tree: Tree) -> bool:
    """Say whether an automaton stays small: of few loose places, or with a begin and an end."""
    places = [*_list_places(tree, most=1, loose=0)]
    if sum(loose for _, loose in places) <= _MAX_LOOSE:
        return True
    is_anchored = str(tree[0][0]) == "AT" and str(tree[0][1]) in _BEGINNINGS
    return is_anchored and sum(most for most, _ in places) <= _MAX_PLACES


def _list_places(nodes: Tree, most: float, loose: int) -> Iterator[tuple[float, int]]:
    """Yield for each character of a pattern how often it may come, and how many loose places it is.

    Loose is what more than one character may fill, or the same one more than once.
    """
    for kind, argument in nodes:
        match str(kind):
            case "AT":
                pass
            case "BRANCH":
                for branch in cast("tuple[object, list[Tree]]", argument)[1]:
                    yield from _list_places(branch, most, loose)
            case "SUBPATTERN":
                yield from _list_places(cast("tuple[Tree, ...]", argument)[-1], most, loose)
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, inner = read_repeat(argument)
                times = math.inf if high is None else max(high, 1)
                places = max(loose, 1) * max(low + 1 if high is None else high, 1)
                yield from _list_places(inner, most * times, places)
            case word:
                yield most, loose or int(word != "LITERAL")
