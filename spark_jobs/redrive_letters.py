"""Decode dead letters again, and stage those that now decode on a branch.

spark-submit spark_jobs/redrive_letters.py request.json result.json
"""

from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.failpoints import reach_failpoint
from frazil.recovery.messages import RedriveRequest, RedriveResult
from frazil_spark.decode.frame import GOOD, Decoded, read_decode_options
from frazil_spark.decode.sources import read_dead_letters
from frazil_spark.decode.values import decode
from frazil_spark.job import run_job
from frazil_spark.metrics import read_partitions
from frazil_spark.session_settings import apply_settings
from stage_batch import append_good_rows


def redrive_letters(spark: SparkSession, request: RedriveRequest) -> RedriveResult:
    """Append dead letters that decode to the branch; count the others by their current reason."""
    apply_settings(spark, request.session_conf)
    decoded = decode(
        read_dead_letters(spark, request),
        request.convert,
        request.columns,
        options=read_decode_options(request),
    )
    if request.dry_run:
        return preview(decoded)
    reach_failpoint("redrive.before-write")
    observed = append_good_rows(decoded, request)
    reach_failpoint("redrive.after-write")
    all_good = observed["good"] == observed["read"]
    failing = {} if all_good else count_outcomes(decoded)
    return describe(request, observed, {r: n for r, n in failing.items() if r is not None})


def preview(decoded: Decoded) -> RedriveResult:
    """Count dead letters that decode and that do not; write nothing."""
    outcomes = count_outcomes(decoded)
    return RedriveResult(
        rows_read=sum(outcomes.values()),
        rows_good=outcomes.pop(None, 0),
        partitions=(),
        metrics={},
        min_timestamp_ms=None,
        max_timestamp_ms=None,
        failing={reason: count for reason, count in outcomes.items() if reason is not None},
    )


def count_outcomes(decoded: Decoded) -> dict[str | None, int]:
    """Count records by their current reason, None for good ones.

    `observe()` prevents a second decode. Its metrics are not read: where no row passes a filter
    behind it, Spark prunes the whole plan, and the metrics with it.
    """
    observed = decoded.frame.observe("not read", F.count(F.lit(1)).alias("read"))
    reason = F.when(~F.col(GOOD), F.expr(decoded.reason)).alias("reason")
    return {row["reason"]: row["count"] for row in observed.groupBy(reason).count().collect()}


def describe(
    request: RedriveRequest, observed: Mapping[str, int | None], failing: dict[str, int]
) -> RedriveResult:
    """Build the result from the counters."""
    return RedriveResult(
        rows_read=observed["read"] or 0,
        rows_good=observed["good"] or 0,
        rows_invalid=observed["invalid"] or 0,
        partitions=read_partitions(request, observed),
        metrics={name: observed.get(name) for name in request.metrics},
        min_timestamp_ms=observed["min_timestamp_ms"],
        max_timestamp_ms=observed["max_timestamp_ms"],
        failing=failing,
    )


if __name__ == "__main__":
    run_job(redrive_letters, RedriveRequest)
