"""Compare the table's rows of a range with Kafka's records decoded now; write nothing.

spark-submit spark_jobs/compare_range.py request.json result.json
"""

from functools import reduce

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.ingest.messages import StageRequest
from frazil.recovery.messages import Differences
from frazil.schemas.column_decoding import value_path
from frazil_spark.decode.frame import GOOD, KAFKA, read_decode_options
from frazil_spark.decode.sources import read_ranges
from frazil_spark.decode.values import decode
from frazil_spark.job import run_job

COORDINATE = ("topic", "partition", "offset")


def compare_range(spark: SparkSession, request: StageRequest) -> Differences:
    """Join both sides by coordinate; count equal and changed records, and those of one side."""
    for key, value in request.session_conf.items():
        spark.conf.set(key, value)
    decoded = decode(
        read_ranges(spark, request),
        request.convert,
        request.columns,
        options=read_decode_options(request),
    )
    values = [F.expr(value_path(column)).alias(column.name) for column in decoded.columns]
    names = [column.name for column in decoded.columns]
    records = decoded.frame.select(
        *select_coordinate(), F.col(GOOD), F.struct(*values).alias("decoded")
    )
    table = spark.table(f"{request.catalog}.{request.table}").where(in_ranges(request))
    rows = table.select(*select_coordinate(), F.struct(*names).alias("stored"))
    return count_differences(records.join(rows, list(COORDINATE), "full_outer"))


def select_coordinate() -> list[Column]:
    """Select topic, partition and offset from `_kafka`."""
    return [F.col(f"{KAFKA}.{name}").alias(name) for name in COORDINATE]


def in_ranges(request: StageRequest) -> Column:
    """Return the condition that a row is in the ranges, with literals that prune files."""
    each = [
        (F.col(f"{KAFKA}.topic") == topic)
        & (F.col(f"{KAFKA}.partition") == partition)
        & F.col(f"{KAFKA}.offset").between(start, end - 1)
        for topic, parts in request.ranges.items()
        for partition, (start, end) in parts.items()
    ]
    return reduce(Column.__or__, each)


def count_differences(joined: DataFrame) -> Differences:
    """Count all kinds of records in one aggregation."""
    read, good, stored = (
        f"{GOOD} IS NOT NULL",
        f"coalesce({GOOD}, false)",
        "stored IS NOT NULL",
    )
    conditions = {
        "rows_now": stored,
        "rows_read": read,
        "rows_good": good,
        "same": f"{good} AND {stored} AND decoded <=> stored",
        "changed": f"{good} AND {stored} AND NOT (decoded <=> stored)",
        "missing": f"{good} AND stored IS NULL",
        "now_bad": f"{stored} AND {read} AND NOT {good}",
        "undelivered": f"{stored} AND {GOOD} IS NULL",
    }
    row = joined.agg(*(F.expr(f"count_if({sql})").alias(n) for n, sql in conditions.items()))
    return Differences(**row.collect()[0].asDict())


if __name__ == "__main__":
    run_job(compare_range, StageRequest)
