"""Find the records that make a job fail, by bisection (ARCHITECTURE.md, The path of a record).

The input of a job is a sequence of positions, from 0 up. Each test runs the job for a span of
positions; a failing span is halved until single records are left. One run of a job tests several
spans, so that many failing records cost hardly more runs than one. A record counts as failing only
if it failed twice by itself: a single failure may have had another cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from frazil.ledger.offsets import OffsetRange

MAX_JOBS = 40
"""The most runs of the job for one batch: those before the search and after it count, too."""
TESTS_PER_JOB = 16
NECESSARY_FAILURES = 2
LAST_JOBS = 2
"""Runs reserved for staging the other records: one, and one retry after an outage."""
MIN_FAILURES = 30
"""After as many failed tests without a passed one, single records are tested as a sample."""
SAMPLES = 8
_GOLDEN_RATIO = 0.618_033_988_749_895
"""Its multiples, without the integer part, are spread evenly and hit no period of the records."""
EMPTY = OffsetRange(0, 0)


@dataclass(frozen=True)
class Bisection:
    """What the tests so far have shown.

    `untested` are the next spans; `failing` are spans that failed, `failures` how often a single
    position failed, `found` the positions that failed twice. `is_sampled` after a sample of single
    records: if none of them passes, too many records fail for a search. `jobs` counts the batch's
    runs; `is_proved` if each found record costs a part of a run after the search.
    """

    count: int
    untested: tuple[OffsetRange, ...]
    failing: tuple[OffsetRange, ...] = ()
    failures: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))
    found: tuple[int, ...] = ()
    passed: int = 0
    jobs: int = 0
    is_empty_failing: bool = False
    is_sampled: bool = False
    is_proved: bool = False

    @property
    def is_sample_next(self) -> bool:
        """Return whether enough parts failed for the next run to test single records."""
        return not self.passed and not self.is_sampled and len(self.failing) >= MIN_FAILURES

    @property
    def next_spans(self) -> tuple[OffsetRange, ...]:
        """Return the spans of the next run."""
        if self.is_sample_next:
            places = (int(_GOLDEN_RATIO * number % 1 * self.count) for number in range(SAMPLES))
            return tuple(OffsetRange(place, place + 1) for place in places)
        return self.untested[:TESTS_PER_JOB]

    @property
    def has_other_cause(self) -> bool:
        """Return whether no record is the cause: the job also fails with the empty span.

        If that passes, records are the cause, also where every part fails.
        """
        return self.is_empty_failing

    @property
    def is_exhausted(self) -> bool:
        """Return whether spans are left to test, but no run for them, or too many for the rest."""
        proofs = -(-len(self.found) // TESTS_PER_JOB) if self.is_proved else 0
        left = MAX_JOBS - LAST_JOBS - proofs - self.jobs
        positions = sum(span.width for span in self.untested)
        is_hopeless = (
            self.is_sampled
            and not self.passed
            and NECESSARY_FAILURES * positions > left * TESTS_PER_JOB
        )
        return bool(self.untested) and (left <= 0 or is_hopeless)

    @property
    def smallest_failing(self) -> OffsetRange | None:
        """Return the smallest failing span in which not every part is tested."""
        open_spans = [
            span
            for span in self.failing
            if any(span.start <= part.start < span.end for part in self.untested)
        ]
        return min(open_spans, key=lambda span: span.width, default=None)

    @property
    def suspects(self) -> tuple[OffsetRange, ...]:
        """Return everything that has not passed: failing positions and untested spans."""
        positions = (OffsetRange(position, position + 1) for position in self.found)
        return tuple(sorted(positions)) + tuple(span for span in self.untested if span.width)


def begin_search(count: int, *, jobs: int = 0, is_proved: bool = False) -> Bisection:
    """Begin a search in `count` positions whose whole failed; the empty span is tested first.

    `jobs` and `is_proved` as in `Bisection`.
    """
    whole = OffsetRange(0, count)
    parts = halve(whole) if count > 1 else (whole,)
    return Bisection(count, (EMPTY, *parts), jobs=jobs, is_proved=is_proved)


def halve(span: OffsetRange) -> tuple[OffsetRange, OffsetRange]:
    """Return the two halves of a span."""
    middle = (span.start + span.end) // 2
    return OffsetRange(span.start, middle), OffsetRange(middle, span.end)


def note_outcomes(search: Bisection, outcomes: Sequence[bool]) -> Bisection:
    """Return the search after one more run; `outcomes` of its first tests are true if passed.

    A run that ends early tests the remaining spans again in the next run.
    """
    after = replace(search, jobs=search.jobs + 1)
    if search.is_sample_next:
        return replace(after, is_sampled=bool(outcomes), passed=sum(outcomes))
    after = replace(after, untested=search.untested[len(outcomes) :])
    for span, has_passed in zip(search.untested, outcomes, strict=False):
        if not has_passed:
            after = _note_failure(after, span)
        elif span.width:
            after = replace(after, passed=after.passed + 1)
    return after


def _note_failure(search: Bisection, span: OffsetRange) -> Bisection:
    if not span.width:
        return replace(search, is_empty_failing=True)
    failing = search.failing if span in search.failing else (*search.failing, span)
    if span.width > 1:
        return replace(search, failing=failing, untested=(*search.untested, *halve(span)))
    failures = search.failures.get(span.start, 0) + 1
    counted = replace(search, failing=failing, failures={**search.failures, span.start: failures})
    if failures < NECESSARY_FAILURES:
        return replace(counted, untested=(span, *counted.untested))
    return replace(counted, found=(*counted.found, span.start))
