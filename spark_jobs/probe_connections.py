"""Try a stream's connections from Spark: read records of Kafka, read a table and append to it.

spark-submit spark_jobs/probe_connections.py request.json result.json
"""

import json
from collections.abc import Callable

from pyspark.sql import SparkSession

from frazil.spark.job_errors import encode_job_error
from frazil.spark.messages import ProbeRequest, ProbeResult
from frazil_spark.job import run_job
from frazil_spark.session_settings import apply_settings


def probe_connections(spark: SparkSession, request: ProbeRequest) -> ProbeResult:
    """Try both connections; an error of one does not stop the other."""
    return ProbeResult(
        kafka=_try(lambda: _read_records(spark, request)),
        catalog=_try(lambda: _use_table(spark, request)) if request.table else "",
    )


def _try(action: Callable[[], object]) -> str:
    try:
        action()
    except Exception as error:  # noqa: BLE001 - any error is the answer to the question
        return encode_job_error(error)
    return ""


def _read_records(spark: SparkSession, request: ProbeRequest) -> None:
    ranges = {t: {str(p): r for p, r in parts.items()} for t, parts in request.ranges.items()}
    ends = [{t: {p: r[i] for p, r in parts.items()} for t, parts in ranges.items()} for i in (0, 1)]
    (
        spark.read.format("kafka")
        .options(**request.kafka_options)
        .option("assign", json.dumps({t: sorted(map(int, parts)) for t, parts in ranges.items()}))
        .option("startingOffsets", json.dumps(ends[0]))
        .option("endingOffsets", json.dumps(ends[1]))
        .load()
        .count()
    )


def _use_table(spark: SparkSession, request: ProbeRequest) -> None:
    apply_settings(spark, request.session_conf)
    name = f"{request.catalog}.{request.table}"
    spark.table(name).count()
    spark.sql(f"INSERT INTO {name} VALUES (2)")  # noqa: S608 - names of our own scratch table


if __name__ == "__main__":
    run_job(probe_connections, ProbeRequest)
