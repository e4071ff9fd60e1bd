"""The errors of Spark jobs: written by the job as JSON, translated into Frazil's errors here.

A message of Spark, Java or Python may quote a value of a record, and an error is stored where an
erasure does not reach: the timeline, XCom, logs. So only parts that
cannot contain values of records are shown.
"""

import json
import re

from frazil.connections.causes import explain_java
from frazil.errors import (
    CatalogUnavailableError,
    CommitContentionError,
    FrazilError,
    JobFailedError,
    KafkaUnavailableError,
    RetentionGapError,
    SparkUnavailableError,
    StorageError,
    hide_literals,
)
from frazil.kafka import failures

_CONFLICT_SIGNS = ("CommitFailedException", "ValidationException", "CommitStateUnknown", "BUSY")

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
    "INVALID_HANDLE",
    "RETRIES_EXCEEDED",
    "Socket closed",
)
_CONTEXT_ENDED_SIGNS = ("SparkContext was shut down", "stopped SparkContext")
_NO_EXECUTOR_SIGNS = (
    "no executor works for this job",
    "Master removed our application",
    "All masters are unresponsive",
    *_CONTEXT_ENDED_SIGNS,
)


_MOST_TEXT = 4000
_MOST_CAUSES = 20
_MOST_CAUSE = 500
_AGAIN = "the next run tries the same range again"
_KNOWN: tuple[tuple[tuple[str, ...], type[FrazilError], str], ...] = (
    (
        _KAFKA_SILENT_SIGNS,
        KafkaUnavailableError,
        f"check the broker with `frazil doctor`; {_AGAIN}",
    ),
    (
        _CATALOG_GONE_SIGNS,
        CatalogUnavailableError,
        f"check the catalog with `frazil doctor`; {_AGAIN}",
    ),
    (
        _STORAGE_SIGNS,
        StorageError,
        "free space or grant access in the warehouse and in Spark's local folders, then run again",
    ),
    (_NO_EXECUTOR_SIGNS, SparkUnavailableError, f"check the cluster's workers and queue; {_AGAIN}"),
    (
        _SERVER_GONE_SIGNS,
        SparkUnavailableError,
        f"check the server with `frazil stack status`; {_AGAIN}",
    ),
    (
        _CONFLICT_SIGNS,
        CommitContentionError,
        "another writer committed first; run again: no row or file was lost",
    ),
)
"""Signs of a known cause, the error that it becomes, and its next step; the first match counts."""


def encode_job_error(error: BaseException) -> str:
    """Encode an exception as the job's result: its text's beginning, and all causes below it."""
    condition = getattr(error, "getCondition", lambda: None)()
    head, rest = _cut(str(error))
    causes = [line for line in rest.splitlines() if line.startswith("Caused by: ")]
    text = "\n".join([head, *(cause[:_MOST_CAUSE] for cause in causes[:_MOST_CAUSES])])
    names = {"error": type(error).__name__, "condition": condition or ""}
    return json.dumps({**names, "text": text})


def _cut(text: str) -> tuple[str, str]:
    """Cut a text at the end of a line, so that no cause loses its message; long lines are cut."""
    end = text.rfind("\n", 0, _MOST_TEXT) if len(text) > _MOST_TEXT else -1
    end = end if end > 0 else _MOST_TEXT
    return text[:end], text[end:]


def parse_job_error(
    job: str, text: str, stream: str | None = None, brokers: str = ""
) -> FrazilError | None:
    """Translate a job's result into one of Frazil's errors; None if it holds no error.

    `stream` is the stream that the job reads for, and `brokers` the addresses that it reads from;
    maintenance jobs have none.
    """
    if not text:
        return None
    content = json.loads(text)
    if "error" not in content:
        return None
    detail: str = content["text"]
    facts = f"Spark job {job}: {content['error']}: {_describe(content['error'], detail)}"
    error = _choose_error(facts, detail, stream, brokers)
    if _may_be_caused_by_record(error, content["error"], detail):
        condition = content.get("condition", "")
        error.suspect_record(content["error"] + (f" [{condition}]" if condition else ""))
    return error


def is_server_gone(text: str) -> bool:
    """Return whether the error in a job's result means that the Spark server ended."""
    error = parse_job_error("", text)
    return isinstance(error, SparkUnavailableError) and error.is_record_suspected


def _may_be_caused_by_record(error: FrazilError, kind: str, detail: str) -> bool:
    """Return whether the job failed for an unknown reason, or the server ended meanwhile."""
    if isinstance(error, JobFailedError):
        return kind not in _DEFINITE and NO_COUNTERS not in detail
    if not isinstance(error, SparkUnavailableError):
        return False
    return any(sign in detail for sign in (*_SERVER_GONE_SIGNS, *_CONTEXT_ENDED_SIGNS))


