"""Row conditions: which rows an expectation looks at.

Great Expectations knows three forms: condition objects, its own `col("a") > 1`, and text for
`DataFrame.query`. What can be said in SQL with the same meaning is; everything else is None, and
Great Expectations reads it with pandas.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from frazil.quality.catalogue import list_items
from frazil.quality.expectations import Json
from frazil.quality.sql import EXACT_INTEGER, Operator, SqlColumn, compare, find_among

Scalar: TypeAlias = int | float | str


@dataclass(frozen=True)
class Comparison:
    """A column against one constant."""

    column: str
    operator: Operator
    value: Scalar


@dataclass(frozen=True)
class Membership:
    """A column against a list of constants; a missing value is in no list."""

    column: str
    values: tuple[Scalar, ...]
    negated: bool


@dataclass(frozen=True)
class Nullity:
    """A column that is missing, or is not."""

    column: str
    is_null: bool


@dataclass(frozen=True)
class Group:
    """Conditions joined by AND or OR."""

    word: str
    parts: tuple["Condition", ...]


Condition: TypeAlias = Comparison | Membership | Nullity | Group

_OPERATORS: Mapping[str, Operator] = {
    "==": "=",
    "!=": "!=",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_LEGACY = re.compile(
    r'\s*col\("(?P<column>[^"]+)"\)\s*'
    r"(?:(?P<notnull>\.notnull\(\))|(?P<operator>==|!=|<=|>=|<|>)\s*"
    r"(?:(?P<number>[+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)|"
    r""""(?P<double>[\w .-]+)"|'(?P<single>[\w .-]+)'))\s*\Z""",
    re.ASCII,
)


def parse_row_condition(condition: Json, parser: str | None) -> Condition | None:
    """Read a row condition, or None if only pandas can.

    Raises:
        ValueError: an object that Great Expectations would refuse; the text says why.
    """
    if isinstance(condition, Mapping):
        return _parse_object(condition)
    text = cast("str", condition)
    return _parse_legacy(text) if (parser or "").startswith("great_e") else parse_query(text)


def _parse_object(condition: Mapping[str, Json]) -> Condition | None:
    match condition:
        case {"type": "pass_through", "pass_through_filter": str(text)}:
            return parse_query(text)
        case {"type": "and" | "or" as word, "conditions": parts} if items := list_items(parts):
            return _join(str(word).upper(), [_parse_part(part) for part in items])
        case {"type": "nullity", "column": {"name": str(name)}, "is_null": bool(is_null)}:
            return Nullity(name, is_null)
        case {"type": "comparison", "column": {"name": str(name)}, "operator": str(operator)}:
            return _parse_comparison(name, operator, condition.get("parameter"))
    message = f"{dict(condition)!r} is no condition object that Great Expectations writes"
    raise ValueError(message)


def _parse_part(part: Json) -> Condition | None:
    if isinstance(part, Mapping) and part.get("type") != "or":
        return _parse_object(part)
    message = f"{part!r} inside AND or OR: only AND, comparisons and null tests go there"
    raise ValueError(message)


def _parse_comparison(name: str, operator: str, parameter: Json) -> Condition | None:
    if operator in ("IN", "NOT_IN"):
        items = list_items(parameter)
        if items is None:
            message = f"{operator} needs a list, not {parameter!r}"
            raise ValueError(message)
        scalars = tuple(item for item in items if _is_scalar(item))
        whole = len(scalars) == len(items) and len(items) > 0
        return (
            Membership(name, cast("tuple[Scalar, ...]", scalars), operator != "IN")
            if whole
            else None
        )
    if operator not in _OPERATORS:
        message = f"operator {operator!r} is none of {', '.join([*_OPERATORS, 'IN', 'NOT_IN'])}"
        raise ValueError(message)
    if parameter is None:
        message = f"{operator} needs a parameter"
        raise ValueError(message)
    value = cast("Scalar", parameter)
    return Comparison(name, _OPERATORS[operator], value) if _is_scalar(parameter) else None


def _parse_legacy(text: str) -> Condition | None:
    found = _LEGACY.match(text)
    if found is None:
        return None
    if found["notnull"]:
        return Nullity(found["column"], is_null=False)
    number = found["number"]
    quoted = found["double"] or found["single"]
    value: Scalar = _read_number(number) if number else quoted
    return Comparison(found["column"], _OPERATORS[found["operator"]], value)


def _read_number(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:
        return float(text)


def parse_query(text: str) -> Condition | None:
    """Read what `DataFrame.query` would, if it is comparisons joined by `and` and `or`."""
    try:
        return _parse_node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        return None


def _parse_node(node: ast.expr) -> Condition | None:
    match node:
        case ast.BoolOp(op, values):
            word = "AND" if isinstance(op, ast.And) else "OR"
            return _join(word, [_parse_node(value) for value in values])
        case ast.Compare(ast.Name(name), [operator], [right]):
            return _parse_compare(name, operator, right)
        case ast.Call(ast.Attribute(ast.Name(name), method), [], []):
            tests = {"isnull": True, "isna": True, "notnull": False, "notna": False}
            return Nullity(name, tests[method]) if method in tests else None
    return None


def _parse_compare(name: str, operator: ast.cmpop, right: ast.expr) -> Condition | None:
    value = _read_constant(right)
    if isinstance(operator, ast.In | ast.NotIn):
        listed = value if isinstance(value, list) else None
        return Membership(name, tuple(listed), isinstance(operator, ast.NotIn)) if listed else None
    signs: Mapping[type[ast.cmpop], Operator] = {
        ast.Eq: "=",
        ast.NotEq: "!=",
        ast.Lt: "<",
        ast.LtE: "<=",
        ast.Gt: ">",
        ast.GtE: ">=",
    }
    sign = signs.get(type(operator))
    simple = sign is not None and isinstance(value, int | float | str)
    return Comparison(name, cast("Operator", sign), cast("Scalar", value)) if simple else None


def _read_constant(node: ast.expr) -> Scalar | list[Scalar] | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        return None
    if isinstance(value, list):
        return cast("list[Scalar]", value) if all(map(_is_scalar, value)) else None
    return cast("Scalar", value) if _is_scalar(value) else None


def _is_scalar(value: object) -> bool:
    return isinstance(value, int | float | str) and not isinstance(value, bool)


def _join(word: str, parts: Sequence[Condition | None]) -> Condition | None:
    known = tuple(part for part in parts if part is not None)
    return Group(word, known) if len(known) == len(parts) else None


def write_condition(condition: Condition, columns: Mapping[str, SqlColumn]) -> str | None:
    """Write a condition in SQL, or None if its constants do not suit its columns exactly.

    As in pandas, a missing value is unlike every constant: `!=` and `not in` hold for it.
    """
    if isinstance(condition, Group):
        parts = [write_condition(part, columns) for part in condition.parts]
        return None if None in parts else f"({f' {condition.word} '.join(map(str, parts))})"
    column = columns.get(condition.column)
    if column is None:
        return None
    return _write_leaf(condition, column)


def _write_leaf(condition: Comparison | Membership | Nullity, column: SqlColumn) -> str | None:
    if isinstance(condition, Nullity):
        return column.is_null if condition.is_null else f"(NOT {column.is_null})"
    if column.kind not in ("string", "int", "long", "float", "double", "decimal"):
        return None
    if isinstance(condition, Membership):
        test = None if "`" in str(condition.values) else find_among(column, condition.values)
        return _among(column, test, negated=condition.negated) if test else None
    if not _suits(column, condition.value):
        return None
    test = compare(column, condition.operator, condition.value)
    return _among(column, test, negated=False, or_null=condition.operator == "!=") if test else None


def _among(column: SqlColumn, test: str, *, negated: bool, or_null: bool = False) -> str:
    if negated:
        return f"({column.is_null} OR NOT ({test}))"
    return f"({column.is_null} OR {test})" if or_null else f"(NOT {column.is_null} AND {test})"


def _suits(column: SqlColumn, value: Scalar) -> bool:
    if isinstance(value, str):
        # pandas reads backticks as quoted names wherever they stand.
        return column.kind == "string" and "`" not in value
    return column.is_number and abs(value) <= EXACT_INTEGER
