"""What a Spark job's error becomes: one of our own, with the command that an operator can type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil import errors
from frazil.spark.engine import JobExit, write_output
from frazil.spark.job_errors import encode_job_error, hide_messages, parse_job_error
from frazil.spark.thrown import EVERY_SIGN, NO_COUNTERS

STAGE = (
    "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent failure: "
    "Lost task 0.3 in stage 3.0 (TID 7) (10.0.0.1 executor driver): "
)
LOST = (
    "Some data may have been lost because they are not available in Kafka any more; either the\n"
    " data was aged out by Kafka or the topic may have been deleted before all the data in the\n"
)
UNAVAILABLE = (
    "<_MultiThreadedRendezvous of RPC that terminated with:\n\tstatus = StatusCode.UNAVAILABLE\n"
    '\tdetails = "Socket closed"\n>'
)
FULL = "java.io.IOException: No space left on device"
SQLITE = (
    "(org.apache.iceberg.jdbc.UncheckedSQLException) Unknown failure\n\nJVM stacktrace:\n"
    "org.apache.iceberg.jdbc.UncheckedSQLException\n\tat org.apache.iceberg.A.b(A.java:1)\n"
    "Caused by: org.sqlite.SQLiteException: [SQLITE_BUSY] The database file is locked"
)
S3 = "(software.amazon.awssdk.services.s3.model.S3Exception) "


@pytest.mark.parametrize(
    ("text", "kind", "shown"),
    [
        (
            "(org.apache.kafka.clients.consumer.OffsetOutOfRangeException) orders-0",
            errors.RetentionGapError,
            "OffsetOutOfRange",
        ),
        (
            f"Cannot fetch offset 5.\n{LOST}",
            errors.RetentionGapError,
            "Some data may have been lost",
        ),
        (
            "(org.apache.spark.SparkException) [KAFKA_DATA_LOSS.COULD_NOT_READ] x",
            errors.RetentionGapError,
            "KAFKA_DATA_LOSS",
        ),
        (
            "Cannot fetch record for offset 7 in 120000 milliseconds",
            errors.KafkaUnavailableError,
            "Cannot fetch record for offset",
        ),
        (
            "org.apache.iceberg.exceptions.RESTException: GET",
            errors.CatalogUnavailableError,
            "RESTException",
        ),
        (FULL, errors.StorageError, "No space left on device"),
        (
            (
                "(org.apache.iceberg.exceptions.RuntimeIOException) Failed to close file: x\n\nJVM "
                f"stacktrace:\n\tat a.B.c(D.java:1)\nCaused by: {FULL}"
            ),
            errors.StorageError,
            "No space left on device",
        ),
        (
            (
                "[SPILL_OUT_OF_MEMORY] Error while calling spill() on org.x.S@1 : No space left on "
                "device"
            ),
            errors.StorageError,
            "No space left on device",
        ),
        (
            (
                "Traceback (most recent call last):\n  File x\nOSError: [Errno 28] No space left "
                "on device: '/w/a'"
            ),
            errors.StorageError,
            "No space left on device",
        ),
        (
            "java.nio.file.AccessDeniedException: /w/city=Oslo/a",
            errors.StorageError,
            "AccessDenied",
        ),
        (f"{S3}Slow (Service: S3, Status Code: 503)", errors.StorageError, "Status Code: 503"),
        (f"{S3}Access Denied (Service: S3, Status Code: 403)", errors.StorageError, "no right"),
        (UNAVAILABLE, errors.SparkUnavailableError, "StatusCode.UNAVAILABLE"),
        ("Socket closed", errors.SparkUnavailableError, "Socket closed"),
        (
            "(org.apache.spark.SparkSQLException) [INVALID_HANDLE.SESSION_CLOSED] The handle",
            errors.SparkUnavailableError,
            "SESSION_CLOSED",
        ),
        (
            (
                "An error occurred while calling o5.append.\n: org.apache.spark.SparkException: "
                "Job 3 cancelled because SparkContext was shut down"
            ),
            errors.SparkUnavailableError,
            "SparkContext was shut down",
        ),
        (
            "Cannot commit rewrite because of a ValidationException or CommitFailedException.",
            errors.CommitContentionError,
            "CommitFailedException",
        ),
        (SQLITE, errors.CommitContentionError, "SQLITE_BUSY"),
    ],
    ids=[
        "records are gone",
        "records are gone, as the source says",
        "records are gone, as a condition",
        "the broker is silent",
        "the catalog is gone",
        "the disk is full",
        "the disk is full, below",
        "the disk is full in the shuffle",
        "the disk is full in Python",
        "the folder is not ours",
        "the store is slow",
        "the store refuses",
        "the server is gone",
        "the server closed its socket",
        "the session is gone",
        "the context ended, by py4j",
        "another writer committed first",
        "the catalog's file is busy",
    ],
)
def test_what_a_job_wrote_becomes_our_error(
    text: str, kind: type[errors.FrazilError], shown: str
) -> None:
    for stage in ("", STAGE)[: 1 if "o5" in text else 2]:
        error = RuntimeError(f"{stage}{text}")
        found = parse_job_error("stage_batch", encode_job_error(error), "orders")

        assert type(found) is kind
        assert "Spark job stage_batch: RuntimeError: " in found.facts
        assert shown in found.facts


TRACE = "\n\tat org.apache.kafka.clients.Foo.bar(Foo.java:1)" * 200


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        ("org.apache.kafka.common.errors.SaslAuthenticationException: x", "login or the password"),
        ("javax.net.ssl.SSLHandshakeException: PKIX path building failed: x", "authority"),
        ("java.security.cert.CertPathValidatorException: validity check failed", "has expired"),
    ],
)
def test_a_login_that_java_fails_is_no_failed_job(cause: str, sentence: str) -> None:
    first = "(java.util.concurrent.ExecutionException) org.apache.kafka.common.errors.X"
    text = f"{first}Exception: failed\n\nJVM stacktrace:{TRACE}\nCaused by: {cause}{TRACE}"

    found = parse_job_error("stage_batch", encode_job_error(RuntimeError(text)), "orders")

    assert type(found) is errors.KafkaUnavailableError
    assert "Spark's Java client cannot use Kafka: the broker" in found.facts
    assert sentence in found.facts
    assert "`frazil doctor --connections`" in found.next_step


@pytest.mark.parametrize(
    ("first", "cause", "kind", "sentence"),
    [
        (
            "(org.apache.iceberg.jdbc.UncheckedSQLException) Failed to connect: jdbc:postgresql://h",
            "org.postgresql.util.PSQLException: FATAL: password authentication failed for user",
            errors.CatalogUnavailableError,
            "Spark cannot use the catalog: the catalog refuses the login",
        ),
        (
            "(software.amazon.awssdk.core.exception.SdkClientException) Unable to execute request",
            "java.net.ConnectException: Connection refused",
            errors.StorageError,
            "Spark cannot use the storage: nothing listens",
        ),
    ],
)
def test_a_catalog_or_storage_that_java_cannot_use_is_no_failed_job(
    first: str, cause: str, kind: type[errors.FrazilError], sentence: str
) -> None:
    trace = TRACE.replace("kafka", "iceberg")
    for start in (4000 - len(cause) // 2, 0):  # once the text is cut within the cause
        beginning = f"{first}\n\nJVM stacktrace:{trace}"[: start or 9000].rstrip()
        text = f"{beginning}\nCaused by: {cause}{trace}"

        found = parse_job_error("stage_batch", encode_job_error(RuntimeError(text)), "orders")

        assert type(found) is kind
        assert sentence in found.facts
        assert not found.is_record_suspected


def test_a_record_that_quotes_an_exception_is_no_failed_login() -> None:
    text = 'bad value "org.apache.kafka.common.errors.SaslAuthenticationException: x" at 7'

    found = parse_job_error("stage_batch", encode_job_error(RuntimeError(text)), "orders")

    assert type(found) is errors.JobFailedError


@pytest.mark.parametrize(
    ("stream", "command"),
    [("orders", "`frazil plan orders`"), (None, "`frazil status`")],
    ids=["a batch", "maintenance"],
)
def test_the_next_step_of_a_gap_can_be_typed(stream: str | None, command: str) -> None:
    text = encode_job_error(RuntimeError(LOST))

    found = parse_job_error("stage_batch", text, stream)

    assert found is not None
    assert command in found.next_step


MARKER = "marker-4711"


class SparkException(Exception):  # noqa: N818 - the name that PySpark gives it
    """An error of a job that has read rows."""


class AnalysisException(Exception):  # noqa: N818 - the name that PySpark gives it
    """An error of a query that Spark refuses."""


class IllegalArgumentException(Exception):  # noqa: N818 - the name that PySpark gives it
    """An error of a request that reads no row."""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f'java.lang.NumberFormatException: For input string: "{MARKER}"', "NumberFormatException"),
        (f"[CAST_INVALID_INPUT] The value {MARKER} cannot be cast", "[CAST_INVALID_INPUT]"),
        (f"Traceback (most recent call last):\nValueError: could not read {MARKER}", "ValueError"),
        (f"{MARKER} is odd", "not shown"),
        (f"java.io.IOException: No space left on device: '/w/city={MARKER}/a.parquet'", "space"),
        (f"java.io.IOException: Disk quota exceeded: file:/w/city={MARKER}/a.parquet", "quota"),
        (f"Connection refused\nrow: {MARKER}", "Connection refused"),
        (f"ValueError: {MARKER} No space left on device", "ValueError"),
    ],
    ids=[
        "quoted",
        "bare",
        "python",
        "no class",
        "quoted path",
        "path",
        "below a known line",
        "beside a sign",
    ],
)
def test_an_error_of_a_job_shows_no_value_of_a_record(text: str, shown: str) -> None:
    found = parse_job_error("stage_batch", encode_job_error(SparkException(STAGE + text)), "orders")

    assert found is not None
    assert MARKER not in str(found)
    assert shown in found.facts


WORDS = st.sampled_from(
    [
        *(sign.shown for sign in EVERY_SIGN),
        "BUSY",
        "java.io.IOException: ",
        "org.apache.iceberg.exceptions.RESTException: ",
        "\nCaused by: java.net.ConnectException: Connection refused",
        "Caused by: ",
        "[CAST_INVALID_INPUT] ",
        "(org.apache.kafka.common.errors.TimeoutException) ",
        "\n",
        "\t",
        ": ",
        " ",
    ]
)
KINDS = ("SparkException", "PythonException", "IllegalArgumentException", "ValueError")


@given(
    st.lists(WORDS | st.just(MARKER) | st.text(max_size=8), max_size=9),
    st.lists(WORDS, max_size=5),
    st.sampled_from(["", STAGE, STAGE + "Traceback (most recent call last):\nValueError: "]),
    st.sampled_from(KINDS),
)
def test_no_word_of_a_record_is_shown(
    before: list[str], after: list[str], start: str, kind: str
) -> None:
    text = f"{start}{''.join(before)}{MARKER}{''.join(after)}"
    error = type(kind, (Exception,), {})(text)

    found = parse_job_error("stage_batch", encode_job_error(error), "orders")

    assert found is not None
    assert MARKER not in f"{found}{hide_messages(f'ValueError: {MARKER}')}"


@pytest.mark.parametrize("sign", [*(sign.shown for sign in EVERY_SIGN), "BUSY", "AccessDenied"])
@pytest.mark.parametrize("thrown", ["ValueError: ", "java.lang.IllegalStateException: ", ""])
def test_a_record_with_the_words_of_an_outage_is_suspected(sign: str, thrown: str) -> None:
    for text in (f"{thrown}row of {MARKER} {sign} street", f"{thrown}{MARKER}: {sign}"):
        error = type("PythonException", (Exception,), {})(f"{STAGE}{text}")

        found = parse_job_error("stage_batch", encode_job_error(error), "orders")

        assert type(found) is errors.JobFailedError
        assert found.is_record_suspected
        assert MARKER not in str(found)


def test_an_illegal_argument_of_a_job_that_reads_rows_is_not_shown() -> None:
    error = IllegalArgumentException(f"Invalid UUID string: {MARKER}")

    found = parse_job_error("stage_batch", encode_job_error(error), "orders")

    assert found is not None
    assert MARKER not in str(found)
    assert found.is_record_suspected


def test_the_output_of_a_job_shows_the_sign_and_not_its_line() -> None:
    line = f"ERROR Executor: java.io.IOException: {MARKER}: No space left on device\n"

    shown = hide_messages(f"{line}ValueError: {MARKER} BUSY org.apache.kafka java.net.")

    assert MARKER not in shown
    assert "java.io.IOException: No space left on device" in shown


def test_an_error_before_the_first_row_is_shown() -> None:
    text = "Cannot remove orphan files with an interval less than 24 hours"

    found = parse_job_error("remove_orphans", encode_job_error(IllegalArgumentException(text)))

    assert type(found) is errors.JobFailedError
    assert text in found.facts


def test_the_output_of_a_job_is_shown_without_quoted_texts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = (
        f'WARN TaskSetManager: Lost task 0.0: NumberFormatException: For input string: "{MARKER}"'
    )

    code, tail = write_output(JobExit(1, f"{line}\n", 0))

    assert code == 1
    assert MARKER not in tail + capsys.readouterr().err
    assert "NumberFormatException" in tail


@pytest.mark.parametrize("text", ["", '{"rows_read": 3}'], ids=["nothing", "a result"])
def test_what_is_no_error_becomes_none(text: str) -> None:
    assert parse_job_error("stage_batch", text) is None


@pytest.mark.parametrize(
    ("text", "suspected"),
    [
        ("java.lang.ArithmeticException: long overflow", True),
        ("StatusCode.UNAVAILABLE", True),
        ("Job 3 cancelled because SparkContext was shut down", True),
        ("Cannot call methods on a stopped SparkContext", True),
        ("org.apache.kafka.common.errors.TimeoutException", False),
        (LOST, False),
        ("org.apache.iceberg.exceptions.ServiceUnavailableException", False),
        ("software.amazon.awssdk.S3Exception: Status Code: 503", False),
        ("no executor works for this job", False),
        ("CommitFailedException: another writer", False),
        (NO_COUNTERS, False),
        ("For input string: 'StatusCode.UNAVAILABLE, OffsetOutOfRange'", True),
    ],
)
def test_a_record_is_suspected_only_if_no_other_cause_is_known(
    text: str,
    suspected: bool,  # noqa: FBT001
) -> None:
    found = parse_job_error("stage_batch", encode_job_error(SparkException(text)), "orders")

    assert found is not None
    assert found.is_record_suspected is suspected
    assert found.cause_type == ("SparkException" if suspected else "")


def test_no_record_is_suspected_if_spark_refuses_the_query() -> None:
    found = parse_job_error("stage_batch", encode_job_error(AnalysisException("no column")))

    assert found is not None
    assert not found.is_record_suspected


def test_a_timeout_of_kafka_names_the_brokers_and_what_is_seen_from_here() -> None:
    text = "(org.apache.kafka.common.errors.TimeoutException) Timed out waiting for a node"
    found = encode_job_error(RuntimeError(text))

    error = parse_job_error("stage_batch", found, "orders", "127.0.0.1:1")

    assert isinstance(error, errors.KafkaUnavailableError)
    assert "Spark's Java client cannot use Kafka at 127.0.0.1:1: no answer" in error.facts
    assert error.facts.endswith("from this machine: nothing listens at this address")
    assert "correct `bootstrap.servers`" in error.next_step
