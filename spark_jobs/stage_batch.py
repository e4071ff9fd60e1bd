"""Stage one planned batch: a bounded Kafka range, decoded once, appended to a branch.

spark-submit spark_jobs/stage_batch.py request.json result.json
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.failpoints import reach_failpoint
from frazil.ingest.error_budget import BadRecords, has_dead_letters
from frazil.ingest.messages import StageRequest, StageResult
from frazil.quality.sql import write_count
from frazil.schemas.wire_format import Part
from frazil.spark.thrown import NO_COUNTERS
from frazil.streams.models import Errors
from frazil.streams.routes import count_own_records
from frazil_spark.decode.frame import KAFKA, VALUE, Decoded, read_decode_options
from frazil_spark.decode.sources import read_ranges
from frazil_spark.decode.values import decode
from frazil_spark.decode.wire_format import read_ids
from frazil_spark.fast_path.writer import (
    carried_columns,
    ends_workers,
    include_fast_path_rows,
    knows_limits,
    write_fast_path,
)
from frazil_spark.job import run_job
from frazil_spark.metrics import (
    Counters,
    count_metrics,
    read_files,
    read_partitions,
    read_skipped,
    read_unmapped_fields,
)
from frazil_spark.session_settings import apply_settings

_COUNTS = 3


def stage_batch(spark: SparkSession, request: StageRequest) -> StageResult:
    """Append the good rows to the branch and the bad ones, if any, to the dead letters' branch."""
    apply_settings(spark, request.session_conf)
    records, options = read_ranges(spark, request), read_decode_options(request)
    decoded = decode(records, request.convert, request.columns, options=options)
    reach_failpoint("stage.before-write")
    observed = append_rows(spark, decoded, request)
    reach_failpoint("stage.after-write")
    read, good, elsewhere = (int(observed[name] or 0) for name in ("read", "good", "elsewhere"))
    bad, invalid = read - good - elsewhere, int(observed["invalid"] or 0)
    own = count_own_records(request.route, read, elsewhere)
    bad_records = read_bad_records(request, observed, own, bad)
    unknown = {frame.part: read_ids(observed[f"{frame.part}_unknown"]) for frame in decoded.wires}
    rows_dead = 0
    if bad and not any(unknown.values()) and may_have_dead_letters(request, bad_records):
        rows_dead = append_dead_letters(spark, decoded, request)
    return StageResult(
        rows_read=read,
        rows_good=good,
        rows_invalid=invalid,
        rows_routed_elsewhere=elsewhere,
        rows_quarantined_by_review=bad_records.quarantined,
        rows_late=int(observed.get("late") or 0),
        rows_dead=rows_dead,
        skipped=read_skipped(observed),
        truncates=int(observed.get("truncates") or 0),
        partitions=read_partitions(request, observed),
        metrics={name: observed.get(name) for name in request.metrics},
        min_timestamp_ms=observed["min_timestamp_ms"],
        max_timestamp_ms=observed["max_timestamp_ms"],
        files=read_files(observed),
        schema_ids=list_schema_ids(decoded, observed),
        value_schema_ids=read_ids(observed.get("value_ids")),
        unknown_ids={part: ids for part, ids in unknown.items() if ids},
        unknown_first=find_first_unknown(unknown, observed),
        unnamed_fields=read_unmapped_fields(decoded, observed),
    )


def read_bad_records(
    request: StageRequest, observed: dict[str, Any], read: int, bad: int
) -> BadRecords:
    """Return the counts that the error budget refers to, with the isolated records."""
    return BadRecords(
        read=read + request.isolated_records,
        bad=bad + request.isolated_records,
        invalid=int(observed["invalid"] or 0) + request.isolated_records,
        quarantined=int(observed.get("quarantined") or 0),
    )


def may_have_dead_letters(request: StageRequest, records: BadRecords) -> bool:
    """Return whether the batch may pass its error budget with dead letters."""
    errors = Errors.model_validate(request.errors)
    return has_dead_letters(errors, records, waived=request.waived)


def find_first_unknown(unknown: Mapping[Part, Sequence[int]], observed: dict[str, Any]) -> str:
    """Find the first record that names an unknown schema, as topic:partition:offset."""
    found = (str(observed[f"{part}_unknown_first"]) for part, ids in unknown.items() if ids)
    return next(found, "")


