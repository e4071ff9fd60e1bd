"""Read an expectation suite, and check that it fits a stream's columns, before a batch runs."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

from frazil.errors import SuiteError
from frazil.quality.catalogue import (
    CATALOGUE,
    IGNORED_ARGUMENTS,
    REFUSED,
    Signature,
    explain_wrong_argument,
    list_items,
)
from frazil.quality.expectations import (
    SEVERITIES,
    Expectation,
    Json,
    Suite,
    freeze,
    hash_suite,
    is_nested_deeper,
    kind_of_bound,
    read_document,
)
from frazil.quality.row_conditions import Nullity, list_leaves, parse_row_condition, suggest_object
from frazil.quality.sql import SqlColumn, read_sql_column

_SUITE_KEYS = frozenset({"name", "id", "expectations", "suite_parameters", "meta", "notes"})
_EXPECTATION_KEYS = frozenset(
    {"type", "kwargs", "meta", "id", "notes", "description", "severity", "rendered_content"}
    | {"expectation_context"}
)
_MAX_LEVELS = 100
"""Lists and objects inside each other: 50 levels of AND. A batch reads them deeper in Python's
stack than this check does, where more of them might end in a RecursionError."""
_CHECK_AGAIN = "then run `frazil streams`"
Problem: TypeAlias = tuple[str, str]
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
_FITS: Mapping[str, tuple[frozenset[str], Problem]] = {
    "text": (
        frozenset({"string"}),
        ("the expectation checks text", "use an expectation for numbers, dates or sets"),
    ),
    "number": (
        frozenset({"number"}),
        ("the expectation checks numbers", "name a column of numbers"),
    ),
    "steps": (
        _STEPS,
        ("its values have no difference", "name a column of numbers, dates or times"),
    ),
}
"""Fit → the kinds of column that it accepts, and the facts and fix for others."""


class _Refusal(Exception):  # noqa: N818 - caught in this module, becomes a SuiteError
    """A field of an expectation, what is wrong with it, and the fix."""

    def __init__(self, field: str, problem: str, fix: str) -> None:
        super().__init__(field, problem, fix)
        self.field, self.problem, self.fix = field, problem, fix


def load_suite(path: Path) -> Suite:
    """Read a suite in Great Expectations' own JSON (`ExpectationSuite.to_json_dict`).

    Raises:
        SuiteError: broken JSON, unknown types or arguments, missing or wrong ones, or a part that
            would run code; names file, expectation, field and fix.
    """
    document = read_document(path)
    if not isinstance(document, Mapping):
        raise SuiteError(f"{path}: not a JSON object", f'write {{"name": …}}, {_CHECK_AGAIN}')
    name, listed = document.get("name"), document.get("expectations")
    unknown = sorted(set(document) - _SUITE_KEYS)
    if unknown or document.get("suite_parameters"):
        wrong = unknown[0] if unknown else "suite_parameters"
        raise SuiteError(f"{path}: {wrong}: not supported", f"remove {wrong!r}")
    if not isinstance(name, str) or not isinstance(listed, list):
        wrong = "expectations" if isinstance(name, str) else "name"
        raise SuiteError(f"{path}: {wrong}: missing or of the wrong kind", f"add {wrong!r}")
    expectations = tuple(
        _read_expectation(path, index, entry) for index, entry in enumerate(listed)
    )
    return Suite(name, hash_suite(document), expectations, str(path))


def _read_expectation(path: Path, index: int, entry: Json) -> Expectation:
    kind = entry.get("type") if isinstance(entry, Mapping) else None
    try:
        _check_levels(entry)
        return _parse_expectation(index, entry)
    except _Refusal as refusal:
        label = f"expectations[{index}]" + (f" ({kind})" if isinstance(kind, str) else "")
        facts = f"{path}: {label}, {refusal.field}: {refusal.problem}"
        raise SuiteError(facts, f"{refusal.fix}, {_CHECK_AGAIN}") from None


def _check_levels(entry: Json) -> None:
    kwargs = entry.get("kwargs") if isinstance(entry, Mapping) else None
    parts = {f"kwargs.{n}": v for n, v in kwargs.items()} if isinstance(kwargs, Mapping) else {}
    for field, value in {**parts, "itself": entry}.items():
        if is_nested_deeper(value, _MAX_LEVELS):
            problem = f"nested deeper than {_MAX_LEVELS} lists and objects"
            raise _Refusal(field, problem, "write fewer levels")


def _parse_expectation(index: int, entry: Json) -> Expectation:
    if not isinstance(entry, Mapping):
        raise _Refusal("itself", f"{entry!r} is not an object", "write type and kwargs")
    for key in sorted(set(entry) - _EXPECTATION_KEYS):
        raise _Refusal(key, "unknown key", f"use one of {', '.join(sorted(_EXPECTATION_KEYS))}")
    kind, kwargs = entry.get("type"), entry.get("kwargs", {})
    signature = _find_signature(kind)
    if not isinstance(kwargs, Mapping):
        raise _Refusal("kwargs", f"{kwargs!r} is not an object", "write the arguments as an object")
    severity = entry.get("severity") or "critical"
    if severity not in SEVERITIES:
        raise _Refusal("severity", f"{severity!r} is unknown", f"use {', '.join(SEVERITIES)}")
    given = freeze({name: kwargs[name] for name in kwargs if name not in IGNORED_ARGUMENTS})
    _check_arguments(signature, given)
    expectation = Expectation(index, cast("str", kind), given, severity)
    _check_bounds(signature, expectation)
    _check_condition(expectation)
    return expectation


def _find_signature(kind: Json) -> Signature:
    if isinstance(kind, str) and kind in CATALOGUE:
        return CATALOGUE[kind]
    if isinstance(kind, str) and kind in REFUSED:
        problem, fix = REFUSED[kind]
        raise _Refusal("type", problem, fix)
    close = difflib.get_close_matches(str(kind), CATALOGUE, n=1)
    fix = f"write {close[0]!r}" if close else "use a type that docs/quality.md lists"
    raise _Refusal("type", f"{kind!r} is not an expectation of Great Expectations", fix)


def _check_arguments(signature: Signature, kwargs: Mapping[str, Json]) -> None:
    for name in sorted(signature.required - set(kwargs)):
        raise _Refusal(f"kwargs.{name}", "missing", f"add {name!r}")
    for name, value in kwargs.items():
        field = f"kwargs.{name}"
        if name not in signature.kinds:
            known = ", ".join(signature.kinds)
            raise _Refusal(field, "unknown argument", f"use one of {known}")
        if "$PARAMETER" in _list_keys(value):
            raise _Refusal(field, "suite parameters are not supported", "write the value itself")
        problem = explain_wrong_argument(signature.kinds[name], value)
        if problem is not None:
            raise _Refusal(field, problem, "correct the value")


def _list_keys(value: Json) -> Iterator[str]:
    """List the keys of all objects inside a value."""
    if isinstance(value, Mapping):
        yield from value
        for inner in value.values():
            yield from _list_keys(inner)
    for item in list_items(value) or ():
        yield from _list_keys(item)


def _check_bounds(signature: Signature, expectation: Expectation) -> None:
    if "min_value" not in signature.kinds or "partition_object" in signature.kinds:
        return
    low, high = expectation.bound("min_value"), expectation.bound("max_value")
    if low is None and high is None:
        raise _Refusal("kwargs", "neither min_value nor max_value", "add at least one of them")
    if low is not None and high is not None:
        kinds = kind_of_bound(low), kind_of_bound(high)
        if kinds[0] != kinds[1]:
            problem = f"min_value is of kind {kinds[0]}, max_value of kind {kinds[1]}"
            raise _Refusal("kwargs.max_value", problem, "write both in the same kind")
        if low > high:  # type: ignore[operator] # of one kind, as checked above
            raise _Refusal("kwargs.max_value", "less than min_value", "swap them")


def _check_condition(expectation: Expectation) -> None:
    given = expectation.kwargs.get("row_condition")
    if isinstance(given, str):
        problem = f"{given!r} is text, which Great Expectations passes to pandas to run as code"
        fix = f"write the condition as an object such as {suggest_object(given)}"
        raise _Refusal("kwargs.row_condition", problem, fix)
    try:
        if given is not None:
            parse_row_condition(given)
    except ValueError as error:
        fix = f"write a condition object such as {suggest_object('')}"
        raise _Refusal("kwargs.row_condition", str(error), fix) from None


def check_suite_fits(suite: Suite, columns: Mapping[str, str]) -> None:
    """Refuse a suite that does not fit these columns (name → type as in a stream file).

    Great Expectations would fail in the middle of a batch: text compared with a number, a date with
    a time, an unknown column.

    Raises:
        SuiteError: names file, expectation, column and fix.
    """
    known = {name: read_sql_column(name, text) for name, text in columns.items()}
    for expectation in suite.expectations:
        problem = _explain_problem(expectation, known)
        if problem is not None:
            label = f"expectations[{expectation.index}] ({expectation.type})"
            facts = f"{suite.source or suite.name}: {label}, {problem[0]}"
            raise SuiteError(facts, f"{problem[1]}, then run `frazil streams`")


def _explain_problem(expectation: Expectation, columns: Mapping[str, SqlColumn]) -> Problem | None:
    fit = CATALOGUE[expectation.type].fit
    domain = () if fit == "table" else expectation.domain
    given = expectation.kwargs.get("row_condition")
    leaves = [*list_leaves(None if given is None else parse_row_condition(given))]
    for name in (*domain, *(leaf.column for leaf in leaves)):
        if name not in columns:
            return _explain_unknown(name, columns)
    for leaf in leaves:
        if not isinstance(leaf, Nullity) and columns[leaf.column].kind == "nested":
            return (
                f"row_condition compares column {leaf.column!r}, which is nested",
                "compare a number or a text; of a nested column only test `nullity`",
            )
    chosen = [columns[name] for name in domain]
    if fit == "comparable":
        return _explain_incomparable(chosen)
    for column in chosen:
        problem = _explain_column(expectation, fit, column)
        if problem is not None:
            return f"column {column.name!r} ({column.kind}): {problem[0]}", problem[1]
    return None


def _explain_unknown(name: str, columns: Mapping[str, SqlColumn]) -> Problem:
    close = difflib.get_close_matches(name, columns, n=1)
    fix = f"write {close[0]!r}" if close else f"use one of {', '.join(columns)}"
    return f"column {name!r}: the stream has no such column", fix


def _explain_column(expectation: Expectation, fit: str, column: SqlColumn) -> Problem | None:
    kind = _classify(column)
    if kind == "nested" and fit != "nulls":
        return "only null checks fit a nested column", "check a column of the top level"
    if fit in _FITS:
        kinds, problem = _FITS[fit]
        return None if kind in kinds else problem
    if fit == "bounds":
        return _explain_bounds(expectation, kind)
    return _explain_members(expectation, kind) if fit == "values" else None


def _classify(column: SqlColumn) -> str:
    return "number" if column.is_number else column.kind


def _explain_bounds(expectation: Expectation, kind: str) -> Problem | None:
    if kind not in _STEPS or (kind == "date" and expectation.type in _WITHOUT_DATES):
        return "the expectation needs numbers, dates or times", "name such a column"
    for name in ("min_value", "max_value"):
        bound = expectation.bound(name)
        if bound is not None and kind != kind_of_bound(bound):
            return f"{name} is {expectation.kwargs[name]!r}", f"write {_EXAMPLES[kind]}"
    return None


def _explain_members(expectation: Expectation, kind: str) -> Problem | None:
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


def _explain_incomparable(columns: Sequence[SqlColumn]) -> Problem | None:
    kinds = sorted({_classify(column) for column in columns})
    if len(kinds) == 1 and kinds[0] in _SCALARS:
        return None
    names = ", ".join(repr(column.name) for column in columns)
    return f"columns {names}: {', '.join(kinds)} cannot be compared", "name columns of one kind"
