"""Letters read back: exactly the named rows of a dead-letter table, shaped as Kafka's records."""

from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.offsets import Runs
from frazil.redrive_messages import RedriveRequest

NAME = ("attempt", "topic", "partition", "offset")
"""What names a letter."""

TASK_LETTERS = 25_000
"""Letters that one task decodes."""

_RUNS = pa.schema(
    [
        ("mark", pa.string()),
        ("attempt", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
)


def read_letters(spark: SparkSession, request: RedriveRequest) -> DataFrame:
    """Read the request's letters with the columns that Spark's Kafka source has."""
    letters = spark.table(f"{request.catalog}.{request.dead_letters_table}").select(
        "attempt",
        "value",
        F.col("_kafka.key").alias("key"),
        F.col("_kafka.topic").alias("topic"),
        F.col("_kafka.partition").alias("partition"),
        F.col("_kafka.offset").alias("offset"),
        F.col("_kafka.timestamp").alias("timestamp"),
        F.col("_kafka.timestamp_type").alias("timestampType"),
        F.col("_kafka.headers").alias("headers"),
    )
    wanted = name_letters(spark, {"": request.letters}).drop("mark")
    # Small files are read together: without this one core alone would decode.
    portions = -(-count_letters(request.letters) // TASK_LETTERS)
    return letters.join(F.broadcast(wanted), list(NAME), "left_semi").repartition(portions)


def count_letters(letters: Mapping[str, Runs]) -> int:
    """Count what runs name."""
    return sum(end - start for _, _, _, _, start, end in _list_runs({"": letters}))


def name_letters(spark: SparkSession, marks: Mapping[str, Mapping[str, Runs]]) -> DataFrame:
    """Make one row for each named letter, with the mark that it stands under."""
    rows = [dict(zip(_RUNS.names, row, strict=True)) for row in _list_runs(marks)]
    runs = spark.createDataFrame(pa.Table.from_pylist(rows, schema=_RUNS))
    return runs.select(
        "mark",
        "attempt",
        "topic",
        "partition",
        F.explode(F.sequence(F.col("start"), F.col("end") - 1)).alias("offset"),
    )


def _list_runs(
    marks: Mapping[str, Mapping[str, Runs]],
) -> Iterator[tuple[str, str, str, int, int, int]]:
    for mark, attempts in marks.items():
        for attempt, topics in attempts.items():
            for topic, partitions in topics.items():
                for partition, runs in partitions.items():
                    for start, end in runs:
                        yield mark, attempt, topic, partition, start, end
