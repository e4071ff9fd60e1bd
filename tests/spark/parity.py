"""Ask one pass of Spark and Great Expectations the same questions about the same rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.quality.expectations import Suite
from frazil.quality.great_expectations import run_great_expectations
from frazil.quality.judge import judge
from frazil.quality.rules import CompiledSuite, ExpectationResult

GOOD, FRAME, SUITE = "_good", "_frame", "_suite"
EXTREMES = ("expect_column_min_to_be_between", "expect_column_max_to_be_between")

Metrics = Mapping[str, int | float | str | None]


@dataclass(frozen=True)
class Comparison:
    """Both verdicts on one expectation and one frame; `ours` is None if one pass cannot tell."""

    suite: Suite
    frame: int
    ours: ExpectationResult | None
    theirs: ExpectationResult

    @property
    def decided(self) -> bool:
        """Return whether one pass gave a verdict."""
        return self.ours is not None and not self.ours.undecided

    @property
    def differs(self) -> bool:
        """Return whether verdicts or counts differ."""
        if self.ours is None or self.ours.undecided:
            return False
        counts = {self.ours.unexpected_count, self.theirs.unexpected_count} - {None}
        return self.ours.success != self.theirs.success or len(counts) > 1

    def __str__(self) -> str:
        """Show what is needed to find the reason."""
        kwargs = dict(self.suite.expectations[self.theirs.index].kwargs)
        ours = self.ours and (self.ours.success, self.ours.observed)
        theirs = (self.theirs.success, self.theirs.observed, self.theirs.error)
        return f"{self.suite.name}[{self.frame}] {self.theirs.type} {kwargs}: {ours} != {theirs}"


def write_frames(frames: Sequence[Sequence[pa.Table]], path: Path) -> None:
    """Write all frames into one file, with the numbers of suite and frame."""
    numbered = [
        frame.append_column(FRAME, pa.array([number] * len(frame), pa.int32())).append_column(
            SUITE, pa.array([suite] * len(frame), pa.int32())
        )
        for suite, of_suite in enumerate(frames)
        for number, frame in enumerate(of_suite)
    ]
    pq.write_table(pa.concat_tables(numbered), path)


def count_frames(rows: DataFrame, suite: int, compiled: CompiledSuite) -> dict[int, Metrics]:
    """Compute the metrics of every frame of a suite in one query; empty frames have none."""
    aggregates = [F.expr(metric.sql).alias(metric.name) for metric in compiled.metrics]
    chosen = rows.where(F.col(SUITE) == suite).groupBy(FRAME)
    counted = chosen.agg(F.count(F.lit(1)).alias("_rows"), *aggregates).collect()
    return {row[FRAME]: row.asDict() for row in counted}


def compare_frames(
    suite: Suite,
    compiled: CompiledSuite,
    frames: Sequence[pa.Table],
    metrics: Mapping[int, Metrics],
) -> Iterator[Comparison]:
    """Judge each frame both ways; rows that are not good exist only for Spark."""
    for number, frame in enumerate(frames):
        good = frame.filter(pc.field(GOOD)).drop_columns([GOOD])
        judged = judge(compiled, metrics.get(number, {}), len(good))
        ours = {result.index: result for result in judged}
        for theirs in ask_great_expectations(suite, good):
            yield Comparison(suite, number, ours.get(theirs.index), theirs)


def ask_great_expectations(suite: Suite, rows: pa.Table) -> tuple[ExpectationResult, ...]:
    """Ask about every expectation; an extreme that nulls made it fail on is asked without them.

    Great Expectations raises on the smallest or largest of dates if one is missing.
    """
    answers = run_great_expectations(suite.expectations, rows)
    return tuple(_ask_again(suite, rows, a) if a.error else a for a in answers)


def _ask_again(suite: Suite, rows: pa.Table, answer: ExpectationResult) -> ExpectationResult:
    expectation = suite.expectations[answer.index]
    if expectation.type not in EXTREMES:
        return answer
    present = rows.filter(pc.field(expectation.text("column")).is_valid())
    return run_great_expectations([expectation], present)[0]
