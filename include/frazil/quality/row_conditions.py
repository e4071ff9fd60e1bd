"""Row conditions: the rows that an expectation checks, as condition objects.

Conditions written as text are refused: Great Expectations passes them to `DataFrame.query`, which
runs code. It turns objects into text for `query` as well, so names and constants are checked.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from frazil.quality.catalogue import list_items
from frazil.quality.expectations import Json
from frazil.quality.sql import EXACT_INTEGER, Operator, SqlColumn, compare, find_among

Scalar: TypeAlias = int | float | str
_OPERATORS: Mapping[str, Operator] = {
    "==": "=",
    "!=": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_COLUMN_NAME = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_EXAMPLE_TEXT = re.compile(
    r"""\s*(?:col\("(\w+)"\)|(\w+))\s*(==|!=|<=|>=|<|>)\s*"""
    r"""(?:([-\d.]+)|"([\w .-]+)"|'([\w .-]+)')\s*\Z""",
    re.ASCII,
)


@dataclass(frozen=True)
class ColumnComparison:
    """A column compared with one constant."""

    column: str
    operator: Operator
    value: Scalar


@dataclass(frozen=True)
class Membership:
    """A column compared with a list of constants; a missing value is in no list."""

    column: str
    values: tuple[Scalar, ...]
    negated: bool


@dataclass(frozen=True)
class Nullity:
    """A null test of a column."""

    column: str
    is_null: bool


@dataclass(frozen=True)
class Group:
    """Conditions joined by AND or OR."""

    word: str
    parts: tuple["Condition", ...]


Condition: TypeAlias = ColumnComparison | Membership | Nullity | Group


def parse_row_condition(condition: Json) -> Condition:
    """Read a condition object.

    Raises:
        ValueError: a text, or an object that Great Expectations would refuse or that `query` could
            read as code; the error names the part.
    """
    match condition:
        case {"type": "and" | "or" as word, "conditions": parts} if items := list_items(parts):
            return Group(str(word).upper(), tuple(_parse_part(part) for part in items))
        case {"type": "nullity", "column": {"name": str(name)}, "is_null": bool(is_null)}:
            return Nullity(_check_name(name), is_null)
        case {"type": "comparison", "column": {"name": str(name)}, "operator": str(operator)}:
            parameter = cast("Mapping[str, Json]", condition).get("parameter")
            return _parse_comparison(_check_name(name), operator, parameter)
    shown = dict(condition) if isinstance(condition, Mapping) else condition
    message = f"{shown!r} is not a condition object of type comparison, nullity, and, or"
    raise ValueError(message)


def list_leaves(condition: Condition | None) -> Iterator[ColumnComparison | Membership | Nullity]:
    """Yield the comparisons and null tests of a condition."""
    if isinstance(condition, Group):
        for part in condition.parts:
            yield from list_leaves(part)
    elif condition is not None:
        yield condition


def suggest_object(text: str) -> str:
    """Return the condition object that means the same as a text, or an example of one."""
    found = _EXAMPLE_TEXT.match(text)
    if found is None:
        return _write_example("price", ">", 0)
    number = found[4]
    try:
        constant = found[5] or found[6] if number is None else cast("Scalar", json.loads(number))
    except ValueError:
        return _write_example("price", ">", 0)
    return _write_example(found[1] or found[2], found[3], constant)


def _write_example(name: str, operator: str, constant: Scalar) -> str:
    example = {"type": "comparison", "column": {"name": name}, "operator": operator}
    return json.dumps(example | {"parameter": constant})


def _parse_part(part: Json) -> Condition:
    if isinstance(part, Mapping) and part.get("type") != "or":
        return parse_row_condition(part)
    message = f"{part!r} inside AND or OR: only AND, comparisons and null tests are allowed there"
    raise ValueError(message)


def _check_name(name: str) -> str:
    if not _COLUMN_NAME.match(name):
        message = f"{name!r} is not a column name: letters, digits and _ only, no digit first"
        raise ValueError(message)
    return name


def _parse_comparison(name: str, operator: str, parameter: Json) -> Condition:
    if operator in ("IN", "NOT_IN"):
        items = list_items(parameter)
        if items is None:
            message = f"{operator} needs a list, not {parameter!r}"
            raise ValueError(message)
        values = tuple(_check_constant(item) for item in items)
        if len({isinstance(value, str) for value in values}) > 1 or bool in map(type, values):
            message = f"{operator} needs a list of numbers or a list of texts, not {parameter!r}"
            raise ValueError(message)
        return Membership(name, values, operator == "NOT_IN")
    if operator not in _OPERATORS:
        message = f"operator {operator!r} is none of {', '.join([*_OPERATORS, 'IN', 'NOT_IN'])}"
        raise ValueError(message)
    return ColumnComparison(name, _OPERATORS[operator], _check_constant(parameter))


def _check_constant(value: Json) -> Scalar:
    if not isinstance(value, int | float | str):
        message = f"parameter {value!r} is not a number, a text, true or false"
        raise ValueError(message)  # noqa: TRY004 - as every other mistake in a condition
    # Some versions of pandas read a name in backticks even inside a quoted text.
    if isinstance(value, str) and "`" in value:
        message = f"parameter {value!r} contains a backtick, which pandas can read as a column name"
        raise ValueError(message)
    return value


def write_condition(condition: Condition, columns: Mapping[str, SqlColumn]) -> str | None:
    """Write a condition in SQL, or return None if its constants do not fit its columns exactly.

    As in pandas, a missing value differs from every constant: `!=` and `not in` hold for it.
    """
    if isinstance(condition, Group):
        parts = [write_condition(part, columns) for part in condition.parts]
        return None if None in parts else f"({f' {condition.word} '.join(map(str, parts))})"
    column = columns.get(condition.column)
    if column is None:
        return None
    return _write_leaf(condition, column)


def _write_leaf(
    condition: ColumnComparison | Membership | Nullity, column: SqlColumn
) -> str | None:
    if isinstance(condition, Nullity):
        return column.is_null if condition.is_null else f"(NOT {column.is_null})"
    if column.kind not in ("string", "int", "long", "float", "double", "decimal"):
        return None
    if isinstance(condition, Membership):
        test = find_among(column, condition.values) if condition.values else None
        return _among(column, test, negated=condition.negated) if test else None
    if not _fits(column, condition.value):
        return None
    test = compare(column, condition.operator, condition.value)
    return _among(column, test, negated=False, or_null=condition.operator == "!=") if test else None


def _among(column: SqlColumn, test: str, *, negated: bool, or_null: bool = False) -> str:
    if negated:
        return f"({column.is_null} OR NOT ({test}))"
    return f"({column.is_null} OR {test})" if or_null else f"(NOT {column.is_null} AND {test})"


def _fits(column: SqlColumn, value: Scalar) -> bool:
    if isinstance(value, str | bool):
        return isinstance(value, str) and column.kind == "string"
    return column.is_number and abs(value) <= EXACT_INTEGER
