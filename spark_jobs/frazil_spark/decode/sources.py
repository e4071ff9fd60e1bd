"""Bounded reads of Kafka: exact offsets in, exactly those records out."""

import base64
import json
from collections.abc import Iterator, Mapping
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema

from frazil.failpoints import list_failing_records
from frazil.ingest.messages import StageRequest
from frazil.ledger.coordinates import FIRST_TIMESTAMP_MS, LAST_TIMESTAMP_MS
from frazil.ledger.offsets import PlainRanges, Runs, iterate_ranges, remove_runs, unpack_ranges
from frazil.recovery.messages import RedriveRequest

_THROW = "'java.lang.Integer', 'parseInt', 'no number'"
_EXIT = "'java.lang.System', 'exit', 1"
FETCH_OPTIONS = {
    "kafka.max.partition.fetch.bytes": "8388608",
    "kafka.fetch.max.bytes": "52428800",
    "kafka.max.poll.records": "5000",
    # A range often ends at the end of the log. There a fetch waits for new records, half a second
    # by default, and Spark's request for the log's end, sent after each poll on the same
    # connection, is answered only after that wait: with 10 ms a batch took 25 ms longer.
    "kafka.fetch.max.wait.ms": "1",
}
_V1_SOURCES = "spark.sql.sources.useV1SourceList"
"""Must not contain `kafka`: the older reader first makes each record a row of objects."""
_OFFSET_KEY = ("topic", "partition", "offset")
DEAD_LETTER_KEY = ("attempt", "topic", "partition", "offset")
"""Columns that identify a dead letter."""
DEAD_LETTERS_PER_TASK = 25_000
"""Dead letters that one task decodes."""
BYTES_PER_TASK = 8_388_608
"""Bytes that one task of a throttled read gets in a second: less than a core decodes."""
SLEEPS_PER_SECOND = 100
"""How often a task of a throttled read sleeps, if its records are small."""
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


def read_ranges(spark: SparkSession, request: StageRequest) -> DataFrame:
    """Read the request's ranges; offsets that Kafka no longer has fail the job.

    Offsets of the request's `isolated` are not read at all, since Kafka's source itself may fail
    there, nor those of its `given_records`; erased records of its `left_out` are dropped. `assign`,
    not `subscribe`, so that a partition that is added between plan and read does no harm.
    """
    older = (spark.conf.get(_V1_SOURCES) or "").split(",")
    if "kafka" in older:
        spark.conf.set(_V1_SOURCES, ",".join(name for name in older if name != "kafka"))
    layers = remove_runs(request.ranges, join_runs(request.isolated, request.given))
    reads = [_read_layer(spark, request, layer) for layer in layers]
    if request.given:
        records = pa.ipc.open_stream(base64.b64decode(request.given_records)).read_all()
        given = select_in_ranges(records, request)
        rows = spark.createDataFrame(given, from_arrow_schema(given.schema))
        reads.append(rows.select(*reads[0].columns))
    records = throttle(reduce(DataFrame.unionAll, reads), request)
    records = fail_at_named_records(records)
    if not request.left_out:
        return records
    erased = select_record_keys(spark, {"": {"": request.left_out}}).select(*_OFFSET_KEY)
    return records.join(F.broadcast(erased), list(_OFFSET_KEY), "left_anti")


