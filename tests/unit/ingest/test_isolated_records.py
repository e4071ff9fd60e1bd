"""Records that are hard to find, and what is kept of those that are found."""

from pathlib import Path
from typing import cast

import pyarrow.parquet as pq
import pytest
from support.failing_jobs import (
    LETTERS,
    THROWN,
    IllegalArgumentException,
    PythonException,
    Run,
    begin_run,
)
from support.lake import Lake

from frazil.kafka.consumer import KafkaRecord, OffsetConsumer
from frazil.ledger.offsets import OffsetRange


@pytest.fixture
def run(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a stream whose job fails at named records."""
    return begin_run(lake, monkeypatch, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: row of Jane Doe BUSY street",
        "java.lang.IllegalStateException: Jane Doe No space left on device",
        "ValueError: AccessDenied Jane Doe",
        "(java.lang.IllegalArgumentException) Invalid UUID string: Jane Doe",
    ],
)
def test_a_record_with_the_words_of_an_outage_is_found(run: Run, text: str) -> None:
    kind = IllegalArgumentException if "UUID" in text else PythonException
    run.engine.failing = {(0, 7): kind(text)}

    run.publish()

    run.require_exact((0, 7))
    assert len(run.letters()) == 1


HEADERS = {7: None, 8: (), 9: (("a", None), ("b", b""))}


def test_null_headers_of_a_found_record_stay_null(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver(*place: object) -> tuple[KafkaRecord, ...]:
        _, topic, partition, span, _ = place
        return tuple(
            KafkaRecord(str(topic), cast("int", partition), at, None, 0, None, None, HEADERS[at])
            for at in range(cast("OffsetRange", span).start, cast("OffsetRange", span).end)
        )

    monkeypatch.setattr(OffsetConsumer, "fetch_records", deliver)
    run.engine.failing = dict.fromkeys([(0, offset) for offset in HEADERS], THROWN)

    run.publish()

    (file,) = run.lake.store.load(LETTERS).scan().plan_files()
    stored = pq.read_table(file.file.file_path.removeprefix("file://")).to_pylist()
    found = {row["_kafka"]["offset"]: row["_kafka"]["headers"] for row in stored}
    of_nine = [{"key": "a", "value": None}, {"key": "b", "value": b""}]
    assert found == {7: None, 8: [], 9: of_nine}
    assert {row["_kafka"]["timestamp"] for row in stored} == {None}
