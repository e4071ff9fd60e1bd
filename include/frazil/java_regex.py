r"""Regular expressions of Python, written for Java where both mean the same.

Spark matches with Java's engine, Great Expectations with Python's `re`. They differ in `\w`, `\d`,
`.`, `$`, in flags and in what a brace means. So the pattern is parsed by Python itself, and its
tree is written in the few constructs that mean one thing only. Everything else is None.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import TypeAlias, cast

Node: TypeAlias = tuple[object, object]

_MAX_REPEATS = 1000
_MAX_GROUP_REPEATS = 64
"""Java recurses once per repetition of a group: unbounded ones overflow its stack."""

_UNIX_LINES = "(?d)"
_UNICODE_FLAG, _DOTALL_FLAG, _VERBOSE_FLAG = 32, 16, 64
_MAX_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_SINGLE = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN"})
_ANCHORS = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": r"\A",
    "AT_END": "$",
    "AT_END_STRING": r"\z",
}


class UntranslatableError(Exception):
    """The pattern holds something that Java reads differently."""


@dataclass(frozen=True)
class Scope:
    """What surrounds a node: the flag `s`, and how often groups around it may repeat it."""

    dotall: bool
    repeats: int = 1


def to_java_regex(pattern: str) -> str | None:
    """Write a Python pattern for Java's `find()`, or None if it cannot be done exactly."""
    # The tree is private to `re`; a test fails if it ever changes.
    tree = import_module("re._parser").parse(pattern)
    flags = int(tree.state.flags)
    if flags & ~(_UNICODE_FLAG | _DOTALL_FLAG | _VERBOSE_FLAG):
        return None
    try:
        return _UNIX_LINES + _write_sequence(tree, Scope(bool(flags & _DOTALL_FLAG)))
    except UntranslatableError:
        return None


def _write_sequence(nodes: Sequence[Node], scope: Scope) -> str:
    return "".join(_write_node(node, scope) for node in nodes)


def _write_node(node: Node, scope: Scope) -> str:
    write = _WRITERS.get(str(node[0]))
    if write is None:
        raise UntranslatableError
    return write(node[1], scope)


def _write_any(_: object, scope: Scope) -> str:
    return f"[\\x{{0}}-\\x{{{_MAX_POINT:x}}}]" if scope.dotall else "."


def _write_anchor(where: object, _: Scope) -> str:
    if str(where) not in _ANCHORS:
        raise UntranslatableError
    return _ANCHORS[str(where)]


def _write_branch(argument: object, scope: Scope) -> str:
    _, branches = cast("tuple[object, list[Sequence[Node]]]", argument)
    return f"(?:{'|'.join(_write_sequence(branch, scope) for branch in branches)})"


def _write_group(argument: object, scope: Scope) -> str:
    _, added, removed, inner = cast("tuple[object, int, int, Sequence[Node]]", argument)
    if added or removed:
        raise UntranslatableError
    return f"(?:{_write_sequence(inner, scope)})"


def _write_lookahead(argument: object, scope: Scope, sign: str) -> str:
    direction, inner = cast("tuple[int, Sequence[Node]]", argument)
    if direction < 0:
        raise UntranslatableError
    return f"(?{sign}{_write_sequence(inner, scope)})"


def _write_repeat(argument: object, scope: Scope, lazy: str) -> str:
    low, high, inner = cast("tuple[int, int, Sequence[Node]]", argument)
    most = None if str(high) == "MAXREPEAT" else int(high)
    if max(low, most or 0) > _MAX_REPEATS:
        raise UntranslatableError
    if len(inner) == 1 and str(inner[0][0]) in _SINGLE:
        return _repeat(_write_sequence(inner, scope), low, most) + lazy
    repeats = scope.repeats * (_MAX_GROUP_REPEATS + 1 if most is None else max(most, 1))
    if repeats > _MAX_GROUP_REPEATS:
        raise UntranslatableError
    return f"(?:{_write_sequence(inner, replace(scope, repeats=repeats))}){{{low},{most}}}{lazy}"


def _repeat(atom: str, low: int, most: int | None) -> str:
    """Prefer `*` and `+`: Java repeats a single character so without recursion."""
    if most is not None:
        return f"{atom}{{{low},{most}}}"
    return f"{atom}+" if low == 1 else f"{atom}{{{low}}}{atom}*" if low else f"{atom}*"


def _write_class(argument: object, _: Scope) -> str:
    items = cast("list[Node]", argument)
    negated = str(items[0][0]) == "NEGATE"
    rest = items[1:] if negated else items
    if len(rest) == 1 and str(rest[0][0]) == "CATEGORY" and "_NOT_" in str(rest[0][1]):
        if negated:
            raise UntranslatableError
        return f"[^{_write_category(str(rest[0][1]).replace('_NOT', ''))}]"
    return f"[{'^' if negated else ''}{''.join(map(_write_member, rest))}]"


def _write_member(item: Node) -> str:
    match str(item[0]), item[1]:
        case "LITERAL", int(point):
            return _write_point(point)
        case "RANGE", (int(first), int(last)):
            return f"{_write_point(first)}-{_write_point(last)}"
        case "CATEGORY", category:
            return _write_category(str(category))
    raise UntranslatableError


def _write_category(category: str) -> str:
    r"""Spell `\d` and `\s` out as Python's own character tables have them."""
    tests = {"CATEGORY_DIGIT": str.isdecimal, "CATEGORY_SPACE": str.isspace}
    if category not in tests:
        raise UntranslatableError
    return _spell_out(tests[category])


@cache
def _spell_out(test: Callable[[str], bool]) -> str:
    return "".join(
        f"{_write_point(first)}-{_write_point(last)}" for first, last in _list_ranges(test)
    )


def _list_ranges(test: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    start: int | None = None
    for point in range(_MAX_POINT + 2):
        inside = point <= _MAX_POINT and test(chr(point))
        if inside and start is None:
            start = point
        elif not inside and start is not None:
            yield start, point - 1
            start = None


def _write_point(point: int) -> str:
    if point in _SURROGATES:
        raise UntranslatableError
    character = chr(point)
    return character if character.isascii() and character.isalnum() else f"\\x{{{point:x}}}"


_WRITERS: Mapping[str, Callable[[object, Scope], str]] = {
    "LITERAL": lambda point, _: _write_point(cast("int", point)),
    "NOT_LITERAL": lambda point, _: f"[^{_write_point(cast('int', point))}]",
    "ANY": _write_any,
    "IN": _write_class,
    "AT": _write_anchor,
    "BRANCH": _write_branch,
    "SUBPATTERN": _write_group,
    "ASSERT": lambda argument, scope: _write_lookahead(argument, scope, "="),
    "ASSERT_NOT": lambda argument, scope: _write_lookahead(argument, scope, "!"),
    "MAX_REPEAT": lambda argument, scope: _write_repeat(argument, scope, ""),
    "MIN_REPEAT": lambda argument, scope: _write_repeat(argument, scope, "?"),
}
