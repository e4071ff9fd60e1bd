"""Rules: how the metrics of one pass answer an expectation, as values.

A rule exists only where its verdict is that of Great Expectations on the same rows
(docs/quality.md); `tests/spark/test_quality_parity.py` compares both.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from frazil.expectations import Expectation
from frazil.quality_sql import SqlColumn, write_count

ROWS = ""
"""Stands for the count of all good rows, which the stage knows anyway."""


@dataclass(frozen=True)
class Metric:
    """One aggregate expression of Spark SQL, to be computed under this name."""

    name: str
    sql: str


@dataclass(frozen=True)
class CountRule:
    """Of `considered` values so many are `unexpected`; in doubt if `doubtful` counts any."""

    expectation: Expectation
    considered: str
    unexpected: str
    doubtful: str | None = None


@dataclass(frozen=True)
class ExtremeRule:
    """A smallest or largest value; `complies` is 1 or 0."""

    expectation: Expectation
    complies: str
    observed: str
    unit: Literal["text", "micros"]


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
    """The share of values that are there."""

    expectation: Expectation
    missing: str
    rows: str


@dataclass(frozen=True)
class FixedRule:
    """A verdict on the columns alone, which no row changes."""

    expectation: Expectation
    success: bool
    observed: str


Rule: TypeAlias = CountRule | ExtremeRule | SumRule | RowsRule | ShareRule | FixedRule


@dataclass(frozen=True)
class CompiledSuite:
    """A suite split in two: `metrics` answer `one_pass`, Great Expectations answers `rest`."""

    metrics: tuple[Metric, ...]
    one_pass: tuple[Rule, ...]
    rest: tuple[Expectation, ...]


@dataclass(frozen=True)
class Scope:
    """Where an expectation looks: columns, and the condition under which a row counts."""

    columns: Mapping[str, SqlColumn]
    where: str
    conditional: bool
    collected: dict[str, str] = field(repr=False)

    def add(self, sql: str) -> str:
        """Name a metric by its SQL, so that metrics of another suite are never mistaken for it."""
        digest = hashlib.sha256(sql.encode()).hexdigest()[:12]
        return self.collected.setdefault(sql, f"quality_{digest}")

    def count(self, *tests: str) -> str:
        """Name the count of rows that meet all tests."""
        return self.add(write_count(self.where, *tests))

    def count_rows(self) -> str:
        """Name the count of rows in scope."""
        return self.count() if self.conditional else ROWS

    def column(self, expectation: Expectation, name: str = "column") -> SqlColumn:
        """Look up the column that an argument names."""
        return self.columns[expectation.text(name)]
