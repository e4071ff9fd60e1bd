"""See that a suite fits the columns of a stream: what would fail on every batch is refused now."""

import difflib
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from frazil.errors import SuiteError
from frazil.expectation_catalogue import CATALOGUE, list_items
from frazil.expectations import Expectation, Suite, kind_of_bound, name_condition_columns
from frazil.quality_sql import SqlColumn, read_sql_column

Misfit: TypeAlias = tuple[str, str]

_EXAMPLES: Mapping[str, str] = {
    "number": "a number",
    "date": "a date such as 2013-01-31",
    "timestamp": "a time without offset such as 2013-01-31T00:00:00",
    "timestamptz": "a time with offset such as 2013-01-31T00:00:00Z",
}
_STEPS = frozenset(_EXAMPLES)
_SCALARS = _STEPS | {"string", "boolean"}
_WITHOUT_DATES = frozenset(
    {"expect_column_mean_to_be_between", "expect_column_median_to_be_between"}
)


def check_suite_fits(suite: Suite, columns: Mapping[str, str]) -> None:
    """Refuse a suite that cannot be judged on these columns (name → type as in a stream file).

    Great Expectations would raise in the middle of a batch: a text column against a number, a
    date column against a time, an unknown column.

    Raises:
        SuiteError: names the file, the expectation, the column and the fix.
    """
    known = {name: read_sql_column(name, text.rstrip("!")) for name, text in columns.items()}
    for expectation in suite.expectations:
        misfit = _explain_misfit(expectation, known)
        if misfit is not None:
            label = f"expectations[{expectation.index}] ({expectation.type})"
            facts = f"{suite.source or suite.name}: {label}, {misfit[0]}"
            raise SuiteError(facts, f"{misfit[1]}, then run `frazil streams`")


def _explain_misfit(expectation: Expectation, columns: Mapping[str, SqlColumn]) -> Misfit | None:
    fit = CATALOGUE[expectation.type].fit
    domain = () if fit == "table" else expectation.domain
    condition = name_condition_columns(expectation.kwargs.get("row_condition"))
    for name in (*domain, *condition):
        if name not in columns:
            return _explain_unknown(name, columns)
    chosen = [columns[name] for name in domain]
    if fit == "comparable":
        return _explain_incomparable(chosen)
    for column in chosen:
        misfit = _explain_column(expectation, fit, column)
        if misfit is not None:
            return f"column {column.name!r} ({column.kind}): {misfit[0]}", misfit[1]
    return None


def _explain_unknown(name: str, columns: Mapping[str, SqlColumn]) -> Misfit:
    close = difflib.get_close_matches(name, columns, n=1)
    fix = f"write {close[0]!r}" if close else f"use one of {', '.join(columns)}"
    return f"column {name!r}: the stream has no such column", fix


_FITS: Mapping[str, tuple[frozenset[str], Misfit]] = {
    "text": (
        frozenset({"string"}),
        ("the expectation is about text", "use an expectation about numbers, dates or sets"),
    ),
    "number": (
        frozenset({"number"}),
        ("the expectation is about numbers", "name a column of numbers"),
    ),
    "steps": (
        _STEPS,
        ("its values have no difference", "name a column of numbers, dates or times"),
    ),
}
"""Fit → the kinds of column that it takes, and what to say of others."""


def _explain_column(expectation: Expectation, fit: str, column: SqlColumn) -> Misfit | None:
    kind = _classify(column)
    if kind == "nested" and fit != "nulls":
        return "only null checks fit a nested column", "check a column of the top level"
    if fit in _FITS:
        kinds, misfit = _FITS[fit]
        return None if kind in kinds else misfit
    if fit == "bounds":
        return _explain_bounds(expectation, kind)
    return _explain_members(expectation, kind) if fit == "values" else None


def _classify(column: SqlColumn) -> str:
    return "number" if column.is_number else column.kind


def _explain_bounds(expectation: Expectation, kind: str) -> Misfit | None:
    if kind not in _STEPS or (kind == "date" and expectation.type in _WITHOUT_DATES):
        return "the expectation needs numbers, dates or times", "name such a column"
    for name in ("min_value", "max_value"):
        bound = expectation.bound(name)
        if bound is not None and kind != kind_of_bound(bound):
            return f"{name} is {expectation.kwargs[name]!r}", f"write {_EXAMPLES[kind]}"
    return None


def _explain_members(expectation: Expectation, kind: str) -> Misfit | None:
    members = list_items(expectation.kwargs["value_set"]) or ()
    kinds = {_kind_of_member(member) for member in members if member is not None}
    wanted = "string" if kind in ("timestamp", "timestamptz") else kind
    if kind == "date":
        # pandas compares dates with texts as objects: no text ever equals a date.
        return "Great Expectations never finds a text in a date column", "use …_to_be_between"
    if kind not in _SCALARS or kinds - {wanted}:
        return f"a set of {', '.join(sorted(kinds)) or 'values'}", f"list values of type {wanted}"
    return None


def _kind_of_member(member: object) -> str:
    if isinstance(member, bool):
        return "boolean"
    return "string" if isinstance(member, str) else "number"


def _explain_incomparable(columns: Sequence[SqlColumn]) -> Misfit | None:
    kinds = sorted({_classify(column) for column in columns})
    if len(kinds) == 1 and kinds[0] in _SCALARS:
        return None
    names = ", ".join(repr(column.name) for column in columns)
    return f"columns {names}: {', '.join(kinds)} cannot be compared", "name columns of one kind"