def list_schema_ids(decoded: Decoded, observed: dict[str, Any]) -> tuple[int, ...]:
    """List the schemas by which good records were decoded."""
    found = {i for frame in decoded.wires for i in read_ids(observed[f"{frame.part}_ids"])}
    return tuple(sorted(found))


def append_rows(spark: SparkSession, decoded: Decoded, request: StageRequest) -> dict[str, Any]:
    """Append the good rows, on the fast path where the request allows it and workers succeed."""
    on_fast_path = decode_with_fast_path(spark, request)
    if on_fast_path is not None:
        try:
            return append_good_rows(on_fast_path, request)
        except PySparkException as error:
            # A worker may be missing or killed. Any other fault occurs again without workers.
            name = type(error).__name__
            sys.stdout.write(
                f"Python workers failed ({name}): Spark writes all rows of this batch\n"
            )
    return append_good_rows(decoded, request.model_copy(update={"fast_path": None}))


def decode_with_fast_path(spark: SparkSession, request: StageRequest) -> Decoded | None:
    """Decode with workers that write fast-path rows first; None where the request excludes it."""
    if request.fast_path is None or not knows_limits(request) or not ends_workers(spark):
        return None
    records = write_fast_path(read_ranges(spark, request), request)
    carried, options = carried_columns(records), read_decode_options(request)
    return include_fast_path_rows(
        decode(records, request.convert, request.columns, carried, options), request
    )


def append_good_rows(decoded: Decoded, request: StageRequest) -> dict[str, Any]:
    """Append to the branch, counting on the way."""
    counts = (
        1 if request.fast_path else _COUNTS
    )  # each pass of workers that write would write again
    select = partial(select_good_rows, decoded, request)
    return append_and_count(select, f"{request.catalog}.{request.table}", request, counts)


def append_and_count(
    select: Callable[[Counters], DataFrame], table: str, request: StageRequest, counts: int
) -> dict[str, Any]:
    """Append to the branch, and return the counters of the pass that wrote.

    Spark Connect sends no counters if they are a tenth of a second late, as on a busy machine
    (`Observation.getRowOrEmpty`, 4.1). The input is bounded and decodes the same each time, so they
    are then counted again, without writing.

    Raises:
        RuntimeError: no attempt returned counters; the next run stages the batch again.
    """
    for attempt in range(counts):
        counters = Counters()
        rows = select(counters)
        if attempt == 0:
            write(rows, table, request)
        else:
            sys.stdout.write(f"{NO_COUNTERS}: they are counted again\n")
            rows.write.format("noop").mode("overwrite").save()
        observed = counters.read(rows)
        if observed:
            return observed
    message = f"{NO_COUNTERS}; the next run stages the batch again"
    raise RuntimeError(message)


def select_good_rows(decoded: Decoded, request: StageRequest, counters: Counters) -> DataFrame:
    """Count every record, then select the good ones.

    `observe()` stands between decode and filter: it counts every record there, and prevents the
    optimizer from repeating the decode in each expression behind it.
    """
    counted = counters.add(decoded.frame, *count_metrics(decoded, request))
    return decoded.select_values(counted.where(decoded.unwritten))


def append_dead_letters(spark: SparkSession, decoded: Decoded, request: StageRequest) -> int:
    """Read the range again, append the bad records as dead letters, and return their count."""
    table = f"{request.catalog}.{request.dead_letters_table}"
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH `{request.branch}`")
    select = partial(select_dead_letters, decoded, request)
    count = int(append_and_count(select, table, request, _COUNTS)["dead"])
    reach_failpoint("stage.after-dead-letters")
    return count


def select_dead_letters(decoded: Decoded, request: StageRequest, counters: Counters) -> DataFrame:
    """Select the bad records, whole; `observe()` again prevents a second decode in the filter."""
    counted = counters.add(decoded.frame, F.expr(write_count(decoded.bad)).alias("dead"))
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
    """Append to the branch by its identifier, since the `branch` option would write to main."""
    writer = rows.writeTo(f"{table}.branch_{request.branch}")
    for key, value in request.write_options.items():
        writer = writer.option(key, value)
    writer.append()


if __name__ == "__main__":
    run_job(stage_batch, StageRequest)
