"""Records that make a decoder or Spark itself fail: each becomes a dead letter, the rest rows."""

import time
from collections.abc import Callable

import pytest
from conftest import Lab, good_values

from faults.batches import Batches
from frazil.errors import SparkUnavailableError
from frazil.failpoints import RECORDS_VARIABLE
from frazil.ingest.isolation import RESTART_SECONDS, SHUTDOWN_SECONDS
from frazil.recovery.messages import DeadLetterChoice, RedriveReport, ReplayRequest
from frazil.recovery.redrive import redrive_dead_letters
from frazil.recovery.replay import plan_replay, replay

pytestmark = pytest.mark.stack
Offset = tuple[int, int]
VALUES = good_values(16)
"""The record at an offset of a partition; records are produced in turn to two partitions."""


def prepare(lab: Lab, count: int) -> None:
    """Produce the first values to two partitions of a stream that may have bad records."""
    lab.write_stream(errors={"max_bad_ratio": 0.5})
    lab.create_topic(2)
    lab.produce(VALUES[:count], 2)


def name_records(lab: Lab, kind: str, *offsets: Offset) -> str:
    """Return the setting under which Spark fails at these records."""
    return ",".join(f"{kind}:{lab.topic}:{partition}:{offset}" for partition, offset in offsets)


def list_failed(batches: Batches) -> dict[Offset, tuple[str, bytes]]:
    """Return the detail and value of the dead letters that made Spark fail."""
    rows = batches.catalog.load_table(f"{batches.lab.table}__dead_letters").scan().to_arrow()
    return {
        (row["_kafka"]["partition"], row["_kafka"]["offset"]): (row["detail"], row["value"])
        for row in rows.to_pylist()
        if row["reason"] == "decoder_failed"
    }


def assert_isolated(batches: Batches, failing: list[Offset]) -> None:
    """Require the records as dead letters with their raw bytes, and what the auditor requires."""
    found = list_failed(batches)
    assert {place: value for place, (_, value) in found.items()} == {
        (partition, offset): VALUES[2 * offset + partition] for partition, offset in failing
    }
    assert all(detail.partition(" ")[0].endswith("Exception") for detail, _ in found.values())
    assert batches.faults() == ()


def isolate(batches: Batches, count: int, failing: list[Offset]) -> None:
    """Run the batch, of which these records fail."""
    published = batches.publish()

    counts = (published.rows_written, published.rows_quarantined)
    assert counts == (count - len(failing), len(failing))
    assert_isolated(batches, failing)


def throw(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the decoder throw at two records of sixteen."""
    failing = [(0, 7), (1, 2)]
    prepare(batches.lab, 16)
    monkeypatch.setenv(RECORDS_VARIABLE, name_records(batches.lab, "throw", *failing))
    isolate(batches, 16, failing)


def kill(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one of two records end the JVM; the first attempt blames no record."""
    prepare(batches.lab, 2)
    monkeypatch.setenv(RECORDS_VARIABLE, name_records(batches.lab, "kill", (1, 0)))
    with pytest.raises(SparkUnavailableError):
        batches.publish()
    time.sleep(SHUTDOWN_SECONDS)
    batches.open().engine.wait_until_reachable(RESTART_SECONDS)
    isolate(batches, 2, [(1, 0)])


def redrive(batches: Batches) -> RedriveReport:
    """Bring back what decodes."""
    choice = DeadLetterChoice(stream=batches.lab.stream, dry_run=False)
    return redrive_dead_letters(batches.open(), choice)


def reread(batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Redrive and replay records of which some fail, until none does."""
    lab = batches.lab
    prepare(lab, 8)
    monkeypatch.setenv(RECORDS_VARIABLE, name_records(lab, "throw", (0, 1), (1, 2)))
    batches.publish()

    monkeypatch.setenv(RECORDS_VARIABLE, name_records(lab, "throw", (0, 1)))
    report = redrive(batches)
    assert (report.rows, report.failing) == (1, {"decoder_failed": 1})

    monkeypatch.setenv(RECORDS_VARIABLE, name_records(lab, "throw", (0, 1), (0, 3)))
    offsets = (f"{lab.topic}:0:0-4",)
    request = ReplayRequest(stream=lab.stream, offsets=offsets, dry_run=False)
    planned = plan_replay(batches.open(), request)
    assert (planned.differences.same, planned.differences.now_bad) == (2, 1)
    replayed = replay(batches.open(), planned)
    assert (replayed.rows_written, replayed.rows_deleted) == (2, 3)
    assert batches.places() == {0: [0, 2], 1: [0, 1, 2, 3]}
    assert batches.faults() == ()

    monkeypatch.delenv(RECORDS_VARIABLE)
    assert redrive(batches).rows == 2
    assert batches.places() == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}
    assert batches.faults() == ()


@pytest.mark.core
@pytest.mark.storm(1)
@pytest.mark.parametrize("scenario", [throw, kill, reread])
def test_e24_a_record_at_which_spark_fails_is_a_dead_letter_and_the_others_are_rows(
    batches: Batches,
    monkeypatch: pytest.MonkeyPatch,
    scenario: Callable[[Batches, pytest.MonkeyPatch], None],
) -> None:
    scenario(batches, monkeypatch)

    assert batches.faults() == ()
