"""What a Spark job's error becomes: one of our own, with the command that an operator can type."""

import pytest

from frazil import errors
from frazil.spark.job_errors import encode_job_error, parse_job_error


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("OffsetOutOfRangeException: orders-0", errors.RetentionGapError),
        ("Cannot fetch record for offset 7 in 120000 milliseconds", errors.KafkaUnavailableError),
        ("org.apache.iceberg.exceptions.RESTException: GET", errors.CatalogUnavailableError),
        ("java.io.IOException: No space left on device", errors.StorageError),
        ("StatusCode.UNAVAILABLE: Socket closed", errors.SparkUnavailableError),
        ("cannot resolve column", errors.JobFailedError),
    ],
    ids=[
        "records are gone",
        "the broker is silent",
        "the catalog is gone",
        "the disk is full",
        "the server is gone",
        "anything else",
    ],
)
def test_what_a_job_wrote_becomes_our_error(text: str, kind: type[errors.FrazilError]) -> None:
    found = parse_job_error("stage_batch", encode_job_error(RuntimeError(text)), "orders")

    assert type(found) is kind
    assert f"Spark job stage_batch: RuntimeError: {text}" in found.facts


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


@pytest.mark.parametrize("text", ["", '{"rows_read": 3}'], ids=["nothing", "a result"])
def test_what_is_no_error_becomes_none(text: str) -> None:
    assert parse_job_error("stage_batch", text) is None
