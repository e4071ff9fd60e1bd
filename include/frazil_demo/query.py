"""One SQL query of the table through Spark Connect."""

from collections.abc import Sequence

TITLE = "Carriers with the highest mean departure delay, New York 2013"
COLUMNS = ("carrier", "flights", "mean delay (min)", "cancelled")

_SQL = """
    SELECT carrier, count(*) AS flights, round(avg(dep_delay), 1) AS mean_delay,
           count_if(dep_time IS NULL) AS cancelled
    FROM {table} GROUP BY carrier HAVING count(*) > 1000 ORDER BY mean_delay DESC LIMIT 5
"""


def run_query(remote: str, table: str) -> tuple[str, Sequence[str], Sequence[Sequence[object]]]:
    """Return title, columns and rows: the five carriers with the highest mean delay."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second

    spark = SparkSession.builder.remote(remote).create()
    try:
        rows = spark.sql(_SQL.format(table=f"lake.{table}")).collect()
    finally:
        spark.stop()
    return TITLE, COLUMNS, [tuple(row) for row in rows]
