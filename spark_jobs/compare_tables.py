"""Compare the rows of two tables that have the same coordinate; write nothing.

spark-submit spark_jobs/compare_tables.py request.json result.json
"""

from pyspark.sql import SparkSession

from frazil.migration.messages import JoinRequest, JoinResult
from frazil_spark.compared_rows import (
    compare_values,
    configure,
    join_sides,
    summarize_partitions,
    to_report,
)
from frazil_spark.job import run_job


def compare_tables(spark: SparkSession, request: JoinRequest) -> JoinResult:
    """Join both tables on topic, partition and offset; return counts and samples by partition."""
    configure(spark, request)
    columns = len(request.columns)
    compared = compare_values(join_sides(spark, request), columns)
    found = summarize_partitions(compared, columns).collect()
    return JoinResult(partitions=tuple(to_report(row, request) for row in found))


if __name__ == "__main__":
    run_job(compare_tables, JoinRequest)
