"""What a Spark job's error becomes: one of our own, with the command that an operator can type."""

import pytest

from frazil import errors
from frazil.spark.engine import JobExit, write_output
from frazil.spark.job_errors import NO_COUNTERS, encode_job_error, parse_job_error


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OffsetOutOfRangeException: orders-0", errors.RetentionGapError),
        ("Cannot fetch record for offset 7 in 120000 milliseconds", errors.KafkaUnavailableError),
        ("org.apache.iceberg.exceptions.RESTException: GET", errors.CatalogUnavailableError),
        ("java.io.IOException: No space left on device", errors.StorageError),
        ("StatusCode.UNAVAILABLE: Socket closed", errors.SparkUnavailableError),
        (
            "Cannot commit rewrite because of a ValidationException or CommitFailedException.",
            errors.CommitContentionError,
        ),
    ],
    ids=[
        "records are gone",
        "the broker is silent",
        "the catalog is gone",
        "the disk is full",
        "the server is gone",
        "another writer committed first",
    ],
)
def test_what_a_job_wrote_becomes_our_error(text: str, kind: type[errors.FrazilError]) -> None:
    found = parse_job_error("stage_batch", encode_job_error(RuntimeError(text)), "orders")

    assert type(found) is kind
    assert f"Spark job stage_batch: RuntimeError: {text}" in found.facts


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
    text = encode_job_error(RuntimeError("failOnDataLoss"))

    found = parse_job_error("stage_batch", text, stream)

    assert found is not None
    assert command in found.next_step


MARKER = "marker-4711"
STAGE = "Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times: Lost task 0.3: "


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
    ],
    ids=["quoted", "bare", "python", "no class", "quoted path", "path", "below a known line"],
)
def test_an_error_of_a_job_shows_no_value_of_a_record(text: str, shown: str) -> None:
    found = parse_job_error("stage_batch", encode_job_error(SparkException(STAGE + text)), "orders")

    assert found is not None
    assert MARKER not in str(found)
    assert shown in found.facts


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
        ("OffsetOutOfRange", False),
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
