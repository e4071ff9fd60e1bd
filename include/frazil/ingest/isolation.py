"""ISOLATE: find the records that make a batch's job fail, so that the others can be published.

Which parts are tested next is decided by `ledger/bisection.py`; here they run, within limits.
"""

import fcntl
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from frazil.environment import home_dir
from frazil.errors import (
    ConservationError,
    FrazilError,
    JobFailedError,
    RecordsNotIsolatedError,
    SparkUnavailableError,
)
from frazil.iceberg import commits
from frazil.iceberg.branches import create_branches, drop_branches, name_branch
from frazil.iceberg.catalog import dead_letters_name
from frazil.iceberg.table_view import TableView
from frazil.ingest.blocked_batches import NOT_WAIVABLE
from frazil.ingest.dead_letters import stage_isolated_records
from frazil.ingest.error_budget import count_bad_records, has_dead_letters
from frazil.ingest.messages import BatchPlan, StageRequest, StageResult
from frazil.kafka.consumer import KafkaRecord, OffsetConsumer
from frazil.kafka.record_batches import encode_records
from frazil.ledger.bisection import (
    EMPTY,
    MAX_JOBS,
    TESTS_PER_JOB,
    Bisection,
    begin_search,
    note_outcomes,
)
from frazil.ledger.offsets import (
    OffsetRange,
    PlainRanges,
    Runs,
    describe_range,
    describe_ranges,
    iterate_ranges,
    merge_offsets,
    slice_ranges,
    unpack_ranges,
)
from frazil.messages import Message, count_noun
from frazil.streams.routes import Route
from frazil.workspace import Workspace

log = logging.getLogger(__name__)

MAX_SECONDS = 3600.0
"""The longest search; a run of the ingest DAG may take two hours."""
RESTART_SECONDS = 180.0
"""How long to wait for a Spark server that ended during a job."""
SHUTDOWN_SECONDS = 2.0
"""How long a server that ends still accepts connections."""
PAUSES = 2
"""Pause after a restart, as a multiple of the last job's duration: other streams publish."""
MAX_PAUSE_SECONDS = 30.0
LOCK_SECONDS = 60.0
"""How long to wait for the search of another stream whose record ends the server."""
MAX_GIVEN_BYTES = 64 << 20
"""The most bytes of keys and values that a request carries to a job."""
MAX_GIVEN_SPANS = 16
"""The most ranges of a partition that Spark leaves out because of timestamps."""
MAX_WAIVED_RECORDS = 100_000
"""The most records that a waiver makes dead letters, since they are read into memory."""
NOT_NARROWED = "one of several records that fail"
Outcomes = Sequence[FrazilError | None]
Positions = Mapping[OffsetRange, str]
"""Spans of positions, each with the type of the error that it causes."""


@dataclass(frozen=True)
class PartJob:
    """A Spark job that can run for parts of its input.

    `build` makes the request of a span for a branch, `describe` returns its records as text.
    `check` raises if staged rows of a part cannot be published; without it nothing is written, and
    `build` gets no branch. `learn` gets a result with unknown schema ids; its part runs again.
    """

    name: str
    result: type[Message]
    count: int
    build: Callable[[OffsetRange, str], StageRequest]
    describe: Callable[[OffsetRange], str]
    check: Callable[[StageResult, str, int], None] | None = None
    learn: Callable[[StageResult], None] = lambda _: None


@dataclass(frozen=True)
class JobParts:
    """The input of a job, processed in parts; each part has a branch, which is dropped again.

    `jobs` ran before the search; `is_routed` if other streams read the same records.
    """

    work: Workspace
    plan: BatchPlan
    job: PartJob
    jobs: int = 0
    is_routed: bool = False

    def run(self, spans: Sequence[OffsetRange]) -> Outcomes:
        """Run the job for each span; return its error or None.

        Fewer outcomes than spans mean that the others were not tested.
        """
        if self.job.check is None:
            return self._run(spans, [""] * len(spans), 0)
        store, plan = self.work.store, self.plan
        branches = [name_branch(plan.stream, plan.base_epoch, beside=True) for _ in spans]
        head = create_branches(store, plan.table, branches)
        try:
            return self._run(spans, branches, head)
        finally:
            for name in (plan.table, dead_letters_name(plan.table)):
                drop_branches(TableView(store, name), branches)

    def _run(self, spans: Sequence[OffsetRange], branches: Sequence[str], head: int) -> Outcomes:
        requests = [self.job.build(*pair) for pair in zip(spans, branches, strict=True)]
        results = self.work.engine.run_parts(self.job.name, requests, self.job.result)
        outcomes: list[FrazilError | None] = []
        for result, branch in zip(results, branches, strict=False):
            if isinstance(result, StageResult) and result.unknown_ids:
                self.job.learn(result)
                break
            if isinstance(result, StageResult) and self.job.check is not None:
                outcomes.append(_find_error(self.job.check, result, branch, head))
            else:
                outcomes.append(result if isinstance(result, FrazilError) else None)
        return outcomes


