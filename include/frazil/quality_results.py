"""What a check says about one expectation: a verdict, figures, and a line for people."""

import json
from dataclasses import dataclass

from frazil.expectations import Expectation, Severity

_SIGNS = {"min_value": ("≥", ">", "strict_min"), "max_value": ("≤", "<", "strict_max")}
_QUIET = frozenset(
    {"column", "column_A", "column_B", "column_list", "condition_parser"}
    | {"strict_min", "strict_max"}
)
_MAX_VALUES = 10


@dataclass(frozen=True)
class ExpectationResult:
    """The verdict on one expectation.

    `unexpected_percent` is of the values considered, as Great Expectations gives it. `undecided`
    marks a figure so near its bound that rounding could turn the verdict.
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
        """Say whether a failure may block: warnings and infos are only reported."""
        return self.severity == "critical"

    @property
    def line(self) -> str:
        """Say it in one line for people."""
        about = f"{self.type}({self.column})" if self.column else self.type
        mark = "ok" if self.success else "FAILED" if self.blocking else f"failed ({self.severity})"
        outcome = self.error or self.observed
        expected = f" expected {self.expected};" if self.expected else ""
        return f"{mark}: {about}:{expected} observed {outcome}"


def describe_expected(expectation: Expectation) -> str:
    """Say what is expected: bounds as signs, other arguments as they are in the suite."""
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


def describe_count(unexpected: int, considered: int) -> str:
    """Say how many values did not comply."""
    if considered == 0:
        return "no values"
    return f"{unexpected} of {considered} unexpected ({unexpected / considered:.2%})"
