r"""Translate Python's regular expressions for Java and RE2, where they mean the same.

Spark matches with Java's engine, Great Expectations with Python's `re`. They differ in `\w`, `\d`,
`.`, `$`, in flags and in the meaning of braces. So Python parses the pattern, and its tree is
written with the few constructs that are unambiguous; any other pattern gives None.

For texts of ASCII more constructs agree, and for printable ASCII also with RE2, Arrow's engine.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from itertools import dropwhile
from typing import Any, TypeAlias, cast

Node: TypeAlias = tuple[object, object]
Tree: TypeAlias = Sequence[Node]
_MAX_REPEATS = 1000
_MAX_GROUP_REPEATS = 64
"""Java recurses for each repetition of a group: without a limit its stack overflows."""
MAX_LEVELS = 50
"""Levels of a pattern: what reads it, Great Expectations too, calls itself for each of them."""
_UNIX_LINES = "(?d)"
_UNICODE_FLAG, _DOTALL_FLAG, _VERBOSE_FLAG = 32, 16, 64
_MAX_POINT, _MAX_ASCII = 0x10FFFF, 0x7F
_SURROGATES = range(0xD800, 0xE000)
SINGLE = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN"})
_ANCHORS = {
    "AT_BEGINNING": "^",
    "AT_BEGINNING_STRING": r"\A",
    "AT_END": "$",
    "AT_END_STRING": r"\z",
}
_MAX_CHARACTERS, _MAX_UNANCHORED = 256, 12
"""Characters of a pattern; a million texts of 300 characters then took at most 1.4 CPU seconds."""
_BEGINNINGS = frozenset({"AT_BEGINNING", "AT_BEGINNING_STRING"})


class UntranslatableError(Exception):
    """The pattern has a construct that Java reads differently."""


@dataclass(frozen=True)
class RegexScope:
    """Context of a node: the flag `s`, and how often the groups around it can repeat it.

    `last` is the highest code point of the texts.
    """

    dotall: bool
    repeats: int = 1
    last: int = _MAX_POINT


def to_java_regex(pattern: str, *, ascii_only: bool = False) -> str | None:
    """Write a Python pattern for Java's `find()`; None if no exact translation exists."""
    written = to_ascii_regex(pattern) if ascii_only else _write(pattern, _MAX_POINT)
    return None if written is None else _UNIX_LINES + written


def to_ascii_regex(pattern: str) -> str | None:
    """Write a Python pattern for texts of ASCII; None if no exact translation exists."""
    return _write(pattern, _MAX_ASCII)


def parse_pattern(pattern: str) -> Tree:
    """Parse a pattern as Python does."""
    # The tree is private to `re`; a test fails if it changes.
    tree: Tree = import_module("re._parser").parse(pattern)
    return tree


def is_nested_too_deep(pattern: str) -> bool:
    """Return whether groups, repetitions and alternatives have more than `MAX_LEVELS` levels.

    Raises:
        re.error, OverflowError, RecursionError: Python does not take the pattern.
    """
    waiting: list[tuple[object, int]] = [(parse_pattern(pattern), 0)]
    while waiting:
        node, level = waiting.pop()
        if level > MAX_LEVELS:
            return True
        is_tree = hasattr(node, "getwidth")  # a sequence of nodes; tuples hold one node's arguments
        if is_tree or isinstance(node, list | tuple):
            parts = cast("Iterable[object]", node)
            waiting += [(part, level + is_tree) for part in parts]
    return False


def _write(pattern: str, last: int) -> str | None:
    tree = parse_pattern(pattern)
    flags = int(cast("Any", tree).state.flags)
    if flags & ~(_UNICODE_FLAG | _DOTALL_FLAG | _VERBOSE_FLAG):
        return None
    try:
        return _write_sequence(tree, RegexScope(bool(flags & _DOTALL_FLAG), last=last))
    except UntranslatableError:
        return None


def _write_sequence(nodes: Tree, scope: RegexScope) -> str:
    return "".join(_write_node(node, scope) for node in nodes)


def _write_node(node: Node, scope: RegexScope) -> str:
    write = _WRITERS.get(str(node[0]))
    if write is None:
        raise UntranslatableError
    return write(node[1], scope)


def _write_any(_: object, scope: RegexScope) -> str:
    return f"[\\x{{0}}-\\x{{{scope.last:x}}}]" if scope.dotall else "."


def _write_anchor(where: object, scope: RegexScope) -> str:
    if str(where) == "AT_BOUNDARY" and scope.last == _MAX_ASCII:
        return r"\b"
    if str(where) not in _ANCHORS:
        raise UntranslatableError
    return _ANCHORS[str(where)]


def _write_branch(argument: object, scope: RegexScope) -> str:
    _, branches = cast("tuple[object, list[Tree]]", argument)
    return f"(?:{'|'.join(_write_sequence(branch, scope) for branch in branches)})"


def _write_group(argument: object, scope: RegexScope) -> str:
    _, added, removed, inner = cast("tuple[object, int, int, Tree]", argument)
    if added or removed:
        raise UntranslatableError
    return f"(?:{_write_sequence(inner, scope)})"


def _write_lookahead(argument: object, scope: RegexScope, sign: str) -> str:
    direction, inner = cast("tuple[int, Tree]", argument)
    if direction < 0 or scope.last == _MAX_ASCII:  # RE2 has no lookaround
        raise UntranslatableError
    return f"(?{sign}{_write_sequence(inner, scope)})"