def throttle(records: DataFrame, request: StageRequest) -> DataFrame:
    """Read at most `max_bytes_per_second` of keys and values, by tasks that sleep.

    Neither Kafka's clients nor Spark's batch reader limit bytes in time. A task polls Kafka only
    when it needs records, so a task that sleeps reads less. A fixed number of tasks shares the
    limit, which holds however many cores there are. Small records would sleep too short to be
    exact: one of `n`, chosen by a hash, sleeps for `n` records of its size.
    """
    limit = request.max_bytes_per_second
    if limit is None:
        return records
    partitions = sum(len(parts) for parts in request.ranges.values())
    tasks = min(-(-limit // BYTES_PER_TASK), partitions)
    rate = limit // tasks
    size = "(coalesce(length(key), 0) + coalesce(length(value), 0) + 1)"
    count = f"greatest({rate // SLEEPS_PER_SECOND} div {size}, 1)"
    milliseconds = f"{count} * {size} * 1000 div {rate}"
    # A condition that is always true, which the optimizer cannot know.
    sleep = f"length(coalesce(reflect('java.lang.Thread', 'sleep', {milliseconds}), '')) >= 0"
    chosen = f"pmod(xxhash64(partition, offset), {count}) = 0"
    return records.coalesce(tasks).where(f"CASE WHEN {chosen} THEN {sleep} ELSE true END")


def select_in_ranges(given: pa.Table, request: StageRequest) -> pa.Table:
    """Return the records in the request's ranges that are not isolated."""
    parts = remove_runs(request.ranges, request.isolated)
    spans = [each for part in parts for each in iterate_ranges(unpack_ranges(part))]
    coordinates = zip(*(given[name].to_pylist() for name in _OFFSET_KEY), strict=True)
    kept = [
        any((topic, partition) == (t, p) and span.holds(offset) for t, p, span in spans)
        for topic, partition, offset in coordinates
    ]
    return given.filter(pa.array(kept, pa.bool_()))


def join_runs(first: Runs, second: Runs) -> Runs:
    """Return all runs of two sets, by topic and partition."""
    joined: Runs = {}
    for topics in (first, second):
        for topic, parts in topics.items():
            for partition, runs in parts.items():
                joined.setdefault(topic, {}).setdefault(partition, []).extend(runs)
    return joined


def _read_layer(spark: SparkSession, request: StageRequest, ranges: PlainRanges) -> DataFrame:
    """Read at most one range of each partition."""
    pairs = {
        topic: {str(p): pair for p, pair in by_partition.items()}
        for topic, by_partition in ranges.items()
    }
    assigned = {topic: sorted(map(int, parts)) for topic, parts in pairs.items()}
    starts = {t: {p: pair[0] for p, pair in parts.items()} for t, parts in pairs.items()}
    ends = {t: {p: pair[1] for p, pair in parts.items()} for t, parts in pairs.items()}
    return (
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


def fail_at_named_records(records: DataFrame) -> DataFrame:
    """Make decoding fail for the records that a test names; see `frazil.failpoints`.

    Spark evaluates `reflect` after the filters and joins before it: it is not deterministic.
    """
    for failing in list_failing_records():
        action = f"reflect({_EXIT if failing.kills else _THROW})"
        records = records.where(
            f"CASE WHEN topic = '{failing.topic}' AND partition = {failing.partition} "
            f"AND offset = {failing.offset} THEN {action} IS NULL ELSE true END"
        )
    return records


def kafka_struct(schema_id: Column | None = None) -> Column:
    """Build the `_kafka` column.

    The timestamp is null where the producer sent none, which Kafka stores as -1 whatever its type,
    and before 1582 or after 9999: Spark's source changes the former, Python cannot read the latter.
    """
    # Not `unix_millis(timestamp) BETWEEN`: Spark would copy each row to evaluate that only once.
    is_kept = F.expr(
        f"timestamp >= timestamp_millis({FIRST_TIMESTAMP_MS}) "
        f"AND timestamp < timestamp_millis({LAST_TIMESTAMP_MS + 1}) "
        "AND unix_millis(timestamp) != -1"
    )
    return F.struct(
        F.col("topic").alias("topic"),
        F.col("partition").alias("partition"),
        F.col("offset").alias("offset"),
        F.when(is_kept, F.col("timestamp")).alias("timestamp"),
        F.col("timestampType").alias("timestamp_type"),
        F.col("key").alias("key"),
        F.col("headers").alias("headers"),
        (F.lit(None) if schema_id is None else schema_id).cast("int").alias("schema_id"),
    )


def read_dead_letters(spark: SparkSession, request: RedriveRequest) -> DataFrame:
    """Read the request's dead letters, with the columns of Spark's Kafka source."""
    dead_letters = spark.table(f"{request.catalog}.{request.dead_letters_table}").select(
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
    wanted = select_record_keys(spark, {"": request.dead_letters}).drop("mark")
    # Small files are read together: without this, one core would decode all of them.
    tasks = max(-(-count_records(request.dead_letters) // DEAD_LETTERS_PER_TASK), 1)
    selected = dead_letters.join(F.broadcast(wanted), list(DEAD_LETTER_KEY), "left_semi")
    return fail_at_named_records(selected).repartition(tasks)


def count_records(dead_letters: Mapping[str, Runs]) -> int:
    """Return the number of records in runs of offsets."""
    return sum(end - start for _, _, _, _, start, end in _list_runs({"": dead_letters}))


def select_record_keys(spark: SparkSession, marks: Mapping[str, Mapping[str, Runs]]) -> DataFrame:
    """Return one row for each record in runs of offsets, with its mark."""
    rows = [dict(zip(_RUNS.names, row, strict=True)) for row in _list_runs(marks)]
    # For an empty table PySpark does not read the types from Arrow's schema.
    table = pa.Table.from_pylist(rows, schema=_RUNS)
    runs = spark.createDataFrame(table, from_arrow_schema(_RUNS))
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
