"""Decode dead letters again, and stage those that are good by now on a branch.

spark-submit spark_jobs/redrive_letters.py request.json result.json
"""

from collections.abc import Mapping

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from frazil.failpoints import reach_failpoint
from frazil.redrive_messages import RedriveRequest, RedriveResult
from frazil_spark.counting import count_metrics, read_partitions
from frazil_spark.decoding import GOOD, Decoded, decode
from frazil_spark.job import run_job
from frazil_spark.letter_source import read_letters
from stage_batch import append_good_rows


def redrive_letters(spark: SparkSession, request: RedriveRequest) -> RedriveResult:
    """Append the letters that decode to the branch; count the others by their reason of today."""
    for key, value in request.session_conf.items():
        spark.conf.set(key, value)
    decoded = decode(read_letters(spark, request), request.convert, request.columns)
    failing: dict[str, int] = {}
    if request.dry_run:
        observation = Observation()
        failing = count_failing(decoded, request, observation)
        observed = observation.get
    else:
        reach_failpoint("redrive.before-write")
        observed = append_good_rows(decoded, request)
        reach_failpoint("redrive.after-write")
        if observed["good"] != observed["read"]:
            failing = count_failing(decoded, request, Observation())
    return describe(request, observed, failing)


def count_failing(
    decoded: Decoded, request: RedriveRequest, observation: Observation
) -> dict[str, int]:
    """Count what still fails, by reason; `observe()` keeps the decode out of the filter."""
    counted = decoded.frame.observe(observation, *count_metrics(decoded, request))
    reasons = counted.where(f"NOT {GOOD}").groupBy(F.expr(decoded.reason).alias("reason"))
    return {row["reason"]: row["count"] for row in reasons.count().collect()}


def describe(
    request: RedriveRequest, observed: Mapping[str, int | None], failing: dict[str, int]
) -> RedriveResult:
    """Put the counters into the result."""
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
