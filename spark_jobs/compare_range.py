"""Compare the table's rows of a range with what Kafka's records would be today; write nothing.

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

PLACE = ("topic", "partition", "offset")


def compare_range(spark: SparkSession, request: StageRequest) -> Differences:
    """Join both by coordinate and count what is the same, differs or is on one side alone."""
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
    today = decoded.frame.select(*place(), F.col(GOOD), F.struct(*values).alias("today"))
    table = spark.table(f"{request.catalog}.{request.table}").where(in_ranges(request))
    now = table.select(*place(), F.struct(*names).alias("now"))
    return count(today.join(now, list(PLACE), "full_outer"))


def place() -> list[Column]:
    """Take the coordinate out of `_kafka`."""
    return [F.col(f"{KAFKA}.{name}").alias(name) for name in PLACE]


def in_ranges(request: StageRequest) -> Column:
    """Write the condition on a row's coordinate, with literals that prune files."""
    each = [
        (F.col(f"{KAFKA}.topic") == topic)
        & (F.col(f"{KAFKA}.partition") == partition)
        & F.col(f"{KAFKA}.offset").between(start, end - 1)
        for topic, parts in request.ranges.items()
        for partition, (start, end) in parts.items()
    ]
    return reduce(Column.__or__, each)


def count(joined: DataFrame) -> Differences:
    """Count in one pass."""
    read, good, now = (f"{GOOD} IS NOT NULL", f"coalesce({GOOD}, false)", "now IS NOT NULL")
    conditions = {
        "rows_now": now,
        "rows_read": read,
        "rows_good": good,
        "same": f"{good} AND {now} AND today <=> now",
        "changed": f"{good} AND {now} AND NOT (today <=> now)",
        "missing": f"{good} AND now IS NULL",
        "now_bad": f"{now} AND {read} AND NOT {good}",
        "undelivered": f"{now} AND {GOOD} IS NULL",
    }
    row = joined.agg(*(F.expr(f"count_if({sql})").alias(n) for n, sql in conditions.items()))
    return Differences(**row.collect()[0].asDict())


if __name__ == "__main__":
    run_job(compare_range, StageRequest)
