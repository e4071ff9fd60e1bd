"""Bounded reads of Kafka: exact offsets in, exactly those records out."""

import json

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.contracts import StageRequest
from frazil_spark.letter_source import name_letters

FETCH_OPTIONS = {
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.fetch.max.bytes": "52428800",
    "kafka.max.poll.records": "5000",
    # A range mostly ends where the log does. There the consumer already waits for records to come,
    # half a second by default; where the log ends, which Spark asks after each poll, is answered
    # behind that wait, on the same connection.
    "kafka.fetch.max.wait.ms": "10",
}

_V1_SOURCES = "spark.sql.sources.useV1SourceList"
"""Without `kafka` in it: its older reader makes each record a row of objects first."""

_PLACE = ("topic", "partition", "offset")


def read_ranges(spark: SparkSession, request: StageRequest) -> DataFrame:
    """Read the request's ranges; offsets that Kafka no longer has fail the job.

    What the request leaves out was erased, and nobody sees it. `assign`, not `subscribe`: a
    partition that appears between plan and read must not break it.
    """
    pairs = {
        topic: {str(p): pair for p, pair in by_partition.items()}
        for topic, by_partition in request.ranges.items()
    }
    assigned = {topic: sorted(map(int, parts)) for topic, parts in pairs.items()}
    starts = {t: {p: pair[0] for p, pair in parts.items()} for t, parts in pairs.items()}
    ends = {t: {p: pair[1] for p, pair in parts.items()} for t, parts in pairs.items()}
    older = (spark.conf.get(_V1_SOURCES) or "").split(",")
    if "kafka" in older:
        spark.conf.set(_V1_SOURCES, ",".join(name for name in older if name != "kafka"))
    records = (
        spark.read.format("kafka")
        .options(**FETCH_OPTIONS)
        .options(**request.kafka_options)
        .option("kafka.isolation.level", request.isolation)
        .option("assign", json.dumps(assigned))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .load()
    )
    if not request.left_out:
        return records
    erased = name_letters(spark, {"": {"": request.left_out}}).select(*_PLACE)
    return records.join(F.broadcast(erased), list(_PLACE), "left_anti")


def kafka_struct(schema_id: Column | None = None) -> Column:
    """Build the `_kafka` column (features A3); a record without timestamp gets null, not 1969.

    Kafka writes -1 where a producer sent none; its kind says nothing about that.
    """
    return F.struct(
        F.col("topic").alias("topic"),
        F.col("partition").alias("partition"),
        F.col("offset").alias("offset"),
        F.when(F.unix_millis("timestamp") != F.lit(-1), F.col("timestamp")).alias("timestamp"),
        F.col("timestampType").alias("timestamp_type"),
        F.col("key").alias("key"),
        F.col("headers").alias("headers"),
        (F.lit(None) if schema_id is None else schema_id).cast("int").alias("schema_id"),
    )
