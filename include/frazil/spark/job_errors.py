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
from frazil.spark.thrown import (
    CATALOG_GONE,
    CONFLICT,
    CONTEXT_ENDED,
    EVERY_SIGN,
    KAFKA_GONE,
    KAFKA_SILENT,
    NO_COUNTERS,
    NO_EXECUTOR,
    SERVER_GONE,
    STORAGE,
    Sign,
    Thrown,
    find_signs,
    list_names,
    read_thrown,
)

_MOST_TEXT = 4000
_MOST_CAUSES = 20
_MOST_CAUSE = 500
_AGAIN = "the next run tries the same range again"
_KNOWN: tuple[tuple[tuple[Sign, ...], type[FrazilError], str], ...] = (
    (
        KAFKA_SILENT,
        KafkaUnavailableError,
        f"check the broker with `frazil doctor`; {_AGAIN}",
    ),
    (
        CATALOG_GONE,
        CatalogUnavailableError,
        f"check the catalog with `frazil doctor`; {_AGAIN}",
    ),
    (
        STORAGE,
        StorageError,
        "free space or grant access in the warehouse and in Spark's local folders, then run again",
    ),
    (NO_EXECUTOR, SparkUnavailableError, f"check the cluster's workers and queue; {_AGAIN}"),
    (
        SERVER_GONE,
        SparkUnavailableError,
        f"check the server with `frazil stack status`; {_AGAIN}",
    ),
    (
        CONFLICT,
        CommitContentionError,
        "another writer committed first; run again: no row or file was lost",
    ),
)
"""Signs of a known cause, the error that it becomes, and its next step; the first match counts."""


def encode_job_error(error: BaseException) -> str:
    """Encode an exception as the job's result: its text's beginning, and all causes below it."""
    condition = getattr(error, "getCondition", lambda: None)()
    text = str(error)
    head = _cut(text)
    causes = [m[1] for m in _CAUSE.finditer(text) if m.start(1) > len(head)]
    kept = [cause[:_MOST_CAUSE] for cause in causes[:_MOST_CAUSES]]
    names = {"error": type(error).__name__, "condition": condition or ""}
    return json.dumps({**names, "text": "\n".join([head, *(("\t...", *kept) if kept else ())])})


_CAUSE = re.compile(r"(?<=\n)\t[^\n]*\n(Caused by: [^\n]*)")


def _cut(text: str) -> str:
    """Cut a text at the end of a line, so that no cause loses its message; long lines are cut."""
    end = text.rfind("\n", 0, _MOST_TEXT) if len(text) > _MOST_TEXT else -1
    return text[: end if end > 0 else _MOST_TEXT]


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
    kind, condition, detail = content["error"], content.get("condition", ""), content["text"]
    thrown = read_thrown(kind, detail)
    shown = _describe(job, kind, condition, detail)
    error = _choose_error(f"Spark job {job}: {kind}: {shown}", thrown, stream, brokers)
    if _may_be_caused_by_record(error, kind, thrown):
        error.suspect_record(kind + (f" [{condition}]" if condition else ""))
    return error


def is_server_gone(text: str) -> bool:
    """Return whether the error in a job's result means that the Spark server ended."""
    error = parse_job_error("", text)
    return isinstance(error, SparkUnavailableError) and error.is_record_suspected


def _may_be_caused_by_record(error: FrazilError, kind: str, thrown: tuple[Thrown, ...]) -> bool:
    """Return whether the job failed for an unknown reason, or the server ended meanwhile."""
    if isinstance(error, JobFailedError):
        is_uncounted = any(each.message.startswith(NO_COUNTERS) for each in thrown)
        return kind not in _DEFINITE and not is_uncounted
    if not isinstance(error, SparkUnavailableError):
        return False
    return bool(find_signs((*SERVER_GONE, *CONTEXT_ENDED), thrown))


def _choose_error(
    facts: str, thrown: tuple[Thrown, ...], stream: str | None, brokers: str
) -> FrazilError:
    """Return the error whose class is known by signs of Spark, Kafka and the file systems."""
    if find_signs(KAFKA_GONE, thrown):
        command = f"frazil plan {stream}" if stream else "frazil status"
        return RetentionGapError(
            f"{facts}\nKafka deleted records between plan and read; nothing was published",
            f"`{command}` shows the gap by partition",
        )
    by_client = _explain_clients(facts, thrown, brokers)
    if by_client is not None:
        return by_client
    for signs, kind, step in _KNOWN:
        if find_signs(signs, thrown):
            return kind(facts, step)
    return JobFailedError(
        facts,
        "see the stack trace in the Spark server's log, or run `frazil doctor`; the next run tries "
        "the same range again",
    )


