"""One pass of Spark says what Great Expectations says: 2,000 random frames, random suites.

With `--sample`, as in `make test`, there are 300 frames. The seed is printed; `FRAZIL_SEED` sets
it, and the same frames come again.
"""

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from spark.parity import GOOD, Comparison, compare_frames, count_frames, write_frames
from spark.random_rows import COLUMNS, draw_table
from spark.random_suites import ARGUMENTS, draw_suite
from support.local_spark import local_spark

from frazil.quality.compiler import ONE_PASS_TYPES, compile_suite
from frazil.quality.expectations import Suite
from frazil.quality.suite_files import check_suite_fits, load_suite

pytestmark = pytest.mark.spark

SUITES = int(os.environ.get("FRAZIL_PARITY_SUITES", "100"))
EXPECTATIONS_PER_SUITE = 4
LEAST_VERDICTS = 5
"""So often must each type have passed, and so often failed, or the comparison proves little."""


@dataclass(frozen=True)
class Size:
    """How much is compared."""

    suites: int
    frames_per_suite: int


WHOLE, SAMPLE = Size(SUITES, 20), Size(30, 10)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    # Far from UTC, with summer time: no verdict may depend on it.
    zone = {"spark.sql.session.timeZone": "America/New_York"}
    with local_spark("quality-parity", {"spark.sql.adaptive.enabled": "false", **zone}) as session:
        yield session


@pytest.fixture(scope="module")
def size(sampled: bool) -> Size:  # noqa: FBT001 - a fixture
    return SAMPLE if sampled else WHOLE


@pytest.fixture(scope="module")
def seed() -> int:
    chosen = int(os.environ.get("FRAZIL_SEED") or secrets.randbelow(2**31))
    print(f"FRAZIL_SEED={chosen}")  # noqa: T201 - to draw the same frames again
    return chosen


@pytest.fixture(scope="module")
def suites(seed: int, size: Size, tmp_path_factory: pytest.TempPathFactory) -> list[Suite]:
    """Draw suites in which every type occurs equally often."""
    rng, folder = Random(seed), tmp_path_factory.mktemp("suites")
    count = size.suites * EXPECTATIONS_PER_SUITE
    kinds = sorted(ARGUMENTS) * (1 + count // len(ARGUMENTS))
    drawn = []
    for start in range(0, count, EXPECTATIONS_PER_SUITE):
        path = folder / f"suite_{len(drawn)}.json"
        draw_suite(rng, kinds[start : start + EXPECTATIONS_PER_SUITE], path)
        drawn.append(load_suite(path))
        check_suite_fits(drawn[-1], COLUMNS)
    return drawn


@pytest.fixture(scope="module")
def frames(seed: int, size: Size) -> list[list[pa.Table]]:
    rng = Random(seed + 1)
    return [[draw_frame(rng) for _ in range(size.frames_per_suite)] for _ in range(size.suites)]


def draw_frame(rng: Random) -> pa.Table:
    """Draw 0 to 40 rows, some of them not good: those must count nowhere."""
    table = draw_table(rng, 0 if rng.random() < 0.08 else rng.randint(1, 40))
    share = rng.choice((1, 0.9, 0.5))
    good = pa.array([rng.random() < share for _ in range(len(table))], pa.bool_())
    return table.append_column(GOOD, good)


@pytest.fixture(scope="module")
def rows(
    spark: SparkSession, frames: list[list[pa.Table]], tmp_path_factory: pytest.TempPathFactory
) -> DataFrame:
    path: Path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    write_frames(frames, path)
    return spark.read.parquet(str(path)).cache()


@pytest.fixture(scope="module")
def comparisons(
    rows: DataFrame, frames: list[list[pa.Table]], suites: list[Suite]
) -> list[Comparison]:
    return list(compare_all(rows, frames, suites, GOOD))


def compare_all(
    rows: DataFrame, frames: list[list[pa.Table]], suites: list[Suite], good: str
) -> Iterator[Comparison]:
    """Compare suite by suite; Spark works ahead while Great Expectations answers."""
    compiled = [compile_suite(suite, COLUMNS, good) for suite in suites]
    with ThreadPoolExecutor(max_workers=1) as ahead:
        counted = [ahead.submit(count_frames, rows, n, c) for n, c in enumerate(compiled)]
        for number, suite in enumerate(suites):
            metrics = counted[number].result()
            yield from compare_frames(suite, compiled[number], frames[number], metrics)


@pytest.mark.core
def test_one_pass_gives_the_verdicts_and_counts_of_great_expectations(
    comparisons: list[Comparison],
) -> None:
    differing = [str(comparison) for comparison in comparisons if comparison.differs]

    assert not differing, f"{len(differing)} of {len(comparisons)}:\n" + "\n".join(differing[:20])


def test_great_expectations_answers_every_suite_that_fits_its_columns(
    comparisons: list[Comparison],
) -> None:
    errors = [str(comparison) for comparison in comparisons if comparison.theirs.error]

    assert not errors, f"{len(errors)} of {len(comparisons)}:\n" + "\n".join(errors[:20])


@pytest.mark.storm(0)
@pytest.mark.parametrize("kind", sorted(ONE_PASS_TYPES))
def test_every_type_passed_often_and_failed_often(comparisons: list[Comparison], kind: str) -> None:
    verdicts = Counter(c.theirs.success for c in comparisons if c.decided and c.theirs.type == kind)

    assert min(verdicts[True], verdicts[False]) >= LEAST_VERDICTS, verdicts


def test_one_pass_decides_nearly_everything(comparisons: list[Comparison]) -> None:
    decided = sum(comparison.decided for comparison in comparisons)
    print(f"{len(comparisons)} verdicts, {decided} decided in one pass")  # noqa: T201 - a figure

    assert decided / len(comparisons) > 0.8


def test_the_comparison_notices_when_bad_rows_are_counted(
    rows: DataFrame, frames: list[list[pa.Table]], suites: list[Suite]
) -> None:
    wrong = compare_all(rows, frames, suites[:3], good="TRUE")

    assert any(comparison.differs for comparison in wrong)


@pytest.mark.parametrize("condition", ["TRUE", "FALSE"], ids=["rows", "no rows"])
def test_observe_computes_the_metrics_while_rows_pass_by(
    rows: DataFrame, suites: list[Suite], condition: str
) -> None:
    compiled = [compile_suite(suite, COLUMNS, GOOD) for suite in suites[: len(ARGUMENTS) // 4]]
    sql = {m.sql: f"m{n}" for n, m in enumerate(m for c in compiled for m in c.metrics)}
    aggregates = [F.expr(text).alias(name) for text, name in sql.items()]
    observation, chosen = Observation(), rows.where(condition)

    chosen.observe(observation, *aggregates).write.format("noop").mode("overwrite").save()

    assert observation.get == chosen.agg(*aggregates).collect()[0].asDict()