def _find_error(
    check: Callable[[StageResult, str, int], None], result: StageResult, branch: str, head: int
) -> FrazilError | None:
    try:
        check(result, branch, head)
    except FrazilError as error:
        return error
    return None


def search_failing_records(
    parts: JobParts, failure: FrazilError, subject: str, *, waived: bool = False
) -> Positions:
    """Find the records that make a job fail.

    With a waiver everything that is still suspected at the limit counts as failing, unless it is
    more than `MAX_WAIVED_RECORDS`, or some may be rows of another stream of the route.

    Raises:
        RecordsNotIsolatedError: the limit of jobs or time was reached.
        FrazilError: `failure`, if no record causes it; an error of another cause.
    """
    search = begin_search(parts.job.count, jobs=parts.jobs, is_proved=parts.is_routed)
    causes, started = dict[OffsetRange, str](), time.monotonic()
    with ServerRestarts(parts.work) as restarts:
        restarts.wait_after([failure])
        while search.untested and not search.has_other_cause:
            if search.is_exhausted or time.monotonic() - started > MAX_SECONDS:
                width = sum(span.width for span in search.suspects)
                if waived and not parts.is_routed and width <= MAX_WAIVED_RECORDS:
                    return {span: causes.get(span, NOT_NARROWED) for span in search.suspects}
                raise _explain_limit(parts, search, failure, subject)
            log.warning("%s: %s", subject, _describe_progress(search, time.monotonic() - started))
            outcomes = parts.run(search.next_spans)
            restarts.wait_after(outcomes)
            for span, error in zip(search.next_spans, outcomes, strict=False):
                if error is not None and not error.is_record_suspected:
                    raise error
                if error is not None:
                    causes[span] = error.cause_type
            search = note_outcomes(search, [error is None for error in outcomes])
    if search.has_other_cause:
        raise _explain_other_cause(failure, causes.get(EMPTY, ""))
    spans = [OffsetRange(p, p + 1) for p in search.found]
    found = {span: causes[span] for span in spans}
    jobs = count_noun(search.jobs, "job")
    log.warning("%s: %s found with %s", subject, count_noun(len(found), "failing record"), jobs)
    return found


class ServerRestarts(ExitStack):
    """Restarts of the Spark server during a search, with pauses for the jobs of other streams.

    A lock allows one search of this kind on a machine: during a restart jobs of other streams fail
    without a bad record, and a search of theirs would find the wrong one.
    """

    def __init__(self, work: Workspace) -> None:
        """Store the stream, whose engine knows the server."""
        super().__init__()
        self._engine = work.engine
        self._is_locked = False
        self._began = time.monotonic()

    def wait_after(self, outcomes: Outcomes) -> None:
        """If the server ended, wait until it is back, and then for jobs of other streams.

        Raises:
            SparkUnavailableError: the server stays away, or another search ends it.
        """
        ended = next((e for e in outcomes if isinstance(e, SparkUnavailableError)), None)
        if ended is not None or not outcomes:
            pause = min(PAUSES * (time.monotonic() - self._began), MAX_PAUSE_SECONDS)
            if ended is not None and not self._is_locked:
                self._lock(ended)
            time.sleep(SHUTDOWN_SECONDS)
            self._engine.wait_until_reachable(RESTART_SECONDS)
            time.sleep(pause)
        self._began = time.monotonic()

    def _lock(self, ended: SparkUnavailableError) -> None:
        home_dir().mkdir(parents=True, exist_ok=True)
        file = self.enter_context((home_dir() / "record_search.lock").open("w"))
        deadline = time.monotonic() + LOCK_SECONDS
        while not self._is_locked:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._is_locked = True
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SparkUnavailableError(
                        f"{ended.facts}\nAnother stream is searching for a record that crashes the "
                        "Spark server",
                        ended.next_step,
                    ) from None
                time.sleep(1)


def _describe_progress(search: Bisection, seconds: float) -> str:
    found = count_noun(len(search.found), "record")
    return (
        f"searching for records that make Spark fail: job {search.jobs + 1} of at most "
        f"{MAX_JOBS}, {count_noun(len(search.next_spans), 'part')}, {found} found, {seconds:.0f} s"
    )