def _explain_clients(facts: str, thrown: tuple[Thrown, ...], brokers: str) -> FrazilError | None:
    """Return the error of a Java client of Kafka, a catalog or a storage, if its cause is known.

    Only classes of such clients count, and quoted texts are left out.
    """
    detail = hide_literals(
        "\n".join(f"{each.name}: {each.message}" for each in thrown if _CLIENT.match(each.name))
    )
    at = f"Kafka at {brokers}" if brokers else "Kafka"
    said, of_kafka = f"Spark's Java client cannot use {at}:", failures.explain_java(detail)
    if of_kafka is None and find_signs(KAFKA_SILENT, thrown):
        said = f"{said} no answer; from this machine:"
        of_kafka = failures.explain_silence(brokers)
    tests = f"`frazil doctor --connections` tests it with each client; {_AGAIN}"
    if of_kafka is not None:
        return KafkaUnavailableError(
            f"{facts}\n{said} {of_kafka.sentence}", f"{of_kafka.next_step}; {tests}"
        )
    found = None if find_signs(CONFLICT, thrown) else explain_java(detail)
    if found is None:
        return None
    server, cause = found
    error = StorageError if server == "storage" else CatalogUnavailableError
    return error(
        f"{facts}\nSpark cannot use the {server}: {cause.sentence}", f"{cause.next_step}; {tests}"
    )


_CLIENT = re.compile(
    r"(?:org\.apache\.(?:iceberg|hc|thrift|hadoop|kafka)|org\.postgresql|com\.mysql|"
    r"software\.amazon|java\.net|java\.security|javax\.(?:net|security)|sun\.security)\."
)
_HEADING = re.compile(
    r"^(.*?)(\b(?:[a-z]\w*\.)*[A-Z]\w*(?:Exception|Error)\b)(:?(?: ?\[[A-Z0-9_.]+\])?)([^\n]*)",
    re.MULTILINE,
)
_OF_CONNECTIONS = re.compile(
    r"org\.apache\.kafka\.|java\.net\.\w*(?:Connect|Host|Route|Socket)\w*Exception"
)


def hide_messages(output: str) -> str:
    """Return a job's output without quoted texts, and without messages of unknown exceptions."""

    def cut(line: re.Match[str]) -> str:
        if _OF_CONNECTIONS.match(line[2]):
            return line[0]
        message = f"{line[3]}{line[4]}".lstrip(": ")
        signs = find_signs(EVERY_SIGN, [Thrown(line[2], message)])
        new = [sign for sign in signs if sign not in line[2]]
        return f"{line[1]}{line[2]}{line[3]}" + "".join(f" {sign}" for sign in new)

    return _HEADING.sub(cut, hide_literals(output))


_DEFINITE = frozenset({"AnalysisException", "ParseException"})
"""Classes that Spark raises for a wrong query, table or setting, whatever the records are."""

_WITHOUT_ROWS = frozenset({"remove_orphans", "expire_snapshots"})
"""Jobs that read no rows of a table and no records."""
_MOST_LINES = 6
_MOST_NAMES = 12


def _describe(job: str, kind: str, condition: str, detail: str) -> str:
    """Return the parts of an error's text that no record fills.

    Of an error before the first row these are its first lines; of others the signs by which
    `_choose_error` knows the cause, Spark's error conditions and the names of exceptions.
    """
    thrown = read_thrown(kind, detail)
    is_before = kind in _DEFINITE or (kind == "IllegalArgumentException" and job in _WITHOUT_ROWS)
    lines = detail.strip().splitlines()[:_MOST_LINES] if is_before else []
    known = [hide_literals(line) for line in lines] or list(find_signs(EVERY_SIGN, thrown))
    names = dict.fromkeys([*([f"[{condition}]"] if condition else ()), *list_names(thrown)])
    missing = [n for n in names if not any(n in line for line in known)]
    hidden = "" if known else "its message is not shown, because it may contain values of records"
    first = "\n".join(known) if is_before else ", ".join(known)
    return "\n".join(filter(None, (first, ", ".join(missing[:_MOST_NAMES]), hidden)))
