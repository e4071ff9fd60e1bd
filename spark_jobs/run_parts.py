"""Run a job for parts of its input one after the other, and report which parts fail.

spark-submit spark_jobs/run_parts.py request.json result.json
"""

from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from compare_range import compare_range
from frazil.ingest.messages import StageRequest
from frazil.messages import Message
from frazil.recovery.messages import CompareRangeRequest, RedriveRequest
from frazil.spark.job_errors import encode_job_error, is_server_gone
from frazil.spark.messages import PartsRequest, PartsResult
from frazil_spark.job import run_job
from redrive_letters import redrive_letters
from stage_batch import stage_batch

_JOBS: dict[str, tuple[Callable[[SparkSession, Any], Message], type[Message]]] = {
    "stage_batch": (stage_batch, StageRequest),
    "compare_range": (compare_range, CompareRangeRequest),
    "redrive_letters": (redrive_letters, RedriveRequest),
}


def run_parts(spark: SparkSession, request: PartsRequest) -> PartsResult:
    """Run the job for each part; stop at a part during which the Spark server ended."""
    action, kind = _JOBS[request.job]
    results = []
    for part in request.parts:
        try:
            results.append(action(spark, kind.parse(part)).encode())
        except Exception as error:  # noqa: BLE001 - any error is this part's result
            text = encode_job_error(error)
            results.append(text)
            if is_server_gone(text):
                break
    return PartsResult(results=tuple(results))


if __name__ == "__main__":
    run_job(run_parts, PartsRequest)
