"""Stage one planned batch: a bounded Kafka range, decoded once, appended to a branch.

spark-submit spark_jobs/stage_batch.py request.json result.json
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.failpoints import reach_failpoint
from frazil.ingest.error_budget import BadRecords, dispose, explain_excess
from frazil.ingest.messages import StageRequest, StageResult
from frazil.quality.sql import write_count
from frazil.schemas.wire_format import Part
from frazil.streams.models import Errors
from frazil.streams.routes import count_own_records
from frazil_spark.decode.frame import KAFKA, VALUE, Decoded, forms_of
from frazil_spark.decode.sources import read_ranges
from frazil_spark.decode.values import decode
from frazil_spark.decode.wire_format import read_ids
from frazil_spark.fast_path.writer import (
    carried_columns,
    ends_workers,
    include_sure,
    write_directly,
)
from frazil_spark.job import run_job
from frazil_spark.metrics import count_metrics, read_files, read_partitions, read_unnamed

_COUNTS = 3


def stage_batch(spark: SparkSession, request: StageRequest) -> StageResult:
    """Append the good rows to the branch and the bad ones, if any, to the dead letters' branch."""
    for key, value in request.session_conf.items():
        spark.conf.set(key, value)
    decoded = decode(
        read_ranges(spark, request), request.convert, request.columns, forms=forms_of(request)
    )
    reach_failpoint("stage.before-write")
    observed = append_rows(spark, decoded, request)
    reach_failpoint("stage.after-write")
    read, good, elsewhere = (int(observed[name] or 0) for name in ("read", "good", "elsewhere"))
    records = BadRecords(
        read=count_own_records(request.route, read, elsewhere),
        bad=read - good - elsewhere,
        invalid=int(observed["invalid"] or 0),
        put_aside=int(observed.get("put_aside") or 0),
    )
    unknown = {frame.part: read_ids(observed[f"{frame.part}_unknown"]) for frame in decoded.wires}
    rows_dead = 0
    if not any(unknown.values()) and should_keep_letters(request, records):
        rows_dead = append_dead_letters(spark, decoded, request)
    return StageResult(
        rows_read=read,
        rows_good=good,
        rows_invalid=records.invalid,
        rows_elsewhere=elsewhere,
        rows_put_aside=records.put_aside,
        rows_late=int(observed.get("late") or 0),
        rows_dead=rows_dead,
        partitions=read_partitions(request, observed),
        metrics={name: observed.get(name) for name in request.metrics},
        min_timestamp_ms=observed["min_timestamp_ms"],
        max_timestamp_ms=observed["max_timestamp_ms"],
        files=read_files(observed),
        schema_ids=list_schema_ids(decoded, observed),
        value_schema_ids=read_ids(observed.get("value_ids")),
        unknown_ids={part: ids for part, ids in unknown.items() if ids},
        unknown_first=find_first_unknown(unknown, observed),
        unnamed_fields=read_unnamed(observed),
    )


def find_first_unknown(unknown: Mapping[Part, Sequence[int]], observed: dict[str, Any]) -> str:
    """Find the first record that names an unknown schema, as partition and offset."""
    found = (str(observed[f"{part}_unknown_first"]) for part, ids in unknown.items() if ids)
    return next(found, "")


def list_schema_ids(decoded: Decoded, observed: dict[str, Any]) -> tuple[int, ...]:
    """List the schemas by which good records were decoded."""
    found = {i for frame in decoded.wires for i in read_ids(observed[f"{frame.part}_ids"])}
    return tuple(sorted(found))


def append_rows(spark: SparkSession, decoded: Decoded, request: StageRequest) -> dict[str, Any]:
    """Append the good rows, by Python workers too where the request allows it and they can."""
    directly = decode_directly(spark, request)
    if directly is not None:
        try:
            return append_good_rows(directly, request)
        except PySparkException as error:
            # A worker may be killed, or missing; what else went wrong shows itself once more.
            name = type(error).__name__
            sys.stdout.write(f"Python workers gave up ({name}): Spark writes all rows\n")
    return append_good_rows(decoded, request.model_copy(update={"direct": None}))