def _explain_limit(
    parts: JobParts, search: Bisection, failure: FrazilError, subject: str
) -> RecordsNotIsolatedError:
    smallest = search.smallest_failing or search.next_spans[0]
    found = ", ".join(parts.job.describe(OffsetRange(p, p + 1)) for p in search.found[:10])
    every = "" if search.passed else "; only the job without any record passes, so that the stream "
    every += "" if search.passed else "file or Spark's settings may be the cause"
    step = "correct the producer or the stream file, for example by a smaller batch.max_records"
    waive = (
        "; if this batch blocks its stream, `frazil waive` makes all records of the ranges that "
        f"still fail dead letters, up to {MAX_WAIVED_RECORDS:,}"
    )
    return RecordsNotIsolatedError(
        f"{subject}: records make Spark fail ({failure.cause_type}); after "
        f"{count_noun(search.jobs, 'job')} the smallest range that still fails is "
        f"{parts.job.describe(smallest)}; single records found: {found or 'none'}{every}"
        f"{'; ' + NOT_WAIVABLE if parts.is_routed else ''}",
        step + ("" if parts.is_routed else waive),
    )


def _explain_other_cause(failure: FrazilError, cause_type: str) -> FrazilError:
    """Return the failure with the finding that no single record causes it; it may be retried."""
    return type(failure)(
        f"{failure.facts}\nNo single record is the cause: the job also fails without any record "
        f"({cause_type})",
        failure.next_step,
    )


def explain_rest(error: FrazilError, found: int) -> FrazilError:
    """Return the error of a batch that fails as a whole although each of its parts succeeds."""
    if not error.is_record_suspected:
        return error
    without = f" without {count_noun(found, 'failing record')}" if found else ""
    return type(error)(
        f"{error.facts}\nNo single record is the cause: every part of the batch can be staged by "
        f"itself, the whole batch{without} cannot",
        "give Spark more memory, or set a smaller batch.max_records in the stream file; the next "
        "run tries again",
    )


@contextmanager
def suspected_records(doing: str, kind: type[FrazilError] = JobFailedError) -> Iterator[None]:
    """Translate unexpected errors while staged rows are read: a value of a record may cause them.

    Raises:
        FrazilError: one of this kind; it names the type of the error, whose text may hold values.
    """
    try:
        yield
    except (FrazilError, OSError):
        raise
    except Exception as error:
        name = type(error).__name__
        raise kind(
            f"{doing}: {name}; its message is not shown, because it may contain values of records",
            "run again: the next run searches for the record that causes it",
        ).suspect_record(name) from error


def require_publishable(work: Workspace, plan: BatchPlan, snapshot_id: int | None) -> None:
    """Build the snapshot of the staged files without a commit; raises what PUBLISH would raise."""
    if snapshot_id is not None:
        table = TableView(work.store, plan.table).table
        commits.build_append(table, {}, commits.read_added_files(table, snapshot_id))


def may_isolate(error: FrazilError, *, is_repeated: bool) -> bool:
    """Return whether to search for failing records.

    A server may end for many reasons, so it is searched for a record only if an earlier attempt of
    the same batch failed, too.
    """
    is_crash = isinstance(error, SparkUnavailableError)
    return error.is_record_suspected and (is_repeated or not is_crash)


def read_unreadable_records(work: Workspace, plan: BatchPlan) -> dict[str, object]:
    """Read the records at whose timestamps Spark's Kafka source fails.

    Returns the fields of a request that give them to its job, none without such records. Their
    neighbours are given with them, so that Spark reads few ranges.

    Raises:
        RecordsNotIsolatedError: they are too many for a request.
        KafkaUnavailableError: the broker does not answer.
    """
    consumer = OffsetConsumer(work.kafka, work.kafka_config)
    isolation, found, size = work.stream.source.isolation, list[KafkaRecord](), 0
    given: Runs = {}
    for topic, ranges in plan.offset_ranges.items():
        unreadable = consumer.fetch_unreadable(topic, ranges, isolation)
        for partition, offsets in sorted(unreadable.items()):
            for span in merge_offsets(offsets, MAX_GIVEN_SPANS):
                records = consumer.fetch_records(topic, partition, span, isolation)
                size += sum(len(each.value or b"") + len(each.key or b"") for each in records)
                if size > MAX_GIVEN_BYTES:
                    raise RecordsNotIsolatedError(
                        f"stream {plan.stream}: batch {plan.batch_id} has more than "
                        f"{MAX_GIVEN_BYTES >> 20} MB of records whose timestamps are beyond what "
                        f"Spark can read, the first at {describe_range(topic, partition, span)}",
                        "correct the producer, which probably sends nanoseconds, and set a smaller "
                        "batch.max_records in the stream file; the next run tries again",
                    )
                found += records
                runs = given.setdefault(topic, {}).setdefault(partition, [])
                runs.append((span.start, span.end))
    if not given:
        return {}
    counted = count_noun(len(found), "record")
    subject = f"stream {plan.stream}: batch {plan.batch_id}"
    log.warning("%s: %s read without Spark, which cannot hold their timestamps", subject, counted)
    return {"given": given, "given_records": encode_records(found)}


