"""Expectation suites as Great Expectations writes them: `{"name": …, "expectations": […]}`.

Reading a suite imports neither Great Expectations (seconds) nor Spark: types and arguments are in
`catalogue`, which a test compares with the installed package.
"""

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias, cast

from frazil.errors import SuiteError
from frazil.ledger import keys

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
Bound: TypeAlias = float | date | datetime
Severity: TypeAlias = Literal["critical", "warning", "info"]

SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "info")
ORDERED_TYPES = frozenset(
    {"expect_column_values_to_be_increasing", "expect_column_values_to_be_decreasing"}
)
"""Types whose verdict depends on the order of rows: topic, partition, offset."""

_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}\Z")
_ISO_INSTANT = re.compile(
    r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?(Z|[+-]\d{2}:?\d{2})?\Z"
)


_MAX_FLOAT = sys.float_info.max


@dataclass(frozen=True)
class Expectation:
    """One expectation; `index` starts at 0, `kwargs` are as in the file, without nulls."""

    index: int
    type: str
    kwargs: Mapping[str, Json]
    severity: Severity = "critical"

    @property
    def domain(self) -> tuple[str, ...]:
        """List the columns that the expectation checks."""
        single = [self.kwargs.get(name) for name in ("column", "column_A", "column_B")]
        names = [name for name in single if isinstance(name, str)]
        several = self.kwargs.get("column_list")
        listed = several if isinstance(several, Sequence) and not isinstance(several, str) else ()
        return (*names, *(name for name in listed if isinstance(name, str)))

    @property
    def columns(self) -> tuple[str, ...]:
        """List every column to read: domain, row condition and, if the type needs it, the order."""
        condition = name_condition_columns(self.kwargs.get("row_condition"))
        order = (keys.KAFKA_COLUMN,) if self.type in ORDERED_TYPES else ()
        return tuple(dict.fromkeys((*self.domain, *condition, *order)))

    @property
    def mostly(self) -> float:
        """Return the least share of values that must comply, 1 by default."""
        value = self.kwargs.get("mostly", 1)
        return float(value) if isinstance(value, int | float) else 1.0

    def text(self, name: str) -> str:
        """Return an argument that the catalogue declares as a text."""
        return cast("str", self.kwargs[name])

    def texts(self, name: str) -> tuple[str, ...]:
        """Return an argument that the catalogue declares as a list of texts."""
        return tuple(cast("Sequence[str]", self.kwargs[name]))

    def flag(self, name: str) -> bool:
        """Return a boolean argument, false by default."""
        return self.kwargs.get(name) is True

    def bound(self, name: str) -> Bound | None:
        """Return a bound as Great Expectations reads it, or None."""
        value = self.kwargs.get(name)
        return None if value is None else parse_bound(value)


@dataclass(frozen=True)
class Suite:
    """A suite; `hash` is the sha256 of its canonical JSON, 16 hex digits."""

    name: str
    hash: str
    expectations: tuple[Expectation, ...]
    source: str = ""


def is_nested_deeper(value: Json, levels: int) -> bool:
    """Return whether a value has more levels of lists and objects; it may have any number."""
    level: list[Json] = [value]
    for _ in range(levels + 1):
        nested = [each for each in level if isinstance(each, list | tuple | Mapping)]
        inner = (each.values() if isinstance(each, Mapping) else each for each in nested)
        level = [part for each in inner for part in each]
        if not nested:
            return False
    return True


def name_condition_columns(condition: Json) -> tuple[str, ...]:
    """List the columns that a row condition reads."""
    if not isinstance(condition, Mapping):
        return ()
    nested = condition.get("conditions")
    if isinstance(nested, Sequence) and not isinstance(nested, str):
        return tuple(name for part in nested for name in name_condition_columns(part))
    column = condition.get("column")
    name = column.get("name") if isinstance(column, Mapping) else None
    return (name,) if isinstance(name, str) else ()


def parse_bound(value: Json) -> Bound:
    """Read a bound as Great Expectations does: float, date, or datetime.

    Raises:
        ValueError: another value, or an integer that a float cannot hold exactly.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        if not -_MAX_FLOAT <= value <= _MAX_FLOAT or float(value) != value:
            message = f"{value} is not exact as a 64-bit float, and bounds are read as floats"
            raise ValueError(message)
        return float(value)
    if isinstance(value, str) and _ISO_DATE.match(value):
        return date.fromisoformat(value)
    if isinstance(value, str) and _ISO_INSTANT.match(value):
        return _within_years(value, datetime.fromisoformat(value))
    message = f"{value!r} is neither a number nor a date (2013-01-31) or time (2013-01-31T12:00:00)"
    raise ValueError(message)


def _within_years(text: str, instant: datetime) -> datetime:
    """Return an instant whose UTC is in the years 1 to 9999, as those of a table are.

    Raises:
        ValueError: its offset carries it out of them.
    """
    try:
        if instant.tzinfo:
            instant.astimezone(UTC)
    except OverflowError:
        message = f"{text!r} is not within the years 1 to 9999 in UTC"
        raise ValueError(message) from None
    return instant


def kind_of_bound(bound: Bound) -> str:
    """Return the kind of column that the bound fits: number, date, timestamp or timestamptz."""
    match bound:
        case datetime():
            return "timestamptz" if bound.tzinfo else "timestamp"
        case date():
            return "date"
    return "number"


def hash_suite(document: Json) -> str:
    """Return 16 hex digits of the sha256 of the canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def freeze(kwargs: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the arguments read-only and without nulls, which mean "not given"."""
    return MappingProxyType({name: value for name, value in kwargs.items() if value is not None})


def read_document(path: Path) -> Json:
    """Read the file as strict JSON: no NaN, no repeated key.

    Raises:
        SuiteError: no such file, not UTF-8, or not JSON; the text names the line.
    """
    try:
        document = json.loads(
            path.read_text(encoding="utf-8"),
            parse_constant=_reject_constant,
            object_pairs_hook=_reject_duplicate_keys,
        )
        hash_suite(document)  # half of a surrogate pair can be read, and not be written
        return cast("Json", document)
    except OSError as error:
        raise SuiteError(
            f"{path}: {error.strerror}",
            f"create the file, or correct `quality.suite` ({path.stem})",
        ) from error
    except RecursionError:
        raise SuiteError(f"{path}: nested too deeply", "write fewer levels of brackets") from None
    except ValueError as error:
        raise SuiteError(
            f"{path}: not valid JSON: {error}", "fix the file, then run `frazil streams`"
        ) from error


def _reject_constant(name: str) -> Json:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _reject_duplicate_keys(pairs: list[tuple[str, Json]]) -> Mapping[str, Json]:
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        message = f"key {twice[0]!r} appears twice in one object"
        raise ValueError(message)
    return dict(pairs)
