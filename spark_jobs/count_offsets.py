"""Count the rows of two tables by partition, with their first and last offset; write nothing.

spark-submit spark_jobs/count_offsets.py request.json result.json
"""

from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.migration.messages import ExtentRequest, Extents, PartitionExtent, TableExtent
from frazil_spark.compared_rows import configure, read_rows
from frazil_spark.job import run_job


def count_offsets(spark: SparkSession, request: ExtentRequest) -> Extents:
    """Count both tables in one Spark action that reads only the coordinate columns."""
    configure(spark, request)
    sides = (
        read_rows(spark, table).withColumn("side", F.lit(name))
        for name, table in (("left", request.left), ("right", request.right))
    )
    left, right = sides
    rows = left.unionByName(right).selectExpr(
        "side",
        "if(offset IS NULL, NULL, partition) AS partition",
        "topic",
        "offset",
        "timestamp_ms",
    )
    found = (
        rows.groupBy("side", "topic", "partition")
        .agg(
            F.expr("count(*) AS rows"),
            F.expr("min(offset) AS first"),
            F.expr("max(offset) AS last"),
            F.expr("max(timestamp_ms) AS newest"),
        )
        .collect()
    )
    return Extents(
        left=to_extent([row for row in found if row.side == "left"]),
        right=to_extent([row for row in found if row.side == "right"]),
    )


def to_extent(groups: list[Row]) -> TableExtent:
    """Return one side: rows by partition, and counts of rows without a partition or a topic."""
    with_partition = [row for row in groups if row.partition is not None]
    return TableExtent(
        partitions=tuple(
            PartitionExtent(
                topic=row.topic,
                partition=row.partition,
                rows=row.rows,
                first=row.first,
                last=row.last,
            )
            for row in with_partition
            if row.topic is not None
        ),
        unplaced=sum(row.rows for row in groups if row.partition is None),
        without_topic=sum(row.rows for row in with_partition if row.topic is None),
        newest_event_ms=max((r.newest for r in groups if r.newest is not None), default=None),
    )


if __name__ == "__main__":
    run_job(count_offsets, ExtentRequest)