def _write_repeat(argument: object, scope: RegexScope, lazy: str) -> str:
    low, most, inner = read_repeat(argument)
    if max(low, most or 0) > _MAX_REPEATS:
        raise UntranslatableError
    if len(inner) == 1 and str(inner[0][0]) in SINGLE:
        return _repeat(_write_sequence(inner, scope), low, most) + lazy
    repeats = scope.repeats * (_MAX_GROUP_REPEATS + 1 if most is None else max(most, 1))
    if repeats > _MAX_GROUP_REPEATS:
        raise UntranslatableError
    # Java stops repeating a group that matched nothing, also below its minimum.
    if low > 1 and cast("Any", inner).getwidth()[0] == 0:
        raise UntranslatableError
    return f"(?:{_write_sequence(inner, replace(scope, repeats=repeats))}){{{low},{most}}}{lazy}"


def read_repeat(argument: object) -> tuple[int, int | None, Tree]:
    """Return the least and greatest number of repetitions (None: no limit), and the inner tree."""
    low, high, inner = cast("tuple[int, int, Tree]", argument)
    return low, None if str(high) == "MAXREPEAT" else int(high), inner


def _repeat(atom: str, low: int, most: int | None) -> str:
    """Prefer `*` and `+`, with which Java repeats a single character without recursion."""
    if most is not None:
        return f"{atom}{{{low},{most}}}"
    return f"{atom}+" if low == 1 else f"{atom}{{{low}}}{atom}*" if low else f"{atom}*"


def _write_class(argument: object, scope: RegexScope) -> str:
    items = cast("list[Node]", argument)
    negated = str(items[0][0]) == "NEGATE"
    rest = items[1:] if negated else items
    if len(rest) == 1 and str(rest[0][0]) == "CATEGORY" and "_NOT_" in str(rest[0][1]):
        if negated:
            raise UntranslatableError
        return f"[^{_write_category(str(rest[0][1]).replace('_NOT', ''), scope)}]"
    return f"[{'^' if negated else ''}{''.join(_write_member(item, scope) for item in rest)}]"


def _write_member(item: Node, scope: RegexScope) -> str:
    match str(item[0]), item[1]:
        case "LITERAL", int(point):
            return _write_point(point)
        case "RANGE", (int(first), int(last)):
            return f"{_write_point(first)}-{_write_point(last)}"
        case "CATEGORY", category:
            return _write_category(str(category), scope)
    raise UntranslatableError


def _write_category(category: str, scope: RegexScope) -> str:
    r"""Write `\d`, `\s` and `\w` as ranges from Python's own character tables."""
    test = _CATEGORIES.get(category)
    if test is None or (test is _is_word and scope.last != _MAX_ASCII):  # hundreds of ranges
        raise UntranslatableError
    return _spell_out(test, scope.last)


def _is_word(character: str) -> bool:
    return character.isalnum() or character == "_"


@cache
def _spell_out(test: Callable[[str], bool], most: int) -> str:
    ranges = _list_ranges(test, most)
    return "".join(f"{_write_point(first)}-{_write_point(last)}" for first, last in ranges)


def _list_ranges(test: Callable[[str], bool], most: int) -> Iterator[tuple[int, int]]:
    start: int | None = None
    for point in range(most + 2):
        inside = point <= most and test(chr(point))
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


_CATEGORIES: Mapping[str, Callable[[str], bool]] = {
    "CATEGORY_DIGIT": str.isdecimal,
    "CATEGORY_SPACE": str.isspace,
    "CATEGORY_WORD": _is_word,
}
_WRITERS: Mapping[str, Callable[[object, RegexScope], str]] = {
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


def to_re2_regex(pattern: str) -> str | None:
    """Write a Python pattern for RE2 and printable ASCII; None if it is inexact or slow."""
    return to_ascii_regex(pattern) if _is_cheap(parse_pattern(pattern)) else None


def _is_cheap(tree: Tree) -> bool:
    characters = _count(tree)
    if characters <= _MAX_UNANCHORED or characters > _MAX_CHARACTERS:
        return characters <= _MAX_UNANCHORED
    if _is_text(tree):
        return True
    if str(tree[0][1]) not in _BEGINNINGS:
        return False
    rest = [node for node in dropwhile(_is_fixed, tree) if str(node[0]) != "AT"]
    return _count(rest) <= _MAX_UNANCHORED or (len(rest) == 1 and _repeats_one(rest[0]))


def _count(nodes: Iterable[Node]) -> int:
    """Return the number of characters of a pattern with all repetitions written out."""
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
    """Return whether a pattern consists of alternative plain texts."""
    return all(
        str(node[0]) in ("LITERAL", "AT")
        or (str(node[0]) == "BRANCH" and all(map(_is_text, _list_branches(node))))
        or (str(node[0]) == "SUBPATTERN" and _is_text(_enter_group(node)))
        for node in nodes
    )


def _is_fixed(node: Node) -> bool:
    """Return whether a node matches a fixed number of single characters."""
    if str(node[0]) in SINGLE | {"AT"}:
        return True
    return _repeats_one(node) and read_repeat(node[1])[0] == read_repeat(node[1])[1]


def _repeats_one(node: Node) -> bool:
    """Return whether a node repeats a single character."""
    if str(node[0]) not in ("MAX_REPEAT", "MIN_REPEAT"):
        return False
    inner = read_repeat(node[1])[2]
    return len(inner) == 1 and str(inner[0][0]) in SINGLE


def _list_branches(node: Node) -> list[Tree]:
    return cast("tuple[object, list[Tree]]", node[1])[1]


def _enter_group(node: Node) -> Tree:
    return cast("tuple[Tree, ...]", node[1])[-1]