def decode_directly(spark: SparkSession, request: StageRequest) -> Decoded | None:
    """Let workers write what is sure on the way to the decode, where the request allows it."""
    if request.direct is None or not ends_workers(spark):
        return None
    records = write_directly(read_ranges(spark, request), request)
    carried, forms = carried_columns(records), forms_of(request)
    return include_sure(decode(records, request.convert, request.columns, carried, forms), request)


def append_good_rows(decoded: Decoded, request: StageRequest) -> dict[str, Any]:
    """Append to the branch, counting on the way."""
    counts = 1 if request.direct else _COUNTS  # each pass of workers that write would write again
    select = partial(select_good_rows, decoded, request)
    return append_and_count(select, f"{request.catalog}.{request.table}", request, counts)


def append_and_count(
    select: Callable[[Observation], DataFrame], table: str, request: StageRequest, counts: int
) -> dict[str, Any]:
    """Append to the branch, and give the counters of the pass that wrote.

    Spark Connect sends none where they are a tenth of a second late, as on a busy machine
    (`Observation.getRowOrEmpty`, 4.1). What is read is bounded and decodes the same each time, so
    they are counted again, without writing.

    Raises:
        RuntimeError: none came again and again; the branch is dropped, the batch staged again.
    """
    for turn in range(counts):
        observation = Observation()
        rows = select(observation)
        if turn == 0:
            write(rows, table, request)
        else:
            sys.stdout.write(
                "Spark sent no counters of the rows it wrote: they are counted again\n"
            )
            rows.write.format("noop").mode("overwrite").save()
        observed: dict[str, Any] = observation.get
        if observed:
            return observed
    message = "Spark sent no counters of the rows it wrote; the next run stages the batch again"
    raise RuntimeError(message)


def select_good_rows(
    decoded: Decoded, request: StageRequest, observation: Observation
) -> DataFrame:
    """Count every record, then keep the good ones.

    `observe()` stands between the decode and the filter: there it sees every record, and it keeps
    the optimizer from repeating the decode in each expression behind it.
    """
    counted = decoded.frame.observe(observation, *count_metrics(decoded, request))
    return decoded.select_values(counted.where(decoded.unwritten))


def should_keep_letters(request: StageRequest, records: BadRecords) -> bool:
    """Keep letters only where the batch may pass: a bad rollout must not fill the table (A11)."""
    errors = Errors.model_validate(request.errors)
    allowed = request.waived or explain_excess(errors, records) is None
    return allowed and dispose(errors, records).quarantined > 0


def append_dead_letters(spark: SparkSession, decoded: Decoded, request: StageRequest) -> int:
    """Read the range again, keep only what is bad, and give the count of letters."""
    table = f"{request.catalog}.{request.dead_letters_table}"
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH `{request.branch}`")
    select = partial(select_letters, decoded, request)
    count = int(append_and_count(select, table, request, _COUNTS)["dead"])
    reach_failpoint("stage.after-dead-letters")
    return count


def select_letters(decoded: Decoded, request: StageRequest, observation: Observation) -> DataFrame:
    """Keep what is bad, whole; here too `observe()` keeps the decode out of the filter."""
    counted = decoded.frame.observe(observation, F.expr(write_count(decoded.bad)).alias("dead"))
    return counted.where(decoded.bad).select(
        KAFKA,
        F.col(VALUE).alias("value"),
        F.expr(decoded.reason).alias("reason"),
        F.expr(decoded.detail).alias("detail"),
        F.lit(request.batch_id).alias("batch_id"),
        F.lit(request.branch).alias("attempt"),
        F.lit(request.stream).alias("stream"),
        F.current_timestamp().alias("quarantined_at"),
        F.lit(None).cast("string").alias("resolved_by"),
    )


def write(rows: DataFrame, table: str, request: StageRequest) -> None:
    """Append to the branch by its identifier: the `branch` option would write to main."""
    writer = rows.writeTo(f"{table}.branch_{request.branch}")
    for key, value in request.write_options.items():
        writer = writer.option(key, value)
    writer.append()


if __name__ == "__main__":
    run_job(stage_batch, StageRequest)
