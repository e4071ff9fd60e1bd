"""Rules: how metrics of one pass answer an expectation.

A rule exists only where its verdict equals that of Great Expectations on the same rows
(docs/quality.md); `tests/spark/test_quality_parity.py` compares both.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from frazil.messages import count_noun
from frazil.quality.expectations import Expectation, Severity
from frazil.quality.sql import SqlColumn, write_count

ROWS = ""
"""Name of the count of all good rows, which every stage result has."""
_SIGNS = {"min_value": ("≥", ">", "strict_min"), "max_value": ("≤", "<", "strict_max")}
_QUIET = frozenset(
    {"column", "column_A", "column_B", "column_list", "condition_parser"}
    | {"strict_min", "strict_max"}
)
_MAX_VALUES = 10


@dataclass(frozen=True)
class Metric:
    """One aggregate expression of Spark SQL, and the name of its result."""

    name: str
    sql: str


@dataclass(frozen=True)
class CountRule:
    """Names of counts: `unexpected` of `considered` values; undecided if `doubtful` is above 0."""

    expectation: Expectation
    considered: str
    unexpected: str
    doubtful: str | None = None


@dataclass(frozen=True)
class ExtremeRule:
    """A smallest or largest value of `count` values; `complies` is 1 or 0.

    The value itself is of a row, so that no metric returns it: an erasure would not reach it.
    """

    expectation: Expectation
    count: str
    complies: str


@dataclass(frozen=True)
class SumRule:
    """A sum, or a mean, of `count` values; `magnitude` is the sum of absolute values."""

    expectation: Expectation
    count: str
    total: str
    magnitude: str
    exact: Literal["integers", "doubles", "no"]


@dataclass(frozen=True)
class RowsRule:
    """A count of rows."""

    expectation: Expectation
    rows: str


@dataclass(frozen=True)
class ShareRule:
    """The share of values that are not missing."""

    expectation: Expectation
    missing: str
    rows: str


@dataclass(frozen=True)
class FixedRule:
    """A verdict on the columns, independent of rows."""

    expectation: Expectation
    success: bool
    observed: str


Rule: TypeAlias = CountRule | ExtremeRule | SumRule | RowsRule | ShareRule | FixedRule


@dataclass(frozen=True)
class CompiledSuite:
    """A compiled suite: `metrics` answer `one_pass`, Great Expectations answers `rest`.

    With `has_events` the rows are change events, of which some are not checked. `checked` names the
    metric that counts the rows which an expectation checks, by its index.
    """

    metrics: tuple[Metric, ...]
    one_pass: tuple[Rule, ...]
    rest: tuple[Expectation, ...]
    has_events: bool = False
    checked: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RowScope:
    """Columns of an expectation, and the condition under which a row is counted."""

    columns: Mapping[str, SqlColumn]
    where: str
    conditional: bool
    collected: dict[str, str] = field(repr=False)

    def add(self, sql: str) -> str:
        """Register a metric named by its SQL, so that no metric of another suite has its name."""
        digest = hashlib.sha256(sql.encode()).hexdigest()[:12]
        return self.collected.setdefault(sql, f"quality_{digest}")

    def count(self, *tests: str) -> str:
        """Register the count of rows that pass all tests."""
        return self.add(write_count(self.where, *tests))

    def count_rows(self) -> str:
        """Register the count of rows in scope."""
        return self.count() if self.conditional else ROWS

    def column(self, expectation: Expectation, name: str = "column") -> SqlColumn:
        """Return the column that an argument names."""
        return self.columns[expectation.text(name)]


@dataclass(frozen=True)
class ExpectationResult:
    """The verdict on one expectation.

    `observed` and `error` hold counts and figures, never a value of a row: they are stored where an
    erasure does not reach. `unexpected_percent` is of the values considered, as in Great
    Expectations. `undecided` marks a figure so near its bound that rounding could change the
    verdict.
    """

    index: int
    type: str
    column: str | None
    success: bool
    observed: str
    expected: str
    severity: Severity = "critical"
    unexpected_count: int | None = None
    unexpected_percent: float | None = None
    undecided: bool = False
    error: str = ""

    @property
    def blocking(self) -> bool:
        """Return whether a failure blocks the batch: only critical ones do."""
        return self.severity == "critical"

    @property
    def line(self) -> str:
        """Return the verdict as one line of text."""
        about = f"{self.type}({self.column})" if self.column else self.type
        mark = "ok" if self.success else "FAILED" if self.blocking else f"failed ({self.severity})"
        outcome = self.error or self.observed
        expected = f" expected {self.expected};" if self.expected else ""
        return f"{mark}: {about}:{expected} observed {outcome}"


def describe_unchecked(expectation: Expectation) -> ExpectationResult:
    """Return the result of an expectation that checked no row of a batch of change events."""
    return ExpectationResult(
        index=expectation.index,
        type=expectation.type,
        column=", ".join(expectation.domain) or None,
        success=True,
        observed="no rows to check",
        expected=describe_expected(expectation),
        severity=expectation.severity,
    )


def describe_expected(expectation: Expectation) -> str:
    """Describe what is expected: bounds as signs, other arguments as in the suite."""
    parts = [_describe_argument(expectation, name) for name in expectation.kwargs]
    return ", ".join(part for part in parts if part)


def _describe_argument(expectation: Expectation, name: str) -> str:
    value = expectation.kwargs[name]
    if name in _SIGNS:
        plain, strict, flag = _SIGNS[name]
        return f"{strict if expectation.flag(flag) else plain} {value}"
    if name in _QUIET:
        return ""
    if name == "mostly":
        return f"in at least {expectation.mostly * 100:.6g}%"
    if name == "value_set" and isinstance(value, list | tuple):
        more = f", … ({len(value)} in all)" if len(value) > _MAX_VALUES else ""
        word = "none of" if "_not_" in expectation.type else "one of"
        return f"{word} {', '.join(map(str, value[:_MAX_VALUES]))}{more}"
    text = json.dumps(value, ensure_ascii=False, default=dict)
    return f"{name.replace('_', ' ')} {text}"


def describe_hidden(what: str, count: int) -> str:
    """Describe a figure that is a value of a row, without the value."""
    return f"the {what} of {count_noun(count, 'value')} (not shown)" if count else "no values"


def describe_count(unexpected: int, considered: int) -> str:
    """Describe how many values did not comply."""
    if considered == 0:
        return "no values"
    return f"{unexpected} of {considered} unexpected ({unexpected / considered:.2%})"
