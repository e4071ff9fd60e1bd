"""A row that got another key is filled from the old key of its own database.

Two databases may use the same position (LSN) of their logs.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from support.local_spark import local_spark

from frazil_spark.unavailable_values import (
    DELETES,
    EVENT_PATHS,
    LACKS,
    LIVE,
    ONLY_DELETES,
    ORDER,
    PRESENT,
    ROW,
    aggregate_life,
    fill_from_other_keys,
    fill_rows,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow]
NAMES = ["doc"]
EVENTS = (
    "id LONG, _op STRING, doc STRING, _unavailable ARRAY<STRING>, "
    "_source STRUCT<lsn: LONG, db: STRING>, at LONG, "
    "_kafka STRUCT<headers: ARRAY<STRUCT<key: STRING, value: BINARY>>>"
)
MOVED = ([("__debezium.oldkey", b"{}")],)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with local_spark("moved-rows", {}) as session:
        yield session


def read_history(spark: SparkSession, one: str | None, other: str | None) -> DataFrame:
    """Move a row in each of two databases at one LSN: 1 becomes 2, and 11 becomes 12."""
    rows: list[tuple[object, ...]] = []
    for key, name in ((1, one), (11, other)):
        rows += [
            (key, "c", f"large {key}", [], (3, name), key, None),
            (key, "d", None, [], (7, name), key + 1, None),
            (key + 1, "c", None, [*NAMES], (7, name), key + 2, MOVED),
        ]
    return spark.createDataFrame(rows, EVENTS).selectExpr(
        "id",
        f"named_struct('at', at) AS {ORDER}",
        f"_op = 'd' AS {DELETES}",
        f"struct(id, doc) AS {ROW}",
        *EVENT_PATHS,
    )


def fill(history: DataFrame) -> tuple[dict[int, str | None], list[int]]:
    """Fold a history from its begin; give the values by key, and the LSNs that are waited for."""
    folded = history.groupBy("id").agg(
        F.expr(f"max_by(struct({DELETES}, {ROW}, {LACKS}), {ORDER}) AS newest"),
        F.expr(f"false AS {PRESENT}"),
        F.expr(f"false AS {LIVE}"),
        F.expr(f"false AS {ONLY_DELETES}"),
        *aggregate_life(NAMES),
    )
    folded = fill_rows(folded.select("*", "newest.*"), NAMES, has_rows=False)
    filled, waiting = fill_from_other_keys(folded, history, ["id"], NAMES)
    rows = filled.where(f"NOT {DELETES}").select(f"{ROW}.*").collect()
    return {row["id"]: row["doc"] for row in rows}, waiting


@pytest.mark.parametrize(
    ("one", "other"), [("shop", "mall"), ("shop", None), (None, "shop"), ("", None)]
)
def test_equal_positions_of_two_databases_are_two(
    spark: SparkSession, one: str | None, other: str | None
) -> None:
    found = fill(read_history(spark, one, other))

    assert found == ({2: "large 1", 12: "large 11"}, [])


@pytest.mark.parametrize("name", ["shop", None])
def test_a_position_that_ended_two_rows_of_one_database_names_none(
    spark: SparkSession, name: str | None
) -> None:
    assert fill(read_history(spark, name, name)) == ({2: None, 12: None}, [])


def test_a_delete_of_another_database_is_not_the_one_that_is_waited_for(
    spark: SparkSession,
) -> None:
    history = read_history(spark, "shop", "mall").where("id <> 1")

    assert fill(history) == ({2: None, 12: "large 11"}, [7])