@dataclass(frozen=True)
class Isolated:
    """The records of a batch that make its job fail, each with the type of the error.

    `elsewhere` are those that belong to another stream of the route.
    """

    runs: Runs
    own: dict[KafkaRecord, str]
    elsewhere: dict[KafkaRecord, str]

    def add_to(self, result: StageResult) -> StageResult:
        """Return the counters of the other records together with these."""
        records = [*self.own, *self.elsewhere]
        read = Counter((record.topic, record.partition) for record in records)
        parts = tuple(
            part.model_copy(update={"rows_read": part.rows_read + read[part.topic, part.partition]})
            for part in result.partitions
        )
        return result.model_copy(
            update={
                "rows_read": result.rows_read + len(records),
                "rows_invalid": result.rows_invalid + len(self.own),
                "rows_routed_elsewhere": result.rows_routed_elsewhere + len(self.elsewhere),
                "partitions": parts,
            }
        )


def describe_part(ranges: PlainRanges, span: OffsetRange) -> str:
    """Return the offsets at these positions as `topic:partition:start-end`."""
    return describe_ranges(unpack_ranges(slice_ranges(ranges, span)))


def select_own(parts: JobParts, found: Positions, route: Route | None) -> Positions:
    """Return those failing records that no other stream of the route makes a dead letter.

    Records that do not decode belong to the route's fallback stream, so each one is decoded without
    being written, as a record that is routed elsewhere. Records that still fail also fail in the
    fallback stream.
    """
    if route is None or not parts.is_routed:
        return found
    nowhere = route.model_copy(update={"takes": parts.plan.batch_id})  # no record has this value

    def build(span: OffsetRange, branch: str) -> StageRequest:
        return parts.job.build(span, branch).model_copy(update={"route": nowhere})

    tests = replace(parts, job=replace(parts.job, build=build))
    left, own = sorted(found), dict[OffsetRange, str]()
    with ServerRestarts(parts.work) as restarts:
        while left:
            spans = left[:TESTS_PER_JOB]
            outcomes = tests.run(spans)
            restarts.wait_after(outcomes)
            own |= {s: found[s] for s, e in zip(spans, outcomes, strict=False) if e is None}
            left = left[max(len(outcomes), 1) :]
    return own


def read_isolated(
    work: Workspace, plan: BatchPlan, found: Positions, own: Positions | None = None
) -> Isolated:
    """Read failing records from Kafka, without Spark; without `own` all are the stream's own.

    Records that were erased are left out.

    Raises:
        ConservationError: Kafka does not deliver one of them.
        KafkaUnavailableError: the broker does not answer.
    """
    consumer = OffsetConsumer(work.kafka, work.kafka_config)
    isolation = work.stream.source.isolation
    isolated = Isolated({}, {}, {})
    for span, cause in sorted(found.items()):
        part = unpack_ranges(slice_ranges(plan.ranges, span))
        for topic, partition, offsets in iterate_ranges(part):
            erased = plan.left_out.get(topic, {}).get(partition, [])
            records = [
                record
                for record in consumer.fetch_records(topic, partition, offsets, isolation)
                if not any(start <= record.offset < end for start, end in erased)
            ]
            if span.width == 1 and not records:
                raise ConservationError(
                    f"{describe_range(topic, partition, offsets)} makes Spark fail, but Kafka "
                    "does not deliver it",
                    "nothing is visible; run again, and report this if it happens again",
                )
            target = isolated.own if own is None or span in own else isolated.elsewhere
            target.update(dict.fromkeys(records, cause))
            runs = isolated.runs.setdefault(topic, {}).setdefault(partition, [])
            runs.append((offsets.start, offsets.end))
    return isolated


def stage_isolated(
    work: Workspace, plan: BatchPlan, attempt: str, result: StageResult, isolated: Isolated
) -> StageResult:
    """Stage isolated records as dead letters, if the batch may have any; return all counters."""
    counted = isolated.add_to(result)
    records = count_bad_records(work.stream, counted)
    allowed = has_dead_letters(work.stream.errors, records, waived=plan.ignores_budget)
    if not isolated.own or not allowed:
        return counted
    has_others = result.rows_dead > 0
    stage_isolated_records(work.store, plan, attempt, isolated.own, has_others=has_others)
    return counted.model_copy(update={"rows_dead": result.rows_dead + len(isolated.own)})
