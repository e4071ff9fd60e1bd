"""Which patterns RE2 may search for, beside Java: those whose automaton stays small.

It has a state for each set of places in the pattern at which a text may stand. Where these sets are
many, as for `[a-z].{0,50}X`, it is fifty times slower than Java. They are few where the pattern has
few places, is nothing but texts, or begins with the text and repeats one character at most.
"""

from collections.abc import Iterable
from itertools import dropwhile
from typing import cast

from frazil.java_regex import SINGLE, Node, Tree, parse_pattern, read_repeat, to_ascii_regex

_MOST, _MOST_UNSURE = 256, 12
"""Places. With these a million texts of 300 characters took 1.4 seconds of CPU at most."""

_BEGINNINGS = frozenset({"AT_BEGINNING", "AT_BEGINNING_STRING"})


def to_re2_regex(pattern: str) -> str | None:
    """Write a Python pattern for RE2, to search texts of printable ASCII, or None."""
    return to_ascii_regex(pattern) if _is_cheap(parse_pattern(pattern)) else None


def _is_cheap(tree: Tree) -> bool:
    places = _count(tree)
    if places <= _MOST_UNSURE or places > _MOST:
        return places <= _MOST_UNSURE
    if _is_text(tree):
        return True
    if str(tree[0][1]) not in _BEGINNINGS:
        return False
    rest = [node for node in dropwhile(_is_fixed, tree) if str(node[0]) != "AT"]
    return _count(rest) <= _MOST_UNSURE or (len(rest) == 1 and _repeats_one(rest[0]))


def _count(nodes: Iterable[Node]) -> int:
    """Count the characters that a pattern spells out, as often as they may come."""
    return sum(map(_count_node, nodes))


def _count_node(node: Node) -> int:
    match str(node[0]):
        case "AT":
            return 0
        case "BRANCH":
            return sum(map(_count, _list_branches(node)))
        case "SUBPATTERN":
            return _count(_enter_group(node))
        case "MAX_REPEAT" | "MIN_REPEAT":
            low, high, inner = read_repeat(node[1])
            return max(low + 1 if high is None else high, 1) * _count(inner)
    return 1


def _is_text(nodes: Iterable[Node]) -> bool:
    """Say whether a pattern is nothing but texts, of which one has to be there."""
    return all(
        str(node[0]) in ("LITERAL", "AT")
        or (str(node[0]) == "BRANCH" and all(map(_is_text, _list_branches(node))))
        or (str(node[0]) == "SUBPATTERN" and _is_text(_enter_group(node)))
        for node in nodes
    )


def _is_fixed(node: Node) -> bool:
    """Say whether a node takes a fixed number of single characters."""
    if str(node[0]) in SINGLE | {"AT"}:
        return True
    return _repeats_one(node) and read_repeat(node[1])[0] == read_repeat(node[1])[1]


def _repeats_one(node: Node) -> bool:
    """Say whether a node repeats a single character."""
    if str(node[0]) not in ("MAX_REPEAT", "MIN_REPEAT"):
        return False
    inner = read_repeat(node[1])[2]
    return len(inner) == 1 and str(inner[0][0]) in SINGLE


def _list_branches(node: Node) -> list[Tree]:
    return cast("tuple[object, list[Tree]]", node[1])[1]


def _enter_group(node: Node) -> Tree:
    return cast("tuple[Tree, ...]", node[1])[-1]
