"""A record that makes the job fail becomes a dead letter; what is no record's fault stays an error.

Spark is left out: PyIceberg stages a row for each offset, and the "job" fails at named offsets.
"""

import base64
import fcntl
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate
from support.failing_jobs import (
    KILLED,
    LETTERS,
    NO_KAFKA,
    THROWN,
    VALUE,
    Offset,
    Run,
    begin_run,
)
from support.lake import Lake, make_stream
from support.staged_offsets import Topic

from frazil.errors import (
    BatchBlockedError,
    BudgetExceededError,
    ConfigurationError,
    FrazilError,
    JobFailedError,
    RecordsNotIsolatedError,
    SparkUnavailableError,
    StageStaleError,
)
from frazil.iceberg import commits
from frazil.ingest import isolation
from frazil.ingest.messages import StageRequest
from frazil.kafka.consumer import OffsetConsumer
from frazil.ledger.authors import Author
from frazil.ledger.bisection import MAX_JOBS
from frazil.ledger.offsets import OffsetRange
from frazil.recovery.decisions import waive_batch


@pytest.fixture
def run(lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a stream whose job fails at named records."""
    return begin_run(lake, monkeypatch, tmp_path)


def test_a_clean_batch_is_one_job_of_the_whole_range(run: Run) -> None:
    run.publish()

    run.require_exact()
    assert run.engine.jobs == {"stage_batch": 1}
    assert (run.engine.requests[0].isolated, run.engine.requests[0].isolated_records) == ({}, 0)


@pytest.mark.parametrize(
    "failing",
    [[(0, 0)], [(1, 3)], [(0, 11), (1, 0)], [(0, 3), (0, 4), (0, 9), (1, 2)]],
    ids=["first", "last", "neighbours across partitions", "several"],
)
def test_records_that_fail_are_dead_letters_and_the_others_rows(
    run: Run, failing: list[Offset]
) -> None:
    run.engine.failing = dict.fromkeys(failing, THROWN)

    published = run.publish()

    run.require_exact(*failing)
    assert {detail for *_, detail in run.letters()} == {"PythonException"}
    assert published.rows_written + published.rows_quarantined == 16
    assert run.engine.jobs.total() <= MAX_JOBS
    run.topic.ends = (14, 4)
    run.publish()
    run.require_exact(*failing)


def test_records_that_only_sparks_kafka_source_cannot_read_are_given_to_the_job(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {0: [0, 3, 4, 11], 1: [2]}
    run.engine.failing = {(p, offset): THROWN for p, each in found.items() for offset in each}
    monkeypatch.setattr(OffsetConsumer, "fetch_unreadable", lambda *_: found)

    published = run.publish()

    run.require_exact()
    assert (published.rows_written, run.engine.jobs) == (16, {"stage_batch": 2})
    encoded = run.engine.requests[-1].given_records
    given = pa.ipc.open_stream(base64.b64decode(encoded)).read_all()
    assert given["offset"].to_pylist() == [0, 3, 4, 11, 2]
    assert set(given["timestamp"].to_pylist()) == {datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)}


def test_too_many_such_records_block_the_stream_with_a_next_step(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.engine.failing = {(0, 3): THROWN}
    monkeypatch.setattr(OffsetConsumer, "fetch_unreadable", lambda *_: {0: [3]})
    monkeypatch.setattr(isolation, "MAX_GIVEN_BYTES", 0)

    error = run.fail(RecordsNotIsolatedError)

    assert "the first at orders:0:3-4" in error.facts
    assert "batch.max_records" in error.next_step


def test_dead_letters_of_both_kinds_are_published_together(run: Run) -> None:
    run.engine.failing, run.engine.bad = {(0, 7): THROWN}, 2

    published = run.publish()

    reasons = Counter(reason for _, _, reason, _ in run.letters())
    assert reasons == {"malformed_json": 2, "decoder_failed": 1}
    assert (published.rows_written, published.rows_quarantined) == (13, 3)


def test_a_stream_that_skips_bad_records_skips_those_that_fail(run: Run) -> None:
    run.stream = make_stream(errors={"tolerance": "all", "max_bad_ratio": 0.6})
    run.engine.failing = {(0, 7): THROWN}

    published = run.publish()

    assert (published.rows_written, published.rows_quarantined) == (15, 0)
    assert published.rows_skipped == 1
    assert run.lake.store.find(LETTERS) is None


def test_a_record_that_ends_the_server_is_searched_for_from_the_second_attempt_on(
    run: Run,
) -> None:
    run.engine.failing = {(0, 7): KILLED, (1, 3): THROWN}

    run.fail(SparkUnavailableError)
    assert run.engine.jobs == {"stage_batch": 1}
    run.publish()

    run.require_exact((0, 7), (1, 3))


def test_a_server_that_ended_once_is_no_records_fault(run: Run) -> None:
    run.engine.failing = {(0, 7): KILLED}
    run.fail(SparkUnavailableError)
    run.engine.failing = {}

    run.publish()

    run.require_exact()
    assert run.engine.jobs == {"stage_batch": 2}


def test_only_one_search_on_a_machine_may_end_the_server(run: Run, tmp_path: Path) -> None:
    run.engine.failing = {(0, 7): KILLED}
    run.fail(SparkUnavailableError)

    with (tmp_path / "record_search.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        error = run.fail(SparkUnavailableError)

    assert "Another stream is searching" in error.facts
    assert run.engine.jobs == {"stage_batch": 2}
    run.publish()
    run.require_exact((0, 7))


@pytest.mark.parametrize("error", [NO_KAFKA, KILLED], ids=["broker away", "server away"])
def test_a_job_that_fails_for_a_known_cause_is_not_searched(run: Run, error: Exception) -> None:
    run.engine.failing = {(0, 7): error}

    run.fail(FrazilError)

    assert run.engine.jobs == {"stage_batch": 1}


def test_a_job_that_also_fails_without_records_stays_a_failed_job(run: Run) -> None:
    run.engine.before = lambda request: request.ranges.update(orders={0: (0, 12), 1: (0, 4)})
    run.engine.failing = {(0, 7): THROWN}

    error = run.fail(JobFailedError)

    assert "the job also fails without any record (PythonException)" in error.facts
    assert run.engine.jobs == {"stage_batch": 1, "run_parts": 1}
    assert run.lake.coordinates() == []


def test_a_batch_in_which_every_record_fails_is_blocked_and_can_be_waived(run: Run) -> None:
    every = [(0, offset) for offset in range(12)] + [(1, offset) for offset in range(4)]
    run.engine.failing = dict.fromkeys(every, THROWN)

    run.fail(BudgetExceededError)
    run.fail(BatchBlockedError)

    assert run.lake.coordinates() == []
    assert run.engine.jobs.total() < 10
    waive_batch(run.open(), run.read_blocked(), Author("jane@example.org", "known"))
    run.publish()
    run.require_exact(*every)


def test_an_outage_during_the_search_stays_an_outage(run: Run) -> None:
    run.engine.failing = {(0, 7): THROWN}

    def lose_broker(_: StageRequest) -> None:
        if len(run.engine.requests) == 4:
            run.engine.failing[0, 7] = NO_KAFKA

    run.engine.before = lose_broker
    error = run.fail(FrazilError)

    assert error.code == "KafkaUnavailable"
    run.engine.before, run.engine.failing = lambda _: None, {(0, 7): THROWN}
    run.publish()
    run.require_exact((0, 7))


def test_a_batch_that_fails_only_as_a_whole_says_so(run: Run) -> None:
    def fail_whole(request: StageRequest) -> None:
        whole = request.ranges == {"orders": {0: (0, 12), 1: (0, 4)}}
        run.engine.failing = {(0, 0): THROWN} if whole else {}

    run.engine.before = fail_whole

    error = run.fail(JobFailedError)

    assert "every part of the batch can be staged by itself" in error.facts
    assert "max_records" in error.next_step


class Killed(BaseException):
    """The process ends here, without any clean-up that matters."""


@pytest.mark.parametrize("at", [3, 6, 9])
def test_a_search_that_was_killed_at_any_part_is_repeated_with_the_same_result(
    run: Run, at: int
) -> None:
    failing = [(0, 7), (1, 3)]
    run.engine.failing = dict.fromkeys(failing, THROWN)

    def kill(_: StageRequest) -> None:
        if len(run.engine.requests) == at:
            raise Killed

    run.engine.before = kill
    with pytest.raises(Killed):
        run.publish()
    run.publish()

    run.require_exact(*failing)
    run.topic.ends = (14, 4)
    run.engine.before = lambda _: None
    run.publish()
    run.require_exact(*failing)


def test_the_error_budget_counts_records_that_fail(run: Run) -> None:
    run.stream = make_stream(errors={"max_bad_records": 1})
    run.engine.failing = dict.fromkeys([(0, 3), (0, 9)], THROWN)

    run.fail(BudgetExceededError)

    assert run.lake.coordinates() == []
    assert run.letters() == []
    waive_batch(run.open(), run.read_blocked(), Author("jane@example.org", "known"))
    run.publish()
    run.require_exact((0, 3), (0, 9))


def test_a_search_at_its_limit_blocks_the_stream_and_names_the_smallest_range(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.ledger.bisection.MAX_JOBS", 6)
    run.engine.failing = {(0, 7): THROWN}

    error = run.fail(RecordsNotIsolatedError)

    assert "orders:0:6-8" in error.facts
    assert run.engine.jobs == {"stage_batch": 1, "run_parts": 3}
    jobs = run.engine.jobs.total()
    blocked = run.fail(BatchBlockedError)
    assert run.engine.jobs.total() == jobs
    assert "branch" not in str(blocked)
    batch = run.read_blocked()

    waive_batch(run.open(), batch, Author("jane@example.org", "known"))
    monkeypatch.setattr(isolation, "MAX_WAIVED_RECORDS", 1)
    run.fail(RecordsNotIsolatedError)
    monkeypatch.setattr(isolation, "MAX_WAIVED_RECORDS", 5)
    published = run.publish()

    assert (0, 7) not in run.lake.coordinates()
    assert published.rows_written + published.rows_quarantined == 16
    assert 1 < published.rows_quarantined <= 5


def test_an_erased_record_is_not_stored_again_with_a_range_that_fails(run: Run) -> None:
    plan = run.plan().model_copy(update={"left_out": {"orders": {0: [(5, 7)]}}})

    isolated = isolation.read_isolated(run.open(), plan, {OffsetRange(4, 8): "SparkException"})

    assert [record.offset for record in isolated.own] == [4, 7]
    assert isolated.runs == {"orders": {0: [(4, 8)]}}


def test_rows_that_cannot_be_published_are_searched_by_the_next_run(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = commits.build_append

    def refuse_row(
        table: Table,
        summary: Mapping[str, str],
        files: Sequence[DataFile] = (),
        branch: str = "main",
    ) -> AddSnapshotUpdate:
        for file in files if table.name() == ("demo", "orders") else ():
            rows = pq.read_table(file.file_path.removeprefix("file://"))["_kafka"].to_pylist()
            if any((row["partition"], row["offset"]) == (0, 7) for row in rows):
                raise OverflowError(f"{VALUE} is too large")
        return build(table, summary, files, branch)

    monkeypatch.setattr(commits, "build_append", refuse_row)

    error = run.fail(StageStaleError)
    assert "OverflowError" in error.facts
    run.publish()

    run.require_exact((0, 7))
    assert {detail for *_, detail in run.letters()} == {"OverflowError"}


def test_two_partitions_of_one_failing_record_each_do_not_stand(run: Run) -> None:
    run.topic = Topic((1, 1))
    run.engine.failing = {(0, 0): THROWN, (1, 0): THROWN}

    run.fail(BudgetExceededError)
    waive_batch(run.open(), run.read_blocked(), Author("jane@example.org", "known"))
    run.publish()

    run.require_exact((0, 0), (1, 0))
    assert len(run.letters()) == 2


def test_more_failing_records_than_a_search_can_find_block_the_stream(run: Run) -> None:
    run.topic = Topic((1000, 0))
    run.engine.failing = {(0, offset): THROWN for offset in range(1000) if offset != 501}

    error = run.fail(RecordsNotIsolatedError)

    assert "only the job without any record passes" in error.facts
    assert run.engine.jobs.total() < 10
    waive_batch(run.open(), run.read_blocked(), Author("jane@example.org", "known"))
    assert run.publish().rows_quarantined == 1000


ROUTE = {"field": "name", "tables": {"x": "demo.orders", "y": "demo.other"}, "takes": "x"}


@pytest.mark.parametrize("decodes", [True, False], ids=["fails in the write", "fails to decode"])
def test_a_failing_record_of_a_route_belongs_to_one_stream(
    run: Run,
    decodes: bool,  # noqa: FBT001
) -> None:
    run.stream = make_stream(route=ROUTE, errors={"max_bad_ratio": 0.6})
    batch = run.plan().batch_id

    def fail(request: StageRequest) -> None:
        assert request.route is not None
        is_probe = request.route.takes == batch
        run.engine.failing = {} if is_probe and decodes else {(0, 7): THROWN}

    run.engine.before = fail
    published = run.publish()

    assert (0, 7) not in run.lake.coordinates()
    counts = (published.rows_written, published.rows_quarantined, published.rows_skipped)
    assert counts == ((15, 1, 0) if decodes else (15, 0, 1))
    assert len(run.letters()) == int(decodes)


def test_failing_records_of_a_route_that_are_not_found_need_smaller_batches_not_a_waiver(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("frazil.ledger.bisection.MAX_JOBS", 4)
    run.stream = make_stream(route=ROUTE, errors={"max_bad_ratio": 0.6})
    run.engine.failing = {(0, 7): THROWN}

    error = run.fail(RecordsNotIsolatedError)
    blocked = run.fail(BatchBlockedError)
    with pytest.raises(ConfigurationError, match="no waiver is possible") as refused:
        waive_batch(run.open(), run.read_blocked(), Author("jane@example.org", "known"))

    assert "waive" not in f"{error.next_step}{blocked.next_step}"
    assert "batch.max_records" in error.next_step
    assert "batch.max_records below 16" in blocked.next_step
    assert "batch.max_records in the stream file below 16" in refused.value.next_step
