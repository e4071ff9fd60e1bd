"""SQL tests of a single value: ranges, sets, lengths and patterns.

Each function returns a test for a value that is not missing, or None where SQL would not give the
same verdict as Great Expectations.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias, cast

from frazil.quality.catalogue import list_items
from frazil.quality.expectations import Bound, Expectation
from frazil.quality.regex import to_java_regex
from frazil.quality.sql import Operator, SqlColumn, compare, find_among
from frazil.streams.column_types import write_text

ValueTest: TypeAlias = Callable[[Expectation, SqlColumn], str | None]

ANY_TEXT = "(?s).*"
"""Great Expectations' default pattern."""

_NO_LENGTH = 2**31
"""More characters than a text of Java can have."""

NOT_ASCII = r"[^\x{0}-\x{7f}]"
PATTERN_TYPES = frozenset(
    {"expect_column_values_to_match_regex", "expect_column_values_to_not_match_regex"}
    | {"expect_column_values_to_match_regex_list", "expect_column_values_to_not_match_regex_list"}
)


def list_bounds(expectation: Expectation) -> Iterator[tuple[Operator, Bound]]:
    """Yield the comparisons of `min_value`, `max_value` and the strict flags."""
    low, high = expectation.bound("min_value"), expectation.bound("max_value")
    if low is not None:
        yield (">" if expectation.flag("strict_min") else ">="), low
    if high is not None:
        yield ("<" if expectation.flag("strict_max") else "<="), high


def _test_range(expectation: Expectation, column: SqlColumn) -> str | None:
    tests = [compare(column, sign, bound) for sign, bound in list_bounds(expectation)]
    return None if None in tests else " AND ".join(map(str, tests))


def _test_among(expectation: Expectation, column: SqlColumn) -> str | None:
    return find_among(column, list_items(expectation.kwargs["value_set"]) or ())


def _test_length_range(expectation: Expectation, column: SqlColumn) -> str | None:
    if column.kind != "string":
        return None
    tests = [
        f"char_length({column.sql}) {sign} {_as_length(cast('float', bound))}L"
        for sign, bound in list_bounds(expectation)
    ]
    return " AND ".join(tests)


def _test_length(expectation: Expectation, column: SqlColumn) -> str | None:
    if column.kind != "string":
        return None
    value = cast("float", expectation.kwargs["value"])
    return f"char_length({column.sql}) = {_as_length(value)}L" if value % 1 == 0 else "FALSE"


def _as_length(value: float) -> int:
    """Return a number as a length; one out of range as the nearest length that no text has."""
    return max(-1, min(int(value), _NO_LENGTH))


def _test_matches(column: SqlColumn, patterns: tuple[str, ...], word: str) -> str | None:
    """Write a search for the patterns, as by `re.search`, joined by `word`."""
    translated = [_write_java(pattern) for pattern in patterns]
    if column.kind != "string" or None in translated:
        return None
    tests = [f"{column.sql} RLIKE {write_text(str(regex))}" for regex in translated]
    return f"({f' {word} '.join(tests)})"


def _write_java(pattern: str) -> str | None:
    return to_java_regex(pattern) or to_java_regex(pattern, ascii_only=True)


def write_doubt(expectation: Expectation, column: SqlColumn) -> str | None:
    """Write the SQL that finds values on which patterns of Java and Python may disagree, or None.

    Beyond ASCII, Java and Python differ in which characters are parts of words.
    """
    if expectation.type not in PATTERN_TYPES:
        return None
    if None not in map(to_java_regex, list_patterns(expectation)):
        return None
    return f"{column.sql} RLIKE {write_text(NOT_ASCII)}"


def list_patterns(expectation: Expectation) -> tuple[str, ...]:
    """Return the patterns that an expectation searches for."""
    if "regex_list" in expectation.kwargs:
        return expectation.texts("regex_list")
    return (str(expectation.kwargs.get("regex", ANY_TEXT)),)


def _test_patterns(expectation: Expectation, column: SqlColumn) -> str | None:
    word = "AND" if expectation.kwargs.get("match_on") == "all" else "OR"
    return _test_matches(column, list_patterns(expectation), word)


def _negate(test: ValueTest) -> ValueTest:
    def negated(expectation: Expectation, column: SqlColumn) -> str | None:
        sql = test(expectation, column)
        return None if sql is None else f"NOT ({sql})"

    return negated


VALUE_TESTS: Mapping[str, ValueTest] = {
    "expect_column_value_lengths_to_be_between": _test_length_range,
    "expect_column_value_lengths_to_equal": _test_length,
    "expect_column_values_to_be_between": _test_range,
    "expect_column_values_to_be_in_set": _test_among,
    "expect_column_values_to_match_regex": _test_patterns,
    "expect_column_values_to_match_regex_list": _test_patterns,
    "expect_column_values_to_not_be_in_set": _negate(_test_among),
    "expect_column_values_to_not_match_regex": _negate(_test_patterns),
    "expect_column_values_to_not_match_regex_list": _negate(_test_patterns),
}
"""Type → the test that each value must pass."""