def _choose_error(facts: str, detail: str, stream: str | None, brokers: str) -> FrazilError:
    """Return the error whose class is known by messages of Spark, Kafka and the file systems.

    Quoted texts are left out: the value of a record may contain the same words.
    """
    detail = hide_literals(detail)
    if any(sign in detail for sign in _KAFKA_GONE_SIGNS):
        command = f"frazil plan {stream}" if stream else "frazil status"
        return RetentionGapError(
            f"{facts}\nKafka deleted records between plan and read; nothing was published",
            f"`{command}` shows the gap by partition",
        )
    at = f"Kafka at {brokers}" if brokers else "Kafka"
    said, of_kafka = f"Spark's Java client cannot use {at}:", failures.explain_java(detail)
    if of_kafka is None and any(sign in detail for sign in _KAFKA_SILENT_SIGNS):
        said = f"{said} no answer; from this machine:"
        of_kafka = failures.explain_silence(brokers)
    if of_kafka is not None:
        return KafkaUnavailableError(
            f"{facts}\n{said} {of_kafka.sentence}",
            f"{of_kafka.next_step}; `frazil doctor --connections` tests it with each client; "
            f"{_AGAIN}",
        )
    found = None if _is_conflict(detail) else explain_java(detail)
    if found is not None:
        server, cause = found
        error = StorageError if server == "storage" else CatalogUnavailableError
        return error(
            f"{facts}\nSpark cannot use the {server}: {cause.sentence}",
            f"{cause.next_step}; `frazil doctor --connections` tests it with each client; {_AGAIN}",
        )
    for signs, kind, step in _KNOWN:
        if any(sign in detail for sign in signs):
            return kind(facts, step)
    return JobFailedError(
        facts,
        "see the stack trace in the Spark server's log, or run `frazil doctor`; the next run tries "
        "the same range again",
    )


def _is_conflict(detail: str) -> bool:
    return any(sign in detail for sign in _CONFLICT_SIGNS)


_HEADING = re.compile(
    r"^(.*?\b(?:[a-z]\w*\.)*[A-Z]\w*(?:Exception|Error)\b:?(?: ?\[[A-Z0-9_.]+\])?)[^\n]*",
    re.MULTILINE,
)


def hide_messages(output: str) -> str:
    """Return a job's output without quoted texts, and without messages of unknown exceptions."""

    def cut(line: re.Match[str]) -> str:
        is_known = any(sign in line[0] for sign in (*_SIGNS, "org.apache.kafka", "java.net."))
        return line[0] if is_known else line[1]

    return _HEADING.sub(cut, hide_literals(output))


_DEFINITE = frozenset({"AnalysisException", "ParseException"})
"""Classes that Spark raises for a wrong query, table or setting, whatever the records are."""

NO_COUNTERS = "Spark sent no counters of the rows it wrote"
"""A message of the job `stage_batch`; the cause is a busy machine."""

_BEFORE_ROWS = frozenset({"AnalysisException", "ParseException", "IllegalArgumentException"})
"""Classes that Spark raises before it reads a row."""

_SIGNS = (
    *_CONFLICT_SIGNS,
    *_STORAGE_SIGNS,
    *_KAFKA_GONE_SIGNS,
    *_KAFKA_SILENT_SIGNS,
    *_CATALOG_GONE_SIGNS,
    *_SERVER_GONE_SIGNS,
    *_NO_EXECUTOR_SIGNS,
)
_CLASS = re.compile(
    r"\b(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b|^\w+(?:Exception|Error)(?=:)", re.MULTILINE
)
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_.]+\]")
_MOST_LINES = 6
_MOST_NAMES = 12


def _describe(kind: str, detail: str) -> str:
    """Return the parts of an error's text that no record fills.

    Of an error before the first row these are its first lines; of others the lines by which
    `_name_error` knows the cause, the names of exceptions, and Spark's error conditions.
    """
    lines = detail.strip().splitlines()
    if kind not in _BEFORE_ROWS:
        lines = [line for line in lines if any(sign in line for sign in _SIGNS)]
    known = [hide_literals(line) for line in lines[:_MOST_LINES]]
    names = [*_CONDITION.findall(detail), *_CLASS.findall(detail)]
    missing = [n for n in dict.fromkeys(names) if not any(n in line for line in known)]
    hidden = "" if known else "its message is not shown, because it may contain values of records"
    return "\n".join(filter(None, (*known, ", ".join(missing[:_MOST_NAMES]), hidden)))
