"""How a Spark job's error crosses the process border, and what it becomes on this side."""

import json

from frazil.errors import (
    CatalogUnavailableError,
    FrazilError,
    JobFailedError,
    KafkaUnavailableError,
    RetentionGapError,
    SparkUnavailableError,
    StorageError,
)

_STORAGE_SIGNS = (
    "No space left on device",
    "Disk quota exceeded",
    "AccessDenied",
    "Status Code: 503",
)
_KAFKA_GONE_SIGNS = ("OffsetOutOfRange", "Some data may have been lost", "failOnDataLoss")
_KAFKA_SILENT_SIGNS = (
    "org.apache.kafka.common.errors.TimeoutException",
    "Cannot fetch record for offset",
)
_CATALOG_GONE_SIGNS = (
    "org.apache.iceberg.exceptions.RESTException",
    "org.apache.iceberg.exceptions.ServiceFailureException",
    "org.apache.iceberg.exceptions.ServiceUnavailableException",
)
_SERVER_GONE_SIGNS = (
    "StatusCode.UNAVAILABLE",
    "Connection refused",
    "SESSION_CLOSED",
    "Socket closed",
)
_NO_EXECUTOR_SIGNS = (
    "no executor works for this job",
    "Master removed our application",
    "All masters are unresponsive",
    "SparkContext was shut down",
)


def encode_job_error(error: BaseException) -> str:
    """Write an exception as the job's result."""
    return json.dumps({"error": type(error).__name__, "text": str(error)[:4000]})


def parse_job_error(job: str, text: str, stream: str | None = None) -> FrazilError | None:
    """Turn what a job wrote into one of our errors; None if it wrote none.

    `stream` is the one that the job reads for; a maintenance job reads for none.
    """
    if not text:
        return None
    content = json.loads(text)
    if "error" not in content:
        return None
    detail: str = content["text"]
    facts = f"Spark job {job}: {content['error']}: {_first_lines(detail)}"
    return _name_error(facts, detail, stream)


def _name_error(facts: str, detail: str, stream: str | None) -> FrazilError:
    """Recognise what went wrong by the words of Spark, Kafka and the file systems."""
    if any(sign in detail for sign in _KAFKA_GONE_SIGNS):
        look = f"`frazil plan {stream}` shows the gap by partition" if stream else "`frazil status`"
        return RetentionGapError(
            f"{facts}\nKafka deleted records between plan and read",
            f"nothing was staged for publishing; {look}",
        )
    if any(sign in detail for sign in _KAFKA_SILENT_SIGNS):
        return KafkaUnavailableError(
            facts, "`frazil doctor` checks the broker; the next run tries the same range again"
        )
    if any(sign in detail for sign in _CATALOG_GONE_SIGNS):
        return CatalogUnavailableError(
            facts, "`frazil doctor` checks the catalog; the next run tries the same range again"
        )
    if any(sign in detail for sign in _STORAGE_SIGNS):
        return StorageError(
            facts, "free or grant space in the warehouse or where Spark shuffles, then run again"
        )
    is_idle = any(sign in detail for sign in _NO_EXECUTOR_SIGNS)
    if is_idle or any(sign in detail for sign in _SERVER_GONE_SIGNS):
        look = (
            "look at the cluster's workers and queue"
            if is_idle
            else "`frazil stack status` shows the server"
        )
        return SparkUnavailableError(facts, f"{look}; the next run tries the same range again")
    return JobFailedError(
        facts,
        "the same range is planned again; the Spark server's log has the stack trace, and `frazil "
        "doctor` checks the server",
    )


def _first_lines(text: str, lines: int = 6) -> str:
    return "\n".join(text.strip().splitlines()[:lines])
