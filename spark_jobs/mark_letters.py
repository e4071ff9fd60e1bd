"""Write into dead letters which redrive resolved them; the ledger does not depend on it.

spark-submit spark_jobs/mark_letters.py request.json result.json
"""

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.recovery.messages import MarkRequest, MarkResult
from frazil_spark.decode.sources import select_record_keys
from frazil_spark.job import run_job
from frazil_spark.session_settings import apply_settings


def mark_letters(spark: SparkSession, request: MarkRequest) -> MarkResult:
    """Set `resolved_by` of the requested dead letters; no row is added or removed."""
    apply_settings(spark, request.session_conf)
    # Spark overestimates the exploded offsets, and would shuffle dead letters with their values.
    F.broadcast(select_record_keys(spark, request.marks)).createOrReplaceTempView(
        "resolved_letters"
    )
    spark.sql(
        f"""
        MERGE INTO {request.catalog}.{request.table} AS letter
        USING resolved_letters AS resolved
        ON letter.attempt = resolved.attempt
            AND letter._kafka.topic = resolved.topic
            AND letter._kafka.partition = resolved.partition
            AND letter._kafka.offset = resolved.offset
        WHEN MATCHED THEN UPDATE SET letter.resolved_by = resolved.mark
        """
    )
    return MarkResult(table=request.table)


if __name__ == "__main__":
    run_job(mark_letters, MarkRequest)
